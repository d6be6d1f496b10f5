"""Flows as a program uses them: chains, groups, chords, graphs, results by reference, failures, cancel and retry."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import pytest

from packhorse import Call, Embedded, JobState, NotFinished, Packhorse, debounce, limit, rate, unique
from packhorse.errors import ConfigError, EnqueueError, JobFailed
from packhorse.flow import Batch, Flow, chain, chord, group
from packhorse.job import Need, NewJob, Parent
from packhorse.pickling import PickleCodec
from tests.waiting import wait_until

SOON = 60.0
MakeApp = Callable[..., Packhorse]


@dataclass
class Box:
    weight: int


class Kit:
    """Some tasks, and what they did in which order."""

    def __init__(self, app: Packhorse) -> None:
        self.done: list[Any] = []
        self.broken: set[str] = set()
        lock = threading.Lock()

        @app.task(name="step")
        def step(name: str, *, seen: Any = None) -> str:
            with lock:
                self.done.append(name)
            if name in self.broken:
                raise ValueError(name)
            return f"{name}!"

        @app.task(name="add")
        def add(numbers: list[int]) -> int:
            return sum(numbers)

        @app.task(name="double")
        async def double(number: int) -> int:
            return 2 * number

        @app.task(name="pack")
        def pack(weight: int) -> Box:
            return Box(weight)

        @app.task(name="weigh")
        def weigh(box: Box, factor: int = 1) -> int:
            return box.weight * factor

        self.step, self.add, self.double, self.pack, self.weigh = step, add, double, pack, weigh


@pytest.fixture
def kit(app: Packhorse) -> Kit:
    return Kit(app)


def test_a_chain_runs_in_order(app: Packhorse, kit: Kit):
    flow = chain(*[kit.step.call(name) for name in "abcdef"]).enqueue()
    assert flow.counts() == {JobState.READY: 1, JobState.WAITING: 5}
    with Embedded(app, concurrency=4):
        assert flow.wait(SOON) == {JobState.SUCCEEDED: 6}
    assert kit.done == list("abcdef")
    assert flow.results() == [f"{name}!" for name in "abcdef"]
    assert app.flow(flow.id).finished


def test_a_step_gets_the_result_of_the_one_before(app: Packhorse, kit: Kit):
    flow = chain(kit.double.call(1), kit.double, kit.double, kit.pack, kit.weigh).enqueue()
    with Embedded(app):
        flow.wait(SOON)
    assert flow.results() == [2, 4, 8, Box(8), 8]


def test_a_chord_gets_all_results_in_their_order(app: Packhorse, kit: Kit):
    flow = chord([kit.double.call(number) for number in range(50)], kit.add).enqueue()
    with Embedded(app, concurrency=8):
        flow.wait(SOON)
    assert flow.results()[-1] == 2 * sum(range(50))


def test_an_empty_chord_begins_at_once(app: Packhorse, kit: Kit):
    flow = chord([], kit.add).enqueue()
    with Embedded(app):
        flow.wait(SOON)
    assert flow.results() == [0]


def test_a_group_is_side_by_side(app: Packhorse, kit: Kit):
    flow = group(kit.double.call(number) for number in range(20)).enqueue()
    assert flow.counts() == {JobState.READY: 20}
    with Embedded(app):
        flow.wait(SOON)
    assert flow.results() == [2 * number for number in range(20)]


def test_a_graph_of_any_shape(app: Packhorse, kit: Kit):
    flow = Flow()
    a = flow.add(kit.double.call(1))
    b, c = flow.add(kit.double.call(a.result)), flow.add(kit.pack.call(a.result))
    d = flow.add(kit.weigh.call(c.result, factor=10), after=b)
    sides = flow.group([kit.double.call(d.result), kit.double.call(b.result)])
    last = flow.add(kit.add.call(sides.results))
    flow.add(kit.step.call("end"), after=[last, a])
    handle = flow.enqueue()
    with Embedded(app, concurrency=4):
        handle.wait(SOON)
    assert handle.results() == [2, 4, Box(2), 20, 40, 8, 48, "end!"]


def test_a_flow_within_a_flow(app: Packhorse, kit: Kit):
    inner = chain(kit.step.call("b"), kit.step.call("c"))
    outer = Flow()
    first = outer.add(kit.step.call("a"))
    last = outer.include(inner, after=first)
    outer.add(kit.step.call("d"), after=last)
    handle = outer.enqueue()
    with Embedded(app):
        handle.wait(SOON)
    assert kit.done == list("abcd")


def test_a_failure_stops_what_comes_after_it(app: Packhorse, kit: Kit):
    kit.broken = {"b"}
    flow = chain(*[kit.step.call(name) for name in "abcd"]).enqueue()
    with Embedded(app):
        assert flow.wait(SOON) == {JobState.SUCCEEDED: 1, JobState.FAILED: 1, JobState.CANCELLED: 2}
    assert kit.done == ["a", "b"]
    reasons = [job.look().reason for job in flow.jobs()]
    assert reasons[2] == reasons[3] == "a job before it did not succeed"
    with pytest.raises(JobFailed):
        flow.results()


def test_with_continue_it_goes_on_and_the_missing_result_is_none(app: Packhorse, kit: Kit):
    kit.broken = {"x"}
    flow = Flow()
    sides = flow.group([kit.step.call(name) for name in "wxy"])
    flow.add(kit.step.call("end", seen=sides.results), on_failure="continue")
    handle = flow.enqueue()
    with Embedded(app):
        assert handle.wait(SOON) == {JobState.SUCCEEDED: 3, JobState.FAILED: 1}
    assert kit.done[-1] == "end"


def test_retries_come_before_what_follows_which_runs_once(make_app: MakeApp):
    app = make_app()
    runs: Counter[str] = Counter()

    @app.task(retries=3, backoff=0)
    def shaky(name: str) -> None:
        runs[name] += 1
        if runs[name] < 3:
            raise ValueError

    flow = chain(shaky.call("a"), shaky.call("b"), shaky.call("c")).enqueue()
    with Embedded(app):
        assert flow.wait(SOON) == {JobState.SUCCEEDED: 3}
    assert runs == {"a": 3, "b": 3, "c": 3}


def test_a_whole_flow_is_cancelled_and_taken_up_again(app: Packhorse, kit: Kit):
    flow = chain(*[kit.step.call(name) for name in "abc"]).enqueue()
    assert flow.cancel(reason="not today") >= 1
    assert flow.counts() == {JobState.CANCELLED: 3}
    assert flow.retry() == 3
    assert flow.counts() == {JobState.READY: 1, JobState.WAITING: 2}
    with Embedded(app):
        assert flow.wait(SOON) == {JobState.SUCCEEDED: 3}
    assert kit.done == list("abc")


def test_a_flow_resumes_from_where_it_failed(app: Packhorse, kit: Kit):
    kit.broken = {"b"}
    flow = chain(*[kit.step.call(name) for name in "abcd"]).enqueue()
    with Embedded(app):
        flow.wait(SOON)
        kit.broken = set()
        assert flow.retry() == 3
        assert flow.wait(SOON) == {JobState.SUCCEEDED: 4}
    assert kit.done == list("abbcd")


def test_a_cancelled_or_discarded_parent_counts_as_one_that_did_not_succeed(app: Packhorse, kit: Kit):
    for act in (app.control.cancel, app.control.discard):
        flow = chain(kit.step.call("a"), kit.step.call("b"), kit.step.call("c")).enqueue()
        act([next(iter(flow.jobs())).id])
        left = flow.counts()
        assert left[JobState.CANCELLED] >= 2
        assert JobState.WAITING not in left


def test_what_comes_after_a_job_that_is_not_kept_begins_all_the_same(make_app: MakeApp):
    app = make_app()
    kit = Kit(app)

    @app.task(name="gone", keep_succeeded=0)
    def gone() -> int:
        return 1

    flow = chain(gone.call(), kit.step.call("a"), gone.call(), kit.step.call("b")).enqueue()
    with Embedded(app):
        assert flow.wait(SOON) == {JobState.SUCCEEDED: 2}
    with pytest.raises(ConfigError, match="keeps no results"):
        chain(gone.call(), kit.double)


def test_limits_compose_with_flows(make_app: MakeApp):
    app = make_app()
    inside, most, lock = 0, 0, threading.Lock()

    @app.task(name="work", limit=limit(to=2))
    def work(number: int) -> int:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        threading.Event().wait(0.002)
        with lock:
            inside -= 1
        return number

    @app.task(name="end")
    def end(numbers: list[int]) -> int:
        return sum(numbers)

    flow = chord([work.call(number) for number in range(30)], end).enqueue()
    with Embedded(app, concurrency=8):
        flow.wait(SOON)
    assert flow.results()[-1] == sum(range(30))
    assert most <= 2


def test_a_failure_may_be_waited_for(app: Packhorse, kit: Kit):
    """The store knows of callbacks that run only where something failed."""
    jobs = [kit.step.call(name).new_job() for name in ("a", "b")]
    alarm = kit.step.call("alarm").new_job()._replace(after=tuple(Parent(job.id, Need.FAILURE) for job in jobs))
    kit.broken = {"b"}
    app.store.insert([*jobs, alarm])
    with Embedded(app):
        wait_until(lambda: "alarm" in kit.done)
    fine = [kit.step.call(name).new_job() for name in ("c", "d")]
    alarm = kit.step.call("alarm").new_job()._replace(after=tuple(Parent(job.id, Need.FAILURE) for job in fine))
    app.store.insert([*fine, alarm])
    with Embedded(app):
        wait_until(lambda: app.store.job(alarm.id).state is JobState.CANCELLED)  # type: ignore[union-attr]
    assert kit.done.count("alarm") == 1


def test_a_job_may_come_before_one_that_still_waits(app: Packhorse, kit: Kit):
    first = kit.step.call("first").new_job()
    last = kit.step.call("last").new_job()._replace(after=(Parent(first.id),))
    app.store.insert([first, last])
    more = kit.step.call("more").new_job()._replace(before=(Parent(last.id),))
    app.store.insert([more])
    with Embedded(app):
        wait_until(lambda: len(kit.done) == 3)
    assert kit.done[-1] == "last"
    with pytest.raises(Exception, match="does not wait any more"):
        app.store.insert([kit.step.call("late").new_job()._replace(before=(Parent(last.id),))])


def test_one_may_come_after_jobs_that_have_ended(app: Packhorse, kit: Kit):
    kit.broken = {"bad"}
    good, bad = kit.step.enqueue("good"), kit.step.enqueue("bad")
    with Embedded(app):
        wait_until(lambda: good.state.finished and bad.state.finished)
    raw = [bytes.fromhex(job.id.replace("-", "")) for job in (good, bad)]
    jobs = [kit.step.call(str(n)).new_job()._replace(after=(Parent(id),)) for n, id in enumerate(raw)]
    app.store.insert(jobs)
    states = [app.store.job(job.id).state for job in jobs]  # type: ignore[union-attr]
    assert states == [JobState.READY, JobState.CANCELLED]


# Batches.


def test_callbacks_of_a_batch_run_where_they_are_wanted(app: Packhorse, kit: Kit):
    callbacks = {"on_success": "well", "on_failure": "badly", "on_finish": "over"}
    calls = {name: kit.step.call(text) for name, text in callbacks.items()}
    good = Batch([kit.step.call(name) for name in "abc"], **calls).enqueue()
    with Embedded(app):
        assert good.wait(SOON) == {JobState.SUCCEEDED: 3}
        wait_until(lambda: {"well", "over"} <= set(kit.done))
    assert "badly" not in kit.done
    kit.done.clear()
    kit.broken = {"x"}
    bad = Batch([kit.step.call(name) for name in "wxyz"], **calls).enqueue()
    with Embedded(app):
        bad.wait(SOON)
        wait_until(lambda: {"badly", "over"} <= set(kit.done))
    assert "well" not in kit.done
    assert bad.counts() == {JobState.SUCCEEDED: 3, JobState.FAILED: 1}


def test_a_batch_grows_while_it_runs(app: Packhorse, kit: Kit):
    batch = Batch([kit.step.call("a")], on_finish=kit.step.call("over")).enqueue()
    added = app.flow(batch.id).add([kit.step.call(f"more-{n}") for n in range(5)])
    assert batch.counts() == {JobState.READY: 6}
    with Embedded(app):
        batch.wait(SOON)
        wait_until(lambda: "over" in kit.done)
    assert kit.done[-1] == "over"
    assert [job.id for job in batch.jobs()][1:] == [job.id for job in added]
    with pytest.raises(EnqueueError, match="does not wait any more"):
        batch.add([kit.step.call("late")])


def test_members_may_be_added_before_a_batch_is_enqueued(app: Packhorse, kit: Kit):
    batch = Batch(on_finish=kit.step.call("over"), on_success=kit.step.call("well"))
    batch.add(kit.step.call("only"))
    with Embedded(app):
        assert batch.enqueue().wait(SOON) == {JobState.SUCCEEDED: 1}
        wait_until(lambda: {"over", "well"} <= set(kit.done))
    assert kit.done[0] == "only"


def test_results_of_a_group_reach_a_coroutine_without_holding_up_its_loop(app: Packhorse, kit: Kit):
    @app.task(name="total")
    async def total(numbers: list[int]) -> int:
        return sum(numbers)

    flow = chord([kit.double.call(number) for number in range(10)], total).enqueue()
    with Embedded(app):
        flow.wait(SOON)
    assert flow.results()[-1] == 90


# Maps.


def test_a_map_is_a_job_for_each_item_and_its_results_come_in_order(app: Packhorse, kit: Kit):
    flow = kit.double.map(range(20)).enqueue()
    assert flow.counts() == {JobState.READY: 20}
    spread = kit.weigh.starmap([(Box(3),), (Box(4), 10)]).enqueue()
    with Embedded(app, concurrency=4):
        flow.wait(SOON)
        spread.wait(SOON)
    assert flow.results() == [2 * number for number in range(20)]
    assert spread.results() == [3, 40]


def test_a_map_stands_wherever_calls_do(app: Packhorse, kit: Kit):
    """In a chord, a group, a batch, a flow, a chain, and for `enqueue_many`."""
    total = chord(kit.double.map(range(10)), kit.add).enqueue()
    sides = group(kit.double.map([1, 2])).enqueue()
    batch = Batch(kit.double.map([3, 4]), on_finish=kit.step.call("over")).enqueue()
    handles = app.enqueue_many(kit.double.map([5, 6]))
    steps = chain(kit.step.call("first"), kit.double.map([7, 8]), kit.add, kit.double).enqueue()
    flow = Flow()
    flow.add(kit.add.call(flow.group(kit.double.map([9])).results))
    free = flow.enqueue()
    assert steps.counts() == {JobState.READY: 1, JobState.WAITING: 4}
    with Embedded(app, concurrency=4):
        for handle in (total, sides, batch, steps, free):
            handle.wait(SOON)
        wait_until(lambda: "over" in kit.done)
        assert [handle.result(SOON) for handle in handles] == [10, 12]
    assert total.results()[-1] == 90
    assert sides.results() == [2, 4]
    assert batch.results() == [6, 8]
    assert steps.results() == ["first!", 14, 16, 30, 60]
    assert free.results()[-1] == 18


def test_a_map_is_written_in_batches_and_never_whole_in_memory(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch):
    """Items are taken at most one batch before they are written."""
    app = make_app(batch_size=10)
    kit = Kit(app)
    sizes, taken = [], 0
    insert = app.store.insert

    def numbers() -> Iterator[int]:
        nonlocal taken
        while taken < 35:
            taken += 1
            yield taken

    def seen(jobs: list[NewJob]) -> list[bytes]:
        sizes.append((len(jobs), taken))
        return insert(jobs)

    monkeypatch.setattr(app.store, "insert", seen)
    flow = kit.double.map(numbers()).enqueue()
    assert [size for size, _ in sizes] == [10, 10, 10, 5]
    assert all(taken <= 10 * (number + 2) for number, (_, taken) in enumerate(sizes))
    with Embedded(app):
        flow.wait(SOON)
    assert flow.results() == [2 * number for number in range(1, 36)]


def test_a_map_that_ends_early_says_what_was_written(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch):
    """As `enqueue_many` does."""
    from packhorse.errors import StoreUnavailable

    app = make_app(batch_size=10)
    kit = Kit(app)
    insert, left = app.store.insert, 2

    def fail(jobs: list[NewJob]) -> list[bytes]:
        nonlocal left
        left -= 1
        if left < 0:
            raise StoreUnavailable("gone")
        return insert(jobs)

    monkeypatch.setattr(app.store, "insert", fail)
    with pytest.raises(EnqueueError, match="Only the first 20 jobs") as raised:
        kit.double.map(range(100)).enqueue()
    assert len(raised.value.enqueued) == 20
    assert len(raised.value.left_out) == 20  # and the batch that was made meanwhile


def test_a_map_of_what_does_not_fit_is_refused(app: Packhorse, kit: Kit):
    for make in (
        lambda: kit.double.map(5),  # type: ignore[arg-type]
        lambda: kit.double.starmap([(1, 2)]).enqueue(),
        lambda: kit.double.starmap([7]).enqueue(),  # type: ignore[list-item]
    ):
        with pytest.raises(TypeError):
            make()
    assert sum(app.inspection.counts().values()) == 0


async def test_a_map_is_enqueued_by_coroutines_too(app: Packhorse, kit: Kit):
    flow = await kit.double.map([1, 2]).aenqueue()
    with Embedded(app):
        await flow.awaited(SOON)
    assert await flow.aresults() == [2, 4]


# Nothing at all.


def test_callbacks_of_an_empty_batch_begin_at_once(app: Packhorse, kit: Kit):
    """All of no jobs have succeeded, and none has failed."""
    calls: dict[str, Any] = {f"on_{name}": kit.step.call(name) for name in ("success", "failure", "finish")}
    batch = Batch(**calls).enqueue()
    assert sum(app.inspection.counts().values()) == app.inspection.counts()[JobState.READY] == 2
    with Embedded(app):
        wait_until(lambda: len(kit.done) == 2)
    assert set(kit.done) == {"success", "finish"}
    assert (batch.wait(0), batch.results(), batch.finished) == ({}, [], True)
    with pytest.raises(EnqueueError, match="does not wait any more"):
        batch.add([kit.step.call("late")])


@pytest.mark.parametrize("empty", [Flow, Batch, chain, lambda: group([])])
def test_a_flow_of_no_jobs_has_ended_with_no_results(app: Packhorse, kit: Kit, empty: Callable[[], Flow]):
    """No store knows of it, as no job says whose it is."""
    flow = empty().enqueue()
    assert (flow.counts(), flow.finished, flow.wait(0)) == ({}, True, {})
    assert (flow.results(), list(flow.jobs()), flow.cancel(), flow.retry()) == ([], [], 0, 0)
    assert flow.add([]) == []
    [more] = flow.add([kit.step.call("more")])
    assert [job.id for job in app.flow(flow.id).jobs()] == [more.id]
    assert flow.counts() == {JobState.READY: 1}


def test_an_empty_map_has_ended_with_no_results(app: Packhorse, kit: Kit):
    flow = kit.double.map([]).enqueue()
    assert (flow.wait(0), flow.results()) == ({}, [])
    total = chord(kit.double.map([]), kit.add).enqueue()
    with Embedded(app):
        total.wait(SOON)
    assert total.results() == [0]


def test_what_comes_after_an_empty_group_comes_after_what_that_came_after(app: Packhorse, kit: Kit):
    """With its results and without, through two of them too."""
    flow = Flow()
    first = flow.add(kit.double.call(1))
    nothing: list[Call[int]] = []
    second = flow.group(nothing, after=flow.group(nothing, after=first))
    flow.add(kit.step.call("end"), after=second)
    flow.add(kit.add.call(second.results))
    for made in (flow, chain(kit.double.call(1), kit.double.map([]), kit.add, kit.step.call("end"))):
        handle = made.enqueue()
        counts = handle.counts()
        assert (counts[JobState.READY], counts[JobState.WAITING]) == (1, sum(counts.values()) - 1)
        with Embedded(app):
            handle.wait(SOON)
        assert handle.results() in ([2, "end!", 0], [2, 0, "end!"])


# Waiting and looking.


def test_a_flow_is_waited_for_until_its_time_is_up(app: Packhorse, kit: Kit):
    flow = chain(kit.double.call(1), kit.double).enqueue()
    for timeout in (0, 0.05):
        with pytest.raises(NotFinished, match=flow.id):
            flow.wait(timeout)
    assert flow.counts() == {JobState.READY: 1, JobState.WAITING: 1}


def test_a_batch_that_grows_is_waited_for_to_its_end(app: Packhorse, kit: Kit):
    """Also by who began to wait before."""
    gate = threading.Event()

    @app.task(name="grow")
    def grow(batch: str, left: int) -> None:
        gate.wait(SOON)
        if left:
            app.flow(batch).add([grow.call(batch, left - 1)])

    batch = Batch(on_finish=kit.step.call("over"))
    batch.add(grow.call(batch.id, 5))
    handle = batch.enqueue()
    with Embedded(app), ThreadPoolExecutor(1) as beside:
        waiting = beside.submit(handle.wait, SOON)
        gate.set()
        assert waiting.result() == {JobState.SUCCEEDED: 6}


def test_a_flow_is_waited_for_though_a_job_of_it_goes_round_again_meanwhile(
    app: Packhorse, monkeypatch: pytest.MonkeyPatch
):
    """Also behind the back of who waits: when the last has ended, all are looked at once more."""
    gates = [threading.Event(), threading.Event()]
    attempts: Counter[str] = Counter()

    @app.task(name="first")
    def first() -> None:
        attempts["first"] += 1
        if attempts["first"] == 1:
            raise ValueError
        gates[0].wait(SOON)

    @app.task(name="last")
    def last() -> None:
        gates[1].wait(SOON)

    flow = group([first.call(), last.call()]).enqueue()
    one, other = flow.jobs()
    passed, ended = threading.Event(), app.store.ended

    def noting(ids: Any) -> set[bytes]:
        if other.id.replace("-", "") in [id.hex() for id in ids]:
            passed.set()
        return ended(ids)

    monkeypatch.setattr(app.store, "ended", noting)
    with Embedded(app, concurrency=2), ThreadPoolExecutor(1) as beside:
        wait_until(lambda: one.state is JobState.FAILED)
        waiting = beside.submit(flow.wait, SOON)
        assert passed.wait(SOON)
        one.retry()
        wait_until(lambda: attempts["first"] == 2)
        gates[1].set()
        assert not wait([waiting], timeout=0.3).done
        gates[0].set()
        assert waiting.result() == {JobState.SUCCEEDED: 2}


# Results for tasks with keys.


def test_results_are_for_tasks_too_whose_keys_do_not_depend_on_them(app: Packhorse, kit: Kit):
    """Their keys are those that other jobs with the same arguments have."""

    @app.task(name="static", limit=limit(to=1), rate="1000/s")
    def static(number: int) -> int:
        return number

    @app.task(name="by_name", limit=limit("{account}"), rate=rate("1000/s", lambda account, number: account))
    def by_name(number: int, account: str) -> int:
        return number

    @app.task(name="single", unique=unique(arguments=["box"]))
    def single(number: int, box: Box, more: int = 0) -> int:
        return number

    @app.task(name="weighing", unique=unique(arguments=["name"]))
    def weighing(box: Box, name: str) -> int:
        return box.weight

    @app.task(name="keyed", unique=debounce(lambda box, **others: box.weight))
    def keyed(number: int, box: Box) -> int:
        return number

    flow = Flow()
    first = flow.add(kit.double.call(1))
    packed = flow.add(kit.pack.call(first.result))
    box = Box(5)
    for call, other in (
        (static.call(first.result), static.call(7)),
        (by_name.call(first.result, "ann"), by_name.call(7, account="ann")),
        (by_name.call(account="ann", number=first.result), by_name.call(7, "ann")),
        (single.call(first.result, box), single.call(7, box=box)),
        (keyed.call(first.result, box), keyed.call(7, box=box)),
        (weighing.call(packed.result, "ann"), weighing.call(box, name="ann")),
    ):
        assert call.terms == other.terms
        assert call.terms.holds or call.terms.unique
    flow.add(static.call(first.result))
    flow.add(by_name.call(first.result, "ann"))
    flow.add(single.call(first.result, box))
    flow.add(weighing.call(packed.result, "ann"))
    handle = flow.enqueue()
    assert handle.counts() == {JobState.READY: 1, JobState.WAITING: 5}
    with Embedded(app):
        handle.wait(SOON)
    assert handle.results() == [2, Box(2), 2, 2, 2, 2]


def test_a_key_of_what_is_to_come_is_refused(app: Packhorse, kit: Kit):
    """Whatever is done with it; and nobody's `except` makes a key of that."""

    def careful(number: Any) -> str:
        try:
            return number.name  # type: ignore[no-any-return]
        except Exception:
            return "nobody"

    keys: list[Any] = [
        limit("{number}"),
        limit("{number.real}"),
        limit(lambda number: number),
        limit(lambda number: f"{number}"),
        limit(lambda number: "some" if number else "none"),
        limit(lambda number: number == 5 or "other"),
        limit(lambda number: "text" if isinstance(number, str) else "number"),
        limit(lambda number: number % 10),
        limit(lambda number: {1: "one"}.get(number, "many")),
        limit(lambda **arguments: str(arguments)),
        limit(careful),
        rate("1/s", "{number}"),
        rate("1/s", lambda number: number + 1),
        unique(),
        unique("{number}"),
        unique(arguments=["number"]),
        unique(lambda number: len(number)),
    ]
    flow = Flow()
    first = flow.add(kit.double.call(1))
    for place, key in enumerate(keys):
        option: Any = {type(key).__name__.lower(): key}
        task = app.task(name=f"task-{place}", **option)(lambda number: None)
        with pytest.raises(ConfigError, match=f"task-{place} cannot take the result of another job as 'number'"):
            task.call(first.result)
    merging = app.task(name="merging", unique=unique("all", on_conflict="merge"))(lambda number: None)
    with pytest.raises(ConfigError, match="it merges arguments"):
        merging.call(first.result)


# Bad input.


def test_bad_flows_are_refused_where_they_are_made(app: Packhorse, kit: Kit):
    @app.task(name="silent", results=False)
    def silent() -> int:
        return 1

    @app.task(name="many")
    def many(*numbers: int) -> None: ...

    flow, other = Flow(), Flow()
    here, there = flow.add(kit.double.call(1)), other.add(kit.double.call(1))
    cases: list[tuple[Callable[[], Any], str]] = [
        (lambda: flow.add(kit.double), "made of calls"),  # type: ignore[arg-type]
        (lambda: chord([kit.double.call(1)], print), "made of calls and tasks"),  # type: ignore[arg-type]
        (lambda: flow.add(kit.double.call(1), after=there), "only after jobs of its flow"),
        (lambda: flow.add(kit.double.call(there.result)), "only after jobs of its flow"),
        (lambda: flow.add(kit.double.call(1), after=here, on_failure="maybe"), "on_failure must be"),  # type: ignore[arg-type]
        (lambda: chain(kit.double), "first step"),
        (lambda: flow.add(silent.call()).result, "keeps no results"),
        (lambda: kit.double.call(here.result).new_job(), "within a flow"),
        (lambda: many.call(here.result), "cannot take the result"),
    ]
    for make, why in cases:
        with pytest.raises(ConfigError, match=why):
            make()
    stranger = NewJob(b"s" * 16, "step", b"", after=(Parent(b"x" * 16),))
    with pytest.raises(Exception, match="There is no job"):
        app.store.insert([stranger])
    assert app.store.job(stranger.id) is None


def test_nothing_of_a_flow_is_written_where_the_store_fails(app: Packhorse, kit: Kit, monkeypatch: pytest.MonkeyPatch):
    from packhorse.errors import StoreUnavailable

    def fail(jobs: list[NewJob]) -> None:
        raise StoreUnavailable("gone")

    monkeypatch.setattr(app.store, "insert", fail)
    with pytest.raises(EnqueueError, match="Nothing was enqueued"):
        chain(kit.step.call("a"), kit.step.call("b")).enqueue()


# What went wrong once.


def test_results_of_a_group_whose_jobs_were_added_among_others(app: Packhorse, kit: Kit):
    """The list has the results of its own jobs, wherever they stand in the flow."""
    flow = Flow()
    doubles = flow.group(kit.double.call(flow.add(kit.double.call(number)).result) for number in range(5))
    flow.add(kit.step.call("seen", seen=doubles.results))
    flow.add(kit.add.call(doubles.results))
    handle = flow.enqueue()
    with Embedded(app):
        handle.wait(SOON)
    assert handle.results()[-1] == 4 * sum(range(5))


def test_results_of_the_last_jobs_of_an_included_flow(app: Packhorse, kit: Kit):
    """They need not stand side by side."""
    inner = Flow()
    inner.add(kit.double.call(1))
    middle = inner.add(kit.double.call(10))
    inner.add(kit.double.call(middle.result))
    outer = Flow()
    lasts = outer.include(inner)
    outer.add(kit.add.call(lasts.results))
    handle = outer.enqueue()
    with Embedded(app):
        handle.wait(SOON)
    assert handle.results()[-1] == 2 + 40


def test_an_empty_flow_includes_nothing(app: Packhorse, kit: Kit):
    """What comes after it comes after what it came after, and nothing else."""
    outer = Flow()
    first, other = outer.add(kit.step.call("a")), outer.add(kit.step.call("b"))
    assert outer.include(Flow(), after=first).nodes == (first,)
    assert other not in outer.include(Flow()).nodes
    inner = chain(kit.step.call("c"))
    outer.include(inner)
    for again in (inner, outer):
        with pytest.raises(ConfigError, match="only once"):
            outer.include(again)
    with pytest.raises(ConfigError, match="only once"):
        inner.include(outer)  # that would be a circle


def test_a_group_that_keeps_no_results_gives_none(app: Packhorse, kit: Kit):
    """It says so where the flow is made, like a single job."""

    @app.task(name="silent", results=False)
    def silent() -> int:
        return 1

    with pytest.raises(ConfigError, match="keeps no results"):
        chord([silent.call()], kit.add)


def test_a_result_that_could_not_be_kept_is_not_taken_for_none(app: Packhorse, kit: Kit):
    """The job that needs it fails and says why."""

    @app.task(name="strange")
    def strange() -> object:
        return object()

    alone = chain(strange.call(), kit.step).enqueue()
    flow = Flow()
    sides = flow.group([strange.call()])
    flow.add(kit.step.call("end", seen=sides.results))
    together = flow.enqueue()
    with Embedded(app):
        for handle in (alone, together):
            assert handle.wait(SOON) == {JobState.SUCCEEDED: 1, JobState.FAILED: 1}
            failure = list(handle.jobs())[-1].look().failure
            assert failure is not None
            assert "object" in failure.message
    assert kit.done == []


def test_a_task_with_a_codec_of_its_own_takes_results(make_app: MakeApp):
    app = make_app()

    @app.task(name="one")
    def one() -> int:
        return 1

    @app.task(name="pickled", codec=PickleCodec())
    def pickled(number: int, more: int = 0) -> int:
        return number + more

    flow = Flow()
    first = flow.add(one.call())
    flow.add(pickled.call(first.result, more=5))
    handle = flow.enqueue()
    with Embedded(app):
        handle.wait(SOON)
    assert handle.results() == [1, 6]


def test_subscribers_are_told_of_the_jobs_of_a_flow(app: Packhorse, kit: Kit):
    told: list[str] = []
    app.subscribe("enqueued")(lambda event: told.append(event.job_id))
    flow = chain(kit.step.call("a"), kit.step.call("b")).enqueue()
    batch = Batch([kit.step.call("c")], on_finish=kit.step.call("over")).enqueue()
    added = batch.add([kit.step.call("d")])
    wait_until(lambda: len(told) == 5)
    assert {*(job.id for job in flow.jobs()), *(job.id for job in batch.jobs()), added[0].id} < set(told)


def test_a_batch_grows_after_a_failure(app: Packhorse, kit: Kit):
    """Some of its callbacks are settled then; the others wait for the new jobs too."""
    kit.broken = {"bad"}
    gate = threading.Event()

    @app.task(name="hold")
    def hold() -> None:
        gate.wait(SOON)

    callbacks = {"on_success": "well", "on_failure": "badly", "on_finish": "over"}
    calls: dict[str, Any] = {name: kit.step.call(text) for name, text in callbacks.items()}
    batch = Batch([kit.step.call("bad"), hold.call()], **calls).enqueue()
    with Embedded(app):
        wait_until(lambda: "badly" in kit.done)
        batch.add([kit.step.call("more")])
        gate.set()
        wait_until(lambda: "over" in kit.done)
    assert set(kit.done) == {"bad", "badly", "more", "over"}
    assert kit.done[-1] == "over"


def test_retrying_a_batch_that_went_well_raises_no_alarm(app: Packhorse, kit: Kit):
    """Its on_failure was cancelled since nothing failed, and that is still so."""
    batch = Batch([kit.step.call("a")], on_failure=kit.step.call("alarm"), on_finish=kit.step.call("over")).enqueue()
    with Embedded(app):
        batch.wait(SOON)
        wait_until(lambda: "over" in kit.done)
    assert batch.retry() == 0
    assert kit.done == ["a", "over"]
    kit.broken = {"over2"}
    other = Batch([kit.step.call("b")], on_failure=kit.step.call("alarm"), on_finish=kit.step.call("over2")).enqueue()
    with Embedded(app):
        other.wait(SOON)
        wait_until(lambda: app.inspection.counts().get(JobState.FAILED) == 1)
        kit.broken = set()
        assert other.retry() == 1
        wait_until(lambda: kit.done.count("over2") == 2)
    assert "alarm" not in kit.done


def test_a_job_makes_its_own_batch_grow(app: Packhorse, kit: Kit):
    """It knows the id before the batch is enqueued."""

    @app.task(name="crawl")
    def crawl(batch: str, depth: int) -> None:
        if depth:
            app.flow(batch).add([crawl.call(batch, depth - 1)] * 2)

    batch = Batch(on_success=kit.step.call("well"), on_finish=kit.step.call("over"))
    batch.add(crawl.call(batch.id, 4))
    handle = batch.enqueue()
    assert handle.id == batch.id
    with Embedded(app, concurrency=4):
        wait_until(lambda: len(kit.done) == 2)
    assert handle.counts() == {JobState.SUCCEEDED: 31}
    assert set(kit.done) == {"well", "over"}
