"""Jobs: a page of them, one with all that is known of it, what operators do to them, and what they did."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any
from urllib.parse import urlencode

from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.exceptions import BadRequest
from django.http import Http404, HttpResponse, HttpResponseRedirect, QueryDict

from packhorse.cli.acting import CANCEL, DISCARD, RETRY, RUN_NOW, Deed, asked_text, listed, parts
from packhorse.cli.jobs import progress_text, step_text, when
from packhorse.cli.showing import count
from packhorse.control import known_id
from packhorse.django.admin.base import Page, PageAdmin
from packhorse.django.admin.showing import Link, at, facts, lasted, lines, moment, opened, value
from packhorse.errors import JobNotFound
from packhorse.ids import from_text, to_text
from packhorse.inspection import Inspection
from packhorse.job import STOPPED, Job, JobState, StoredJob
from packhorse.masking import printable
from packhorse.stores.contract import Change, Selection

PER_PAGE = 50
ALL_CAP = 10_000  # jobs that "all that match" means at most: as many as one request can act on
SHOWN = 20


@dataclass(frozen=True, slots=True)
class Action:
    name: str
    label: str
    permission: str
    deed: Deed
    asks: bool
    """Whether there is a question first also where it is about a single job."""


ACTIONS = {
    action.name: action
    for action in (
        Action("retry", "Retry", "retry_job", RETRY, asks=False),
        Action("run_now", "Run now", "run_job", RUN_NOW, asks=False),
        Action("cancel", "Cancel", "cancel_job", CANCEL, asks=True),
        Action("discard", "Discard", "discard_job", DISCARD, asks=True),
    )
}


@dataclass(frozen=True, slots=True)
class Filters:
    """What a page of jobs shows, as its address says it."""

    state: str = ""
    queue: str = ""
    task: str = ""
    q: str = ""

    @classmethod
    def of(cls, given: QueryDict) -> Filters:
        found = cls(*(str(given.get(name, "")).strip() for name in ("state", "queue", "task", "q")))
        if found.state and found.state not in set(JobState):
            raise Http404(f"There is no state {found.state!r}.")
        return found

    def but(self, **changes: str) -> dict[str, str]:
        """As the query of another page, which begins anew."""
        changed = replace(self, **changes)
        return {name: text for name in ("state", "queue", "task", "q") if (text := getattr(changed, name))}

    def selection(self) -> Selection:
        """What is looked for is an id, or the name of a task."""
        ids, task = None, self.task
        if self.q:
            try:
                ids = [known_id(self.q)]
            except JobNotFound:
                task = self.q
        return Selection(
            ids=ids,
            states={JobState(self.state)} if self.state else None,
            queues={self.queue} if self.queue else None,
            tasks={task} if task else None,
        )


class JobAdmin(PageAdmin):
    routes = (
        ("", "list_jobs", "changelist"),
        ("act/", "act", "act"),
        ("audit/", "list_audit", "audit"),
        ("<str:id>/change/", "show_job", "change"),
    )
    posts = ("act",)

    # Looking.

    def list_jobs(self, page: Page) -> HttpResponse:
        filters = Filters.of(page.request.GET)
        jobs, newer, older = _page(page.app.inspection, filters.selection(), page.request.GET)
        address = filters.but() | page.ours
        actions = self._actions(page, [JobState(filters.state)] if filters.state else JobState)
        return self.render(
            page,
            "jobs",
            "Jobs",
            filters=filters,
            given=address,
            jobs=[self._row(page, job) for job in jobs],
            newest=newer is not None and f"?{urlencode(address)}",
            newer=newer and f"?{urlencode(address | {'newer': newer})}",
            older=older and f"?{urlencode(address | {'older': older})}",
            sides=self._sides(page, filters),
            clear=f"?{urlencode(page.ours)}" if filters != Filters() else None,
            actions=actions,
            act_url=self.url("act", **address),
            audit_url=self.url("audit", **page.ours),
            cap=ALL_CAP,
            more=newer is not None or older is not None,
        )

    def _row(self, page: Page, job: Job) -> dict[str, Any]:
        made = moment(job.created_at)
        return {
            "id": job.id,
            "url": self.url("change", job.id, **page.ours),
            "state": job.state.value,
            "state_text": STOPPED if job.stopped else job.state.value,
            "queue": printable(job.queue),
            "task": printable(job.task),
            "attempts": job.attempts,
            "when": when(job),
            "made": f"made {made}",
            "error": printable(str(job.failure or job.reason or ""), 200),
        }

    def _sides(self, page: Page, filters: Filters) -> list[tuple[str, list[tuple[str, str, bool]]]]:
        """The filters beside the list. Names are those that the site declares: the store would count all its jobs."""
        app = page.app
        queues = {"default", *page.place.queues, *(task.options.queue_name for task in app.tasks.values())}
        sides = (
            ("state", [state.value for state in JobState]),
            ("queue", sorted(queues | ({filters.queue} - {""}))),
            ("task", sorted({*app.tasks, filters.task} - {""})),
        )
        found = []
        for name, values in sides:
            links = [
                (
                    printable(it) or "All",
                    f"?{urlencode(filters.but(**{name: it}) | page.ours)}",
                    it == getattr(filters, name),
                )
                for it in ("", *values)
            ]
            found.append((name, links))
        return found

    def _actions(self, page: Page, states: Iterable[JobState]) -> list[Action]:
        """Those that the user may, and that jobs in these states take."""
        among = set(states)
        return [it for it in ACTIONS.values() if page.may(it.permission) and among & it.deed.states]

    def show_job(self, page: Page, id: str) -> HttpResponse:
        inspection = page.app.inspection
        stored = inspection.stored(id)
        job = page.app.public(stored)
        return self.render(
            page,
            "job",
            f"Job {job.id}",
            [(job.id, None)],
            job=job,
            state_text=f"{job.state} ({STOPPED})" if job.stopped else job.state.value,
            facts=self._facts(page, job),
            timings=_timings(job),
            kept=_kept(inspection, job),
            **(_sealed(inspection, stored) if page.may("view_job_arguments") else {"arguments": None}),
            failures=_failures(job),
            actions=self._actions(page, [job.state]),
            act_url=self.url("act", **page.ours),
        )

    def _facts(self, page: Page, job: Job) -> list[tuple[str, Any]]:
        return facts(
            [
                ("task", Link(printable(job.task), self.url("changelist", task=job.task, **page.ours))),
                ("queue", Link(printable(job.queue), self.url("changelist", queue=job.queue, **page.ours))),
                ("priority", job.priority),
                ("attempts", job.attempts),
                ("losses", job.losses or None),
                ("tags", ", ".join(map(str, job.tags))),
                ("share", job.share),
                ("awaits", job.awaits),
                ("process", job.process),
                ("reason", job.reason),
                ("result", job.result_error and f"not kept: {job.result_error}"),
            ]
        )

    def list_audit(self, page: Page) -> HttpResponse:
        rows = [
            (moment(at(it.at)), printable(it.actor), printable(it.act), it.jobs or "", printable(it.reason))
            for it in page.app.inspection.audit()
        ]
        return self.render(page, "audit", "What operators did", [("Audit", None)], rows=rows)

    # Acting.

    def act(self, page: Page) -> HttpResponse:
        """What is chosen on the list or on a job's page. Where it asks first, the answer brings the very ids along."""
        action = ACTIONS.get(page.request.POST.get("action", ""))
        if action is None:
            page.tell("Choose an action first.", well=False)
            return HttpResponseRedirect(self._origin(page))
        page.need(action.permission)
        ids = self._chosen(page, action)
        if not ids:
            page.tell("No jobs were chosen.", well=False)
            return HttpResponseRedirect(self._origin(page))
        if (action.asks or len(ids) > 1) and not page.confirmed:
            return self._ask(page, action, ids)
        text, well = _done(page, action.deed, ids)
        page.tell(text, well=well)
        return HttpResponseRedirect(self._origin(page))

    def _origin(self, page: Page) -> str:
        """The list; or the job's own page, where that was where it came from and the job is still there."""
        try:
            job = page.app.inspection.stored(page.request.POST.get("from", ""))
        except JobNotFound:
            return self.url("changelist", **page.ours, **Filters.of(page.request.GET).but())
        return self.url("change", job.id, **page.ours)

    def _chosen(self, page: Page, action: Action) -> list[bytes]:
        """By id; or of all that match, the newest up to a cap: what comes to match later was not meant."""
        post = page.request.POST
        if post.get("select_across") == "1" and not page.confirmed:
            selection = Filters.of(page.request.GET).selection()
            states = action.deed.states if selection.states is None else action.deed.states & set(selection.states)
            found = page.app.inspection.stored_jobs(replace(selection, states=states), page=1_000, newest_first=True)
            return [from_text(job.id) for job in islice(found, ALL_CAP)]
        given = post.get("ids", "").split() if page.confirmed else post.getlist(ACTION_CHECKBOX_NAME)
        if len(given) > ALL_CAP:
            raise BadRequest("Too many jobs for one request.")
        return list(dict.fromkeys(map(known_id, given)))

    def _ask(self, page: Page, action: Action, ids: Sequence[bytes]) -> HttpResponse:
        inspection, deed = page.app.inspection, action.deed
        found = (job for part in parts(ids) for job in inspection.stored_jobs(part, page=1_000))
        fit = [job for job in found if job.state in deed.states]
        running = sum(job.state is JobState.RUNNING for job in fit)
        left = len(ids) - len(fit)
        notes = []
        if running:
            notes.append(f"{count(running, 'running job')} will be asked to end, and what does not is interrupted.")
        if left:
            notes.append(
                f"{count(left)} of those chosen {_is(left)} not {listed(deed.states)}, and will be left alone."
            )
        if len(ids) == ALL_CAP:
            notes.append(f"These are the newest {ALL_CAP:,} that match; there may be more.")
        return self.render(
            page,
            "confirm",
            f"{action.label} {count(len(fit))}?",
            [(action.label, None)],
            action=action,
            notes=notes,
            jobs=[self._row(page, page.app.public(job)) for job in fit[:SHOWN]],
            others=max(0, len(fit) - SHOWN),
            ids=" ".join(map(to_text, ids)),
            came_from=page.request.POST.get("from", ""),
            back_url=self._origin(page),
            act_url=self.url("act", **Filters.of(page.request.GET).but(), **page.ours),
            nothing=not fit,
        )


def _page(inspection: Inspection, selection: Selection, given: QueryDict) -> tuple[list[Job], str | None, str | None]:
    """A page with the newest first, and the ids to go on from, for what is newer and for what is older."""
    newer, older = given.get("newer"), given.get("older")
    found = list(
        islice(
            inspection.jobs(selection, PER_PAGE + 1, after=newer or older or None, newest_first=newer is None),
            PER_PAGE + 1,
        )
    )
    jobs, more = found[:PER_PAGE], len(found) > PER_PAGE
    if newer is not None:
        jobs.reverse()
    if not jobs:
        return [], None, None
    first, last = jobs[0].id, jobs[-1].id
    if newer is not None:
        return jobs, first if more else None, last
    return jobs, first if older is not None else None, last if more else None


def _done(page: Page, deed: Deed, ids: Sequence[bytes]) -> tuple[str, bool]:
    """What became of it, in words; and whether anything did."""
    moved = [
        it
        for part in parts(ids, Selection(states=deed.states))
        for it in page.app.control.batches(part, Change(deed.act), reason=page.reason, actor=page.actor)
    ]
    jobs, asked = sum(it.jobs for it in moved), sum(it.asked for it in moved)
    text = f"{deed.done} {count(jobs)}.{asked_text(asked)}"
    if left := len(ids) - jobs - asked:
        text += f" {count(left)} {_was(left)} not {listed(deed.states)} any more, and {_was(left)} left alone."
    return text, jobs + asked > 0


def _is(number: int) -> str:
    return "is" if number == 1 else "are"


def _was(number: int) -> str:
    return "was" if number == 1 else "were"


def _timings(job: Job) -> list[tuple[str, Any]]:
    began = job.started_at or job.claimed_at
    due = max(job.created_at, job.run_at or job.created_at)
    return facts(
        [
            ("created", moment(job.created_at)),
            ("run at", moment(job.run_at)),
            ("expires", moment(job.expires_at)),
            ("claimed", moment(job.claimed_at)),
            ("started", moment(job.started_at)),
            ("finished", moment(job.finished_at)),
            ("waited", lasted(due, began)),
            ("ran", lasted(began, job.finished_at)),
        ]
    )


def _kept(inspection: Inspection, job: Job) -> list[tuple[str, Any]]:
    return facts(
        [
            ("progress", opened(lambda: inspection.progress(job.id), lambda it: it and progress_text(it))),
            ("steps", opened(lambda: inspection.steps(job.id), lambda it: ", ".join(map(step_text, it)))),
        ]
    )


def _sealed(inspection: Inspection, stored: StoredJob) -> dict[str, Any]:
    """The arguments, by name, and the result; what is secret is masked. Text where they cannot be shown."""
    found: dict[str, Any] = {
        "arguments": opened(
            lambda: inspection.shown_arguments(stored),
            lambda it: [(printable(name), value(item)) for name, item in it.items()],
        )
    }
    if stored.state is JobState.SUCCEEDED and stored.result_error is None:
        found["result"] = opened(lambda: inspection.shown_result(stored), value)
    return found


def _failures(job: Job) -> list[dict[str, Any]]:
    """The last one first."""
    found = [
        {
            "title": f"attempt {it.number}{'' if it.spent else ', not spent'}",
            "at": moment(it.ended_at),
            "ran": lasted(it.started_at, it.ended_at),
            "process": it.process,
            "failure": it.failure,
        }
        for it in job.failures
    ]
    if job.failure is not None:
        ran = lasted(job.started_at, job.finished_at)
        last = {"title": "failed", "at": moment(job.finished_at), "ran": ran, "process": job.process}
        found.append(last | {"failure": job.failure})
    for it in found:
        failure: Any = it["failure"]
        it |= {"text": lines(str(failure)), "kind": failure.kind.value, "traceback": lines(failure.traceback)}
    return found[::-1]
