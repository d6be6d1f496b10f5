"""What a supervisor knows of a child when it has died."""

import os
import time
from typing import Any

import pytest

from packhorse import Packhorse
from packhorse.ids import new_id
from packhorse.runtime import supervisor as supervisor_module
from packhorse.runtime.child import Plan
from packhorse.runtime.supervisor import Child, Supervisor


class Dead:
    """A child that said one thing, and died of it."""

    pid, returncode = 1, -9

    def __init__(self, said: str) -> None:
        self._said = said

    def report(self) -> int:
        reading, writing = os.pipe()
        os.write(writing, self._said.encode() + b"\n")
        os.close(writing)
        return reading

    def poll(self) -> int:
        return self.returncode


def test_its_last_words_are_heard_before_it_is_buried(monkeypatch: pytest.MonkeyPatch):
    """However slow the thread that listens: they may say under which name it held jobs, and which did not end."""
    name, job = new_id(), new_id()
    for said in (f'{{"id": "{name.hex()}"}}', f'{{"timed_out": "{job.hex()}"}}'):
        monkeypatch.setattr(supervisor_module, "Started", lambda told, begun, said=said: Dead(said))
        hear = Child._hear

        def slowly(child: Child, heard: dict[str, Any], hear: Any = hear) -> None:
            time.sleep(0.05)
            hear(child, heard)

        with monkeypatch.context() as busy:
            busy.setattr(Child, "_hear", slowly)
            supervisor = Supervisor(Packhorse("shop", "memory://"), [])
            supervisor._start(Plan("shop:app", "worker"), 0)
            [child] = supervisor._children
            supervisor._bury(child)
        if "timed_out" in said:
            assert supervisor._unjudged[child.id].timed_out == {job}
        else:
            assert name in supervisor._unjudged
