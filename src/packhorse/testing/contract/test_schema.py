"""`migrate` and `schema_version`; and that no command is needed before the first use."""

from collections.abc import Callable

import pytest

from packhorse.clock import SECOND
from packhorse.job import JobState, Parent, Token
from packhorse.limits import Pace
from packhorse.queues import EVERYTHING
from packhorse.stores import Store
from packhorse.stores.contract import (
    Act,
    Change,
    Entry,
    Paused,
    ProcessInfo,
    Retention,
    Selection,
    StoredSchedule,
)
from packhorse.testing.contract.helpers import id_of, insert, job, limited, released, sole, state


def test_migrating_twice_does_nothing_more(store: Store):
    """The first time brings the schema up to date, the second finds it so."""
    store.migrate()
    version = store.schema_version()
    assert store.migrate() == []
    assert store.schema_version() == version


def test_migrating_keeps_the_jobs(store: Store):
    """Bringing a schema up to date that is up to date touches no job."""
    insert(store, "a")
    store.migrate()
    assert state(store, "a") is JobState.READY


SOMEONE = id_of("someone")
TOKEN = Token(SOMEONE, 1, id_of("a"), 1)
BIRDS = StoredSchedule(key="birds", task="birds.count", rule="often", payload=b"")
FIRST_USES: dict[str, Callable[[Store], object]] = {
    "insert": lambda store: store.insert([job("a")]),
    "insert of a flow": lambda store: store.insert([job("a"), job("c", after=(Parent(id_of("a")),))]),
    "exchange": lambda store: store.exchange(SOMEONE, 1, [], EVERYTHING, 5),
    "exchange of outcomes": lambda store: store.exchange(SOMEONE, 1, [released(TOKEN)], EVERYTHING, 5),
    "beat": lambda store: store.beat([SOMEONE]),
    "record": lambda store: store.record(TOKEN, [Entry("step", "x", b"")]),
    "held": lambda store: store.held(SOMEONE),
    "enroll": lambda store: store.enroll(ProcessInfo(SOMEONE, "worker", "here", 1), 1_000),
    "leave": lambda store: store.leave(SOMEONE),
    "promote": lambda store: store.promote(5),
    "adopt": lambda store: store.adopt(SOMEONE, 1, 5),
    "prune": lambda store: store.prune(Retention(0, 0, 0), 5),
    "save_schedules": lambda store: store.save_schedules("shop", [BIRDS]),
    "put_schedule": lambda store: store.put_schedule(BIRDS, "ann", ""),
    "remove_schedule": lambda store: store.remove_schedule("birds", "ann", ""),
    "due_schedules": lambda store: store.due_schedules(5),
    "tick": lambda store: store.tick(BIRDS, [], handled=1, next_at=2, repeats=None),
    "schedules": lambda store: store.schedules(),
    "schedule": lambda store: store.schedule("birds"),
    "ticks": lambda store: store.ticks("birds"),
    "move": lambda store: store.move(Selection(), Change(Act.RETRY), "ann", ""),
    "reseal": lambda store: store.reseal(id_of("a"), b"again", "ann", ""),
    "pause": lambda store: store.pause("mail", None, "ann", ""),
    "resume": lambda store: store.resume("mail", "ann", ""),
    "pause of a task": lambda store: store.pause("birds.feed", None, "ann", "", kind=Paused.TASK),
    "resume of a task": lambda store: store.resume("birds.feed", "ann", "", kind=Paused.TASK),
    "set_limit": lambda store: store.set_limit("k", 1, "ann", ""),
    "set_weight": lambda store: store.set_weight("ann", 2, "ann", ""),
    "take_token": lambda store: store.take_token(Pace("k", 1, SECOND), 0),
    "insert of a limited job": lambda store: store.insert([limited("a")]),
    "insert of a unique job": lambda store: store.insert([sole("a")]),
    "jobs": lambda store: store.jobs(Selection()),
    "job": lambda store: store.job(id_of("a")),
    "entries": lambda store: store.entries(id_of("a")),
    "members": lambda store: store.members(id_of("flow")),
    "flow_counts": lambda store: store.flow_counts(id_of("flow")),
    "queues": lambda store: store.queues(),
    "pauses": lambda store: store.pauses(),
    "limits": lambda store: store.limits(),
    "rates": lambda store: store.rates(),
    "weights": lambda store: store.weights(),
    "processes": lambda store: store.processes(),
    "audit": lambda store: store.audit(),
    "watch": lambda store: store.watch(EVERYTHING).close(),
    "watch_endings": lambda store: store.watch_endings().close(),
    "ended": lambda store: store.ended([id_of("a")]),
    "wait_jobs": lambda store: store.wait_jobs([id_of("a")], 0),
    "own_key": lambda store: store.own_key(),
    "exists": lambda store: store.exists(),
    "schema_version": lambda store: store.schema_version(),
    "migrate": lambda store: store.migrate(),
    "close": lambda store: store.close(),
}


@pytest.mark.parametrize("use", FIRST_USES.values(), ids=FIRST_USES.keys())
def test_anything_may_come_first(store: Store, use: Callable[[Store], object]):
    """A store nobody has used yet can be used in any way; it prepares itself."""
    use(store)
    insert(store, "b")
    assert state(store, "b") is JobState.READY
