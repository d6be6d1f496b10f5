"""Short stories that go well with Packhorse as it is, and badly with one that is wrong."""

from __future__ import annotations

import fcntl
import itertools
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from chaos.history import FATAL, SECOND, STRICT, Ack, Effect, Span
from chaos.mutants.stage import FAILURES, LEASE, TREE_BOUND, Hand, Killed, Stage
from chaos.strikes import Swallowed, struck_at
from packhorse import Flow, TimedOut
from packhorse.ids import new_id, to_text
from packhorse.job import Claim, Token
from packhorse.moments import every
from packhorse.outcome import Outcome
from packhorse.queues import EVERYTHING
from packhorse.runtime.dispatcher import Dispatcher
from packhorse.runtime.orphans import Death
from packhorse.runtime.seats import Seat
from packhorse.stores.sqlite import SQLiteStore

Scene = Callable[[Stage], None]
SCENES: dict[str, Scene] = {}


def scene(function: Scene) -> Scene:
    SCENES[function.__name__] = function
    return function


@scene
def work_as_usual(stage: Stage) -> None:
    """Two workers, jobs that succeed, and one that fails twice before it does."""
    one, two = stage.hand(), stage.hand()
    stage.enqueue("plain", *(f"job-{n}" for n in range(6)))
    stage.enqueue("flaky", "flaky", attempts=FAILURES + 1)
    one.work(3)
    two.work(3)
    stage.settle()


@scene
def finished_jobs_are_kept(stage: Stage) -> None:
    hand = stage.hand()
    stage.enqueue("plain", "one", "two")
    hand.work(2)
    dispatcher = stage.dispatcher()
    stage.pass_time(3_600, hand)
    dispatcher._prune_at = 0.0
    dispatcher.turn()
    stage.settle()


@scene
def a_worker_is_killed(stage: Stage) -> None:
    """Its supervisor saw it: the jobs go to the other at once."""
    one, two = stage.hand(), stage.hand()
    stage.enqueue("plain", "cut", "next")
    [claim] = one.claim(1)
    judge = stage.dispatcher()._judge
    killed = _started_and_killed(stage, one, claim)
    stage.fault(Effect.KILL, one, begin=killed, bound=2.0)
    judge.judge(stage._maker.id)  # nobody of that name: no verdict
    supervisor = stage.dispatcher()
    supervisor._judge.judge(supervisor._process.id, {one.id: Death("was killed by SIGKILL")})
    two.work(2)
    stage.settle()


@scene
def a_machine_is_gone(stage: Stage) -> None:
    """Nobody saw it; its lease runs out, and a beat that comes after that changes nothing."""
    one, two = stage.hand(), stage.hand()
    stage.enqueue("plain", "cut")
    [claim] = one.claim(1)
    killed = _started_and_killed(stage, one, claim)
    stage.fault(Effect.KILL, one, begin=killed, bound=TREE_BOUND)
    stage.pass_time(LEASE + 1, two)
    stage.store.beat([one.id])  # it was on its way for long
    stage.dispatcher().turn()
    two.work(1)
    stage.settle()


@scene
def a_job_claimed_ahead_kills_its_worker(stage: Stage) -> None:
    """The store was not told that it began. Its supervisor knows."""
    one, two = stage.hand(), stage.hand()
    stage.enqueue("plain", *(f"job-{n}" for n in range(8)))
    stage.enqueue(FATAL, "fatal")
    for claim in one.claim(9):
        if claim.task == FATAL:
            one.perform(claim)
    stage.dead.add(one.pid)
    supervisor = stage.dispatcher()
    death = Death("was killed by SIGKILL", begun=frozenset(one.begun))
    supervisor._judge.judge(supervisor._process.id, {one.id: death})
    two.work(9)
    stage.settle()


@scene
def a_machine_is_gone_with_a_strict_job_claimed_ahead(stage: Stage) -> None:
    """Nobody knows what it had begun; what must not begin twice had not."""
    one, two = stage.hand(), stage.hand()
    stage.enqueue("plain", *(f"job-{n}" for n in range(8)))
    stage.enqueue(STRICT, "strict")
    claims = one.claim(9)
    killed = stage.now()
    for claim in claims:
        if claim.task == STRICT:
            killed = _started_and_killed(stage, one, claim)
    stage.fault(Effect.KILL, one, begin=killed, bound=TREE_BOUND)
    stage.pass_time(LEASE + 1, two)
    stage.dispatcher().turn()
    two.work(9)
    stage.settle()


def _started_and_killed(stage: Stage, hand: Hand, claim: Claim) -> int:
    """The task begins, and the rest of it never happens; when that was."""

    def die() -> None:
        raise Killed

    name = stage.app.seals.open_job(claim.token.id, claim.task, claim.payload)
    task = stage.app.known_tasks[claim.task]
    args, _, _ = task.read(name)
    stage.meanwhile[str(args[0])] = die
    before = len(stage.lines)
    hand.perform(claim)
    assert len(stage.lines) > before
    return stage.now()


@scene
def a_frozen_worker_comes_back_while_another_performs(stage: Stage) -> None:
    """Its late outcome must not count."""
    one, two = stage.hand(), stage.hand()
    stage.enqueue("plain", "contended")
    [claim] = one.claim(1)
    late = one.perform(claim)
    frozen = stage.now()
    stage.pass_time(LEASE + 1, two)
    stage.dispatcher().turn()
    stage.fault(Effect.FREEZE, one, begin=frozen, bound=TREE_BOUND)
    for again in two.claim(1):
        stage.meanwhile["contended"] = lambda: one.hand_in(late)
        two.hand_in(two.perform(again))
    stage.settle()


@scene
def a_frozen_worker_comes_back_when_all_is_over(stage: Stage) -> None:
    one, two = stage.hand(), stage.hand()
    stage.enqueue("plain", "contended")
    [claim] = one.claim(1)
    late = one.perform(claim)
    frozen = stage.now()
    stage.pass_time(LEASE + 1, two)
    stage.dispatcher().turn()
    two.work(1)
    stage.fault(Effect.FREEZE, one, begin=frozen, bound=TREE_BOUND)
    one.hand_in(late)
    stage.settle()


@scene
def a_frozen_worker_goes_on_under_a_new_name(stage: Stage) -> None:
    """It is the only one: what comes later is its work, too."""
    one = stage.hand()
    stage.enqueue("plain", "before")
    one.work(1)
    frozen = stage.now()
    stage.pass_time(LEASE + 1)
    stage.fault(Effect.FREEZE, one, begin=frozen)
    stage.enqueue("plain", "after")
    stage.settle()


@scene
def a_worker_without_a_lease_claims_nothing(stage: Stage) -> None:
    """It would lose at once what it got, while it performs it."""
    one, two = stage.hand(), stage.hand()
    frozen = stage.now()
    stage.pass_time(LEASE + 1, two)
    stage.fault(Effect.FREEZE, one, begin=frozen)
    stage.pass_time(2, two)
    stage.enqueue("plain", "new")
    dispatcher = stage.dispatcher()
    for claim in one.claim(1):

        def others_look() -> None:
            dispatcher._adopt_at = 0.0
            dispatcher.turn()
            two.work(1)

        stage.meanwhile["new"] = others_look
        one.hand_in(one.perform(claim))
    stage.settle()


@scene
def a_worker_that_lives_keeps_its_job(stage: Stage) -> None:
    """However long the job takes."""
    one, two = stage.hand(), stage.hand()
    stage.enqueue("plain", "long")
    [claim] = one.claim(1)
    dispatcher = stage.dispatcher()

    def a_long_time() -> None:
        for _ in range(4):
            stage.pass_time(LEASE, one, two)
            dispatcher._adopt_at = 0.0
            dispatcher.turn()
            two.work(1)

    stage.meanwhile["long"] = a_long_time
    one.hand_in(one.perform(claim))
    stage.settle()


@scene
def a_rescue_comes_between(stage: Stage) -> None:
    """The owner finishes just when somebody finds its lease over."""
    one, two = stage.hand(), stage.hand()
    stage.enqueue("plain", "late")
    [claim] = one.claim(1)
    outcome = one.perform(claim)
    frozen = stage.now()
    stage.pass_time(LEASE + 1, two)
    stage.between = lambda: one.hand_in(outcome)
    stage.dispatcher().turn()
    stage.between = None
    one.hand_in(outcome)
    stage.fault(Effect.FREEZE, one, begin=frozen)
    stage.settle()


@scene
def a_verdict_comes_late(stage: Stage) -> None:
    """A dispatcher adopts, freezes, and writes its verdict when the job is performed elsewhere."""
    one, two = stage.hand(), stage.hand()
    stage.enqueue("plain", "cut")
    [claim] = one.claim(1)
    killed = _started_and_killed(stage, one, claim)
    stage.fault(Effect.KILL, one, begin=killed)
    stage.pass_time(LEASE + 1, two)
    slow = stage.dispatcher()
    stage.away("exchange")
    try:
        slow._judge.judge(slow._process.id)
    except Exception:
        pass
    stage.fault(Effect.AWAY, begin=stage.now() - (round(LEASE) + 1) * SECOND)
    stage.pass_time(LEASE + 1, two)
    stage.dispatcher().turn()
    for again in two.claim(1):
        stage.meanwhile["cut"] = lambda: _judge_again(slow)
        two.hand_in(two.perform(again))
    stage.settle()


def _judge_again(dispatcher: Dispatcher) -> None:
    dispatcher._judge.judge(dispatcher._process.id)


@scene
def a_verdict_is_not_taken_at_first(stage: Stage) -> None:
    """The store fails just then. The dispatcher lives on, and holds the job until it has written what becomes of it."""
    one, two = stage.hand(), stage.hand()
    stage.enqueue("plain", "cut")
    [claim] = one.claim(1)
    killed = _started_and_killed(stage, one, claim)
    stage.fault(Effect.KILL, one, begin=killed)
    stage.pass_time(LEASE + 1, two)
    dispatcher = stage.dispatcher()
    stage.away("exchange")
    for _ in range(3):
        try:
            dispatcher._judge.judge(dispatcher._process.id)
        except Exception:
            pass
    _keep_alive(stage, dispatcher._process.id)
    stage.settle()


def _keep_alive(stage: Stage, process: bytes) -> None:
    """Somebody beats for it from now on, whenever time passes."""
    pass_time = stage.pass_time

    def with_beats(seconds: float, *alive: Hand) -> None:
        pass_time(seconds, *alive)
        stage.store.beat([process])

    stage.pass_time = with_beats  # type: ignore[method-assign]


@scene
def an_exchange_fails_before_it_wrote(stage: Stage) -> None:
    """The worker offers its outcomes again."""
    one = stage.hand()
    stage.enqueue("plain", "one", "two")
    claims = one.claim(2)
    outcomes = [one.perform(claim) for claim in claims]
    stage.away("exchange")
    one.hand_in(*outcomes)
    stage.settle()


@scene
def the_reply_of_a_claim_is_lost(stage: Stage) -> None:
    """The store thinks that the worker has jobs of which it never heard."""
    one = stage.hand()
    stage.enqueue("plain", "one", "two")
    stage.away("exchange", after=True)
    assert one.claim(2) == []
    stage.settle()


@scene
def the_reply_to_a_release_is_lost(stage: Stage) -> None:
    """It is said twice, and the second time the job is with another."""
    one, two, three = stage.hand(), stage.hand(), stage.hand()
    stage.enqueue("plain", "wanted")
    claims = one.claim(1)
    stage.away("exchange", after=True)
    one.give_back(*claims)
    for claim in two.claim(1):

        def once_more() -> None:
            one.claim(0)
            three.work(1)

        stage.meanwhile["wanted"] = once_more
        two.hand_in(two.perform(claim))
    stage.settle()


@scene
def unstarted_claims_go_back(stage: Stage) -> None:
    one, two = stage.hand(), stage.hand()
    stage.enqueue("plain", "one", "two", "three")
    claims = one.claim(3)
    one.give_back(*claims[1:])
    one.hand_in(one.perform(claims[0]))
    two.work(2)
    stage.settle()


@scene
def a_worker_leaves(stage: Stage) -> None:
    """What it has not begun goes back as it was."""
    one, two = stage.hand(), stage.hand()
    stage.enqueue("plain", "one", "two")
    one.claim(2)
    stage.store.leave(one.id)
    stage.dead.add(one.pid)
    two.work(2)
    stage.settle()


@scene
def a_restored_machine_repeats_its_random_numbers(stage: Stage) -> None:
    """The same process claims the same job under the same nonce, and what it made of it the first time comes late."""
    one = stage.hand()
    [id] = stage.enqueue("plain", "job")
    first = _claim_as(stage, one, 7)
    late = one.perform(first)
    stage.fault(Effect.KILL, one)
    stage.dead.discard(one.pid)
    stage.store.leave(one.id)
    one.process._enroll()
    second = _claim_as(stage, one, 7)
    assert second.token.id == first.token.id, id
    stage.meanwhile["job"] = lambda: _offer(stage, one, late)
    _offer(stage, one, one.perform(second))
    stage.settle()


@scene
def the_store_falls_back(stage: Stage) -> None:
    """Its counters repeat; the nonce tells the old claim from the new one."""
    one = stage.hand()
    [id] = stage.enqueue("plain", "job")
    first = _claim_as(stage, one, 7)
    late = one.perform(first)
    begin = stage.now()
    stage.fall_back(id)
    stage.fault(Effect.FREEZE, one, begin=begin)  # of the store, and so of all that it was told
    stage.pass_time(2, one)
    second = _claim_as(stage, one, 8)
    stage.meanwhile["job"] = lambda: _offer(stage, one, late)
    _offer(stage, one, one.perform(second))
    stage.settle()


def _claim_as(stage: Stage, hand: Hand, nonce: int) -> Claim:
    [claim] = stage.store.exchange(hand.id, nonce, [], EVERYTHING, 1, starting=1).claims
    return claim


def _offer(stage: Stage, hand: Hand, outcome: Outcome) -> None:
    stage.store.exchange(hand.id, 99, [outcome], EVERYTHING, 0)


@scene
def a_limit_is_kept(stage: Stage) -> None:
    """While one performs under the only permit, another looks for work."""
    one, two = stage.hand(), stage.hand()
    stage.enqueue("narrow", "first", "second", "third")
    stage.meanwhile["first"] = lambda: _ignore(two.work(2))
    stage.meanwhile["second"] = lambda: _ignore(one.work(2))
    one.work(1)
    stage.settle()


@scene
def a_lost_job_keeps_its_permit(stage: Stage) -> None:
    one, two, three = stage.hand(), stage.hand(), stage.hand()
    stage.enqueue("narrow", "first", "second")
    [claim] = one.claim(1)
    killed = _started_and_killed(stage, one, claim)
    stage.fault(Effect.KILL, one, begin=killed)
    supervisor = stage.dispatcher()
    supervisor._judge.judge(supervisor._process.id, {one.id: Death("was killed by SIGKILL")})
    stage.meanwhile["first"] = lambda: _ignore(three.work(1))
    stage.meanwhile["second"] = lambda: _ignore(three.work(1))
    two.work(1)
    stage.settle()


@scene
def a_late_outcome_frees_no_permit(stage: Stage) -> None:
    """A worker that was frozen finishes under a limit, while its job is performed elsewhere."""
    one, two, three = stage.hand(), stage.hand(), stage.hand()
    stage.enqueue("narrow", "first")
    stage.enqueue("narrow", "second")
    [claim] = one.claim(1)
    late = one.perform(claim)
    frozen = stage.now()
    stage.pass_time(LEASE + 1, two, three)
    stage.dispatcher().turn()
    stage.fault(Effect.FREEZE, one, begin=frozen)

    def meanwhile() -> None:
        one.hand_in(late)
        three.work(1)

    for again in two.claim(1):
        stage.meanwhile["first"] = meanwhile
        two.hand_in(two.perform(again))
    stage.settle()


@scene
def a_rate_is_kept(stage: Stage) -> None:
    hand = stage.hand()
    stage.enqueue("paced", *(f"job-{n}" for n in range(12)))
    hand.work(8)
    hand.work(8)
    stage.settle()


def _ignore(_: object) -> None:
    pass


@scene
def one_after_the_other(stage: Stage) -> None:
    """Chains, and jobs behind two others, whichever of those comes first."""
    one, two = stage.hand(), stage.hand()
    plain = stage.app.tasks["plain"]
    for name in "ab":
        flow = Flow()
        first = flow.add(plain.call("first", f"{name}@0"))
        flow.add(plain.call("second", f"{name}@1"), after=first)
        sides = flow.group([plain.call("left", f"{name}@2"), plain.call("right", f"{name}@3")])
        flow.add(plain.call("last", f"{name}@4"), after=sides)
        stage.enqueue_flow(flow)
        claims = one.claim(8)
        for claim in claims if name == "a" else reversed(claims):
            one.hand_in(one.perform(claim))
            two.work(8)
    stage.settle()


@scene
def steps_are_done_once(stage: Stage) -> None:
    """The attempt fails behind its steps, and the next one finds them done."""
    hand = stage.hand()
    stage.enqueue("steps", "steps", attempts=2, fails=True)
    hand.work(1)
    stage.settle()


@scene
def a_frozen_worker_finds_that_its_job_is_gone(stage: Stage) -> None:
    """Its next step cannot be kept, and so it ends there."""
    one, two = stage.hand(), stage.hand()
    stage.enqueue("steps", "steps")
    [claim] = one.claim(1)
    frozen: list[int] = []

    def freeze() -> None:
        frozen.append(stage.now())
        stage.pass_time(LEASE + 1, two)
        stage.dispatcher().turn()
        two.work(1)
        stage.fault(Effect.FREEZE, one, begin=frozen[0])
        stage.meanwhile["steps/2"] = lambda: stage.pass_time(5, two)
        stage.meanwhile["steps"] = lambda: stage.pass_time(5, two)

    stage.meanwhile["steps/1"] = freeze
    one.hand_in(one.perform(claim))
    stage.settle()


@scene
def every_moment_gets_its_job(stage: Stage) -> None:
    """Two schedulers, of which one is late with what it read; and a schedule that somebody sets back."""
    hand = stage.hand()
    scheduler, other = stage.scheduler(), stage.scheduler()
    rule = every(10)
    stage.app.schedules.add(stage.app.tasks["moment"].call(), rule, key="often", misfire="all")
    row = stage.store.schedule("often")
    assert row is not None
    assert row.next_at is not None
    first = row.next_at
    for n in range(4):
        stage.pass_time(10, hand)
        seen = stage.store.schedule("often")
        assert seen is not None
        scheduler.turn()
        if n == 1:
            other._tick(seen, stage.clock.now())  # as it was before
        hand.work(4)
    current = stage.store.schedule("often")
    assert current is not None
    stage.store.put_schedule(replace(current, handled=first - 1, next_at=first), "ann", "set back")
    scheduler.turn()
    last = first + (stage.clock.now() - first) // (10 * SECOND) * 10 * SECOND
    stage.schedules["often"] = Span(first, last, 10 * SECOND)
    stage.settle()


# Exceptions from outside.


@scene
def a_timeout_comes_in_the_midst_of_a_call(stage: Stage) -> None:
    """Whatever the store is doing for a task then, it does to its end, and the task meets the timeout after that."""
    seat = Seat()
    for place in itertools.count(step=3):
        token = Token(b"", place, new_id(), 1)

        def time_is_up(token: Token = token) -> None:
            asking = threading.Thread(target=seat.interrupt, args=(token, TimedOut))
            asking.start()
            asking.join()

        job = stage.app.tasks["plain"].call(f"job-{place}").new_job(new_id())
        insert = partial(seat.call, token, stage.store.insert, [job])
        stage.acks.append(Ack(to_text(job.id), "plain", stage.now(), 1))
        try:
            met = struck_at(place, insert, time_is_up, within="packhorse.stores")
        except Swallowed:
            stage.leftovers.append("a timeout was lost")
            break
        if met is None:
            break
        if not isinstance(met, TimedOut):
            stage.leftovers.append(f"a timeout came out as {met!r}")
    hand = stage.hand()
    hand.work(place)
    stage.settle()


@scene
def an_exception_strikes_anywhere_in_a_write(stage: Stage) -> None:
    """A stranger's, that nobody puts off. Whoever has it in hands must not have the lock with it."""
    if not isinstance(stage.store, SQLiteStore):
        return
    stage.store.signal("nobody", b"", 1)  # it is made ready
    lock = os.open(f"{stage.store.path}-lock", os.O_RDWR)
    try:
        for place in itertools.count():
            stage.store.signal("nobody", b"", 1)  # so that it has a connection each time, and the places are the same
            raised = struck_at(place, lambda: stage.store.signal("nobody", b"", 1))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                stage.leftovers.append(f"the lock is held by nobody, after an exception at place {place}")
                break
            fcntl.flock(lock, fcntl.LOCK_UN)
            if raised is None:
                break
    finally:
        raised = None  # and with it what it holds
        os.close(lock)
