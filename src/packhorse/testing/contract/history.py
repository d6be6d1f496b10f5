"""The frame of random histories: a store and a model side by side, and what rules are made of."""

from collections import Counter
from collections.abc import Callable
from itertools import product
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine

from packhorse.clock import SECOND, Clock, ManualClock
from packhorse.errors import StoreDataError
from packhorse.job import NewJob, Token
from packhorse.limits import FREE, Claimed, Conflict, Hold, Pace, Terms, UniqueConflict
from packhorse.outcome import Outcome
from packhorse.queues import parse_queues
from packhorse.stores import Store
from packhorse.stores.contract import CLAIM_BYTES, Exchanged, ProcessInfo, Promoted, StoredSchedule
from packhorse.testing.contract.helpers import id_of
from packhorse.testing.contract.model import Model

PROCESSES = [id_of(name) for name in ("p1", "p2", "p3", "p4")]
QUEUES = ["default", "mail", "mail.bulk", "report"]
TAGS = ["x", "y", "z"]
TASKS = ["birds.count", "birds.feed"]
KEYS = ["a/1", "a/2", "b/1"]
RATES = ["a/1", "r/1"]
SHARES = ["ann", "bob", "eve"]
HEAVY = bytes(CLAIM_BYTES * 2 // 5)
SOME_IDS = [id_of(f"{number:02}") for number in range(24)]

processes = st.sampled_from(PROCESSES)
ids = st.sampled_from(SOME_IDS)
queues = st.sampled_from(QUEUES)

# What a job needs, of which a history takes what goes with its kind, see `Histories.terms`.
needs = st.fixed_dictionaries(
    {
        "keys": st.lists(st.sampled_from(KEYS), max_size=2, unique=True),
        "to": st.lists(st.integers(1, 3), min_size=2, max_size=2),
        "conflict": st.sampled_from([Conflict.BLOCK] * 4 + [Conflict.DISCARD, Conflict.REPLACE]),
        "pace": st.none()
        | st.builds(
            Pace,
            st.sampled_from(RATES),
            st.sampled_from([1, 2, 7]),
            st.sampled_from([2 * SECOND, 3 * SECOND]),
            st.sampled_from([1, 4]),
        ),
        "unique": st.none()
        | st.builds(
            Claimed,
            st.sampled_from(["u/1", "u/2"]),
            st.booleans(),
            st.sampled_from([None, None, None, 5 * SECOND]),
            st.sampled_from(UniqueConflict),
        ),
        "share": st.none() | st.sampled_from(SHARES),
    }
)

# A new job, but for moments that the clock must be asked for.
jobs = st.fixed_dictionaries(
    {
        "id": ids,
        "payload": st.sampled_from([b"", b"one", b"two"]),
        "queue": queues,
        "priority": st.sampled_from([0, 0, 0, 1, -1, 100]),
        "when": st.sampled_from([None, None, None, ("delay", 0), ("delay", 3), ("run_at", 5), ("run_at", -5)]),
        "end": st.sampled_from([None, None, ("lifetime", 4), ("expires_at", 6)]),
        "tags": st.lists(st.sampled_from(TAGS), max_size=3).map(tuple),
        "task": st.sampled_from(TASKS),
        "ageing": st.sampled_from([0, 0, 0, SECOND]),
        "needs": needs,
    }
)

# Whole jobs to choose from: a history may draw only so much, and many jobs of many choices would soon use it up.
NOTHING = {"keys": [], "to": [1, 1], "conflict": Conflict.BLOCK, "pace": None, "unique": None, "share": None}
SOME_NEEDS = [
    NOTHING,
    NOTHING,
    NOTHING | {"keys": ["a/1"], "share": "ann"},
    NOTHING | {"keys": ["a/1"], "conflict": Conflict.DISCARD, "share": "bob"},
    NOTHING | {"pace": Pace("r/1", 2, 2 * SECOND, 1), "unique": Claimed("u/1", False, None, UniqueConflict.REPLACE)},
    NOTHING | {"unique": Claimed("u/1", True, None, UniqueConflict.RESCHEDULE)},
]
whole_jobs = st.sampled_from(
    [
        {"payload": b"whole", "queue": queue, "priority": priority, "when": when, "end": None}
        | {"tags": (), "task": TASKS[priority], "ageing": priority * SECOND, "needs": needs}
        for queue, priority, when, needs in product(QUEUES[:2], (0, 1), (None, None, None, ("delay", 3)), SOME_NEEDS)
    ]
)

# Which token: one of those held now, one that was given out at some time, or one that differs in a point.
WHICH = ["held", "held", "held", "held", "past", "process", "nonce", "epoch", "id"]
tokens = st.tuples(st.sampled_from(WHICH), st.integers(0, 40))
REFUSED = "refused"


class History(RuleBasedStateMachine):
    """A history is of one kind. Who needs two different things may stand in the line of either, and by that differ how
    long a rate was waited for and who of a share stands first: that is not promised, and so no job has a share and a
    limit, or a limit and a rate.

    And it has subjects: what happens in it besides to plain jobs.
    """

    def __init__(self, new_store: Callable[[Clock], Store]) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.model = Model(self.clock)
        self.store = new_store(self.clock)
        self.began = self.clock.now()
        self.nonces = 0
        self.bulks = 0
        self.given: list[Token] = []  # every token ever told to a process
        self.doubts: dict[bytes, list[Outcome]] = {}  # outcomes of exchanges whose reply was lost
        self.epochs: dict[bytes, int] = {}
        self.shown: dict[str, object] = {}
        self.kind = "plain"
        self.subjects: set[str] = set()
        self.heavy = 0  # jobs to come with payloads so large that two go into one exchange, and three do not
        self.made = 0  # jobs with ids of their own
        self.used: set[bytes] = set()
        self.seen: list[StoredSchedule] = []  # as they were when somebody looked
        self.permits: Counter[str] = Counter()  # out after the last step
        self.aged_keys = False  # some key is held for a time

    def both(self, operation: str, *arguments: Any, **options: Any) -> Any:
        """Do it to the model and the store; the answer that both gave."""
        expected = _answer(getattr(self.model, operation), *arguments, **options)
        answer = _answer(getattr(self.store, operation), *arguments, **options)
        assert answer == expected, f"to {operation} the store answered: {answer}\nexpected: {expected}"
        return expected

    def exchange_both(self, process: bytes, outcomes: list[Outcome], served: str, limit: int, **how: Any) -> Exchanged:
        waited = bool(self.model.waiting)
        reply: Exchanged = self.both(
            "exchange", process, self.new_nonce(), outcomes, parse_queues(served), limit, **how
        )
        if reply.alive and not (outcomes or reply.claims or how.get("started")) and (waited or self.model.waiting):
            self.both("beat", [process])  # whether letting others in renews a lease is not promised
        return reply

    def promote_both(self, limit: int) -> Promoted:
        expected, answer = self.model.promote(limit), self.store.promote(limit)
        assert answer.jobs == expected.jobs
        if self.kind == "rates":  # one may call in vain: who waited for it was cancelled
            sooner = [due for due in (answer.next_due, expected.next_due) if due is not None]
            assert expected.next_due is None or answer.next_due == min(sooner)
        else:
            assert answer == expected
        return expected

    def new_nonce(self) -> int:
        self.nonces += 10  # far apart, so that an invented one is never the next one
        return self.nonces

    def held_now(self) -> list[Token]:
        return [token for process in PROCESSES for token in self.model.held(process)]

    def token(self, which: tuple[str, int]) -> Token:
        kind, number = which
        held = self.held_now()
        pool = self.given if kind == "past" or not held else held
        token = pool[number % len(pool)] if pool else Token(PROCESSES[0], 5, SOME_IDS[0], 1)
        match kind:
            case "process":
                return token._replace(process=PROCESSES[number % len(PROCESSES)])
            case "nonce":
                return token._replace(nonce=token.nonce + 1 - number % 3)
            case "epoch":
                return token._replace(epoch=token.epoch + 1 - number % 3)
            case "id":
                return token._replace(id=SOME_IDS[number % len(SOME_IDS)])
        return token

    def claim_some(self, process: bytes, served: str, limit: int) -> list[Token]:
        """As a worker does: one without a lease enrols anew and goes on."""
        reply = self.exchange_both(process, [], served, limit)
        if not reply.alive:
            self.both("enroll", ProcessInfo(process, "worker", "here", 8), 30 * SECOND)
            reply = self.exchange_both(process, [], served, limit)
        tokens = [claim.token for claim in reply.claims]
        self.given += tokens
        return tokens

    @property
    def is_broad(self) -> bool:
        """One with a single subject keeps to it, and leaves out what has little to do with it."""
        return len(self.subjects) != 1

    # Jobs.

    def terms(self, keys, to, conflict, pace, unique, share) -> dict[str, Any]:
        if self.kind == "plain":
            return {"terms": FREE}
        self.aged_keys |= unique is not None and unique.lasting is not None
        if self.kind == "shares":
            return {"terms": Terms(unique=unique), "share": share}
        paces = (pace,) if pace is not None and self.kind == "rates" else ()
        keys = [] if paces else keys
        conflict = conflict if len(keys) == 1 else Conflict.BLOCK  # as `make_rules` sees to
        holds = tuple(Hold(key, number, conflict) for key, number in zip(keys, to, strict=False))
        return {"terms": Terms(holds, unique, paces)}

    def new_id(self) -> bytes:
        """One that no job ever had: what hangs together is told by ids."""
        self.made += 1
        return id_of(f"made {self.made:04}")

    def known(self, number: int) -> bytes:
        return sorted(self.model.facts)[number % len(self.model.facts)]

    def new_job(self, id: bytes, when: Any, end: Any, needs: dict[str, Any], **fields: Any) -> NewJob:
        moments = self.terms(**needs)
        for field, value in filter(None, (when, end)):
            counted = field in ("delay", "lifetime")
            moments[field] = value * SECOND if counted else self.clock.now() + value * SECOND
        if id in self.used and id not in self.model.facts:
            id = self.new_id()  # clients never use one twice: by its id, much is known of a job that is gone
        self.used.add(id)
        if self.heavy > 0 and fields["payload"] == b"two":
            self.heavy -= 1
            fields["payload"] = HEAVY
        return NewJob(id, **fields, **moments)


def _answer(operation: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    try:
        return operation(*arguments, **options)
    except StoreDataError:  # how it says so is not promised
        return REFUSED
