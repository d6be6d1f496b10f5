"""What may be wrong with a store and those who work on it: each look gives findings, in words."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from itertools import islice
from shlex import quote

from packhorse.app import Packhorse
from packhorse.clock import SECOND, SystemClock, to_datetime
from packhorse.errors import PackhorseError, PayloadError, StoreError
from packhorse.ids import from_text, new_id
from packhorse.job import FINISHED, JobState, StoredJob
from packhorse.masking import masked_url
from packhorse.queues import Selected, local_owner, parse_queues
from packhorse.signing import PREFIX_SIZE, key_id
from packhorse.stores.contract import OWN_KEY, Finding, Level, Paused, ProcessView, QueueCounts, Selection

OK, WARNING, PROBLEM = Level.OK, Level.WARNING, Level.PROBLEM

SAMPLE = 100
TASKS_SAMPLE = 1_000
RUNNING_SAMPLE = 1_000
SCHEDULES_SAMPLE = 1_000
NAMED = 5  # queues or tasks in one sentence
OVERDUE = timedelta(seconds=15)
SLOW_WRITE = 1.0
CLOCK_WARNING, CLOCK_PROBLEM = 2.0, 30.0
FAILED_SHARE, FAILED_LEAST = 0.1, 10

UNFINISHED = frozenset(JobState) - FINISHED


def examine(app: Packhorse, *, named: bool = True) -> Iterator[Finding]:
    """Look at everything, the store first: where it does not answer there is nothing more to see.

    `named` is False where the application's name is not known, without which no signature can be verified.
    """
    store = masked_url(app.store.url)
    if not app.inspection.exists():
        yield Finding(PROBLEM, "store", f"There is no store at {store} yet.", "Check the URL, or enqueue first.")
        return
    try:
        version = app.store.schema_version()
        yield Finding(OK, "store", f"{store} answers; its schema is at version {version}.")
        yield from _looks(app, named)
    except StoreError as error:
        yield Finding(PROBLEM, "store", f"{store} cannot be used: {error}", "Mend that first, then look again.")


def _looks(app: Packhorse, named: bool) -> Iterator[Finding]:
    seen = _Seen(app)
    yield _writing(app)
    yield from seen.own
    yield _clock(app)
    yield from _processes(seen)
    yield from _orphans(seen)
    yield from _deaf(seen)
    yield from _overdue(seen)
    yield from _schedules(seen)
    yield from _pauses(seen)
    yield _failures(seen)
    if app.known_tasks:
        yield from _tasks(seen)
    if named and app.settings.signing and seen.sample:
        yield from _signatures(seen)


@dataclass(frozen=True)
class _Seen:
    """What several looks need."""

    app: Packhorse

    @cached_property
    def now(self) -> datetime:
        return to_datetime(self.app.clock.now())

    @cached_property
    def own(self) -> list[Finding]:
        return self.app.store.examine()

    @cached_property
    def queues(self) -> list[QueueCounts]:
        return self.app.inspection.queues()

    @cached_property
    def processes(self) -> list[ProcessView]:
        return self.app.inspection.processes()

    @cached_property
    def live(self) -> list[ProcessView]:
        return [process for process in self.processes if process.lease_left > 0]

    @cached_property
    def sample(self) -> list[StoredJob]:
        """The oldest unfinished jobs."""
        return self.jobs(Selection(states=UNFINISHED), TASKS_SAMPLE)

    def jobs(self, selection: Selection, limit: int) -> list[StoredJob]:
        return list(islice(self.app.inspection.stored_jobs(selection, page=min(limit, 500)), limit))

    def unfinished(self) -> int:
        return sum(queue.of(state) for queue in self.queues for state in UNFINISHED)

    def has_dispatcher(self) -> bool:
        return self._has("dispatcher")

    def has_scheduler(self) -> bool:
        return self._has("scheduler")

    def _has(self, role: str) -> bool:
        return any(process.role == role for process in self.live)


def _writing(app: Packhorse) -> Finding:
    """A beat of nobody takes the way of every write, and changes nothing."""
    began = time.monotonic()
    app.store.beat([])
    took = time.monotonic() - began
    text = f"It can be written to, after {took * 1000:.0f} ms."
    if took < SLOW_WRITE:
        return Finding(OK, "store", text)
    return Finding(WARNING, "store", text, "Look for programs that write to it without a pause, and at the disk.")


def _clock(app: Packhorse) -> Finding:
    """An exchange of nothing by nobody tells the store's time."""
    machine = SystemClock()
    before = machine.now()
    theirs = app.store.exchange(new_id(), 0, [], (), 0).now
    after = machine.now()
    off = max(before - theirs, theirs - after, 0) / SECOND
    if off < CLOCK_WARNING:
        return Finding(OK, "clock", "The store's clock and this machine's agree.")
    level = PROBLEM if off >= CLOCK_PROBLEM else WARNING
    text = f"The store's clock and this machine's are {off:,.1f} s apart."
    return Finding(level, "clock", text, "Set both by NTP: jobs expire and come due by these clocks.")


def _processes(seen: _Seen) -> Iterator[Finding]:
    roles = Counter(process.role for process in seen.live)
    if roles:
        listed = ", ".join(f"{number} {role}{'s' if number > 1 else ''}" for role, number in sorted(roles.items()))
        yield Finding(OK, "processes", f"{listed} live.")
    else:
        level = WARNING if seen.unfinished() else OK
        remedy = "Start some with `packhorse worker APP`." if level is WARNING else ""
        yield Finding(level, "processes", "No process lives: nobody performs jobs now.", remedy)
    for process in seen.processes:
        if process.lease_left <= 0:
            yield Finding(
                WARNING,
                "processes",
                f"The {process.role} with pid {process.pid} on {process.host} has no lease: it died, hangs, or cannot "
                f"reach the store. It holds {_jobs(process.running, 'running')}.",
                "See whether it is still there. A live dispatcher clears it away within seconds."
                if seen.has_dispatcher()
                else "Start a worker with its dispatcher, which clears it away.",
            )


def _orphans(seen: _Seen) -> Iterator[Finding]:
    live = {process.id for process in seen.live}
    running = seen.jobs(Selection(states={JobState.RUNNING}), RUNNING_SAMPLE)
    orphans = [job for job in running if job.process not in live]
    if not orphans:
        yield Finding(OK, "orphans", "Every running job has a live process.")
        return
    text = f"{_of(len(orphans), len(running), RUNNING_SAMPLE)} running {_job_is(len(running))} without a live process."
    if seen.has_dispatcher():
        remedy = "The dispatcher gives them a verdict within seconds. If they are here again soon, read its log."
        yield Finding(WARNING, "orphans", text, remedy)
    else:
        remedy = "Start a worker with its dispatcher: nobody else sends them round again."
        yield Finding(PROBLEM, "orphans", text, remedy)


def _deaf(seen: _Seen) -> Iterator[Finding]:
    served = [parsed for process in seen.live if process.role == "worker" for parsed in _parsed(process.queues)]
    deaf = [queue for queue in seen.queues if _is_deaf(seen, queue, served)]
    if not deaf:
        yield Finding(OK, "queues", "Every queue with ready jobs is served, or is paused.")
    for queue in deaf:
        yield Finding(
            PROBLEM,
            "queues",
            f"Queue {queue.queue} has {_jobs(queue.of(JobState.READY), 'ready')}, and no live worker serves it.",
            f"Start a worker with --queues {quote(queue.queue)}, or '*' for all.",
        )


def _is_deaf(seen: _Seen, queue: QueueCounts, served: list[Selected]) -> bool:
    if not queue.of(JobState.READY) or queue.pause is not None or local_owner(queue.queue) is not None:
        return False
    if any(entry.matches(queue.queue) for entries in served for entry in entries):
        return False
    oldest = seen.jobs(Selection(states={JobState.READY}, queues={queue.queue}), SAMPLE)
    return any(max(job.created_at, job.run_at or job.created_at) < seen.now - OVERDUE for job in oldest)


def _parsed(queues: str) -> list[Selected]:
    """Nothing where a process says nonsense of itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return [parse_queues(queues)]
        except PackhorseError:
            return []


def _overdue(seen: _Seen) -> Iterator[Finding]:
    """Nobody but a dispatcher makes due jobs ready."""
    scheduled = seen.jobs(Selection(states={JobState.SCHEDULED}), TASKS_SAMPLE)
    late = [job for job in scheduled if job.run_at is not None and job.run_at < seen.now - OVERDUE]
    if late:
        text = f"{_of(len(late), len(scheduled), TASKS_SAMPLE)} scheduled {_job_is(len(scheduled))} overdue."
        remedy = "Read the dispatcher's log." if seen.has_dispatcher() else "Start a worker with its dispatcher."
        yield Finding(PROBLEM, "dispatcher", text, remedy)
    elif scheduled and not seen.has_dispatcher():
        text = "Jobs are scheduled, but no dispatcher lives that would make them ready."
        yield Finding(WARNING, "dispatcher", text, "Start a worker with its dispatcher.")


def _schedules(seen: _Seen) -> Iterator[Finding]:
    """Nobody but a scheduler enqueues their jobs."""
    views = list(islice(seen.app.schedules.all(), SCHEDULES_SAMPLE))
    broken = [view for view in views if view.error]
    for view in broken[:NAMED]:
        text = f"Schedule {view.key} gets no job: {view.error}"
        remedy = "Mend its code." if view.declared else "Deploy the code that it needs, or edit or remove it."
        yield Finding(PROBLEM, "schedules", text, remedy)
    if len(broken) > NAMED:
        yield Finding(PROBLEM, "schedules", f"So it is with {len(broken) - NAMED:,} more schedules.")
    coming = [view for view in views if view.next_at is not None and not view.error]
    late = [view for view in coming if view.next_at is not None and view.next_at < seen.now - OVERDUE]
    if late:
        text = f"{len(late):,} of {_schedules_are(len(coming))} overdue, first of all {late[0].key}."
        remedy = "Read the scheduler's log." if seen.has_scheduler() else "Start a worker with its scheduler."
        yield Finding(PROBLEM, "schedules", text, remedy)
    elif coming and not seen.has_scheduler():
        text = "There are schedules, but no scheduler lives that would enqueue their jobs."
        yield Finding(WARNING, "schedules", text, "Start a worker with its scheduler.")
    elif coming:
        yield Finding(OK, "schedules", f"{_schedules_are(len(coming))} in time.")


def _pauses(seen: _Seen) -> Iterator[Finding]:
    unfinished = {queue.queue: sum(queue.of(state) for state in UNFINISHED) for queue in seen.queues}
    for pause in seen.app.inspection.pauses():
        reason = f" ({pause.reason})" if pause.reason else ""
        text = f"{pause.kind.capitalize()} {pause.name} is paused by {pause.actor}{reason}"
        if pause.kind is Paused.QUEUE:
            text += f", with {_jobs(unfinished.get(pause.name, 0), 'unfinished')}"
        if pause.until is not None:
            yield Finding(OK, "pauses", f"{text}, until {pause.until.isoformat(timespec='seconds')}.")
        else:
            remedy = f"If it was forgotten: packhorse {pause.kind}s resume {quote(pause.name)}"
            yield Finding(WARNING, "pauses", f"{text}, and without an end.", remedy)


def _failures(seen: _Seen) -> Finding:
    failed, succeeded = (sum(q.of(state) for q in seen.queues) for state in (JobState.FAILED, JobState.SUCCEEDED))
    share = failed / max(1, failed + succeeded)
    text = f"Of the finished jobs that are kept, {failed:,} failed and {succeeded:,} succeeded."
    if failed < FAILED_LEAST or share < FAILED_SHARE:
        return Finding(OK, "failures", text)
    return Finding(WARNING, "failures", text, "See what they have in common: packhorse dead list.")


def _tasks(seen: _Seen) -> Iterator[Finding]:
    names = Counter(job.task for job in seen.sample)
    unknown = {name: number for name, number in names.items() if name not in seen.app.known_tasks}
    if not unknown:
        yield Finding(OK, "tasks", f"This application knows the tasks of {_jobs(len(seen.sample), 'unfinished')}.")
        return
    listed = ", ".join(f"{name} ({number:,})" for name, number in list(unknown.items())[:NAMED])
    more = f" and {len(unknown) - NAMED:,} more" if len(unknown) > NAMED else ""
    yield Finding(
        WARNING,
        "tasks",
        f"Unfinished jobs have tasks that this application does not know: {listed}{more}.",
        "Deploy the code that has them, or declare the names as aliases of the tasks they have become.",
    )


# Signatures and keys.


def _signatures(seen: _Seen) -> Iterator[Finding]:
    try:
        ids = _key_ids(seen)
        opened = seen.app.seals.open_job if ids else None
    except PackhorseError as error:
        yield Finding(PROBLEM, "keys", f"The keys cannot be used: {error}", "Mend that first, then look again.")
        return
    if opened is None:
        yield Finding(
            PROBLEM,
            "keys",
            "There are unfinished jobs, but no key to verify them with.",
            "Give the keys they were signed with (PACKHORSE_KEYS or keys_file), or put the key file back.",
        )
        return
    signers: Counter[bytes] = Counter()
    bad: list[tuple[str, PayloadError]] = []
    looked_at = 0
    for job in seen.sample[:SAMPLE]:
        raw = from_text(job.id)
        if (whole := seen.app.store.job(raw)) is None:
            continue
        looked_at += 1
        try:
            opened(raw, job.task, whole.payload)
            signers[whole.payload[2:PREFIX_SIZE]] += 1
        except PayloadError as error:
            bad.append((job.id, error))
    yield _verified(bad, looked_at)
    yield from _ring(ids, signers)


def _key_ids(seen: _Seen) -> list[bytes]:
    """None where a key of the store's own is not there: to ask for it would make one, and hide that it is gone."""
    ring = seen.app.settings.key_ring()
    if not ring and any(finding.about == OWN_KEY for finding in seen.own):
        ring = tuple(key for key in [seen.app.store.own_key()] if key is not None)
    return list(map(key_id, ring))


def _verified(bad: list[tuple[str, PayloadError]], looked_at: int) -> Finding:
    if not bad:
        text = f"{_jobs(looked_at, 'unfinished')} looked at: all are signed as they should be."
        return Finding(OK, "signatures", text)
    first, error = bad[0]
    return Finding(
        PROBLEM,
        "signatures",
        f"{len(bad):,} of {_jobs(looked_at, 'unfinished')} looked at cannot be verified, first of all {first}: {error}",
        "They will fail. If a key was removed too early, put it back; else find out who writes to the store.",
    )


def _ring(ids: list[bytes], signers: Counter[bytes]) -> Iterator[Finding]:
    for number, id in enumerate(ids, 1):
        signed = signers[id]
        which = "the one that signs now" if number == 1 else "an older one"
        text = f"Key {number} ({id.hex()}, {which}) signed {signed:,} of {_jobs(signers.total(), 'unfinished')}."
        remedy = ""
        if number > 1:
            remedy = (
                "Keep it until they are done."
                if signed
                else "It may go once no failed job of its time is to be retried, and no result of it to be read."
            )
        yield Finding(OK, "keys", text, remedy)


def _jobs(number: int, kind: str) -> str:
    return f"{number:,} {kind} job{'' if number == 1 else 's'}"


def _schedules_are(number: int) -> str:
    return f"{number:,} schedule{' is' if number == 1 else 's are'}"


def _job_is(number: int) -> str:
    return "job is" if number == 1 else "jobs are"


def _of(some: int, seen: int, bound: int) -> str:
    return f"{some:,} of {'the oldest ' if seen == bound else ''}{seen:,}"
