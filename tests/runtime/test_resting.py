"""How often a worker asks its store: with nothing to do, and at a stream of quick jobs."""

import threading
from collections.abc import Callable, Iterator

import pytest

from packhorse import JobState, Packhorse, Task
from packhorse.ids import new_id
from packhorse.queues import EVERYTHING
from packhorse.runtime import worker as worker_module
from packhorse.runtime.process import Process
from packhorse.runtime.worker import LINGER, Worker
from tests.waiting import wait_until

POLL = 30.0
MakeApp = Callable[..., Packhorse]


class Sleeper(Worker):
    """Its turns are taken by the test, and only the test calls it."""

    def take_turns(self, number: int) -> list[bool]:
        """Whether it wants to sleep until its next poll after each."""
        return [self.turn() >= POLL for _ in range(number)]

    def call(self) -> None:
        super()._call()

    def _call(self) -> None:
        """The watcher is not heard: the enrolment may have woken it."""

    def is_woken_by(self, act: Callable[[], None], ended: int) -> bool:
        """Whether what ended cut its sleep short."""
        self._process.wake.wait(0)
        act()
        wait_until(lambda: len(self._ended) == ended, "the jobs end")
        return self._process.wake.wait(0)


@pytest.fixture
def make_worker(make_app: MakeApp) -> Iterator[Callable[[int], Sleeper]]:
    made: list[Process] = []

    def make(concurrency: int) -> Sleeper:
        app = make_app(polling_interval=POLL)
        worker = Sleeper(app, EVERYTHING, concurrency)
        made.append(Process(app, worker, supervisor=new_id()))
        made[-1]._enroll()
        return worker

    yield make
    for process in made:
        process._end()


@pytest.fixture
def worker(make_worker: Callable[[int], Sleeper]) -> Sleeper:
    return make_worker(1)


def test_one_that_nobody_called_looks_once_at_each_poll(worker: Sleeper):
    assert worker.take_turns(4) == [True] * 4


def test_one_that_was_called_for_nothing_looks_once_more(worker: Sleeper):
    worker.call()
    assert worker.take_turns(3) == [False, True, True]


class Gates(dict[str, threading.Event]):
    """Tasks wait at them, until the test lets them go on."""

    def __missing__(self, name: str) -> threading.Event:
        return self.setdefault(name, threading.Event())


@pytest.fixture
def gates() -> Iterator[Gates]:
    gates = Gates()
    yield gates
    for gate in gates.values():
        gate.set()


@pytest.fixture
def busy(make_worker: Callable[[int], Sleeper]) -> Sleeper:
    """One whose jobs were quick so far."""
    worker = make_worker(4)
    worker._pace = LINGER / 10
    return worker


@pytest.fixture
def wait(busy: Sleeper, gates: Gates) -> Task[[str], bool]:
    @busy._app.task
    def wait(gate: str) -> bool:
        return gates[gate].wait(60)

    return wait


def test_what_ends_after_several_came_waits_for_the_next_exchange(busy: Sleeper, wait: Task[[str], bool], gates: Gates):
    """It comes as soon as the time is over that the last one took."""
    jobs = [wait.enqueue("a") for _ in range(3)]
    assert busy.turn() <= LINGER
    assert not busy.is_woken_by(gates["a"].set, ended=3)
    busy.turn()
    assert {job.state for job in jobs} == {JobState.SUCCEEDED}


def test_the_end_of_a_job_that_came_alone_is_written_at_once(busy: Sleeper, wait: Task[[str], bool], gates: Gates):
    wait.enqueue("a")
    assert busy.turn() == LINGER
    assert busy.is_woken_by(gates["a"].set, ended=1)


@pytest.mark.parametrize("long", [0.0, 60.0])
def test_one_that_came_alone_waits_for_others_only_if_they_are_quick_too(
    busy: Sleeper, wait: Task[[str], bool], gates: Gates, long: float, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(worker_module, "LONG", long)
    for gate in ("a", "b"):
        wait.enqueue(gate)
        assert busy.turn() == LINGER
    assert busy.is_woken_by(gates["b"].set, ended=1) == (long == 0)
    assert busy.is_woken_by(gates["a"].set, ended=2)
