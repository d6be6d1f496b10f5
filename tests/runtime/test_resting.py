"""How often a worker with nothing to do asks its store."""

from collections.abc import Callable, Iterator

import pytest

from packhorse import Packhorse
from packhorse.ids import new_id
from packhorse.queues import EVERYTHING
from packhorse.runtime.process import Process
from packhorse.runtime.worker import Worker

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


@pytest.fixture
def worker(make_app: MakeApp) -> Iterator[Sleeper]:
    app = make_app(polling_interval=POLL)
    worker = Sleeper(app, EVERYTHING, 1)
    Process(app, worker, supervisor=new_id())._enroll()
    yield worker
    worker.end()


def test_one_that_nobody_called_looks_once_at_each_poll(worker: Sleeper):
    assert worker.take_turns(4) == [True] * 4


def test_one_that_was_called_for_nothing_looks_once_more(worker: Sleeper):
    worker.call()
    assert worker.take_turns(3) == [False, True, True]
