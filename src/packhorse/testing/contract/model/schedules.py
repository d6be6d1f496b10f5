"""Schedules: rows that whoever ticks moves on, and one job for each moment."""

from collections.abc import Sequence
from dataclasses import replace

from packhorse.clock import Clock
from packhorse.job import NewJob
from packhorse.stores.contract import Audit, DueSchedules, StoredSchedule, Tick
from packhorse.testing.contract.model.coming import Coming


class Schedules(Coming):
    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.rows: dict[str, StoredSchedule] = {}
        self.moments: dict[str, dict[int, bytes | None]] = {}  # of each key, and the job it got; they outlive the row

    def save_schedules(self, source: str, schedules: Sequence[StoredSchedule]) -> list[str]:
        declared = {new.key: replace(new, source=source, revision=1) for new in schedules}
        self.rows = {key: row for key, row in self.rows.items() if row.source != source or key in declared}
        others = [key for key in declared if key in self.rows and self.rows[key].source != source]
        for key, new in declared.items():
            old = self.rows.get(key)
            if old is None:
                self.rows[key] = new
            elif key not in others and old.fingerprint != new.fingerprint:
                kept = {"paused": old.paused, "last_job": old.last_job, "revision": old.revision + 1}
                self.rows[key] = replace(new, **kept)  # type: ignore[arg-type]
        return others

    def put_schedule(self, schedule: StoredSchedule, actor: str, reason: str) -> bool:
        old = self.rows.get(schedule.key)
        if schedule.revision != (old.revision if old else 0):
            return False
        self.rows[schedule.key] = replace(schedule, revision=schedule.revision + 1)
        self.acts.append(Audit(self.clock.now(), actor, "schedule", reason, 0))
        return True

    def remove_schedule(self, key: str, actor: str, reason: str) -> bool:
        if key not in self.rows:
            return False
        del self.rows[key]
        self.acts.append(Audit(self.clock.now(), actor, "remove_schedule", reason, 0))
        return True

    def due_schedules(self, limit: int) -> DueSchedules:
        now = self.clock.now()
        coming = sorted((row.next_at, key) for key, row in self.rows.items() if row.next_at is not None)
        coming = [(moment, key) for moment, key in coming if not self.rows[key].paused]
        due = [self.rows[key] for moment, key in coming if moment <= now][:limit]
        later = [moment - now for moment, _ in coming if moment > now]
        return DueSchedules(due, 0 if len(due) == limit else min(later, default=None), now)

    def tick(
        self,
        schedule: StoredSchedule,
        jobs: Sequence[tuple[int, NewJob]],
        *,
        handled: int | None,
        next_at: int | None,
        repeats: int | None,
        error: str = "",
    ) -> list[Tick] | None:
        row = self.rows.get(schedule.key)
        if row is None or row.revision != schedule.revision or row.handled != schedule.handled:
            return None
        had, ticked = self.moments.setdefault(row.key, {}), []
        last = row.last_job
        for moment, new in jobs:
            if moment in had:
                continue
            if row.overlap == "skip" and last is not None and not self.has_ended(last):
                had[moment] = None
            else:
                [last] = self.insert([new])
                had[moment] = last
            ticked.append(Tick(moment, had[moment]))
        moved = replace(row, handled=handled, next_at=next_at, repeats=repeats, error=error)
        self.rows[row.key] = replace(moved, last_job=last, revision=row.revision + 1)
        return ticked

    def schedules(self) -> list[StoredSchedule]:
        return [self.rows[key] for key in sorted(self.rows)]

    def ticks(self, key: str, limit: int = 100) -> list[Tick]:
        had = self.moments.get(key, {})
        return [Tick(moment, had[moment]) for moment in sorted(had, reverse=True)][:limit]
