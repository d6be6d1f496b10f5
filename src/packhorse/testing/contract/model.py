"""What a store promises, in plain dictionaries: one for each place a job can stand in.

Written from the contract, not from `memory.py`, so that the same misunderstanding is not made twice. It judges
everybody who waits at every look, and counts a rate in fractions; a job of a share is expected to need nothing else.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from fractions import Fraction
from typing import Any

from packhorse.clock import SECOND, Clock, to_datetime
from packhorse.ids import to_text
from packhorse.job import Claim, JobState, NewJob, StoredAttempt, StoredJob, Token
from packhorse.limits import CATCH_UP, MERGES_CAP, TURN, Conflict, Pace, UniqueConflict
from packhorse.outcome import Outcome
from packhorse.queues import Selected
from packhorse.stores.contract import (
    MERGED,
    RESULT_PRUNED,
    Act,
    Audit,
    Beaten,
    Change,
    Entry,
    Exchanged,
    LimitView,
    Moved,
    Order,
    OrderKind,
    Orphan,
    Pause,
    Paused,
    ProcessInfo,
    ProcessView,
    Promoted,
    QueueCounts,
    RateView,
    Retention,
    Selection,
)

Facts = dict[str, Any]
Line = tuple[str, str]  # what for, and of which key, share or task
DOOR: Line = ("door", "")  # where the next look judges it


class Model:
    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.facts: dict[bytes, Facts] = {}  # what a job is, wherever it stands
        # The places. A job that is known stands in exactly one of them.
        self.scheduled: set[bytes] = set()
        self.waiting: dict[bytes, Line] = {}
        self.ready: set[bytes] = set()
        self.running: dict[bytes, Facts] = {}  # token, claimed_at, started_at, asked, seal
        self.finished: dict[bytes, Facts] = {}  # state, finished_at, started_at, process, result, failure and so on
        self.members: dict[bytes, Facts] = {}  # info, started_at, lease, until, boot
        self.paused: dict[tuple[Paused, str], tuple[int | None, str, str]] = {}
        self.acts: list[Audit] = []
        # What decides when.
        self.permits: dict[str, set[bytes]] = {}
        self.numbers: dict[str, tuple[bytes, int]] = {}  # of the newest job
        self.set_numbers: dict[str, int] = {}
        self.buckets: dict[str, Facts] = {}  # pace, brought_by, since, taken, tickets
        self.turns: dict[tuple[str, int], dict[str, int]] = {}
        self.set_weights: dict[str, int] = {}
        self.keys: dict[str, tuple[bytes, int | None]] = {}

    # Places.

    def place(self, id: bytes) -> JobState:
        places: list[JobState] = [self.finished[id]["state"]] if id in self.finished else []
        places += [JobState.SCHEDULED] * (id in self.scheduled)
        places += [JobState.WAITING] * (id in self.waiting)
        places += [JobState.READY] * (id in self.ready)
        places += [JobState.RUNNING] * (id in self.running)
        [place] = places
        return place

    def _take_away(self, id: bytes) -> None:
        self.scheduled.discard(id)
        self.waiting.pop(id, None)
        self.ready.discard(id)
        self.running.pop(id, None)
        self.finished.pop(id, None)

    def _forget(self, id: bytes) -> None:
        self._take_away(id)
        del self.facts[id]

    def epochs(self) -> dict[bytes, int]:
        return {id: facts["epoch"] for id, facts in self.facts.items()}

    # Hot.

    def insert(self, jobs: Sequence[NewJob]) -> list[bytes]:
        return [self._insert(new, self.clock.now()) for new in jobs]

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
            "rows": [],
            "entries": {},
        }
        self._put(new.id, run_at, now)
        return new.id

    def _put(self, id: bytes, run_at: int | None, now: int) -> None:
        """Where a job goes that is to run at a moment, or at once."""
        self._take_away(id)
        if run_at is not None and run_at > now:
            self.facts[id]["order_key"] = run_at
            self.scheduled.add(id)
        else:
            self._become_due(id, now)

    def _become_due(self, id: bytes, moment: int) -> None:
        facts = self.facts[id]
        new = facts["new"]
        self._take_away(id)
        facts["order_key"] = moment - facts["priority"] * self._ageing(id)
        if new.share is not None:
            self.waiting[id] = ("turn", new.share)
        elif new.terms.holds or new.terms.paces:
            self.waiting[id] = DOOR
        else:
            self.ready.add(id)

    def _make_way(self, new: NewJob, run_at: int | None, now: int) -> bytes | None:
        """The job that has the new one's key and stays."""
        unique = new.terms.unique
        assert unique is not None
        id, lapses_at = self.keys.get(unique.key, (b"", None))
        if id == b"" or (lapses_at is not None and lapses_at <= now):
            return None
        if id not in self.scheduled and id not in self.waiting and id not in self.ready:
            return id
        facts = self.facts[id]
        if unique.conflict is UniqueConflict.REPLACE:
            facts["epoch"] += 1
            self._cancel(id, "replaced", now)
            return None
        if unique.conflict is UniqueConflict.RESCHEDULE:
            facts["epoch"] += 1
            facts["run_at"] = run_at
            self._give_back(id)
            self._put(id, run_at, now)
        if unique.conflict is UniqueConflict.MERGE and (MERGED, new.id.hex()) not in facts["entries"]:
            if [kind for kind, _ in facts["entries"]].count(MERGED) == MERGES_CAP:
                return None
            facts["entries"][MERGED, new.id.hex()] = new.payload
        return id

    def exchange(
        self,
        process: bytes,
        nonce: int,
        outcomes: Sequence[Outcome],
        queues: Selected,
        limit: int,
        *,
        starting: int = 0,
        started: Sequence[Token] = (),
    ) -> Exchanged:
        now = self.clock.now()
        refused = []
        for outcome in outcomes:
            if self._is_good(outcome.token):
                self._end(outcome, now)
            else:
                refused.append(outcome.token)
        if outcomes or started or limit:
            self._admit(now, 1_000)
        for token in started:
            if self._is_good(token) and self.running[token.id]["started_at"] is None:
                self.running[token.id]["started_at"] = now
        alive = self._lives(process)
        claims = []
        for number, id in enumerate(self._pick(queues, limit, now) if alive else []):
            self._take_away(id)
            self._drop_tickets(id)
            if (unique := self.facts[id]["new"].terms.unique) is not None and unique.until_start:
                self._free_key(id)
            self.facts[id]["epoch"] += 1
            token = Token(process, nonce, id, self.facts[id]["epoch"])
            started_at = now if number < starting else None
            self.running[id] = {"token": token, "claimed_at": now, "started_at": started_at, "asked": None, "seal": b""}
            claims.append(self._claim(token))
        if alive and (outcomes or started or claims):
            self._prolong(process)
        return Exchanged(claims, refused, alive, now)

    def _is_good(self, token: Token) -> bool:
        return token.id in self.running and self.running[token.id]["token"] == token

    def _end(self, outcome: Outcome, now: int) -> None:
        facts, token = self.facts[outcome.token.id], outcome.token
        asked = self.running[token.id]["asked"]
        if asked is not None and outcome.state in (JobState.READY, JobState.SCHEDULED):
            outcome = outcome._replace(state=JobState.CANCELLED, reason=asked)
        self._take_away(token.id)
        if outcome.state is not JobState.READY:
            self._give_back(token.id)
        if outcome.state in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED):
            self._free_key(token.id)
        facts["attempts"] += 1 if outcome.spent else 0
        facts["losses"] += 1 if outcome.lost else 0
        facts["strays"] += 1 if outcome.strayed else 0
        began = None if outcome.duration is None else now - outcome.duration
        if outcome.state in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED):
            self.finished[token.id] = {
                "state": outcome.state,
                "finished_at": now,
                "started_at": began,
                "process": outcome.owner or token.process,
                "result": outcome.result,
                "result_error": outcome.result_error,
                "failure": outcome.failure,
                "reason": outcome.reason,
                "spent": outcome.spent,
                "prune_at": None if outcome.keep is None else now + outcome.keep,
                "result_until": None,
            }
            if outcome.result is not None and outcome.result_ttl is not None:
                self.finished[token.id]["result_until"] = now + outcome.result_ttl
            if outcome.keep == 0:
                self._forget(token.id)
        else:
            if outcome.failure is not None:
                number = facts["attempts"] + (0 if outcome.spent else 1)
                owner = outcome.owner or token.process
                facts["rows"].append((number, owner, began, now, outcome.failure, outcome.spent))
            if outcome.state is JobState.SCHEDULED:
                facts["run_at"] = now + outcome.delay
                self._put(token.id, facts["run_at"], now)
            else:
                self.ready.add(token.id)

    def _pick(self, queues: Selected, limit: int, now: int) -> list[bytes]:
        """The first of them; those of a paused task that stand before are sent to wait."""
        picked: list[bytes] = []
        for id in self._in_order(queues, now):
            task = self.facts[id]["new"].task
            if len(picked) == limit:
                break
            if self._is_paused(Paused.TASK, task, now):
                self._take_away(id)
                self._give_back(id)
                self.waiting[id] = ("task", task)
            else:
                picked.append(id)
        return picked

    def _in_order(self, queues: Selected, now: int) -> list[bytes]:
        """The ready jobs that can be claimed, each under the first entry that serves its queue."""
        keys = []
        for id in self.ready:
            facts = self.facts[id]
            serving = [number for number, entry in enumerate(queues) if entry.matches(facts["queue"])]
            if serving and not self._is_paused(Paused.QUEUE, facts["queue"], now):
                keys.append((serving[0], *self._order(id)))
        return [id for *_, id in sorted(keys)]

    def _claim(self, token: Token) -> Claim:
        facts = self.facts[token.id]
        new = facts["new"]
        counters = facts["attempts"], facts["losses"], facts["created_at"], facts["expires_at"]
        return Claim(token, new.task, new.payload, facts["queue"], facts["priority"], *counters, facts["strays"])

    def beat(self, processes: Collection[bytes]) -> Beaten:
        dead = [process for process in processes if not self._lives(process)]
        for process in set(processes) - set(dead):
            self._prolong(process)
        orders = [
            Order(OrderKind.CANCEL, held["token"], held["asked"], held["seal"])
            for held in self.running.values()
            if held["asked"] is not None and held["token"].process in processes
        ]
        return Beaten(dead, sorted(orders, key=lambda order: order.token))

    # Who may run.

    def _ageing(self, id: bytes) -> int:
        new = self.facts[id]["new"]
        return new.ageing if new.share is None else 0

    def _rank(self, id: bytes) -> int:
        return 0 if self._ageing(id) else -self.facts[id]["priority"]

    def _order(self, id: bytes) -> tuple[int, int, bytes]:
        return (self._rank(id), self.facts[id]["order_key"], id)

    def _cancel(self, id: bytes, reason: str, now: int) -> None:
        self._take_away(id)
        self._give_back(id)
        self._free_key(id)
        unknown = ("started_at", "process", "result", "result_error", "failure", "prune_at", "result_until")
        self.finished[id] = dict.fromkeys(unknown) | {
            "state": JobState.CANCELLED,
            "finished_at": now,
            "reason": reason,
            "spent": False,
        }

    def _give_back(self, id: bytes) -> None:
        """Its permits, and the room that its tickets take up."""
        for taken in self.permits.values():
            taken.discard(id)
        self._drop_tickets(id)

    def _drop_tickets(self, id: bytes) -> None:
        for bucket in self.buckets.values():
            bucket["tickets"].discard(id)

    def _free_key(self, id: bytes) -> None:
        self.keys = {key: (its, until) for key, (its, until) in self.keys.items() if its != id or until is not None}

    def number(self, key: str) -> int:
        """How many may have a permit."""
        return self.set_numbers.get(key, self.numbers.get(key, (b"", 0))[1])

    def holders(self, key: str) -> int:
        return len(self.permits.get(key, ()))

    def _admit(self, now: int, limit: int) -> int:
        """All who wait are judged in their order; how many went on."""
        turns = self._give_turns(now)
        judged = sorted((id for id, line in self.waiting.items() if line[0] != "task"), key=self._order)
        waited_for = set(self.waiting.values())
        for id in sorted(judged, reverse=True):
            self._hear_numbers(id)
        admitted = 0
        for id in judged:
            if id in self.waiting and admitted < limit:
                admitted += self._judge(id, waited_for, now)
        return max(turns, admitted)

    def _judge(self, id: bytes, waited_for: Collection[Line], now: int) -> bool:
        facts = self.facts[id]
        terms = facts["new"].terms
        full = [hold for hold in terms.holds if self.holders(hold.key) >= self.number(hold.key)]
        shut = [pace for pace in terms.paces if not self._is_open(pace.key, now)]
        if full:
            self.waiting[id] = ("limit", full[0].key)
            if full[0].conflict is Conflict.DISCARD:
                facts["epoch"] += 1
                self._cancel(id, f"discarded: {full[0].key} was taken", now)
            elif full[0].conflict is Conflict.REPLACE:
                self._keep_the_newest(full[0].key, now)
        elif shut:
            self.waiting[id] = ("rate", shut[0].key)
        else:
            for hold in terms.holds:
                self.permits.setdefault(hold.key, set()).add(id)
            for pace in terms.paces:
                self._take(pace.key, now - CATCH_UP if ("rate", pace.key) in waited_for else now)
                self.buckets[pace.key]["tickets"].add(id)
            self._take_away(id)
            self.ready.add(id)
        return not full and not shut

    def _keep_the_newest(self, key: str, now: int) -> None:
        """Of those in the line of the key that replace each other."""
        line = [id for id, its in self.waiting.items() if its == ("limit", key)]
        rivals = [
            (self.facts[id]["created_at"], id)
            for id in line
            if any(hold.conflict is Conflict.REPLACE for hold in self.facts[id]["new"].terms.holds)
        ]
        for _, id in sorted(rivals)[:-1]:
            self.facts[id]["epoch"] += 1
            self._cancel(id, "replaced", now)

    def _hear_numbers(self, id: bytes) -> None:
        """The newest job's count; called for the newest first."""
        terms = self.facts[id]["new"].terms
        for hold in terms.holds:
            if hold.key not in self.numbers or id > self.numbers[hold.key][0]:
                self.numbers[hold.key] = (id, hold.to)
        for pace in terms.paces:
            if id > self._bucket(pace)["brought_by"]:
                self._change_pace(pace, id)

    # Rates: how many tokens were taken since all were there.

    def _bucket(self, pace: Pace) -> Facts:
        unused = {"pace": pace, "brought_by": b"", "since": 0, "taken": 0, "tickets": set()}
        return self.buckets.setdefault(pace.key, unused)

    def _full_at(self, bucket: Facts) -> Fraction:
        """When all tokens are back, to the fraction of a microsecond."""
        taken: int = bucket["taken"]
        return Fraction(bucket["since"]) + taken * Fraction(bucket["pace"].period, bucket["pace"].tokens)

    def _change_pace(self, pace: Pace, id: bytes) -> None:
        bucket = self._bucket(pace)
        if (pace.tokens, pace.period) != (bucket["pace"].tokens, bucket["pace"].period):
            bucket.update(since=math.ceil(self._full_at(bucket)), taken=0)
        bucket.update(pace=pace, brought_by=id)

    def _opens_at(self, key: str) -> int:
        bucket = self.buckets[key]
        pace: Pace = bucket["pace"]
        return math.ceil(self._full_at(bucket) - (pace.burst - 1) * Fraction(pace.period, pace.tokens))

    def _is_open(self, key: str, now: int) -> bool:
        bucket = self.buckets[key]
        return self._opens_at(key) <= now and len(bucket["tickets"]) < self._most_tickets(bucket["pace"])

    def _most_tickets(self, pace: Pace) -> int:
        return max(pace.burst, math.ceil(Fraction(pace.tokens * SECOND, pace.period)))

    def _take(self, key: str, now: int) -> None:
        bucket = self.buckets[key]
        if self._full_at(bucket) <= now:
            bucket.update(since=now, taken=0)
        bucket["taken"] += 1

    def take_token(self, pace: Pace, patience: int) -> int | None:
        now = self.clock.now()
        self._change_pace(pace, self._bucket(pace)["brought_by"])
        wait = max(0, self._opens_at(pace.key) - now)
        if wait > patience:
            return None
        self._take(pace.key, now)
        return wait

    # Turns.

    def _give_turns(self, now: int) -> int:
        came = sorted((id for id, line in self.waiting.items() if line[0] == "turn"), key=self._order)
        scopes = {(self.facts[id]["queue"], self._rank(id)) for id in came}
        begins = {scope: self._beginning(*scope, now) for scope in scopes}
        for id in came:
            scope, share = (self.facts[id]["queue"], self._rank(id)), self.waiting[id][1]
            place, lasts = begins[scope], self.turns.setdefault(scope, {})
            if share in lasts:
                place = max(place, lasts[share] + TURN // self.set_weights.get(share, 1))
            self.facts[id]["order_key"] = lasts[share] = place
            self._take_away(id)
            self.ready.add(id)
        return len(came)

    def _beginning(self, queue: str, rank: int, now: int) -> int:
        """Where the first stands; where nobody does, all begin anew."""
        ready = [id for id in self.ready if (self.facts[id]["queue"], self._rank(id)) == (queue, rank)]
        if ready:
            return min(self._order(id)[1] for id in ready)
        return max([now, *self.turns.pop((queue, rank), {}).values()])

    def set_limit(self, key: str, to: int | None, actor: str, reason: str) -> None:
        self.set_numbers.pop(key, None)
        if to is not None:
            self.set_numbers[key] = to
        self.acts.append(Audit(self.clock.now(), actor, "set_limit", reason, 0))

    def set_weight(self, share: str, weight: int | None, actor: str, reason: str) -> None:
        self.set_weights.pop(share, None)
        if weight is not None:
            self.set_weights[share] = weight
        self.acts.append(Audit(self.clock.now(), actor, "set_weight", reason, 0))

    def _forget_unused(self, now: int) -> None:
        """Numbers of keys that nobody has or wants."""
        terms = [self.facts[id]["new"].terms for id in self.waiting]
        wanted = {hold.key for its in terms for hold in its.holds}
        self.numbers = {key: its for key, its in self.numbers.items() if self.holders(key) or key in wanted}
        rated = {pace.key for its in terms for pace in its.paces}
        for key, bucket in list(self.buckets.items()):
            pace = bucket["pace"]
            whole_periods = bucket["taken"] // pace.tokens + 1
            if not bucket["tickets"] and key not in rated and bucket["since"] + whole_periods * pace.period <= now:
                del self.buckets[key]

    # Fenced.

    def record(self, token: Token, entries: Sequence[Entry]) -> bool:
        if self._is_good(token):
            for kind, name, data in entries:
                self.facts[token.id]["entries"][kind, name] = data
            return True
        return False

    def held(self, process: bytes) -> list[Token]:
        return sorted(held["token"] for held in self.running.values() if held["token"].process == process)

    # Members.

    def _lives(self, process: bytes) -> bool:
        member = self.members.get(process)
        return member is not None and member["boot"] == self.clock.boot() and member["until"] > self.clock.ticks()

    def _prolong(self, process: bytes) -> None:
        self.members[process]["until"] = self.clock.ticks() + self.members[process]["lease"]

    def enroll(self, process: ProcessInfo, lease: int) -> None:
        self.members[process.id] = {
            "info": process,
            "started_at": self.clock.now(),
            "lease": lease,
            "until": self.clock.ticks() + lease,
            "boot": self.clock.boot(),
        }

    def leave(self, process: bytes) -> None:
        for token in self.held(process):
            self._end(Outcome(token, JobState.READY, spent=False), self.clock.now())
            self.facts[token.id]["epoch"] += 1
        self.members.pop(process, None)

    # Housekeeping.

    def promote(self, limit: int) -> Promoted:
        now = self.clock.now()
        coming = sorted((self.facts[id]["order_key"], id) for id in self.scheduled)
        due = [id for key, id in coming if key <= now][:limit]
        for id in due:
            self._become_due(id, self.facts[id]["order_key"])
        admitted = 0
        if limit > 0:
            for kind, name in list(self.paused):  # one that has ended does not come back when the clock is set back
                if not self._is_paused(kind, name, now):
                    self._end_pause(kind, name)
            admitted = self._admit(now, limit)
        moments = [key for key, id in coming if id in self.scheduled][:1]
        for key, bucket in self.buckets.items():
            if ("rate", key) in self.waiting.values() and len(bucket["tickets"]) < self._most_tickets(bucket["pace"]):
                moments.append(self._opens_at(key))
        return Promoted(max(len(due), admitted), max(0, min(moments) - now) if moments else None)

    def adopt(self, adopter: bytes, nonce: int, limit: int, *, dead: Collection[bytes] = ()) -> list[Orphan]:
        if not self._lives(adopter):
            return []
        self._prolong(adopter)

        def gone(process: bytes) -> bool:
            return process in dead or not self._lives(process)

        orphans = []
        for id in sorted(id for id, held in self.running.items() if gone(held["token"].process))[:limit]:
            owner = self.members[self.running[id]["token"].process]["info"]
            self.facts[id]["epoch"] += 1
            token = Token(adopter, nonce, id, self.facts[id]["epoch"])
            self.running[id]["token"] = token
            began = self.running[id]["started_at"]
            orphans.append(Orphan(self._claim(token), owner, None if began is None else self.clock.now() - began))
        for process in [process for process in self.members if gone(process) and not self.held(process)]:
            del self.members[process]
        return orphans

    def prune(self, retention: Retention, limit: int) -> int:
        times = {
            JobState.SUCCEEDED: retention.succeeded,
            JobState.FAILED: retention.failed,
            JobState.CANCELLED: retention.cancelled,
        }
        now = self.clock.now()
        old = []
        for id, ending in self.finished.items():
            due, kept = ending["prune_at"], times[ending["state"]]
            if due is None and kept is not None:
                due = ending["finished_at"] + kept
            if due is not None and due <= now:
                old.append((due, ending["finished_at"], id))
        chosen = sorted(old)[:limit]
        for *_, id in chosen:
            self._forget(id)
        timed = [
            (ending["result_until"], id) for id, ending in self.finished.items() if ending["result_until"] is not None
        ]
        stale = sorted((until, id) for until, id in timed if until <= now)[:limit]
        for _, id in stale:
            self.finished[id].update(result=None, result_until=None, result_error=RESULT_PRUNED)
        self._forget_unused(now)
        return len(chosen) + len(stale)

    # Operating.

    def move(
        self,
        selection: Selection,
        change: Change,
        actor: str,
        reason: str,
        *,
        after: bytes | None = None,
        limit: int = 1_000,
    ) -> Moved:
        seen = self._selected(selection, after)[:limit]
        moved = asked = 0
        for id in seen:
            if change.act is Act.CANCEL and id in self.running:
                self.running[id].update(asked=reason or "cancelled", seal=change.seal)
                asked += 1
            elif self._allows(change.act, id):
                self._act(id, change, reason)
                moved += 1
        self.acts.append(Audit(self.clock.now(), actor, change.act, reason, moved + asked))
        return Moved(moved, asked, seen[-1] if len(seen) == limit else None)

    def _allows(self, act: Act, id: bytes) -> bool:
        place = self.place(id)
        return (
            place
            in {
                Act.CANCEL: (JobState.SCHEDULED, JobState.WAITING, JobState.READY),
                Act.RETRY: (JobState.FAILED, JobState.CANCELLED),
                Act.RUN_NOW: (JobState.SCHEDULED,),
                Act.DISCARD: tuple(state for state in JobState if state is not JobState.RUNNING),
                Act.CHANGE: (JobState.SCHEDULED, JobState.WAITING, JobState.READY),
            }[act]
        )

    def _act(self, id: bytes, change: Change, reason: str) -> None:
        facts, now = self.facts[id], self.clock.now()
        facts["epoch"] += 1
        if change.act is Act.DISCARD:
            self._give_back(id)
            self._free_key(id)
            self._forget(id)
        elif change.act is Act.CHANGE:
            facts["queue"] = facts["queue"] if change.queue is None else change.queue
            if change.priority is not None:
                ahead = (change.priority - facts["priority"]) * self._ageing(id)
                facts["order_key"] -= 0 if id in self.scheduled else ahead
                facts["priority"] = change.priority
        elif change.act is Act.RUN_NOW:
            self._become_due(id, now)
        elif change.act is Act.CANCEL:
            self._cancel(id, reason or "cancelled", now)
        else:
            ending = self.finished[id]
            if ending["failure"] is not None:
                number = facts["attempts"] if ending["spent"] else facts["attempts"] + 1
                times = ending["started_at"], ending["finished_at"]
                facts["rows"].append((number, ending["process"], *times, ending["failure"], ending["spent"]))
            facts.update(attempts=0, losses=0, strays=0, expires_at=None)
            self._become_due(id, now)

    def reseal(self, id: bytes, payload: bytes, actor: str, reason: str) -> bool:
        if id not in self.facts or self.place(id) not in (JobState.FAILED, JobState.CANCELLED):
            return False
        self.facts[id]["new"] = self.facts[id]["new"]._replace(payload=payload)
        self.acts.append(Audit(self.clock.now(), actor, "reseal", reason, 1))
        return True

    def pause(
        self,
        name: str,
        until: int | None,
        actor: str,
        reason: str,
        *,
        length: int | None = None,
        kind: Paused = Paused.QUEUE,
    ) -> None:
        self.paused[kind, name] = (until if length is None else self.clock.now() + length, reason, actor)
        self.acts.append(Audit(self.clock.now(), actor, "pause", reason, 0))

    def resume(self, name: str, actor: str, reason: str, *, kind: Paused = Paused.QUEUE) -> bool:
        self.acts.append(Audit(self.clock.now(), actor, "resume", reason, 0))
        return self._end_pause(kind, name)

    def _end_pause(self, kind: Paused, name: str) -> bool:
        """Those it held back go on where they stood, by way of the door where they need something."""
        for id in [id for id, line in self.waiting.items() if kind is Paused.TASK and line == ("task", name)]:
            terms = self.facts[id]["new"].terms
            self._take_away(id)
            if terms.holds or terms.paces:
                self.waiting[id] = DOOR
            else:
                self.ready.add(id)
        return self.paused.pop((kind, name), None) is not None

    def _is_paused(self, kind: Paused, name: str, now: int) -> bool:
        if (kind, name) not in self.paused:
            return False
        until = self.paused[kind, name][0]
        return until is None or now < until

    # Looking.

    def _selected(self, selection: Selection, after: bytes | None) -> list[bytes]:
        found = []
        for id, facts in self.facts.items():
            new = facts["new"]
            matches = [
                after is None or id > after,
                selection.ids is None or id in selection.ids,
                selection.states is None or self.place(id) in selection.states,
                selection.queues is None or facts["queue"] in selection.queues,
                selection.tasks is None or new.task in selection.tasks,
                selection.tags is None or any(tag in selection.tags for tag in new.tags),
                _is_between(selection.created_from, facts["created_at"], selection.created_before),
                _is_between(selection.finished_from, self.finished_at(id), selection.finished_before),
            ]
            if all(matches):
                found.append(id)
        return sorted(found)

    def finished_at(self, id: bytes) -> int | None:
        return self.finished[id]["finished_at"] if id in self.finished else None

    def jobs(self, selection: Selection, after: bytes | None = None, limit: int = 100) -> list[StoredJob]:
        return [self._view(id, {}) for id in self._selected(selection, after)[:limit]]

    def job(self, id: bytes) -> StoredJob | None:
        if id not in self.facts:
            return None
        rows = tuple(
            StoredAttempt(number, to_text(process), _time(began), to_datetime(ended), failure, spent)
            for number, process, began, ended, failure, spent in self.facts[id]["rows"]
        )
        result = self.finished[id]["result"] if id in self.finished else None
        return self._view(id, {"payload": self.facts[id]["new"].payload, "failures": rows, "result": result})

    def _view(self, id: bytes, wide: Facts) -> StoredJob:
        facts = self.facts[id]
        new = facts["new"]
        held, ending = self.running.get(id), self.finished.get(id)
        process = held["token"].process if held else ending["process"] if ending else None
        return StoredJob(
            id=to_text(id),
            task=new.task,
            state=self.place(id),
            queue=facts["queue"],
            priority=facts["priority"],
            attempts=facts["attempts"],
            losses=facts["losses"],
            created_at=to_datetime(facts["created_at"]),
            run_at=_time(facts["run_at"]),
            expires_at=_time(facts["expires_at"]),
            claimed_at=_time(held["claimed_at"]) if held else None,
            started_at=_time((held or ending or {}).get("started_at")),
            finished_at=_time(ending["finished_at"]) if ending else None,
            process=to_text(process) if process else None,
            share=new.share,
            tags=new.tags,
            failure=ending["failure"] if ending else None,
            reason=ending["reason"] if ending else None,
            result_error=ending["result_error"] if ending else None,
            **wide,
        )

    def entries(self, id: bytes) -> list[Entry]:
        kept = self.facts[id]["entries"] if id in self.facts else {}
        return [Entry(kind, name, kept[kind, name]) for kind, name in sorted(kept)]

    def queues(self) -> list[QueueCounts]:
        pauses = {pause.name: pause for pause in self.pauses() if pause.kind is Paused.QUEUE}
        found = []
        for queue in sorted(pauses.keys() | {facts["queue"] for facts in self.facts.values()}):
            places = [self.place(id) for id, facts in self.facts.items() if facts["queue"] == queue]
            found.append(QueueCounts(queue, {place: places.count(place) for place in places}, pauses.get(queue)))
        return found

    def pauses(self) -> list[Pause]:
        now = self.clock.now()
        return [
            Pause(name, _time(until), reason, actor, kind)
            for (kind, name), (until, reason, actor) in sorted(self.paused.items())
            if self._is_paused(kind, name, now)
        ]

    def limits(self) -> list[LimitView]:
        lines = [key for what, key in self.waiting.values() if what == "limit"]
        keys = {*lines, *self.set_numbers, *(key for key, taken in self.permits.items() if taken)}
        return [LimitView(key, self.set_numbers.get(key), self.holders(key), lines.count(key)) for key in sorted(keys)]

    def rates(self) -> list[RateView]:
        now = self.clock.now()
        lines = list(self.waiting.values())
        return [
            RateView(key, bucket["pace"], max(0, self._opens_at(key) - now), lines.count(("rate", key)))
            for key, bucket in sorted(self.buckets.items())
        ]

    def weights(self) -> dict[str, int]:
        return dict(sorted(self.set_weights.items()))

    def stuck(self) -> Iterable[bytes]:
        """Who waits though all it needs is there."""
        now = self.clock.now()
        for id, (what, _) in self.waiting.items():
            terms = self.facts[id]["new"].terms
            room = all(self.holders(hold.key) < self.number(hold.key) for hold in terms.holds)
            if what != "task" and room and all(self._is_open(pace.key, now) for pace in terms.paces):
                yield id

    def processes(self) -> list[ProcessView]:
        views = []
        for id in sorted(self.members):
            member = self.members[id]
            _, role, host, pid, queues, _ = member["info"]
            left = (member["until"] - self.clock.ticks()) / SECOND if self._lives(id) else 0.0
            started_at = to_datetime(member["started_at"])
            views.append(ProcessView(to_text(id), role, host, pid, queues, started_at, left, len(self.held(id))))
        return views

    def audit(self, limit: int = 100) -> list[Audit]:
        return list(reversed(self.acts[-limit:]))


def _is_between(begin: int | None, moment: int | None, end: int | None) -> bool:
    """A moment that never came lies between no two others."""
    if begin is None and end is None:
        return True
    return moment is not None and (begin is None or moment >= begin) and (end is None or moment < end)


def _time(microseconds: int | None) -> Any:
    return None if microseconds is None else to_datetime(microseconds)
