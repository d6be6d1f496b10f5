"""What the benchmark relies on wherever it measures."""

import asyncio
import json
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from bench import environments, plot
from bench.__main__ import chosen
from bench.producer import at_full_speed, one_by_one
from bench.sizes import FULL, QUICK
from bench.stores import STORES


def test_each_number_is_enqueued_once_and_in_order():
    seen = []

    async def enqueue(number):
        seen.append(number)

    asyncio.run(one_by_one(enqueue, 3, 6))
    assert seen == [3, 4, 5, 6]


def test_a_call_that_failed_is_no_job_and_its_number_comes_again():
    seen = []

    async def enqueue(number):
        seen.append(number)
        if len(seen) == 2:
            raise OSError("locked")

    produced = asyncio.run(at_full_speed(enqueue, 1, 0.3))
    assert seen[:3] == [1, 2, 2]
    assert produced["errors"] == ["OSError: locked"]
    assert produced["jobs"] == len(seen) - 1
    assert len(produced["calls"]) == len(seen)
    assert sum(produced["calls"]) == produced["ended"] - produced["began"]


def test_scenarios_that_do_not_fit_a_store_are_left_out_there():
    assert "profile" in chosen("sqlite", None)
    assert "profile" not in chosen("postgres", None)
    assert "unanalyzed" in chosen("postgres", None)
    assert chosen("postgres", "drain, unanalyzed") == ["drain", "unanalyzed"]
    with pytest.raises(click.BadParameter, match="'unanalyzed' is none of"):
        chosen("sqlite", "unanalyzed")


@pytest.mark.parametrize("sizes", [FULL, QUICK])
def test_every_system_has_a_size_for_its_pace(sizes):
    postgres = STORES["postgres"]
    for system in (*STORES["sqlite"].peers, *postgres.bares, *postgres.known_peers, *postgres.known_variants):  # type: ignore[attr-defined]
        assert sizes.drain_jobs[system.pace] > 0


def test_a_peer_gets_our_python_if_that_is_new_enough():
    assert environments.interpreter((3, 11)) == sys.executable


def test_a_peer_gets_a_newer_python_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    stand_in, works = tmp_path / "python3.12", tmp_path / "python3.13"
    stand_in.write_text("#!/bin/sh\nexit 127\n")
    works.write_text("#!/bin/sh\necho 99.1\n")
    stand_in.chmod(0o700)
    works.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    environments._version.cache_clear()
    try:
        assert environments.interpreter((99, 0)) == "python3.13"
        with pytest.raises(RuntimeError, match=r"it needs Python 100\.0"):
            environments.interpreter((100, 0))
    finally:
        environments._version.cache_clear()


def _rates(median: float) -> dict[str, float]:
    return {"median": median, "min": median - 1, "max": median + 1}


FIGURES = {
    "systems": {
        "packhorse": {"rate": _rates(90.0), "rate_with_finish": _rates(80.0)},
        "hasty": {"rate": _rates(500.0), "rate_with_finish": _rates(20.0)},
        "forgetful": {"rate": _rates(50.0)},
    }
}


def test_a_picture_shows_rates_with_the_recorded_finish():
    assert plot.bars(FIGURES) == [
        ("hasty", 20.0, 19.0, 21.0),
        ("forgetful", 50.0, 49.0, 51.0),
        ("packhorse", 80.0, 79.0, 81.0),
    ]


def test_a_picture_is_drawn_from_a_report(tmp_path: Path):
    pytest.importorskip("matplotlib")
    report, picture = tmp_path / "report.json", tmp_path / "drain.svg"
    settings = {"store": "postgres", "cpus": 2}
    report.write_text(json.dumps({"settings": settings, "figures": {"drain": FIGURES, "unanalyzed": FIGURES}}))
    ended = CliRunner().invoke(plot.main, [str(report), str(picture)])
    assert ended.exit_code == 0, ended.output
    text = picture.read_text()
    assert text.count("hasty") == text.count("tables never analyzed") + 1 == 2


def test_a_report_without_a_drain_is_refused(tmp_path: Path):
    report = tmp_path / "report.json"
    report.write_text(json.dumps({"settings": {}, "figures": {"idle": {}}}))
    ended = CliRunner().invoke(plot.main, [str(report), str(tmp_path / "drain.svg")])
    assert ended.exit_code == 2
    assert "holds no drain" in ended.output
