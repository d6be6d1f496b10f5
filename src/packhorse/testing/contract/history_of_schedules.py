"""Rules of histories in which schedules are saved, changed and ticked, by several who may have looked long ago."""

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from packhorse.clock import SECOND
from packhorse.stores.contract import StoredSchedule
from packhorse.testing.contract.history import PROCESSES, History, whole_jobs

SCHEDULES = ["hourly", "nightly", "often"]

rows = st.fixed_dictionaries(
    {
        "key": st.sampled_from(SCHEDULES),
        "payload": st.sampled_from([b"", b"sealed"]),
        "fingerprint": st.sampled_from("fg"),
        "overlap": st.sampled_from(["allow", "skip"]),
        "paused": st.sampled_from([False, False, True]),
        "repeats": st.sampled_from([None, 1, 3]),
        "next_at": st.sampled_from([None, -3, 0, 2, 60]),  # seconds from now
    }
)
# Of few moments, so that many had their job before.
ticks = st.fixed_dictionaries(
    {
        "number": st.integers(0, 40),
        "stale": st.sampled_from([False, False, False, True]),
        "jobs": st.lists(st.tuples(st.integers(0, 4), whole_jobs), min_size=1, max_size=2) | st.just([]),
        "step": st.sampled_from([None, 1, 30]),
        "error": st.sampled_from(["", "no such task"]),
        "again": st.booleans(),
    }
)


class Schedules(History):
    def row(self, next_at: int | None, **fields: Any) -> StoredSchedule:
        moment = None if next_at is None else self.clock.now() + next_at * SECOND
        return StoredSchedule(task="birds.count", rule="often", next_at=moment, **fields)

    @precondition(lambda self: "schedules" in self.subjects)
    @rule(source=st.sampled_from(["shop", "blog"]), wanted=st.lists(rows, max_size=3, unique_by=lambda it: it["key"]))
    def save_schedules(self, source: str, wanted: list[dict[str, Any]]) -> None:
        """What code declares, and so perhaps removes."""
        declared = [self.row(**fields) for fields in wanted]
        self.both("save_schedules", source, declared)
        self.both("save_schedules", source, declared)

    @precondition(lambda self: "schedules" in self.subjects)
    @rule(fields=rows, known=st.booleans(), stale=st.sampled_from([0, 0, 0, 1, -1]))
    def put_schedule(self, fields: dict[str, Any], known: bool, stale: int) -> None:
        """A new one, or a change of what is known: a pause, or another moment, also one that has passed."""
        row, old = self.row(**fields), self.model.rows.get(fields["key"])
        if old is not None and known:
            row = replace(old, paused=row.paused, next_at=row.next_at, repeats=row.repeats)
        revision = 0 if old is None else old.revision
        self.both("put_schedule", replace(row, revision=max(0, revision + stale)), "ann", "because")

    @precondition(lambda self: self.model.rows)
    @rule(key=st.sampled_from(SCHEDULES))
    def remove_schedule(self, key: str) -> None:
        self.both("remove_schedule", key, "ann", "because")

    @precondition(lambda self: self.model.rows)
    @rule(limit=st.sampled_from([1, 2, 100]))
    def look_for_due_schedules(self, limit: int) -> None:
        self.seen += self.both("due_schedules", limit).schedules

    @precondition(lambda self: self.model.rows)
    @rule(wanted=st.lists(ticks, min_size=1, max_size=3), claimed=st.booleans())
    def tick_some(self, wanted: list[dict[str, Any]], claimed: bool) -> None:
        """One after the other; some by a row that others have changed since it was read."""
        for fields in wanted:
            self.tick_one(**fields)
            if claimed:
                self.claim_some(PROCESSES[0], "*", 50)

    def tick_one(
        self,
        number: int,
        stale: bool,
        jobs: list[tuple[int, dict[str, Any]]],
        step: int | None,
        error: str,
        again: bool,
    ) -> None:
        rows = self.seen if stale and self.seen else self.model.schedules()
        row = rows[number % len(rows)]
        self.seen.append(row)
        moments = [(self.began + nth * SECOND, self.new_job(**fields | {"id": self.new_id()})) for nth, fields in jobs]
        after = {
            "handled": max([moment for moment, _ in moments], default=row.handled),
            "next_at": None if step is None else self.clock.now() + step * SECOND,
            "repeats": None if row.repeats is None else row.repeats - 1,
            "error": error,
        }
        had = set(self.model.moments.get(row.key, {}))
        ticked = self.both("tick", row, moments, **after)
        if ticked is not None:
            assert not had & {tick.moment for tick in ticked}, "a moment got a second job"
            if again:
                assert self.both("tick", row, moments, **after) is None

    @precondition(lambda self: "schedules" in self.subjects)
    @invariant()
    def schedules_look_the_same(self) -> None:
        self.both("schedules")
        for key in SCHEDULES:
            self.both("ticks", key)
