"""Async names: every name that asks a store has a twin with an `a` in front, which does the same in a thread."""

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from packhorse import Act, Change, ConfigError, Embedded, JobHandle, JobNotFound, JobState, Packhorse, Selection
from packhorse.clock import SECOND
from packhorse.control import Control
from packhorse.inspection import Inspection
from packhorse.limits import Pace
from packhorse.scheduling import Schedules

WITHOUT = {
    Control: {"trusted"},  # of orders that were read already
    Inspection: {"shown"},  # of what was read already
    Schedules: {"declare", "problems", "job_of"},  # ask no store
    JobHandle: set[str](),
    Packhorse: {
        *("task", "recurring", "register_type", "use", "subscribe", "hook"),  # declared before anything runs
        *("drafted", "tell_enqueued", "stored_priority", "public", "open_failure", "sealed", "close"),
        *("write", "write_many"),  # of which enqueueing is made
        "flow",  # which asks nothing
        "on",  # which lends a connection
    },
}
EVERYTHING = Selection()


def public_methods(cls: type) -> dict[str, Callable[..., Any]]:
    found = inspect.getmembers(cls, inspect.isfunction)
    return {name: method for name, method in found if not name.startswith("_")}


def is_twin(name: str, methods: dict[str, Callable[..., Any]]) -> bool:
    return name.startswith("a") and name[1:] in methods


SYNC = [
    (cls, name)
    for cls, without in WITHOUT.items()
    for name in public_methods(cls)
    if name not in without and not is_twin(name, public_methods(cls))
]


@pytest.mark.parametrize(("cls", "name"), SYNC, ids=lambda it: getattr(it, "__name__", it))
def test_every_name_has_its_twin(cls: type, name: str):
    """With the same parameters; what iterates does so asynchronously."""
    methods = public_methods(cls)
    twin = methods[f"a{name}"]
    assert inspect.signature(twin).parameters == inspect.signature(methods[name]).parameters
    if "Iterator" in str(inspect.signature(methods[name]).return_annotation):
        assert "AsyncIterator" in str(inspect.signature(twin).return_annotation)
    else:
        assert inspect.iscoroutinefunction(twin)
    assert twin.__qualname__ == f"{cls.__name__}.a{name}"


# What they do.


class Overheard:
    """A store that remembers from which threads it was asked."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.threads: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.store, name)
        if not callable(found):
            return found

        def asked(*args: Any, **kwargs: Any) -> Any:
            self.threads.add(threading.get_ident())
            return found(*args, **kwargs)

        return asked


@pytest.fixture
def shop(app: Packhorse) -> Packhorse:
    """Three jobs, one of which has succeeded and one of which has a permit."""

    @app.task(name="double")
    def double(number: int, password: str = "") -> int:
        return 2 * number

    done = double.enqueue(1, password="hush")
    with Embedded(app):
        assert done.result(timeout=30) == 2
    double.using(queue_name="mail").enqueue(2)
    double.using(queue_name="mail", run_after=3600).enqueue(3)
    app.control.set_limit("printer/", 0)
    app.control.set_weight("ann", 2)
    app.store.take_token(Pace("mail/", 1, 3_600 * SECOND, burst=2), 0)
    app.control.pause("night")
    app.store = Overheard(app.store)  # type: ignore[assignment]
    return app


def elsewhere(shop: Packhorse, ask: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """What came of it; the thread of the event loop asked no store."""
    threads: set[int] = shop.store.threads  # type: ignore[attr-defined]
    threads.clear()
    found = asyncio.run(ask())
    assert threads
    assert threading.get_ident() not in threads
    return found


async def listed(items: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in items]


LOOKS: dict[str, tuple[Any, ...]] = {
    "queues": (),
    "pauses": (),
    "limits": (),
    "limit": ("printer/",),
    "rates": (),
    "weights": (),
    "awaited": (),
    "processes": (),
    "audit": (1,),
    "counts": (),
    "exists": (),
    "schema_version": (),
    "jobs": (EVERYTHING, 2),
    "stored_jobs": (EVERYTHING, 2),
    "count": (Selection(queues={"mail"}),),
}
OF_ONE_JOB = {"stored", "progress", "steps", "failed", "arguments", "shown_arguments", "result_of", "shown_result"}


def test_all_looks_are_tried():
    assert {*LOOKS, *OF_ONE_JOB} == {name for cls, name in SYNC if cls is Inspection}


@pytest.mark.parametrize("name", LOOKS)
def test_looking(shop: Packhorse, name: str):
    """The twin sees the same, whole or page by page."""
    expected = getattr(shop.inspection, name)(*LOOKS[name])

    async def ask() -> Any:
        answer = getattr(shop.inspection, f"a{name}")(*LOOKS[name])
        return await (listed(answer) if isinstance(answer, AsyncIterator) else answer)

    assert elsewhere(shop, ask) == (list(expected) if isinstance(expected, Iterator) else expected)


def test_looking_at_one_job(shop: Packhorse):
    """Errors come through as they are."""
    first = next(shop.inspection.jobs()).id

    async def ask() -> None:
        inspection = shop.inspection
        job = await inspection.astored(first)
        assert job == inspection.stored(first)
        assert (await inspection.aarguments(job)).kwargs == {"password": "hush"}
        assert await inspection.ashown_arguments(job) == inspection.shown_arguments(job)
        assert (await inspection.aresult_of(job), await inspection.ashown_result(job)) == (2, 2)
        assert await inspection.aprogress(first) is None
        assert await inspection.asteps(first) == []
        assert await inspection.afailed(EVERYTHING, "Error", limit=5, scan=5) == ([], 0, None)
        with pytest.raises(JobNotFound):
            await inspection.astored("nonsense")
        with pytest.raises(JobNotFound):
            inspection.ajobs(after="nonsense")

    asyncio.run(ask())


def test_a_page_is_read_only_when_it_is_needed(shop: Packhorse, monkeypatch: pytest.MonkeyPatch):
    """So that a million jobs need no more memory than one page."""
    pages = 0
    ask = shop.store.jobs

    def counted(*args: Any, **how: Any) -> Any:
        nonlocal pages
        pages += 1
        return ask(*args, **how)

    monkeypatch.setattr(shop.store, "jobs", counted)

    async def first() -> JobState:
        async for job in shop.inspection.ajobs(page=1):
            return job.state
        raise AssertionError

    assert asyncio.run(first()) is JobState.SUCCEEDED
    assert pages == 1


def acts(shop: Packhorse) -> dict[str, Callable[[], Awaitable[Any]]]:
    control = shop.control
    _, ready, scheduled = (job.id for job in shop.inspection.jobs())
    mail = Selection(queues={"mail"})
    return {
        "run_now": lambda: control.arun_now([scheduled], actor="ann", reason="now"),
        "change": lambda: control.achange([ready], priority=5, actor="ann", reason="now"),
        "cancel": lambda: control.acancel([ready], actor="ann", reason="now"),
        "retry": lambda: control.aretry([ready], actor="ann", reason="now"),
        "stop": lambda: control.astop([ready], actor="ann", reason="now"),
        "restart": lambda: control.arestart([ready], actor="ann", reason="now"),
        "reload": lambda: control.areload(ready, (7,), actor="ann", reason="now"),
        "act": lambda: control.aact(mail, Change(Act.CANCEL), actor="ann", reason="now"),
        "batches": lambda: listed(control.abatches(mail, Change(Act.RETRY), actor="ann", reason="now")),
        "discard": lambda: control.adiscard([ready], actor="ann", reason="now"),
        "pause": lambda: control.apause("mail", until=60, actor="ann", reason="now"),
        "resume": lambda: control.aresume("mail", actor="ann", reason="now"),
        "pause_task": lambda: control.apause_task("double", until=60, actor="ann", reason="now"),
        "resume_task": lambda: control.aresume_task("double", actor="ann", reason="now"),
        "set_limit": lambda: control.aset_limit("printer/", 3, actor="ann", reason="now"),
        "set_weight": lambda: control.aset_weight("ann", 3, actor="ann", reason="now"),
        "migrate": lambda: control.amigrate(),
    }


def test_acting(shop: Packhorse):
    """The twins do what they say, one after the other, and it is audited."""
    found = {}
    for name, act in acts(shop).items():

        async def ask(act: Callable[[], Awaitable[Any]] = act) -> Any:
            return await act()

        found[name] = elsewhere(shop, ask)
    assert found.keys() == {name for cls, name in SYNC if cls is Control} - {"backup"}
    assert [found[name] for name in ("run_now", "change", "cancel", "retry", "act", "discard")] == [1, 1, 1, 1, 2, 1]
    assert [found[name] for name in ("stop", "restart", "reload")] == [1, 1, True]
    assert [moved.jobs for moved in found["batches"]] == [2]
    assert (found["resume"], found["resume_task"], found["migrate"]) == (True, True, [])
    done = [it for it in shop.inspection.audit() if it.actor == "ann"]
    assert len(done) == len(found) - 1
    assert {it.reason for it in done} == {"now"}
    assert shop.inspection.limit("printer/").to == 3
    assert shop.inspection.weights() == {"ann": 3}


def test_backing_up(shop: Packhorse, tmp_path: Path):
    """Only a file can be copied."""
    if shop.store.url.startswith("sqlite:"):
        made = elsewhere(shop, lambda: shop.control.abackup(tmp_path / "copy.db"))
        assert [path.name for path in made] == ["copy.db", "copy.db-key"]
    else:
        with pytest.raises(ConfigError, match=r"pg_dump|nothing to back up"):
            elsewhere(shop, lambda: shop.control.abackup(tmp_path / "copy.db"))
