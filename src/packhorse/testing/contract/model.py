"""What a store promises, in plain dictionaries: one for each place a job can stand in.

Written from the contract, not from `memory.py`, so that the same misunderstanding is not made twice.
"""

from collections.abc import Collection, Sequence
from typing import Any

from packhorse.clock import SECOND, Clock, to_datetime
from packhorse.ids import to_text
from packhorse.job import Claim, JobState, NewJob, StoredAttempt, StoredJob, Token
from packhorse.outcome import Outcome
from packhorse.queues import Selected
from packhorse.stores.contract import (
    RESULT_PRUNED,
    Act,
    Audit,
    Beaten,
    Change,
    Entry,
    Exchanged,
    Moved,
    Order,
    OrderKind,
    Orphan,
    Pause,
    ProcessInfo,
    ProcessView,
    Promoted,
    QueueCounts,
    Retention,
    Selection,
)

Facts = dict[str, Any]


class Model:
    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.facts: dict[bytes, Facts] = {}  # what a job is, wherever it stands
        # The places. A job that is known stands in exactly one of them.
        self.scheduled: set[bytes] = set()
        self.ready: set[bytes] = set()
        self.running: dict[bytes, Facts] = {}  # token, claimed_at, started_at, asked, seal
        self.finished: dict[bytes, Facts] = {}  # state, finished_at, started_at, process, result, failure and so on
        self.members: dict[bytes, Facts] = {}  # info, started_at, lease, until, boot
        self.paused: dict[str, tuple[int | None, str, str]] = {}
        self.acts: list[Audit] = []

    # Places.

    def place(self, id: bytes) -> JobState:
        places: list[JobState] = [self.finished[id]["state"]] if id in self.finished else []
        places += [JobState.SCHEDULED] * (id in self.scheduled)
        places += [JobState.READY] * (id in self.ready)
        places += [JobState.RUNNING] * (id in self.running)
        [place] = places
        return place

    def _take_away(self, id: bytes) -> None:
        self.scheduled.discard(id)
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
        now = self.clock.now()
        for new in jobs:
            if new.id not in self.facts:
                run_at = new.run_at if new.delay is None else now + new.delay
                later = run_at is not None and run_at > now
                self.facts[new.id] = {
                    "new": new,
                    "created_at": now,
                    "queue": new.queue,
                    "priority": new.priority,
                    "order_key": run_at if later else now,
                    "run_at": run_at,
                    "expires_at": new.expires_at if new.lifetime is None else now + new.lifetime,
                    "epoch": 0,
                    "attempts": 0,
                    "losses": 0,
                    "strays": 0,
                    "rows": [],
                    "entries": {},
                }
                (self.scheduled if later else self.ready).add(new.id)
        return [new.id for new in jobs]

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
        for token in started:
            if self._is_good(token) and self.running[token.id]["started_at"] is None:
                self.running[token.id]["started_at"] = now
        alive = self._lives(process)
        claims = []
        for number, id in enumerate(self._in_order(queues, now)[:limit] if alive else []):
            self._take_away(id)
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
                facts["run_at"] = facts["order_key"] = now + outcome.delay
            comes_later = outcome.state is JobState.SCHEDULED and outcome.delay > 0
            (self.scheduled if comes_later else self.ready).add(token.id)

    def _in_order(self, queues: Selected, now: int) -> list[bytes]:
        """The ready jobs that can be claimed, each under the first entry that serves its queue."""
        keys = []
        for id in self.ready:
            facts = self.facts[id]
            serving = [number for number, entry in enumerate(queues) if entry.matches(facts["queue"])]
            if serving and not self._is_paused(facts["queue"], now):
                keys.append((serving[0], -facts["priority"], facts["order_key"], id))
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
            self.scheduled.remove(id)
            self.ready.add(id)
        if limit > 0:  # a pause that has ended does not come back when the clock is set back
            self.paused = {queue: pause for queue, pause in self.paused.items() if self._is_paused(queue, now)}
        left = [key for key, id in coming if id in self.scheduled]
        return Promoted(len(due), max(0, left[0] - now) if left else None)

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
                Act.CANCEL: (JobState.SCHEDULED, JobState.READY),
                Act.RETRY: (JobState.FAILED, JobState.CANCELLED),
                Act.RUN_NOW: (JobState.SCHEDULED,),
                Act.DISCARD: tuple(state for state in JobState if state is not JobState.RUNNING),
                Act.CHANGE: (JobState.SCHEDULED, JobState.READY),
            }[act]
        )

    def _act(self, id: bytes, change: Change, reason: str) -> None:
        facts, now = self.facts[id], self.clock.now()
        facts["epoch"] += 1
        if change.act is Act.DISCARD:
            self._forget(id)
        elif change.act is Act.CHANGE:
            facts["queue"] = facts["queue"] if change.queue is None else change.queue
            facts["priority"] = facts["priority"] if change.priority is None else change.priority
        elif change.act is Act.RUN_NOW:
            self._take_away(id)
            self.ready.add(id)
            facts["order_key"] = now
        elif change.act is Act.CANCEL:
            self._take_away(id)
            unknown = ("started_at", "process", "result", "result_error", "failure", "prune_at", "result_until")
            self.finished[id] = dict.fromkeys(unknown) | {
                "state": JobState.CANCELLED,
                "finished_at": now,
                "reason": reason or "cancelled",
                "spent": False,
            }
        else:
            ending = self.finished[id]
            if ending["failure"] is not None:
                number = facts["attempts"] if ending["spent"] else facts["attempts"] + 1
                times = ending["started_at"], ending["finished_at"]
                facts["rows"].append((number, ending["process"], *times, ending["failure"], ending["spent"]))
            self._take_away(id)
            self.ready.add(id)
            facts.update(attempts=0, losses=0, strays=0, order_key=now, expires_at=None)

    def reseal(self, id: bytes, payload: bytes, actor: str, reason: str) -> bool:
        if id not in self.facts or self.place(id) not in (JobState.FAILED, JobState.CANCELLED):
            return False
        self.facts[id]["new"] = self.facts[id]["new"]._replace(payload=payload)
        self.acts.append(Audit(self.clock.now(), actor, "reseal", reason, 1))
        return True

    def pause(self, queue: str, until: int | None, actor: str, reason: str, *, length: int | None = None) -> None:
        self.paused[queue] = (until if length is None else self.clock.now() + length, reason, actor)
        self.acts.append(Audit(self.clock.now(), actor, "pause", reason, 0))

    def resume(self, queue: str, actor: str, reason: str) -> bool:
        self.acts.append(Audit(self.clock.now(), actor, "resume", reason, 0))
        return self.paused.pop(queue, None) is not None

    def _is_paused(self, queue: str, now: int) -> bool:
        if queue not in self.paused:
            return False
        until = self.paused[queue][0]
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
        now = self.clock.now()
        pauses = {
            queue: Pause(queue, _time(until), reason, actor)
            for queue, (until, reason, actor) in self.paused.items()
            if self._is_paused(queue, now)
        }
        found = []
        for queue in sorted(pauses.keys() | {facts["queue"] for facts in self.facts.values()}):
            places = [self.place(id) for id, facts in self.facts.items() if facts["queue"] == queue]
            found.append(QueueCounts(queue, {place: places.count(place) for place in places}, pauses.get(queue)))
        return found

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
