"""A store and a plain model live through the same random histories and must give the same answers.

`HYPOTHESIS_PROFILE=nightly` makes it long.
"""

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule, run_state_machine_as_test

from packhorse.clock import SECOND, Clock
from packhorse.ids import from_text, to_text
from packhorse.job import JobState, NewJob
from packhorse.limits import Pace
from packhorse.outcome import FOREVER, Outcome
from packhorse.queues import parse_queues
from packhorse.stores import Store
from packhorse.stores.contract import (
    Act,
    Change,
    Entry,
    LimitView,
    Paused,
    ProcessInfo,
    ProcessView,
    Retention,
    Selection,
)
from packhorse.testing.contract.behind import epochs, leftovers
from packhorse.testing.contract.helpers import (
    OTHER_FAILURE,
    cancelled,
    failed,
    id_of,
    lost,
    released,
    retried,
    snoozed,
    strayed,
    succeeded,
)
from packhorse.testing.contract.history import (
    KEYS,
    PROCESSES,
    QUEUES,
    RATES,
    SHARES,
    SOME_IDS,
    TAGS,
    TASKS,
    ids,
    jobs,
    needs,
    processes,
    queues,
    tokens,
)
from packhorse.testing.contract.history_of_flows import FLOWS, Flows
from packhorse.testing.contract.history_of_schedules import Schedules, rows
from packhorse.testing.contract.history_of_signals import Signals
from packhorse.testing.contract.model.places import DOOR

SUBJECTS = ["flows", "signals", "schedules"]
SERVED = ["*", "*", "mail*", "mail,*", "report,mail*,default", "mail.bulk,mail*", "default", "nobody,report"]
seconds = st.sampled_from([0.001, 0.5, 1, 2, 3, 5, 12])

ENDINGS = {
    "succeed": lambda token: succeeded(token, duration=None),
    "succeed with a result": lambda token: succeeded(token, b"42"),
    "succeed with a lost result": lambda token: succeeded(token)._replace(result_error="too large"),
    "fail": failed,
    "fail unspent": lambda token: failed(token, OTHER_FAILURE, spent=False),
    "retry now": retried,
    "retry later": lambda token: retried(token, 4 * SECOND, OTHER_FAILURE),
    "snooze": lambda token: snoozed(token, 2 * SECOND),
    "snooze for nothing": lambda token: snoozed(token, 0),
    "release": released,
    "cancel": cancelled,
    "lost, run again": lost,
    "lost for good": lambda token: lost(token, JobState.FAILED),
    "succeed and go": lambda token: succeeded(token, b"42")._replace(keep=0),
    "succeed for a while": lambda token: succeeded(token)._replace(keep=4 * SECOND),
    "succeed, the result for a while": lambda token: succeeded(token, b"42")._replace(result_ttl=2 * SECOND),
    "succeed, no result for a while": lambda token: succeeded(token)._replace(result_ttl=SECOND),
    "fail, half a result for a while": lambda token: failed(token)._replace(result=b"21", result_ttl=2 * SECOND),
    "succeed, the result and the job for a while": lambda token: succeeded(token, b"42")._replace(
        keep=4 * SECOND, result_ttl=3 * SECOND
    ),
    "succeed, the result longer than the job": lambda token: succeeded(token, b"42")._replace(
        keep=SECOND, result_ttl=3 * SECOND
    ),
    "fail and go": lambda token: failed(token)._replace(keep=0),
    "fail for a while": lambda token: failed(token)._replace(keep=2 * SECOND),
    "fail and stay": lambda token: failed(token)._replace(keep=FOREVER),
    "cancel for a while, with half a result": lambda token: cancelled(token)._replace(
        keep=6 * SECOND, result=b"21", result_ttl=3 * SECOND
    ),
    "stray": lambda token: strayed(token, 2 * SECOND),
    "stray for nothing": strayed,
    "retry now, and otherwise go": lambda token: retried(token)._replace(keep=0, result_ttl=SECOND),
}
offers = st.lists(st.tuples(tokens, st.sampled_from(sorted(ENDINGS))), max_size=6)
several_states = st.lists(st.sampled_from(list(JobState)), min_size=1, max_size=4)
selections = st.one_of(
    st.just(Selection()),
    st.builds(Selection, ids=st.lists(ids, max_size=6)),
    st.builds(Selection, states=several_states),
    st.builds(Selection, queues=st.lists(queues, min_size=1, max_size=2)),
    st.builds(Selection, tags=st.lists(st.sampled_from(TAGS), max_size=2), states=st.none() | several_states),
    st.builds(Selection, flow=st.sampled_from(FLOWS), states=st.none() | several_states),
    st.builds(Selection, tasks=st.lists(st.sampled_from(TASKS), max_size=2), queues=st.none() | st.just(QUEUES[:2])),
)
changes = st.builds(
    Change,
    st.sampled_from([*Act, Act.DISCARD]),
    queue=st.none() | queues,
    priority=st.none() | st.sampled_from([-3, 0, 7]),
    seal=st.sampled_from([b"", b"\0\xff", b"sealed"]),
    payload=st.sampled_from([b"loaded", b"loaded anew"]),
)
# Seconds from now.
bounds = dict.fromkeys(
    ("created_from", "created_before", "finished_from", "finished_before"), st.sampled_from([-12, -5, -2, 0, 1])
)
moments: st.SearchStrategy[dict[str, int]] = st.just({}) | st.fixed_dictionaries({}, optional=bounds)
kept_for = st.none() | st.sampled_from([0, SECOND, 10 * SECOND])


class Histories(Flows, Signals, Schedules):
    """Each rule does one thing to both of them and compares the answers; then all that can be seen is compared."""

    def teardown(self) -> None:
        try:
            self.shown = {}
            self.both_show_the_same()
            self.settle()
        finally:
            self.store.close()

    def outcomes(self, offered: list[tuple[tuple[str, int], str]]) -> list[Outcome]:
        return [ENDINGS[ending](self.token(which)) for which, ending in offered]

    # Members and time.

    @initialize(
        wanted=st.lists(jobs, min_size=6, max_size=16),
        kind=st.sampled_from(["plain", "limits", "limits", "rates", "shares"]),
        subjects=st.sampled_from([[], ["flows"], ["flows"], ["signals"], ["schedules"], SUBJECTS]),
        declared=rows,
        heavy=st.sampled_from([0, 0, 0, 4]),
    )
    def begin(
        self, wanted: list[dict[str, Any]], kind: str, subjects: list[str], declared: dict[str, Any], heavy: int
    ) -> None:
        self.kind = kind
        self.heavy = heavy
        self.subjects = set(subjects)
        for process in PROCESSES[:3]:
            self.both("enroll", ProcessInfo(process, "worker", "here", 7, "*", PROCESSES[3]), 30 * SECOND)
        self.both("insert", [self.new_job(**fields) for fields in wanted])
        if "schedules" in subjects:
            self.both("save_schedules", "shop", [self.row(**declared)])

    @precondition(lambda self: self.is_broad)
    @rule(process=processes, lease=st.sampled_from([10, 30]), role=st.sampled_from(["worker", "dispatcher"]))
    def enroll(self, process: bytes, lease: int, role: str) -> None:
        self.both("enroll", ProcessInfo(process, role, "here", 7, "*", PROCESSES[3]), lease * SECOND)

    @precondition(lambda self: self.is_broad)
    @rule(who=st.just(set(PROCESSES)) | st.sets(processes))
    def beat(self, who: set[bytes]) -> None:
        self.both("beat", sorted(who))

    @precondition(lambda self: self.is_broad and self.model.running)
    @rule(process=processes)
    def leave(self, process: bytes) -> None:
        self.both("leave", process)

    @rule(length=seconds, what=st.sampled_from(["passes"] * 6 + ["is set", "is set back", "begins anew"]))
    def time(self, length: float, what: str) -> None:
        match what:
            case "passes":
                self.clock.advance(length)
            case "is set":
                self.clock.step(length)
            case "is set back" if not self.aged_keys:  # a key that has lapsed may have been forgotten, or come back
                self.clock.step(-length)
            case "begins anew":
                self.clock.reboot()

    # Jobs come.

    @rule(wanted=st.lists(jobs, max_size=6))
    def insert(self, wanted: list[dict[str, Any]]) -> None:
        self.both("insert", [self.new_job(**fields) for fields in wanted])

    @precondition(lambda self: self.is_broad)
    @rule(wanted=st.lists(jobs, min_size=1, max_size=6))
    def insert_twice(self, wanted: list[dict[str, Any]]) -> None:
        batch = [self.new_job(**fields) for fields in wanted]
        self.both("insert", batch)
        self.both("insert", batch[::-1])

    @precondition(lambda self: self.is_broad and self.bulks < 2)
    @rule(size=st.sampled_from([5, 20, 70]), queue=queues, wanted=needs)
    def insert_many(self, size: int, queue: str, wanted: dict[str, Any]) -> None:
        self.bulks += 1
        names = [f"bulk {self.bulks} {number:02}" for number in range(size)]
        fields = self.terms(**wanted | {"unique": None})
        self.both("insert", [NewJob(id_of(name), "birds.count", name.encode(), queue, **fields) for name in names])

    # Jobs run.

    @rule(
        process=processes,
        offered=offers,
        served=st.sampled_from(SERVED),
        limit=st.sampled_from([0, 1, 2, 3, 5, 50]),
        starting=st.integers(0, 4),
        started=st.lists(tokens, max_size=2),
    )
    def exchange(self, process, offered, served, limit, starting, started) -> None:
        outcomes = self.outcomes(offered)
        begun = [self.token(which) for which in started]
        reply = self.exchange_both(process, outcomes, served, limit, starting=starting, started=begun)
        self.given += [claim.token for claim in reply.claims]

    @precondition(lambda self: self.model.ready or self.model.waiting)
    @rule(process=processes, served=st.sampled_from(SERVED), limit=st.integers(1, 8))
    def claim(self, process: bytes, served: str, limit: int) -> None:
        self.claim_some(process, served, limit)

    @precondition(lambda self: self.model.ready or self.model.waiting)
    @rule(process=processes, endings=st.lists(st.sampled_from(sorted(ENDINGS)), min_size=1, max_size=8))
    def perform(self, process: bytes, endings: list[str]) -> None:
        """Some jobs begin and end at once."""
        tokens = self.claim_some(process, "*", len(endings))
        outcomes = [ENDINGS[ending](token) for ending, token in zip(endings, tokens, strict=False)]
        assert self.both("exchange", process, self.new_nonce(), outcomes, parse_queues("*"), 0).refused == []

    @precondition(lambda self: self.model.running)
    @rule(number=st.integers(0, 40), endings=st.lists(st.sampled_from(sorted(ENDINGS)), min_size=1, max_size=8))
    def finish(self, number: int, endings: list[str]) -> None:
        """Some of the held jobs end, all with good tokens."""
        held = self.held_now()
        turned = held[number % len(held) :] + held[: number % len(held)]
        outcomes = [ENDINGS[ending](token) for ending, token in zip(endings, turned, strict=False)]
        process = turned[0].process
        reply = self.both("exchange", process, self.new_nonce(), outcomes, parse_queues("*"), 0)
        assert reply.refused == []

    @precondition(lambda self: self.is_broad and self.model.running)
    @rule(which=tokens, ending=st.sampled_from(sorted(ENDINGS)))
    def offer_one(self, which: tuple[str, int], ending: str) -> None:
        """A single outcome, good or bad, that no other one of a batch distracts from."""
        token = self.token(which)
        self.both("exchange", token.process, self.new_nonce(), [ENDINGS[ending](token)], parse_queues("*"), 0)

    @precondition(lambda self: self.is_broad and (self.model.ready or self.model.waiting))
    @rule(process=processes, offered=offers, limit=st.integers(1, 5))
    def lose_a_reply(self, process, offered, limit) -> None:
        """The store has done it, but the process never hears of it."""
        outcomes = self.outcomes(offered)
        self.exchange_both(process, outcomes, "*", limit, starting=limit)
        self.doubts.setdefault(process, []).extend(outcomes)

    @precondition(lambda self: self.is_broad and self.doubts)
    @rule(number=st.integers(0, 3))
    def resolve_a_doubt(self, number: int) -> None:
        """The process gives back what it was never told of, and offers the same outcomes again."""
        process = sorted(self.doubts)[number % len(self.doubts)]
        untold = [token for token in self.both("held", process) if token not in self.given]
        outcomes = [*self.doubts.pop(process), *map(released, untold)]
        reply = self.both("exchange", process, self.new_nonce(), outcomes, parse_queues("*"), 0)
        assert not set(reply.refused) & set(untold)
        assert set(self.both("held", process)) <= set(self.given)

    @precondition(lambda self: self.is_broad and self.model.running)
    @rule(
        which=tokens,
        entries=st.lists(
            st.builds(Entry, st.sampled_from("ab"), st.sampled_from("cd"), st.binary(max_size=2)), max_size=3
        ),
    )
    def record(self, which: tuple[str, int], entries: list[Entry]) -> None:
        self.both("record", self.token(which), entries)

    # Housekeeping.

    @precondition(lambda self: self.model.scheduled or self.model.waiting)
    @rule(limit=st.sampled_from([0, 1, 2, 100]))
    def promote(self, limit: int) -> None:
        self.promote_both(limit)

    @precondition(lambda self: self.model.waiting)
    @rule()
    def settle(self) -> None:
        """Promoted until nothing more comes of it, nobody waits beside what it needs, and each in one line."""
        while self.promote_both(1_000).jobs or DOOR in self.model.waiting.values():
            pass
        assert list(self.model.stuck()) == []
        limits, rates = self.store.limits(), self.store.rates()
        for view in limits:  # of two full ones, a job may stand in the line of either
            assert view.waiting == 0 or view.holders >= self.model.number(view.key), f"{view.key} has room"
        lines = sum(view.waiting for view in limits) + sum(view.waiting for view in rates)
        apart = [line for line in self.model.waiting.values() if line[0] in ("task", "gate")]
        waiting = self.store.jobs(Selection(states=[JobState.WAITING]), None, 10_000)
        assert lines + len(apart) == len(waiting), "somebody waits in no line, or in two"

    @precondition(lambda self: self.is_broad)
    @rule(
        pace=st.builds(Pace, st.sampled_from(RATES), st.sampled_from([1, 5]), st.just(2 * SECOND), st.integers(1, 2)),
        patience=st.sampled_from([0, SECOND]),
    )
    def take_token(self, pace: Pace, patience: int) -> None:
        self.both("take_token", pace, patience)

    @precondition(lambda self: self.is_broad)
    @rule(
        adopter=processes,
        limit=st.sampled_from([1, 3, 100]),
        enrolled=st.booleans(),
        number=st.none() | st.integers(0, 40),
        verdict=st.none() | st.sampled_from(["lost, run again", "lost for good", "cancel"]),
    )
    def adopt(self, adopter: bytes, limit: int, enrolled: bool, number: int | None, verdict: str | None) -> None:
        """Some jobs change hands, perhaps because the owner of one was seen dying; perhaps with a verdict at once."""
        if enrolled:
            self.both("enroll", ProcessInfo(adopter, "dispatcher", "here", 9), 30 * SECOND)
        held = [] if number is None else self.held_now()
        dead = {held[number % len(held)].process} - {adopter} if held and number is not None else set()
        orphans = self.both("adopt", adopter, self.new_nonce(), limit, dead=sorted(dead))
        self.given += [orphan.claim.token for orphan in orphans]
        self.both("beat", [adopter])  # whether a look for orphans renews a lease is not promised
        if verdict:
            verdicts = [ENDINGS[verdict](orphan.claim.token) for orphan in orphans]
            assert self.both("exchange", adopter, self.new_nonce(), verdicts, parse_queues("*"), 0).refused == []

    @precondition(lambda self: self.model.finished or self.model.kept)
    @rule(retention=st.builds(Retention, kept_for, kept_for, kept_for), limit=st.sampled_from([0, 1, 3, 100]))
    def prune(self, retention: Retention, limit: int) -> None:
        self.both("prune", retention, limit)

    @precondition(lambda self: self.model.finished or self.model.kept)
    @rule(
        length=seconds, retention=st.builds(Retention, kept_for, kept_for, kept_for), limit=st.sampled_from([1, 3, 100])
    )
    def grow_old(self, length: float, retention: Retention, limit: int) -> None:
        """Time passes, and what is kept no longer goes, step by step."""
        self.clock.advance(length)
        while self.both("prune", retention, limit):
            self.both("jobs", Selection(), None, 10_000)

    # Operators.

    @precondition(lambda self: self.is_broad and self.model.facts)
    @rule(selection=selections, number=st.integers(0, 90), after=st.none() | ids)
    def look(self, selection: Selection, number: int, after: bytes | None) -> None:
        """Pages bounded by a moment at which something happened, and by the next one."""
        id = sorted(self.model.facts)[number % len(self.model.facts)]
        created_at, finished_at = self.model.facts[id]["created_at"], self.model.finished_at(id)
        for moment in (created_at, created_at + 1):
            self.both("jobs", replace(selection, created_from=moment), after)
            self.both("jobs", replace(selection, created_before=moment), after)
        for moment in (self.clock.now(), finished_at or 0, (finished_at or 0) + 1):
            self.both("jobs", replace(selection, finished_from=moment), after)
            self.both("jobs", replace(selection, finished_before=moment), after)

    @rule(
        selection=selections,
        within=moments,
        change=changes,
        reason=st.sampled_from(["", "because"]),
        after=st.none() | ids,
        limit=st.sampled_from([1, 3, 1_000]),
    )
    def move(
        self,
        selection: Selection,
        within: dict[str, int],
        change: Change,
        reason: str,
        after: bytes | None,
        limit: int,
    ) -> None:
        times: dict[str, Any] = {bound: self.clock.now() + seconds * SECOND for bound, seconds in within.items()}
        selection = replace(selection, **times)
        self.both("jobs", selection, after, limit)
        moved = self.both("move", selection, change, "ann", reason, after=after, limit=limit)
        if moved.asked:
            self.both("orders", PROCESSES)
        if change.act is Act.RELOAD:
            self.shown.clear()  # the list does not show it

    @rule(
        act=st.sampled_from([Act.RETRY, Act.RETRY, Act.RUN_NOW, Act.CHANGE, Act.CANCEL, Act.RESTART, Act.STOP]),
        limit=st.integers(1, 9),
    )
    def move_all_in_pages(self, act: Act, limit: int) -> None:
        moved = self.both("move", Selection(), Change(act, priority=2), "ann", "", limit=limit)
        while moved.after is not None:
            moved = self.both("move", Selection(), Change(act, priority=2), "ann", "", after=moved.after, limit=limit)

    @precondition(lambda self: self.is_broad and self.model.finished)
    @rule(number=st.integers(0, 40), id=st.none() | ids, payload=st.sampled_from([b"", b"sealed anew"]))
    def reseal(self, number: int, id: bytes | None, payload: bytes) -> None:
        """A job that has finished, or any, or none at all."""
        id = id or sorted(self.model.finished)[number % len(self.model.finished)]
        self.both("reseal", id, payload, "ann", "because")
        self.shown.pop(to_text(id), None)  # the list does not show it

    @precondition(lambda self: self.is_broad)
    @rule(
        queue=queues, until=st.none() | st.sampled_from([-1, 0, 3, 20]), how=st.sampled_from(["", "length", "resume"])
    )
    def pause(self, queue: str, until: int | None, how: str) -> None:
        length = None if until is None else until * SECOND
        match how:
            case "resume":
                self.both("resume", queue, "ann", "mended")
            case "length":
                self.both("pause", queue, None, "ann", "broken", length=length)
            case _:
                self.both("pause", queue, None if length is None else self.clock.now() + length, "ann", "broken")

    @precondition(lambda self: self.is_broad)
    @rule(task=st.sampled_from(TASKS), how=st.sampled_from(["", "for a while", "resume", "resume"]))
    def pause_task(self, task: str, how: str) -> None:
        if how == "resume":
            self.both("resume", task, "ann", "mended", kind=Paused.TASK)
        else:
            length = 3 * SECOND if how else None
            self.both("pause", task, None, "ann", "broken", length=length, kind=Paused.TASK)

    @precondition(lambda self: self.is_broad and self.kind in ("limits", "rates"))
    @rule(key=st.sampled_from(KEYS), to=st.sampled_from([None, None, 0, 1, 2, 4]))
    def set_limit(self, key: str, to: int | None) -> None:
        self.both("set_limit", key, to, "ann", "because")

    @precondition(lambda self: self.is_broad and self.kind == "shares")
    @rule(share=st.sampled_from(SHARES), weight=st.sampled_from([None, 2, 5]))
    def set_weight(self, share: str, weight: int | None) -> None:
        self.both("set_weight", share, weight, "ann", "because")

    @invariant()
    def both_show_the_same(self) -> None:
        self.both("queues")
        self.both("pauses")
        self.both("weights")
        self.both("audit", 3)
        for process in PROCESSES:
            self.both("held", process)
        expected = [_lease_or_none(view) for view in self.model.processes()]
        assert [_lease_or_none(view) for view in self.store.processes()] == expected
        listed = {job.id: job for job in self.both("jobs", Selection(), None, 10_000)}
        for id, job in listed.items():
            if self.shown.get(id) != job:  # the wide rows of a job that has not changed have not either
                self.both("job", from_text(id))
        for id in {*SOME_IDS, *(id for id, facts in self.model.facts.items() if facts["entries"])}:
            self.both("entries", id)
        self.shown = dict(listed)

    @invariant()
    def every_job_stands_in_one_place(self) -> None:
        listed = {job.id: job.state for job in self.store.jobs(Selection(), None, 10_000)}
        counts: Counter[JobState] = Counter()
        for queue in self.store.queues():
            counts.update(queue.counts)
        assert counts == Counter(listed.values())
        held = [token.id for process in PROCESSES for token in self.store.held(process)]
        assert len(held) == len(set(held)), "a job is held by two"
        assert set(held) == {from_text(id) for id, state in listed.items() if state is JobState.RUNNING}
        assert leftovers(self.store) == []

    @invariant()
    def limits_hold(self) -> None:
        """Whoever is ready or runs has its permits, nobody else does, and there are no more than were allowed."""
        shown = {view.key: view for view in self.store.limits()}
        # Who was called out of a line and not judged yet is in none, so that how many wait is compared in `settle`.
        expected = [(view.key, view.to, view.holders) for view in self.model.limits() if _is_used(view)]
        assert [(view.key, view.to, view.holders) for view in shown.values() if _is_used(view)] == expected
        able = self.store.jobs(Selection(states=[JobState.READY, JobState.RUNNING]), None, 10_000)
        held = Counter(hold.key for job in able for hold in self.model.facts[from_text(job.id)]["new"].terms.holds)
        assert held == Counter({key: view.holders for key, view in shown.items() if view.holders})
        for key, number in held.items():
            assert number <= max(self.permits[key], self.model.number(key)), f"{key} was given out too often"
        self.permits = held

    @invariant()
    def rates_are_used_up_alike(self) -> None:
        expected = [(view.key, view.pace, view.opens_in) for view in self.model.rates()]
        assert [(view.key, view.pace, view.opens_in) for view in self.store.rates()] == expected

    @invariant()
    def epochs_only_rise(self) -> None:
        current = self.model.epochs()
        assert epochs(self.store) in (None, current)
        for id, epoch in current.items():
            assert epoch >= self.epochs.get(id, 0)
        self.epochs = current


def _is_used(view: LimitView) -> bool:
    return view.holders > 0 or view.to is not None


def _lease_or_none(view: ProcessView) -> ProcessView:
    """How long a lease has been over is not promised."""
    return replace(view, lease_left=max(0.0, view.lease_left))


def live(new_store: Callable[[Clock], Store], examples: int, steps: int) -> None:
    class OfThisStore(Histories):
        def __init__(self) -> None:
            super().__init__(new_store)

    run_state_machine_as_test(
        OfThisStore,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
        ),
    )


def test_a_few_short_histories(new_store: Callable[[Clock], Store]):
    """The store and the model agree on everything that can be seen."""
    live(new_store, examples=15, steps=30)


def test_many_long_histories(new_store: Callable[[Clock], Store]):
    """The same, longer; `nightly` for as long as a night allows."""
    if os.environ.get("HYPOTHESIS_PROFILE") == "nightly":
        live(new_store, examples=2_000, steps=100)
    else:
        live(new_store, examples=60, steps=50)
