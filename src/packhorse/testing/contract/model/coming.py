"""Jobs come: new ones, and those that give way to them."""

from collections.abc import Sequence
from copy import deepcopy

from packhorse.errors import StoreDataError
from packhorse.job import NewJob
from packhorse.limits import MERGES_CAP, UniqueConflict
from packhorse.stores.contract import MERGED
from packhorse.testing.contract.model.admission import Admission
from packhorse.testing.contract.model.gates import NOT_YET
from packhorse.testing.contract.model.places import GATE


class Coming(Admission):
    def insert(self, jobs: Sequence[NewJob]) -> list[bytes]:
        """All or none."""
        hangs_together = any(new.after or new.before for new in jobs)
        before = {name: deepcopy(it) for name, it in vars(self).items() if name != "clock" and hangs_together}
        now = self.clock.now()
        fresh = [new for new in jobs if new.id not in self.facts]
        ids = [self._insert(new, now) for new in jobs]
        fresh = [new for new in fresh if new.id in self.facts]  # some may have left it to an earlier one
        if not self._is_sound(fresh):
            vars(self).update(before)
            raise StoreDataError("It would come after a job that is not known, or before one that waits no longer.")
        self._join(fresh, now)
        return ids

    def _insert(self, new: NewJob, now: int) -> bytes:
        if new.id in self.facts:
            return new.id
        run_at = new.run_at if new.delay is None else now + new.delay
        unique = new.terms.unique
        if unique is not None:
            holder = self._make_way(new, run_at, now)
            if holder is not None:
                return holder
            self.keys[unique.key] = (new.id, None if unique.lasting is None else now + unique.lasting)
        self.facts[new.id] = {
            "new": new,
            "created_at": now,
            "queue": new.queue,
            "priority": new.priority,
            "order_key": now,
            "run_at": run_at,
            "expires_at": new.expires_at if new.lifetime is None else now + new.lifetime,
            "epoch": 0,
            "attempts": 0,
            "losses": 0,
            "strays": 0,
            "suspect": False,
            "rows": [],
            "entries": {},
            "parents": {parent.id: (parent.need, NOT_YET) for parent in new.after},
            "awaits": None,
        }
        if new.after:
            self._become_due(new.id, now)
        else:
            self._put(new.id, run_at, now)
        return new.id

    def _make_way(self, new: NewJob, run_at: int | None, now: int) -> bytes | None:
        """The job that has the new one's key and stays."""
        unique = new.terms.unique
        assert unique is not None
        id, lapses_at = self.keys.get(unique.key, (b"", None))
        if id == b"" or (lapses_at is not None and lapses_at <= now):
            return None
        if not self._is_there(id):
            return None
        if id not in self.scheduled and id not in self.waiting and id not in self.ready:
            return id
        facts = self.facts[id]
        if unique.conflict is UniqueConflict.REPLACE:
            self._cancel([id], "replaced", now)
            return None
        if unique.conflict is UniqueConflict.RESCHEDULE:
            facts["epoch"] += 1
            facts["run_at"] = run_at
            if self.waiting.get(id) != GATE:
                self._give_back(id)
                self._put(id, run_at, now)
        if unique.conflict is UniqueConflict.MERGE and (MERGED, new.id.hex()) not in facts["entries"]:
            if [kind for kind, _ in facts["entries"]].count(MERGED) == MERGES_CAP:
                return None
            facts["entries"][MERGED, new.id.hex()] = new.payload
        return id
