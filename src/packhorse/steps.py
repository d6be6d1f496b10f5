"""What a job keeps of itself between attempts: what its steps returned, a cursor, when it wakes, the signals it got.

Each is an entry of the job, sealed, and written under the claim: what was kept is there for the next attempt, and who
no longer has the job keeps nothing.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

from packhorse.clock import LONGEST, SECOND, length
from packhorse.errors import ClaimLost, ConfigError, DuplicateStep, PutBack, SignalTimeout, StoreUnavailable
from packhorse.ids import child_id, from_text, to_text
from packhorse.job import Token
from packhorse.outcome import Awaits
from packhorse.queues import check_name
from packhorse.seals import OpenedValue
from packhorse.shapes import Shapes, shapes_of
from packhorse.stores.contract import SIGNAL, Entry, Selection, signal_entry

if TYPE_CHECKING:
    from packhorse.app import Packhorse
    from packhorse.task import Call

P = ParamSpec("P")
T = TypeVar("T")

STEP, CURSOR, SLEEP, WAIT, CHILDREN = "step", "cursor", "sleep", "wait", "children"
KINDS = frozenset({STEP, CURSOR, SLEEP, WAIT, CHILDREN, SIGNAL})
NAME_CAP = 200
WAITS = (0.05, 0.2, 0.5, 1.0)  # seconds before a store is asked again
AGAIN = 5 * SECOND
IDS_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Step:
    """Something a job has kept, as others see it: a step, its cursor, a sleep, a wait with a timeout, a signal, or that
    it has enqueued children.
    """

    kind: str
    name: str
    at: datetime


class Found(NamedTuple):
    value: Any


class Steps:
    """Of one attempt. Without an application, for a task that is called in place, they last as long as the call."""

    def __init__(self, token: Token, app: Packhorse | None = None) -> None:
        self._token = token
        self._app = app
        self._entries: dict[tuple[str, str], bytes] | None = None
        self._used: set[tuple[str, str]] = set()
        self._sleeps = 0
        self._waits: Counter[str] = Counter()
        self._last_signal: dict[str, int] = {}
        self._cursor: Found | None = None

    # Steps.

    def find(self, name: str, function: Callable[..., Any]) -> Found | None:
        """What the step returned in an earlier attempt."""
        self._use(STEP, name)
        kept = self._kept(STEP, name)
        return kept and Found(self._shapes(function).load_result(kept.value))

    def keep(self, name: str, function: Callable[..., Any], value: Any) -> None:
        self._keep(STEP, name, self._shapes(function).dump_result(value), f"the result of step {name!r}")

    def _use(self, kind: str, name: object) -> None:
        if not isinstance(name, str) or not 1 <= len(name) <= NAME_CAP or not name.isprintable():
            raise ConfigError(f"{name!r} cannot be the name of a {kind}: use 1 to {NAME_CAP} printable letters.")
        if (kind, name) in self._used:
            raise DuplicateStep(name)
        self._used.add((kind, name))

    def _shapes(self, function: Callable[..., Any]) -> Shapes:
        return Shapes() if self._app is None else shapes_of(function, carried=self._app.codec.registered)

    # The cursor.

    def cursor(self, default: Any) -> Any:
        found = self._cursor or self._kept(CURSOR, "")
        return default if found is None else found.value

    def checkpoint(self, cursor: Any) -> None:
        self._keep(CURSOR, "", cursor, "the cursor")
        self._cursor = Found(cursor)

    # Sleeping and waiting.

    def sleep(self, lasting: timedelta | float, name: str | None) -> None:
        wait = _length(lasting, "A sleep")
        self._sleeps += name is None
        name = str(self._sleeps) if name is None else name
        self._use(SLEEP, name)
        if self._app is None or wait == 0:
            return
        kept, now = self._kept(SLEEP, name), patiently(self._app.store.now)
        wake_at = now + wait if kept is None else kept.value
        if kept is None:
            self._keep(SLEEP, name, wake_at, "a sleep")
        if wake_at > now:
            raise PutBack("asleep", delay=wake_at - now)

    def wait_for(self, signal: str, timeout: timedelta | float | None) -> Any:
        check_name(signal, "signal name")
        patience = None if timeout is None else _length(timeout, "A timeout")
        if self._app is None:
            raise ConfigError(f"Only a job can wait for signal {signal!r}. Enqueue the task instead of calling it.")
        self._waits[signal] += 1
        name = f"{signal} {self._waits[signal]}"
        kept = self._kept(WAIT, name)
        until, in_vain = (None, False) if kept is None else kept.value
        if in_vain:
            raise SignalTimeout(signal)
        if (found := self._next_signal(signal)) is not None:
            return found.value
        now = patiently(self._app.store.now)
        if patience is not None and until is None:
            until = now + patience
        delay = LONGEST if until is None else until - now
        if until is not None and (kept is None or delay <= 0):
            self._keep(WAIT, name, [until, delay <= 0], "a wait")
        if delay <= 0:
            raise SignalTimeout(signal)
        raise PutBack(f"awaits {signal}", delay=delay, awaits=Awaits(signal, self._last_signal.get(signal, 0)))

    def _next_signal(self, name: str) -> Found | None:
        """The first that no earlier wait of this attempt got: one that the job has, else one that the store keeps."""
        assert self._app is not None
        after = self._last_signal.get(name, 0)
        of_name = [entry for kind, entry in self._loaded() if kind == SIGNAL and entry.startswith(f"{name} ")]
        entry = min((entry for entry in of_name if entry > signal_entry(name, after)), default=None)
        if entry is not None:
            data = self._loaded()[SIGNAL, entry]
        elif kept := patiently(self._app.store.signals, name, after, 1):
            entry, data = signal_entry(name, kept[0].n), kept[0].data
            self._record(SIGNAL, entry, data)
        else:
            return None
        found = self._decoded(self._app.seals.open_signal(name, data))
        self._last_signal[name] = int(entry.rpartition(" ")[2], 16)
        return found

    # Children.

    def children(self, name: str, calls: Iterable[Call[Any]]) -> list[Any]:
        """Enqueue them in the first attempt that comes here, wait until they have ended, and give their results."""
        if self._app is None:
            raise ConfigError("Only a job can have children. Enqueue the task instead of calling it.")
        self._use(CHILDREN, name)
        kept = self._kept(CHILDREN, name)
        if kept is None:
            # Their ids are found the same way in every attempt: what a crash left half done is not done twice.
            jobs = [call.new_job(child_id(self._token.id, name, place)) for place, call in enumerate(calls)]
            for batch in _batches(jobs, self._app.settings.batch_size):
                patiently(self._app.store.insert, batch)
                self._app.tell_enqueued(list(batch))
            self._keep(CHILDREN, name, len(jobs), "how many children there are")
            kept = Found(len(jobs))
        ids = [child_id(self._token.id, name, place) for place in range(kept.value)]
        unfinished = set()
        for part in _batches(ids, IDS_AT_ONCE):
            found = patiently(partial(self._app.store.jobs, Selection(ids=part), limit=IDS_AT_ONCE))
            unfinished |= {from_text(job.id) for job in found if not job.finished}
        if unfinished:
            raise PutBack(f"waits for {len(unfinished)} children", delay=0, after=tuple(sorted(unfinished)))
        from packhorse.handle import JobHandle  # which knows of contexts, and they of steps

        return [JobHandle(self._app, id).result(timeout=0) for id in ids]

    # Entries.

    def _kept(self, kind: str, name: str) -> Found | None:
        data = self._loaded().get((kind, name))
        if data is None or self._app is None:
            return None
        return self._decoded(self._app.seals.open_value(self._token.id, kind, name, data))

    def _decoded(self, opened: OpenedValue) -> Found:
        assert self._app is not None
        return Found(self._app.codec.decode_result(opened.body, typed=opened.typed))

    def _loaded(self) -> dict[tuple[str, str], bytes]:
        """What earlier attempts kept; read when the first of it is asked for."""
        if self._entries is None:
            entries = [] if self._app is None else patiently(self._app.store.entries, self._token.id)
            self._entries = {(kind, name): data for kind, name, data in entries if kind in KINDS and type(name) is str}
        return self._entries

    def _keep(self, kind: str, name: str, value: Any, what: str) -> None:
        if self._app is not None:
            encoded = self._app.codec.encode_value(value, what)
            self._record(kind, name, self._app.seals.value(self._token.id, kind, name, encoded, self._app.clock.now()))

    def _record(self, kind: str, name: str, data: bytes) -> None:
        assert self._app is not None
        if not patiently(self._app.store.record, self._token, [Entry(kind, name, data)]):
            raise ClaimLost(to_text(self._token.id))


def patiently(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """A store that is away is no fault of the task: it is asked again for a while, then the job comes back later."""
    for wait in WAITS:
        try:
            return call(*args, **kwargs)
        except StoreUnavailable:
            time.sleep(wait)
    try:
        return call(*args, **kwargs)
    except StoreUnavailable as error:
        raise PutBack("the store does not answer", delay=AGAIN) from error


def _length(value: timedelta | float, what: str) -> int:
    try:
        found = length(value)
    except (TypeError, ValueError):  # no number, or none that is one
        found = -1
    if found < 0:
        raise ConfigError(f"{what} must be a number of seconds or a timedelta, and not negative: {value!r}.")
    return found


def _batches(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[start : start + size] for start in range(0, len(items), size))
