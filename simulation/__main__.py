"""`python -m simulation --seeds 10000`: many seeds; `--seed N --trace`: one of them, with all that happens in it."""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from multiprocessing import get_context

from simulation.world import Verdict, simulate, simulate_each

CHUNK = 25


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m simulation", description="Simulate Packhorse's roles, by seeds.")
    parser.add_argument("--seeds", type=int, default=1_000, help="how many, from --first on")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--trace", action="store_true", help="with --seed: show everything that happens")
    parser.add_argument("--processes", type=int, default=1, help="how many run side by side")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.seed is not None:
        return _one(given.seed, given.trace)
    return _many(range(given.first, given.first + given.seeds), given.processes, given.json)


def _one(seed: int, trace: bool) -> int:
    verdict = simulate(seed, keep=None if trace else 60)
    if trace or verdict.failure:
        print("\n".join(verdict.trace))
    if verdict.error is not None:
        traceback.print_exception(verdict.error)
    print(f"seed {seed}: {verdict.failure or 'all is well'}")
    return 1 if verdict.failure else 0


def _many(seeds: range, processes: int, as_json: bool) -> int:
    began = time.monotonic()
    failed: list[Verdict] = []
    done = calls = jobs = finished = faults = 0
    hours = 0.0
    for verdict in _verdicts(seeds, processes):
        done += 1
        calls, jobs, faults = calls + verdict.calls, jobs + verdict.jobs, faults + verdict.faults
        finished += verdict.finished
        hours += verdict.seconds / 3_600
        if verdict.failure:
            failed.append(verdict)
            if not as_json:
                print(f"\rseed {verdict.seed}: {verdict.failure}")
        if done % CHUNK == 0 or done == len(seeds):
            took = time.monotonic() - began
            line = f"{done:,} of {len(seeds):,} seeds, {len(failed)} failed, {done / took:.0f} a second"
            print(f"\r{line} ", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    figures = {"seeds": done, "failed": {it.seed: it.failure for it in failed}, "calls": calls, "jobs": jobs}
    figures |= {
        "finished": finished,
        "faults": faults,
        "virtual_hours": round(hours, 1),
        "seconds": round(time.monotonic() - began, 1),
    }
    if as_json:
        print(json.dumps(figures))
    else:
        print(", ".join(f"{value} {name}" for name, value in figures.items() if name != "failed"))
        if failed:
            print("\n".join(failed[0].trace))
            print(f"seed {failed[0].seed}: {failed[0].failure}; for all of it: --seed {failed[0].seed} --trace")
    return 1 if failed else 0


def _verdicts(seeds: range, processes: int) -> Iterator[Verdict]:
    if processes == 1:
        for seed in seeds:
            yield from simulate_each([seed])
        return
    rest = iter(seeds)
    chunks = list(iter(lambda: list(islice(rest, CHUNK)), []))
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for chunk in pool.map(simulate_each, chunks):
            yield from chunk


if __name__ == "__main__":
    sys.exit(main())
