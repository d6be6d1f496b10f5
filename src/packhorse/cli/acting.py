"""What an operator does to jobs, by id or by selection: look first, ask, then act batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from itertools import islice
from typing import Any, TypeVar

import click

from packhorse.app import Packhorse
from packhorse.cli.common import Target, actor_option, confirm, json_option, reason_option, yes_option
from packhorse.cli.selecting import PAGE_CAP, Filters
from packhorse.cli.showing import count, note, print_json, progress
from packhorse.control import IDS_AT_ONCE, known_id
from packhorse.errors import JobNotFound
from packhorse.ids import from_text, to_text
from packhorse.job import FINISHED, JobState, StoredJob
from packhorse.stores.contract import ORDERS, Act, Change, Selection

F = TypeVar("F", bound=Callable[..., Any])

UNFINISHED = frozenset(JobState) - FINISHED
ANY = Selection()


@dataclass(frozen=True, slots=True)
class Deed:
    """An act on jobs in these states, and how to speak of it."""

    act: Act
    states: frozenset[JobState]
    verb: str
    done: str
    destroys: bool = False


RETRY = Deed(Act.RETRY, frozenset({JobState.FAILED, JobState.CANCELLED}), "retry", "Retried")
CANCEL = Deed(Act.CANCEL, UNFINISHED, "cancel", "Cancelled")
STOP = Deed(Act.STOP, UNFINISHED, "stop", "Stopped")
RESTART = Deed(Act.RESTART, frozenset({JobState.RUNNING, JobState.FAILED, JobState.CANCELLED}), "restart", "Restarted")
RUN_NOW = Deed(Act.RUN_NOW, frozenset({JobState.SCHEDULED}), "make ready", "Made ready")
DISCARD = Deed(Act.DISCARD, frozenset(JobState) - {JobState.RUNNING}, "discard", "Discarded", destroys=True)
REPLAY = Deed(Act.RETRY, frozenset({JobState.FAILED}), "replay", "Replayed")
PURGE = Deed(Act.DISCARD, frozenset({JobState.FAILED}), "purge", "Purged", destroys=True)


@dataclass(frozen=True, slots=True)
class Choice:
    """The jobs meant: those of the ids, or all that match."""

    ids: Sequence[str]
    filters: Filters
    all_matching: bool
    limit: int | None
    error: str | None = None
    scan: int = 0

    def check(self, deed: Deed) -> None:
        if self.ids and (self.all_matching or self.filters or self.limit or self.error):
            raise click.UsageError("Give job ids, or options that select jobs, not both.")
        if not self.ids and not self.all_matching:
            raise click.UsageError("Give job ids; or options that select jobs, and --all-matching.")
        if wrong := self.filters.states - deed.states:
            raise click.UsageError(
                f"{listed(wrong)} jobs cannot be meant: only {listed(deed.states)} ones.".capitalize()
            )


@dataclass(frozen=True, slots=True)
class Order:
    """How it is to be done."""

    reason: str
    actor: str | None
    yes: bool
    as_json: bool


_ids = click.argument("ids", metavar="[ID]...", nargs=-1)
_all_matching = click.option("--all-matching", is_flag=True, help="All jobs that the options select, after asking.")
_limit = click.option(
    "--limit", type=click.IntRange(1, PAGE_CAP), metavar="N", help="With --all-matching: only the N oldest."
)
ORDER = ("reason", "actor", "yes", "as_json")


def acts(command: F) -> F:
    """Gives a command ids, all_matching and limit, and its `order`."""

    @wraps(command)
    def with_order(**given: Any) -> Any:
        return command(order=Order(*(given.pop(name) for name in ORDER)), **given)

    decorated: Any = with_order
    for option in (json_option, yes_option, actor_option, reason_option, _limit, _all_matching, _ids):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]


def act_on(deed: Deed, target: Target, choice: Choice, order: Order) -> None:
    choice.check(deed)
    app = target.open()
    if choice.ids:
        done, complete = _on_ids(deed, target, app, choice.ids, order)
    else:
        done, complete = _on_selection(deed, target, app, choice, order), True
    if order.as_json:
        print_json({"act": deed.act, "jobs": done.jobs, "asked": done.asked})
    else:
        click.echo(f"{deed.done} {count(done.jobs)}.{asked_text(done.asked)}")
    if not complete:
        raise SystemExit(1)


@dataclass
class Done:
    jobs: int = 0
    asked: int = 0


def _on_ids(deed: Deed, target: Target, app: Packhorse, ids: Iterable[str], order: Order) -> tuple[Done, bool]:
    """Says of each that cannot be meant why not, and acts on the others."""
    read = list(map(_read, ids))
    given = list(dict.fromkeys(id for id in read if id is not None))
    known = {job.id: job for part in parts(given) for job in app.inspection.stored_jobs(part, page=IDS_AT_ONCE)}
    fit = [id for id in given if _fits(deed, to_text(id), known.get(to_text(id)))]
    if not fit:
        return Done(), False
    _check_order(deed, target, sum(known[to_text(id)].state is JobState.RUNNING for id in fit))
    if deed.destroys:
        confirm(f"{deed.verb} {count(len(fit))}", yes=order.yes)
    done = _do(deed, app, parts(fit), len(fit), order)
    return done, None not in read and done.jobs + done.asked == len(given)


def _read(id: str) -> bytes | None:
    try:
        return known_id(id)
    except JobNotFound:
        note(f"{id!r} is no job id.")
        return None


def _fits(deed: Deed, id: str, job: StoredJob | None) -> bool:
    if job is None:
        note(f"There is no job {id} in this store.")
        return False
    if job.state not in deed.states:
        note(f"Job {id} is {job.state}: it would have to be {listed(deed.states)}.")
        return False
    return True


def _on_selection(deed: Deed, target: Target, app: Packhorse, choice: Choice, order: Order) -> Done:
    """Acts on the jobs that were found, by their ids: what comes into the selection later was not meant.

    A bound in time would not do: where the clock was set back, jobs ended in the future.
    """
    selection = choice.filters.selection(app, states=deed.states)
    ids, running = _found(app, selection, choice)
    if not ids:
        return Done()
    _check_order(deed, target, running)
    confirm(f"{deed.verb} {count(len(ids))}", yes=order.yes)
    # Still as selected: what was dead when it was found, and was replayed meanwhile, must not be purged.
    done = _do(deed, app, parts(ids, selection), len(ids), order)
    if left := len(ids) - done.jobs - done.asked:
        note(f"{count(left)} changed meanwhile, and {'was' if left == 1 else 'were'} left alone.")
    return done


def _found(app: Packhorse, selection: Selection, choice: Choice) -> tuple[list[bytes], int]:
    """The ids of those meant, and how many of them run."""
    if choice.error is not None:
        found = app.inspection.failed(selection, choice.error, limit=choice.limit or PAGE_CAP, scan=choice.scan)
        note(f"Looked at {count(found.looked_at, 'failed job')}; {len(found.jobs):,} match.")
        return [from_text(job.id) for job in found.jobs], 0
    ids, running = [], 0
    for job in islice(app.inspection.stored_jobs(selection, min(choice.limit or PAGE_CAP, PAGE_CAP)), choice.limit):
        ids.append(from_text(job.id))
        running += job.state is JobState.RUNNING
    return ids, running


def _check_order(deed: Deed, target: Target, running: int) -> None:
    if deed.act in ORDERS and running and not target.named:
        raise click.ClickException(
            f"{count(running)} of these run, and their workers obey only their own application: name it with --app or "
            "--app-name, or leave the running ones out with --state."
        )


def _do(deed: Deed, app: Packhorse, selections: Iterable[Selection], number: int, order: Order) -> Done:
    done = Done()
    with progress(f"{deed.verb} {count(number)}", number) as advance:
        for part in selections:
            for moved in app.control.batches(part, Change(deed.act), reason=order.reason, actor=order.actor):
                done.jobs += moved.jobs
                done.asked += moved.asked
                advance(moved.jobs + moved.asked)
    return done


def parts(ids: Sequence[bytes], selection: Selection = ANY) -> Iterator[Selection]:
    return (replace(selection, ids=ids[start : start + IDS_AT_ONCE]) for start in range(0, len(ids), IDS_AT_ONCE))


def asked_text(number: int) -> str:
    if not number:
        return ""
    was = "was" if number == 1 else "were"
    return f" {count(number, 'running job')} {was} asked to end, and what does not is interrupted."


def listed(states: Iterable[JobState]) -> str:
    *others, last = (state.value for state in JobState if state in set(states))
    return f"{', '.join(others)} or {last}" if others else last
