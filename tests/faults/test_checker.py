"""The checker of the chaos runs, before histories made by hand: a good one, and one for each way to break a promise."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from chaos.checker import Broken, Verdict, check
from chaos.history import APART, SECOND, SELF, STRICT, Ack, Bounds, Effect, Fault, History, Line, Pace, Row, Span, What

ONE, TWO = 101, 102  # pids


class Told:
    """A history that is written line by line. Times are seconds."""

    def __init__(self, **bounds: float) -> None:
        self.bounds = Bounds(**bounds)  # type: ignore[arg-type]
        self.acks: list[Ack] = []
        self.lines: list[Line] = []
        self.rows: dict[str, Row] = {}
        self.faults: list[Fault] = []
        self.limits: dict[str, int] = {}
        self.rates: dict[str, Pace] = {}
        self.schedules: dict[str, Span] = {}
        self.leftovers: list[str] = []

    def enqueued(self, job: str, at: float = 0, attempts: int = 1, after: Iterable[str] = ()) -> Told:
        self.acks.append(Ack(job, "task", _us(at), attempts, tuple(after)))
        return self.ended(job, attempts=attempts)

    def ended(self, job: str, state: str = "succeeded", attempts: int = 1, losses: int = 0, by: str = "") -> Told:
        self.rows[job] = Row(job, "task", state, attempts, losses, by or None)
        return self

    def line(self, at: float, what: What, job: str, run: str, generation: int, pid: int, **about: str) -> Told:
        self.lines.append(Line(_us(at), what, job, run, generation, pid, "task", about))
        return self

    def ran(
        self,
        job: str,
        begin: float,
        end: float | None,
        *,
        run: str = "a",
        generation: int = 1,
        pid: int = ONE,
        how: What = What.FINISH,
        **about: str,
    ) -> Told:
        """Without an end, it was never heard of again."""
        self.line(begin, What.START, job, run, generation, pid, **about)
        return self if end is None else self.line(end, how, job, run, generation, pid)

    def fault(self, effect: Effect, begin: float, end: float, *pids: int, bound: float | None = None) -> Told:
        self.faults.append(Fault(str(effect), _us(begin), _us(end), effect, frozenset(pids), bound))
        return self

    def verdict(self) -> Verdict:
        parts: dict[str, Any] = dict(vars(self))
        return check(History(**parts))

    def broken(self) -> set[Broken]:
        verdict = self.verdict()
        assert verdict.ok == (not verdict.violations)
        return set(verdict.by_kind)


def _us(seconds: float) -> int:
    return round(seconds * SECOND)


def good() -> Told:
    """A little of everything, with faults that explain what happened again."""
    told = Told()
    told.limits["room"] = 2
    told.rates["pace"] = Pace(10, 1)
    told.schedules["daily"] = Span(_us(1), _us(3), _us(1))
    told.enqueued("plain").ran("plain", 1, 2)
    told.enqueued("killed").ran("killed", 1, None).fault(Effect.KILL, 3, 3.1, ONE, bound=2.0)
    told.ran("killed", 4, 5, run="b", generation=2, pid=TWO).ended("killed", losses=1, by="b")
    told.enqueued("frozen", 9).ran("frozen", 10, 20.5).fault(Effect.FREEZE, 11, 20, ONE, bound=6.0)
    told.ran("frozen", 16, 17, run="b", generation=2, pid=TWO).ended("frozen", losses=1, by="b")
    told.enqueued("flaky", attempts=2).ran("flaky", 1, 2, how=What.RAISED)
    told.ran("flaky", 3, 4, run="b", generation=2).ended("flaky", attempts=2, by="b")
    for n in range(3):
        told.enqueued(f"guest-{n}").ran(f"guest-{n}", 1 + n, 2 + n, limit="room")
    for n in range(5):
        told.enqueued(f"paced-{n}").ran(f"paced-{n}", 1 + n / 10, 2, rate="pace")
    for n in range(1, 4):
        told.ended(f"tick-{n}").ran(f"tick-{n}", n, n + 0.1, schedule="daily", moment=str(_us(n)))
    told.enqueued("first").ran("first", 1, 2, place="flow@0")
    told.enqueued("second", after=["first"]).ran("second", 2, 3, place="flow@1")
    told.enqueued("steps").ran("steps", 1, 2, how=What.RAISED)
    told.line(1.1, What.EFFECT, "steps", "a", 1, ONE, step="pay").line(1.2, What.KEPT, "steps", "a", 1, ONE, step="pay")
    told.ran("steps", 3, 4, run="b").line(3.1, What.KEPT, "steps", "b", 1, ONE, step="pay").ended("steps", by="b")
    return told


def test_a_good_history_breaks_nothing():
    verdict = good().verdict()
    assert verdict.violations == []
    assert verdict.counts["acknowledged"] == 15
    assert verdict.counts["succeeded"] == 18
    assert verdict.counts["lost"] == verdict.counts["unfinished"] == 0
    assert verdict.counts["repeated because of a fault"] == 2
    assert verdict.counts["zombies of a freeze"] == 1
    assert verdict.counts["losses counted"] == 2
    assert verdict.counts["moments"] == 3
    assert verdict.counts["followers"] == 1
    assert verdict.recoveries["kill"].seconds == [0.9]
    assert verdict.recoveries["freeze"].worst == 5.0


# Workers that die, and what they had begun.


def strict(told: Told, how: What | None) -> Told:
    told.enqueued("once").ran("once", 1, None if how is None else 2, how=how or What.FINISH)
    told.fault(Effect.KILL, 1.5, 2.1, ONE).ran("once", 3, 4, run="b", generation=2, pid=TWO)
    told.ended("once", losses=1, by="b")
    told.lines = [line._replace(kind=STRICT) if line.job == "once" else line for line in told.lines]
    return told


@pytest.mark.parametrize(
    ("how", "broken"), [(None, {Broken.TWICE}), (What.FINISH, {Broken.TWICE}), (What.RAISED, set())]
)
def test_a_strict_job_that_began_twice(how: What | None, broken: set[Broken]):
    """Whatever fault explains it; but a task that was told to stop, and did, may begin again."""
    assert strict(good(), how).broken() == broken


def suicide(told: Told, losses: int) -> Told:
    told.enqueued("mad").ran("mad", 1, 2, how=What.DIES)
    told.faults += [Fault(SELF, _us(2), _us(3), Effect.KILL, frozenset({ONE}))]
    return told.ran("mad", 4, 5, run="b", generation=2, pid=TWO).ended("mad", losses=losses, by="b")


def test_a_worker_that_was_killed_by_its_task_without_a_loss():
    assert suicide(Told(), losses=1).broken() == set()
    assert suicide(Told(), losses=0).broken() == {Broken.UNCOUNTED}
    blind = suicide(Told(), losses=0)
    blind.faults.append(Fault("kill supervisor", _us(2.5), _us(3), Effect.HARMLESS))
    assert blind.broken() == set(), "nobody was there to see it"
    seen = suicide(Told(), losses=0)
    seen.faults.append(Fault("kill worker", _us(2.5), _us(3), Effect.KILL, frozenset({TWO + 1})))
    assert seen.broken() == {Broken.UNCOUNTED}, "another death blinds nobody"


# What was promised to the caller.


def test_an_acknowledged_job_that_is_gone():
    told = good().enqueued("gone")
    del told.rows["gone"]
    assert told.broken() == {Broken.LOST}
    assert told.verdict().counts["lost"] == 1


@pytest.mark.parametrize("state", ["ready", "running", "scheduled", "waiting"])
def test_a_job_that_never_finished(state: str):
    assert good().enqueued("stuck").ended("stuck", state, attempts=0).broken() == {Broken.UNFINISHED}


def test_a_job_that_succeeded_without_having_run():
    assert good().enqueued("magic").broken() == {Broken.NEVER_RAN}


def test_a_job_that_succeeded_without_having_run_to_its_end():
    assert good().enqueued("half").ran("half", 1, None).broken() == {Broken.NEVER_RAN}


def test_a_job_that_failed_without_a_reason():
    assert good().enqueued("bad").ran("bad", 1, 2).ended("bad", "failed").broken() == {Broken.STATE}


def test_a_job_that_was_lost_too_often_may_fail():
    told = Told().enqueued("unlucky")
    for n in range(3):
        told.ran("unlucky", 10 * n + 1, None, run=f"r{n}", generation=n + 1, pid=ONE + n)
        told.fault(Effect.KILL, 10 * n + 2, 10 * n + 2, ONE + n)
    assert told.ended("unlucky", "failed", attempts=0, losses=3).broken() == set()


def test_a_job_that_failed_for_claims_that_never_began():
    """A loss is an attempt cut short; a claim that nobody began is none."""
    told = Told().enqueued("innocent").ran("innocent", 1, None).fault(Effect.KILL, 2, 2, ONE)
    told.fault(Effect.KILL, 3, 3, TWO).fault(Effect.KILL, 4, 4, 103)
    assert told.ended("innocent", "failed", attempts=0, losses=3).broken() == {Broken.STATE}


def test_a_job_that_nobody_cancelled():
    assert good().enqueued("bad").ended("bad", "cancelled").broken() == {Broken.STATE}


def test_a_job_behind_one_that_failed_may_be_cancelled():
    told = Told().enqueued("first")
    for n in range(3):
        told.ran("first", 10 * n + 1, None, run=f"r{n}", generation=n + 1, pid=ONE + n)
        told.fault(Effect.KILL, 10 * n + 2, 10 * n + 2, ONE + n)
    told.ended("first", "failed", attempts=0, losses=3)
    assert told.enqueued("second", after=["first"]).ended("second", "cancelled", attempts=0).broken() == set()


@pytest.mark.parametrize("attempts", [0, 2])
def test_attempts_that_are_miscounted(attempts: int):
    told = good().enqueued("odd").ran("odd", 1, 2).ended("odd", attempts=attempts)
    assert told.broken() == {Broken.COUNT}


def test_retries_that_are_forgotten():
    told = good().enqueued("odd", attempts=3).ran("odd", 1, 2, how=What.RAISED).ran("odd", 3, 4, run="b")
    assert told.ended("odd", attempts=1, by="b").broken() == {Broken.COUNT}


def test_retries_of_a_job_that_nobody_was_told_of():
    """It takes as many attempts as others of its kind."""
    told = Told().enqueued("known", attempts=2)
    told.ran("known", 1, 2, how=What.RAISED).ran("known", 3, 4, run="b", generation=2).ended(
        "known", attempts=2, by="b"
    )
    told.ran("other", 1, 2, how=What.RAISED).ran("other", 3, 4, run="b", generation=2)
    assert told.ended("other", attempts=2, by="b").broken() == set()
    assert told.ended("other", attempts=1, by="b").broken() == {Broken.COUNT}


def test_losses_without_a_fault():
    told = Told().enqueued("odd").ran("odd", 1, 2).ended("odd", losses=1)
    assert told.broken() == {Broken.COUNT}
    assert told.fault(Effect.HARMLESS, 1, 2).broken() == {Broken.COUNT}
    assert told.fault(Effect.KILL, 0.5, 0.5, ONE).broken() == set()


@pytest.mark.parametrize("at", [5.0, 30.0])
def test_losses_with_a_fault_before_or_after_the_life_of_the_job(at: float):
    told = Told().enqueued("odd", 10).ran("odd", 11, 12).ended("odd", losses=1)
    assert told.fault(Effect.KILL, at, at, TWO).broken() == {Broken.COUNT}


# One attempt at a time, and its record.


def test_a_finished_job_that_ran_again():
    told = Told().enqueued("twice").ran("twice", 1, 2).ran("twice", 3, 4, run="b", generation=2, pid=TWO)
    assert told.broken() == {Broken.REPEATED}


def test_a_job_that_ran_again_though_its_process_was_well():
    told = good().enqueued("twice").ran("twice", 30, None, pid=TWO)
    assert told.ran("twice", 33, 34, run="b", generation=2).broken() == {Broken.REPEATED}


def test_a_fault_of_another_process_explains_nothing():
    told = Told().enqueued("twice").ran("twice", 1, None).fault(Effect.KILL, 2, 2, TWO)
    assert told.ran("twice", 3, 4, run="b", generation=2, pid=3).broken() == {Broken.REPEATED}


def test_a_fault_before_or_after_explains_nothing():
    told = Told().enqueued("twice").fault(Effect.KILL, 0.1, 0.2, ONE).ran("twice", 1, None)
    told.ran("twice", 3, 4, run="b", generation=2, pid=TWO).fault(Effect.KILL, 5, 5, ONE)
    assert told.broken() == {Broken.REPEATED}


def test_a_stop_in_good_order_explains_nothing():
    told = Told().enqueued("twice").ran("twice", 1, None).fault(Effect.HARMLESS, 2, 3, ONE)
    assert told.ran("twice", 4, 5, run="b", pid=TWO).broken() == {Broken.REPEATED}


def test_an_end_that_was_not_written_in_good_time():
    """It had finished long before its process was killed, and still ran again."""
    told = Told(unwritten=1.0).enqueued("late").ran("late", 1, 2).fault(Effect.KILL, 9, 9, ONE)
    told.ran("late", 10, 11, run="b", generation=2, pid=TWO).ended("late", losses=1, by="b")
    assert told.broken() == {Broken.REPEATED}


@pytest.mark.parametrize(("seconds", "broken"), [(1.0, {Broken.REPEATED}), (5.0, set())])
def test_a_store_that_is_away_explains_something_only_for_longer_than_leases_last(seconds: float, broken: set[Broken]):
    told = Told(patience=2.0).enqueued("twice").ran("twice", 1, 3).fault(Effect.AWAY, 2, 2 + seconds)
    assert told.ran("twice", 8, 9, run="b", generation=2, pid=TWO).ended("twice", by="b").broken() == broken


def test_a_short_outage_delays_what_a_long_one_undoes():
    told = Told(patience=2.0, unwritten=1.0, backoff=3.0).enqueued("late").ran("late", 1, 2)
    told.fault(Effect.AWAY, 2, 3).fault(Effect.AWAY, 5, 9).ran("late", 10, 11, run="b", generation=2, pid=TWO)
    assert told.ended("late", losses=1, by="b").broken() == set()
    told.faults = told.faults[1:]
    assert told.broken() == {Broken.REPEATED}


def test_two_attempts_at_once():
    told = Told().enqueued("both").fault(Effect.KILL, 2, 2, ONE).ran("both", 1, 5)
    told.ran("both", 3, 6, run="b", generation=2, pid=TWO).ended("both", losses=1, by="b")
    assert told.broken() == {Broken.OVERLAP}


def test_a_sign_of_life_is_enough_for_two_at_once():
    told = Told().enqueued("both").fault(Effect.AWAY, 1.5, 5).ran("both", 1, None)
    told.line(3.5, What.BEAT, "both", "a", 1, ONE).ran("both", 3, 6, run="b", generation=2, pid=TWO)
    assert told.ended("both", losses=1, by="b").broken() == {Broken.OVERLAP}


def test_what_was_frozen_may_go_on_for_a_moment_only():
    told = Told(thaw=1.0).enqueued("zombie").ran("zombie", 1, 15).fault(Effect.FREEZE, 2, 10, ONE)
    told.ran("zombie", 8, 9, run="b", generation=2, pid=TWO).ended("zombie", losses=1, by="b")
    assert told.broken() == {Broken.OVERLAP}


def test_what_is_frozen_again_goes_on_later():
    told = Told(thaw=1.0).enqueued("zombie").ran("zombie", 1, 15).fault(Effect.FREEZE, 2, 10, ONE)
    told.ran("zombie", 8, 9, run="b", generation=2, pid=TWO).ended("zombie", losses=1, by="b")
    assert told.fault(Effect.FREEZE, 10.5, 14.5, ONE).broken() == set()


def test_the_record_of_an_old_attempt():
    told = Told().enqueued("stale").ran("stale", 1, 10.5).fault(Effect.FREEZE, 2, 10, ONE)
    told.ran("stale", 8, 11, run="b", generation=2, pid=TWO)
    assert told.ended("stale", losses=1, by="a").broken() == {Broken.STALE}
    assert told.ended("stale", losses=1, by="b").broken() == set()


def test_the_record_of_an_old_attempt_of_the_same_generation():
    """Where a job went back unspent, the numbers tell nothing, and the order of time does."""
    told = Told().enqueued("stale").ran("stale", 1, 4).fault(Effect.KILL, 2, 2, ONE)
    told.ran("stale", 5, 6, run="b", pid=TWO)
    assert told.ended("stale", by="a").broken() == {Broken.AFTER_END}


def test_a_result_of_nobody():
    told = good().enqueued("odd").ran("odd", 1, 2).ended("odd", by="z")
    assert told.broken() == {Broken.STALE}


def test_one_that_was_claimed_first_and_thawed_late_may_begin_after_the_end():
    told = (
        Told().enqueued("zombie").fault(Effect.FREEZE, 2, 10, ONE).ran("zombie", 8, 9, run="b", generation=2, pid=TWO)
    )
    told.ran("zombie", 10.1, 10.2, run="a", generation=1, pid=ONE).ended("zombie", losses=1, by="b")
    assert told.broken() == set()


def test_a_finished_step_that_ran_again():
    told = good().enqueued("again").ran("again", 1, 2, how=What.RAISED).ran("again", 3, 4, run="b")
    for at, run in ((1.1, "a"), (3.1, "b")):
        told.line(at, What.EFFECT, "again", run, 1, ONE, step="pay")
        told.line(at + 0.1, What.KEPT, "again", run, 1, ONE, step="pay")
    assert told.ended("again", by="b").broken() == {Broken.STEP}


def test_a_step_that_was_not_kept_may_run_again():
    told = good().enqueued("again").ran("again", 1, 2, how=What.RAISED).ran("again", 3, 4, run="b")
    told.line(1.1, What.EFFECT, "again", "a", 1, ONE, step="pay")
    told.line(3.1, What.EFFECT, "again", "b", 1, ONE, step="pay")
    told.line(3.2, What.KEPT, "again", "b", 1, ONE, step="pay")
    assert told.ended("again", by="b").broken() == set()


# Limits, rates, moments, followers.


def test_more_at_once_than_a_limit_allows():
    told = good()
    for n in range(3):
        told.enqueued(f"crowd-{n}").ran(f"crowd-{n}", 50 + n / 10, 51, limit="room")
    assert told.broken() == {Broken.OVERRUN}


def test_as_many_as_a_limit_allows():
    told = Told()
    told.limits["room"] = 1
    for n in range(3):
        told.enqueued(f"guest-{n}").ran(f"guest-{n}", n, n + 1, limit="room")
    assert told.broken() == set()


def test_who_was_killed_holds_no_permit():
    told = Told()
    told.limits["room"] = 1
    told.enqueued("killed").ran("killed", 1, None, limit="room").fault(Effect.KILL, 2, 2, ONE)
    told.enqueued("next").ran("next", 3, 10, limit="room", pid=TWO)
    told.ran("killed", 11, 12, run="b", generation=2, limit="room", pid=TWO).ended("killed", losses=1, by="b")
    assert told.broken() == set()


def test_more_beginnings_than_a_rate_allows():
    told = good()
    for n in range(20):
        told.enqueued(f"rush-{n}").ran(f"rush-{n}", 60 + n / 50, 61, rate="pace")
    assert told.broken() == {Broken.TOO_FAST}


def test_a_rate_may_catch_up():
    told = good()
    for n in range(10):
        told.enqueued(f"rush-{n}").ran(f"rush-{n}", 60 + n / 50, 61, rate="pace")
    assert told.broken() == set()


def test_a_moment_that_was_missed():
    told = good()
    told.lines = [line for line in told.lines if line.job != "tick-2"]
    del told.rows["tick-2"]
    assert told.broken() == {Broken.MISSED}


def test_a_moment_with_two_jobs():
    told = good().ended("tick-2b").ran("tick-2b", 2.5, 2.6, schedule="daily", moment=str(_us(2)))
    assert told.broken() == {Broken.DOUBLED}


@pytest.mark.parametrize(("state", "also"), [("cancelled", Broken.STATE), ("waiting", Broken.UNFINISHED)])
def test_a_follower_that_was_dropped(state: str, also: Broken):
    told = good().enqueued("third", after=["second"]).ended("third", state, attempts=0)
    assert told.broken() == {Broken.DROPPED, also}


def test_a_follower_that_came_too_early():
    assert good().enqueued("third", after=["second"]).ran("third", 2.5, 4).broken() == {Broken.EARLY}


def test_two_followers_for_one_place():
    assert good().enqueued("other").ran("other", 5, 6, place="flow@1").broken() == {Broken.TWICE_FOLLOWED}


# What is left, and how soon all came back.


def test_something_left_over():
    told = good()
    told.leftovers.append("3 permits of room are out")
    assert told.broken() == {Broken.LEFTOVER}


def test_a_job_that_came_back_too_late():
    told = Told().enqueued("slow").ran("slow", 1, None).fault(Effect.KILL, 2, 2, ONE, bound=2.0)
    told.ran("slow", 9, 10, run="b", generation=2, pid=TWO).ended("slow", losses=1, by="b")
    assert told.broken() == {Broken.LATE}
    assert told.verdict().recoveries["kill"].worst == 7.0


@pytest.mark.parametrize(("again", "broken"), [(11.9, set()), (12.1, {Broken.LATE})])
def test_a_job_that_needs_a_process_may_wait_until_one_has_begun(again: float, broken: set[Broken]):
    told = Told().enqueued("slow").ran("slow", 1, None).fault(Effect.KILL, 2, 2, ONE, bound=2.0)
    told.ran("slow", again, 13, run="b", generation=2, pid=TWO).ended("slow", losses=1, by="b")
    told.lines = [line._replace(kind=APART) for line in told.lines]
    assert told.broken() == broken


def test_how_soon_it_came_back_is_not_told_where_another_fault_came_between():
    told = Told().enqueued("slow").ran("slow", 1, None).fault(Effect.KILL, 2, 2, ONE, bound=2.0)
    told.fault(Effect.HARMLESS, 3, 8).ran("slow", 9, 10, run="b", generation=2, pid=TWO)
    assert told.ended("slow", losses=1, by="b").broken() == set()
    assert told.verdict().recoveries["kill"].seconds == []
