"""Many histories of all roles on a virtual clock; and small mutants of the runtime, which the simulation must notice.

A failing seed is looked at with `python -m simulation --seed N --trace`.
"""

import inspect
import textwrap
from typing import Any, NamedTuple

import pytest

from packhorse import steps
from packhorse.runtime import orphans, perform, process, worker
from packhorse.stores import memory
from simulation.world import World, simulate

SEEDS = 200
PARTS = 4
ENOUGH = 150  # seeds within which each mutant is noticed


@pytest.mark.slow
@pytest.mark.parametrize("part", [0, 1, *(pytest.param(part, marks=pytest.mark.thorough) for part in range(2, PARTS))])
def test_what_is_promised_holds_in_every_history(part: int):
    verdicts = []
    for seed in range(part, SEEDS, PARTS):
        verdicts.append(simulate(seed))
        assert verdicts[-1].failure is None, "\n".join([*verdicts[-1].trace, f"seed {seed}: {verdicts[-1].failure}"])
    assert sum(verdict.calls for verdict in verdicts) > 100 * len(verdicts)  # and it did happen
    assert sum(verdict.finished for verdict in verdicts) > 10 * len(verdicts)
    assert sum(verdict.faults for verdict in verdicts) > 10 * len(verdicts)


def test_a_seed_tells_the_same_story_every_time():
    for seed in (3, 8):
        first = World(seed, keep=None).run()
        simulate(seed + 1)
        assert World(seed, keep=None).run().trace == first.trace


class Mutant(NamedTuple):
    """A function in which some lines read otherwise."""

    owner: Any
    name: str
    changes: dict[str, str]

    def function(self) -> Any:
        original = inspect.getattr_static(self.owner, self.name)
        source = textwrap.dedent(inspect.getsource(original))
        for before, after in self.changes.items():
            assert before in source, f"{self.name} no longer reads {before!r}"
            source = source.replace(before, after)
        made: dict[str, Any] = {}
        exec(f"from __future__ import annotations\n{source}", original.__globals__, made)
        return made[self.name]


MUTANTS = {
    "outcomes are dropped after a failed exchange": Mutant(
        worker.Worker, "_exchange", {"self._ended.extendleft(reversed(outcomes))": "pass"}
    ),
    "what a lost reply gave is not looked for": Mutant(
        worker.Worker, "_resolve_doubt", {"if token not in self._held:": "if False:"}
    ),
    "the orphans of a lost reply are not looked for": Mutant(
        orphans.Judge, "_adopt", {"self._in_doubt = True": "self._in_doubt = False"}
    ),
    "a verdict is lost when its write fails": Mutant(
        orphans.Judge,
        "_write",
        {
            "outcomes = [outcome for _, outcome in self._unwritten]": "outcomes = [o for _, o in self._unwritten]\n"
            "    self._unwritten = []"
        },
    ),
    "a job fails because the store did not answer before it began": Mutant(
        perform.Performer, "_prepare", {"except StoreUnavailable:": "except ZeroDivisionError:"}
    ),
    "a process goes on under its old id": Mutant(process.Process, "enroll_anew", {"self.id = new_id()": "pass"}),
    "who leaves gives back what it still performs": Mutant(
        process.Process, "_leave", {"if not self.role.drained:": "if False:"}
    ),
    "a step is done again": Mutant(steps.Steps, "find", {"return kept and": "return None and"}),
    "adopting ignores leases": Mutant(
        memory.MemoryStore, "adopt", {"{id for id in self._processes if not self._alive(id)}": "set(self._processes)"}
    ),
    "a release is counted as an attempt": Mutant(
        memory.MemoryStore, "_finish", {"job.attempts += outcome.spent": "job.attempts += 1"}
    ),
    "an old token is taken": Mutant(memory.MemoryStore, "_held_under", {"job.token == token": "job.token is not None"}),
    "who has no lease may claim": Mutant(memory.MemoryStore, "exchange", {"if alive else []": "if True else []"}),
    "followers begin with the first before them, and again with the next": Mutant(
        memory.MemoryStore,
        "_open_gates",
        {"if not ended or job.waits_on != GATE:": "if not ended:", "elif not job.gated:": "else:"},
    ),
    "followers are forgotten": Mutant(
        memory.MemoryStore, "_finish", {"self._open_gates({job.new.id": "not ({job.new.id"}
    ),
    "a moment gets a job of everybody": Mutant(
        memory.MemoryStore,
        "tick",
        {
            "(known.revision, known.handled) != (schedule.revision, schedule.handled)": "False",
            "if (schedule.key, moment) in self._ticks:": "if False:",
        },
    ),
    "a limit lets everybody in": Mutant(memory.MemoryStore, "_has_room", {"return len(": "return True or len("}),
    "a permit is kept by who comes back later": Mutant(
        memory.MemoryStore, "_finish", {"if outcome.state is not JobState.READY:": "if outcome.state.finished:"}
    ),
    "a unique key is free at once": Mutant(memory.MemoryStore, "_give_way", {"if not id or": "if True or"}),
}


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("what", MUTANTS)
def test_a_mutant_is_noticed(what: str, monkeypatch: pytest.MonkeyPatch):
    mutant = MUTANTS[what]
    monkeypatch.setattr(mutant.owner, mutant.name, mutant.function())
    assert any(simulate(seed).failure for seed in range(ENOUGH))
