"""Lets every scene be played with a mutant until the checker notices."""

from __future__ import annotations

import logging
from typing import NamedTuple

from chaos.checker import Broken, Verdict, check
from chaos.mutants.patches import STAGE_BETWEEN, Mutant
from chaos.mutants.scenes import SCENES, Scene
from chaos.mutants.stage import Stage
from chaos.run import Arena, Plan

REAL = {  # and the fault that shows it
    "children_outlive_their_supervisor": "kill supervisor",
    "nobody_judges_for_dead_children": "kill worker",
    "workers_do_not_stop_themselves": "disk full for long",
}


class Caught(NamedTuple):
    """`broken` are the promises that the verdict of a scene names; none where the story itself could not be told."""

    scene: str
    broken: tuple[Broken, ...]
    text: str


def play(scene: Scene, store: str) -> Verdict:
    with Stage(store) as stage:
        STAGE_BETWEEN.clear()
        STAGE_BETWEEN["act"] = lambda: stage.between() if stage.between is not None else None
        scene(stage)
        return stage.verdict()


def hunt(mutant: Mutant, store: str) -> Caught | None:
    """The first scene that shows it; None where it gets away."""
    logging.disable(logging.CRITICAL)
    try:
        for name in sorted(SCENES, key=lambda name: name != mutant.shown_by):
            with mutant.on():
                verdict = play(SCENES[name], store)
            if not verdict.ok:
                kinds = tuple(sorted(verdict.by_kind))
                return Caught(name, kinds, str(verdict.violations[0]))
    finally:
        logging.disable(logging.NOTSET)
    return None


def hunt_in_processes(mutant: Mutant | None, *faults: str) -> Caught | None:
    """With real workers, and the one fault that shows it; without a mutant, with the faults that are given."""
    kinds = (REAL[mutant.name],) if mutant is not None else faults
    plan = Plan(
        seconds=0.1,
        at_least=len(kinds),
        warm_up=3.0,
        per_second=120.0,  # fewer would find room in what the store has of its disk already
        longest=10.0,
        long_share=1.2,
        shutdown_timeout=1.0 if mutant is not None else 15.0,
        settle=60.0,
        hasty=0.0,
        only=kinds,
        app="chaos.jobs:app" if mutant is None else "chaos.mutants.loader:app",
        extra_environment=() if mutant is None else (("CHAOS_MUTANT", mutant.name),),
    )
    with Arena(plan) as arena:
        verdict = check(arena.run().history)
    if verdict.ok:
        return None
    return Caught(kinds[0], tuple(sorted(verdict.by_kind)), str(verdict.violations[0]))
