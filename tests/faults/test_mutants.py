"""Packhorse made wrong on purpose: the checker of the chaos runs must notice each mutant, and nothing else."""

import os

import pytest

from chaos.checker import Broken
from chaos.mutants.hunt import REAL, hunt, hunt_in_processes, play
from chaos.mutants.patches import BOTH, MUTANTS
from chaos.mutants.scenes import SCENES

PLAYED = [
    # Where a mutant can be seen on the memory store, which is quick, the file is for thorough runs.
    pytest.param(name, store, marks=[pytest.mark.thorough] if store == "sqlite" and "memory" in mutant.stores else [])
    for name, mutant in MUTANTS.items()
    if not mutant.processes
    for store in mutant.stores
]


@pytest.mark.parametrize("store", BOTH)
@pytest.mark.parametrize("scene", SCENES)
def test_packhorse_as_it_is_breaks_nothing(scene: str, store: str):
    assert play(SCENES[scene], store).violations == []


@pytest.mark.parametrize(("name", "store"), PLAYED)
def test_a_mutant_is_caught(name: str, store: str):
    caught = hunt(MUTANTS[name], store)
    assert caught is not None, MUTANTS[name].says


def test_there_are_many_and_all_say_what_they_do():
    assert len(MUTANTS) >= 20
    assert all(mutant.says for mutant in MUTANTS.values())
    assert {name for name, mutant in MUTANTS.items() if mutant.processes} == set(REAL)


def test_a_mutant_leaves_no_trace():
    for mutant in MUTANTS.values():
        with mutant.on():
            pass
    for scene in ("a_limit_is_kept", "one_after_the_other", "every_moment_gets_its_job"):
        assert play(SCENES[scene], "sqlite").ok


mounts = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small tmpfs")
NAMES = [pytest.param(name, marks=[mounts] if "disk" in fault else []) for name, fault in REAL.items()]


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES)
def test_a_mutant_of_real_workers_is_caught(name: str):
    caught = hunt_in_processes(MUTANTS[name])
    assert caught is not None, MUTANTS[name].says


@mounts
@pytest.mark.slow
@pytest.mark.thorough
def test_real_workers_as_they_are_live_through_the_same_faults():
    caught = hunt_in_processes(None, *REAL.values())
    assert caught is None or set(caught.broken) == {Broken.LATE}, caught  # the machine may be busy
