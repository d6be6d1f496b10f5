"""What a store promises, in plain dictionaries: one for each place a job can stand in.

Written from the contract, not from `memory.py`, so that the same misunderstanding is not made twice. It judges
everybody who waits at every look, and counts a rate in fractions; a job of a share is expected to need nothing else.
Each module has a subject, and builds on those before it: places, gates, admission, coming, schedules; and signals.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from packhorse.clock import SECOND, Clock, to_datetime
from packhorse.ids import to_text
from packhorse.job import Claim, JobState, StoredAttempt, StoredJob, Token
from packhorse.outcome import Outcome
from packhorse.queues import Selected
from packhorse.stores.contract import (
    CLAIM_BYTES,
    RELOAD,
    RESULT_PRUNED,
    Act,
    Audit,
    Change,
    Entry,
    Exchanged,
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
    Retention,
    Selection,
)
from packhorse.testing.contract.model.gates import BADLY, WELL
from packhorse.testing.contract.model.places import DOOR, FINISHED, Facts
from packhorse.testing.contract.model.schedules import Schedules
from packhorse.testing.contract.model.signals import Signals

ASKING = (Act.CANCEL, Act.STOP, Act.RESTART, Act.RELOAD)


class Model(Schedules, Signals):
    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.enrolled: dict[bytes, Facts] = {}  # info, started_at, lease, until, boot
        self.paused: dict[tuple[Paused, str], tuple[int | None, str, str]] = {}

    def epochs(self) -> dict[bytes, int]:
        return {id: facts["epoch"] for id, facts in self.facts.items()}

    # Hot.

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
        picked = self._pick(queues, limit, now) if alive else []
        carried = self._carried(picked)
        for number, id in enumerate(carried):
            self._take_away(id)
            self._drop_tickets(id)
            if (unique := self.facts[id]["new"].terms.unique) is not None and unique.until_start:
                self._free_key(id)
            self.facts[id]["epoch"] += 1
            token = Token(process, nonce, id, self.facts[id]["epoch"])
            started_at = now if number < starting else None
            held = {"token": token, "claimed_at": now, "started_at": started_at}
            self.running[id] = held | {"asked": None, "seal": b"", "again": False}
            claims.append(self._claim(token))
        if alive and (outcomes or started or claims):
            self._prolong(process)
        return Exchanged(claims, refused, alive, now, cut=carried != picked)

    def _carried(self, ids: list[bytes]) -> list[bytes]:
        """As many of the first as find their place in one exchange, and one in any case."""
        carried: list[bytes] = []
        for id in ids:
            payloads = [self.facts[it]["new"].payload for it in [*carried, id]]
            if carried and sum(map(len, payloads)) > CLAIM_BYTES:
                break
            carried.append(id)
        return carried

    def _is_good(self, token: Token) -> bool:
        return token.id in self.running and self.running[token.id]["token"] == token

    def _end(self, outcome: Outcome, now: int) -> None:
        facts, token = self.facts[outcome.token.id], outcome.token
        asked, again = self.running[token.id]["asked"], self.running[token.id]["again"]
        if asked is not None and outcome.state is not JobState.SUCCEEDED:
            other = facts["entries"].pop((RELOAD, ""), None)
            if again:
                outcome = outcome._replace(state=JobState.READY, spent=False)
                if other is not None:
                    facts.update(new=facts["new"]._replace(payload=other), expires_at=None)
            elif outcome.state in (JobState.READY, JobState.SCHEDULED):
                outcome = outcome._replace(state=JobState.CANCELLED, reason=asked)
        self._take_away(token.id)
        if outcome.state is not JobState.READY:
            self._give_back(token.id)
        if outcome.state in FINISHED:
            self._free_key(token.id)
        facts["attempts"] += 1 if outcome.spent else 0
        facts["losses"] += 1 if outcome.lost else 0
        facts["strays"] += 1 if outcome.strayed else 0
        if outcome.suspect or outcome.spent:
            facts["suspect"] = outcome.suspect
        began = None if outcome.duration is None else now - outcome.duration
        if outcome.state in FINISHED:
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
            self._settle({token.id: WELL if outcome.state is JobState.SUCCEEDED else BADLY}, now)
        else:
            if outcome.failure is not None:
                number = facts["attempts"] + (0 if outcome.spent else 1)
                owner = outcome.owner or token.process
                facts["rows"].append((number, owner, began, now, outcome.failure, outcome.spent))
            if outcome.state is JobState.SCHEDULED:
                facts["run_at"] = now + outcome.delay
                self._put(token.id, facts["run_at"], now)
                if outcome.after:
                    self._stand_behind(token.id, outcome.after, now)
                elif outcome.awaits is not None and token.id in self.scheduled:
                    self._await(token.id, outcome.awaits, now)
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
        known = Claim(token, new.task, new.payload, facts["queue"], facts["priority"], *counters)
        return known._replace(strays=facts["strays"], suspect=facts["suspect"])

    def beat(self, processes: Collection[bytes]) -> list[bytes]:
        dead = [process for process in processes if not self._lives(process)]
        for process in set(processes) - set(dead):
            self._prolong(process)
        return dead

    def orders(self, processes: Collection[bytes]) -> list[Order]:
        orders = [
            Order(OrderKind.RESTART if held["again"] else OrderKind.CANCEL, held["token"], held["asked"], held["seal"])
            for held in self.running.values()
            if held["asked"] is not None and held["token"].process in processes
        ]
        return sorted(orders, key=lambda order: order.token)

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
        member = self.enrolled.get(process)
        return member is not None and member["boot"] == self.clock.boot() and member["until"] > self.clock.ticks()

    def _prolong(self, process: bytes) -> None:
        self.enrolled[process]["until"] = self.clock.ticks() + self.enrolled[process]["lease"]

    def enroll(self, process: ProcessInfo, lease: int) -> None:
        self.enrolled[process.id] = {
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
        self.enrolled.pop(process, None)

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
        moments = [self.facts[id]["order_key"] for id in self.scheduled]
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
        left = sorted(id for id, held in self.running.items() if gone(held["token"].process))
        for id in self._carried(left[:limit]):
            before = self.running[id]["token"]
            owner = self.enrolled[before.process]["info"]
            self.facts[id]["epoch"] += 1
            token = Token(adopter, nonce, id, self.facts[id]["epoch"])
            self.running[id]["token"] = token
            began = self.running[id]["started_at"]
            ran = None if began is None else self.clock.now() - began
            orphans.append(Orphan(self._claim(token), owner, ran, before.nonce))
        for process in [process for process in self.enrolled if gone(process) and not self.held(process)]:
            del self.enrolled[process]
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
        return len(chosen) + len(stale) + self._prune_signals(now, limit)

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
        asked = [id for id in seen if change.act in ASKING and id in self.running]
        why = self._why(change.act, reason)
        for id in asked:
            self.running[id].update(asked=why, seal=change.seal, again=change.act in (Act.RESTART, Act.RELOAD))
            self.facts[id]["entries"].pop((RELOAD, ""), None)
            if change.act is Act.RELOAD:
                self.facts[id]["entries"][RELOAD, ""] = change.payload
        moved = [id for id in seen if self._allows(change.act, id)]
        if change.act in (Act.RETRY, Act.RESTART, Act.RELOAD):
            self._go_round([id for id in moved if id in self.finished])
        if change.act in (Act.CANCEL, Act.STOP):
            self._cancel(moved, why, self.clock.now())
        else:
            for id in moved:
                self._act(id, change)
        self.acts.append(Audit(self.clock.now(), actor, change.act, reason, len(moved) + len(asked)))
        return Moved(len(moved), len(asked), seen[-1] if len(seen) == limit else None)

    def _why(self, act: Act, reason: str) -> str:
        if act is Act.STOP:
            return "stopped" + (f": {reason}" if reason else "")
        return reason or ("cancelled" if act is Act.CANCEL else "restarted")

    def _allows(self, act: Act, id: bytes) -> bool:
        place = self.place(id)
        return (
            place
            in {
                Act.CANCEL: (JobState.SCHEDULED, JobState.WAITING, JobState.READY),
                Act.STOP: (JobState.SCHEDULED, JobState.WAITING, JobState.READY),
                Act.RESTART: (JobState.FAILED, JobState.CANCELLED),
                Act.RELOAD: tuple(set(JobState) - {JobState.RUNNING, JobState.SUCCEEDED}),
                Act.RETRY: (JobState.FAILED, JobState.CANCELLED),
                Act.RUN_NOW: (JobState.SCHEDULED,),
                Act.DISCARD: tuple(state for state in JobState if state is not JobState.RUNNING),
                Act.CHANGE: (JobState.SCHEDULED, JobState.WAITING, JobState.READY),
            }[act]
        )

    def _act(self, id: bytes, change: Change) -> None:
        facts, now = self.facts[id], self.clock.now()
        facts["epoch"] += 1
        if change.act is Act.RELOAD:
            facts.update(new=facts["new"]._replace(payload=change.payload), expires_at=None)
            if id not in self.finished:
                return
        if change.act is Act.DISCARD:
            self._give_back(id)
            self._free_key(id)
            self._forget(id)
            self._settle({id: BADLY}, now)
        elif change.act is Act.CHANGE:
            facts["queue"] = facts["queue"] if change.queue is None else change.queue
            if change.priority is not None:
                ahead = (change.priority - facts["priority"]) * self._ageing(id)
                facts["order_key"] -= 0 if id in self.scheduled else ahead
                facts["priority"] = change.priority
        elif change.act is Act.RUN_NOW:
            self._become_due(id, now)
        else:
            ending = self.finished[id]
            if ending["failure"] is not None:
                number = facts["attempts"] if ending["spent"] else facts["attempts"] + 1
                times = ending["started_at"], ending["finished_at"]
                facts["rows"].append((number, ending["process"], *times, ending["failure"], ending["spent"]))
            facts.update(attempts=0, losses=0, strays=0, suspect=False, expires_at=None)
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
                selection.flow is None or (new.member is not None and new.member[0] == selection.flow),
                _is_between(selection.created_from, facts["created_at"], selection.created_before),
                _is_between(selection.finished_from, self.finished_at(id), selection.finished_before),
            ]
            if all(matches):
                found.append(id)
        return sorted(found)

    def finished_at(self, id: bytes) -> int | None:
        return self.finished[id]["finished_at"] if id in self.finished else None

    def jobs(
        self, selection: Selection, after: bytes | None = None, limit: int = 100, *, newest_first: bool = False
    ) -> list[StoredJob]:
        found = self._selected(selection, None if newest_first else after)
        if newest_first:
            found = [id for id in reversed(found) if after is None or id < after]
        return [self._view(id, {}) for id in found[:limit]]

    def job(self, id: bytes) -> StoredJob | None:
        if not self._is_there(id):
            return None
        rows = tuple(
            StoredAttempt(number, to_text(process), _time(began), to_datetime(ended), failure, spent)
            for number, process, began, ended, failure, spent in self.facts[id]["rows"]
        )
        result = None if id not in self.finished or self._result_is_over(id) else self.finished[id]["result"]
        return self._view(id, {"payload": self.facts[id]["new"].payload, "failures": rows, "result": result})

    def _result_is_over(self, id: bytes) -> bool:
        until = self.finished[id]["result_until"]
        return until is not None and until <= self.clock.now()

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
            result_error=None if not ending else RESULT_PRUNED if self._result_is_over(id) else ending["result_error"],
            awaits=facts["awaits"],
            **wide,
        )

    def entries(self, id: bytes) -> list[Entry]:
        kept = self.facts[id]["entries"] if self._is_there(id) else {}
        return [Entry(kind, name, kept[kind, name]) for kind, name in sorted(kept)]

    def members(self, flow: bytes, after: int = -1, limit: int = 100) -> list[tuple[int, StoredJob]]:
        found = []
        for place, id in sorted((self.facts[id]["new"].member[1], id) for id in self._of_flow(flow)):
            job = self.job(id)
            if place > after and job is not None:
                found.append((place, replace(job, failures=())))
        page: list[tuple[int, StoredJob]] = []
        for one in found[:limit]:
            if page and sum(len(job.payload) + len(job.result or b"") for _, job in [*page, one]) > CLAIM_BYTES:
                break
            page.append(one)
        return page

    def flow_counts(self, flow: bytes) -> dict[JobState, int]:
        ids = self._of_flow(flow)
        return dict(Counter(self.place(id) for id in ids if self.facts[id]["new"].member[1] >= 0))

    def _of_flow(self, flow: bytes) -> list[bytes]:
        return self._selected(Selection(flow=flow), None)

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

    def processes(self) -> list[ProcessView]:
        views = []
        for id in sorted(self.enrolled):
            member = self.enrolled[id]
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
