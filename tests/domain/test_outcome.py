"""How an attempt ends."""

import json
from datetime import timedelta
from typing import Any

import pytest

from packhorse.clock import SECOND
from packhorse.errors import Cancel, ClaimLost, ProcessExitError, ProcessPrunedError, PutBack, Retry, Snooze, TaskError
from packhorse.job import MESSAGE_CAP, TRACEBACK_CAP, Claim, Failure, FailureKind, JobState, Token
from packhorse.outcome import (
    INNOCENT_AFTER,
    Awaits,
    Outcome,
    bare,
    decide,
    decide_lost,
    expire,
    refuse,
    release,
    stop,
    succeed,
)
from packhorse.retry import Fixed, RetryPolicy

TOKEN = Token(b"p" * 16, 7, b"j" * 16, 1)
ONCE = RetryPolicy(0, Fixed(10))
TWICE = RetryPolicy(1, Fixed(10))
FOREVER = RetryPolicy(None, Fixed(10))


def claim(attempts: int = 0, losses: int = 0) -> Claim:
    return Claim(TOKEN, "shop.resize", b"", "default", 0, attempts, losses, 0, None)


def failure_of(outcome: Outcome) -> Failure:
    assert outcome.failure is not None
    return Failure.decode(outcome.failure)


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def test_an_error_within_the_retries_is_tried_again():
    """The job comes back after the policy's wait, and the attempt is spent."""
    outcome = decide(claim(), ValueError("no"), TWICE, 5)
    assert outcome[:6] == (TOKEN, JobState.SCHEDULED, True, False, 10 * SECOND, 5)
    assert str(failure_of(outcome)) == "ValueError: no"


def test_an_error_beyond_the_retries_fails():
    """The last failure stays with the job."""
    outcome = decide(claim(attempts=1), ValueError("no"), TWICE, 5)
    assert (outcome.state, outcome.spent, outcome.delay) == (JobState.FAILED, True, 0)
    assert failure_of(outcome).kind is FailureKind.EXCEPTION


def test_an_unlimited_task_is_tried_again_at_any_attempt():
    """`retries=None` never ends in a dead letter by itself."""
    assert decide(claim(attempts=100_000), ValueError(), FOREVER, 5).state is JobState.SCHEDULED


def test_an_error_to_give_up_on_fails_at_once():
    """However many attempts are left."""
    policy = RetryPolicy(None, Fixed(10), give_up_on=(LookupError,))
    assert decide(claim(), KeyError("x"), policy, 5).state is JobState.FAILED


def test_an_expected_error_is_marked_as_one():
    """TaskError is retried like any other, but its failure says `error`."""

    class CardRefused(TaskError):
        pass

    outcome = decide(claim(), CardRefused("no money"), TWICE, 5)
    assert outcome.state is JobState.SCHEDULED
    assert failure_of(outcome).kind is FailureKind.ERROR


@pytest.mark.parametrize("after", [3, 3.0, timedelta(seconds=3)])
def test_retry_chooses_its_own_wait(after: Any):
    """A task that asks for another attempt may say when."""
    outcome = decide(claim(), Retry("later", after=after), TWICE, 5)
    assert (outcome.state, outcome.spent, outcome.delay) == (JobState.SCHEDULED, True, 3 * SECOND)
    assert failure_of(outcome).message == "later"
    assert failure_of(outcome).kind is FailureKind.ERROR


def test_retry_without_a_wait_takes_the_policys():
    """And one in the past means at once."""
    assert decide(claim(), Retry(), TWICE, 5).delay == 10 * SECOND
    assert decide(claim(), Retry(after=-1), TWICE, 5).delay == 0


def test_retry_is_bound_by_the_retries_but_not_by_the_error_classes():
    """It is a wish, not an error: `retry_for` and `give_up_on` do not speak of it."""
    policy = RetryPolicy(1, Fixed(10), retry_for=(OSError,), give_up_on=(Exception,))
    assert decide(claim(), Retry(), policy, 5).state is JobState.SCHEDULED
    assert decide(claim(attempts=1), Retry(), policy, 5).state is JobState.FAILED


@pytest.mark.parametrize("policy", [ONCE, TWICE, FOREVER])
def test_snooze_comes_back_later_and_spends_nothing(policy: RetryPolicy):
    """No failure is recorded, whatever the policy says."""
    outcome = decide(claim(attempts=5), Snooze(timedelta(minutes=1)), policy, 5)
    assert (outcome.state, outcome.spent, outcome.delay) == (JobState.SCHEDULED, False, 60 * SECOND)
    assert outcome.failure is None


@pytest.mark.parametrize("policy", [ONCE, FOREVER])
def test_a_put_back_spends_nothing_whatever_the_retries(policy: RetryPolicy):
    """In place, after a while, or when a signal comes."""
    assert decide(claim(), PutBack("stopped"), policy, 5) == release(TOKEN)
    assert decide(claim(), ClaimLost("id"), policy, 5) == release(TOKEN)
    wait = Outcome(TOKEN, JobState.SCHEDULED, spent=False, delay=SECOND, duration=5)
    assert decide(claim(), PutBack("asleep", delay=SECOND), policy, 5) == wait
    awaits = Awaits("go", 7)
    assert decide(claim(), PutBack("awaits", delay=SECOND, awaits=awaits), policy, 5) == wait._replace(awaits=awaits)


def test_put_backs_of_a_group_are_one():
    """Unless there is an error among them."""
    group = BaseExceptionGroup("", [BaseExceptionGroup("", [PutBack("a", delay=5)]), PutBack("b", delay=7)])
    assert decide(claim(), group, ONCE, 5).delay == 5
    assert decide(claim(), BaseExceptionGroup("", [group, ValueError()]), ONCE, 5).state is JobState.FAILED


def test_cancel_ends_the_job_and_keeps_the_reason():
    """It is no failure."""
    outcome = decide(claim(), Cancel("the customer left"), FOREVER, 5)
    assert (outcome.state, outcome.reason, outcome.failure) == (JobState.CANCELLED, "the customer left", None)


@pytest.mark.parametrize("reason", [404, None, "\0\ud800", ["a", "list"]])
def test_any_reason_to_cancel_becomes_a_text_that_can_be_stored(reason: Any):
    """Nobody checks what a task raises, and an outcome that cannot be written would hold up the others."""
    outcome = decide(claim(), Cancel(reason), ONCE, 5)
    assert isinstance(outcome.reason, str)
    assert "\0" not in outcome.reason
    assert outcome.reason.encode()
    assert outcome.size > 0


class BadText(Exception):
    def __init__(self, error: type[BaseException]) -> None:
        self.error = error

    def __str__(self) -> str:
        raise self.error("no text for you")


@pytest.mark.parametrize("error", [ValueError, RecursionError, SystemExit, KeyboardInterrupt])
def test_an_error_without_a_text_still_fails_in_order(error: type[BaseException]):
    """Its `__str__` may raise anything, also what would end a thread."""
    failure = failure_of(decide(claim(), raised(BadText(error)), ONCE, 5))
    assert failure.message == f"<no message: {error.__name__} while asking for it>"
    assert failure.type.endswith("BadText")


def test_an_error_whose_text_is_no_text_still_fails_in_order():
    """`__str__` may also answer nonsense."""

    class Odd(Exception):
        def __str__(self) -> Any:
            return 7

    assert "TypeError" in failure_of(decide(claim(), raised(Odd()), ONCE, 5)).message


def test_errors_that_cause_each_other_do_not_loop():
    """A cycle in the chain is shown once around."""
    first, second = ValueError("first"), KeyError("second")
    first.__cause__, second.__cause__ = second, first
    failure = failure_of(decide(claim(), raised(first), ONCE, 5))
    assert "first" in failure.traceback
    assert "second" in failure.traceback


def test_a_long_chain_of_errors_stays_within_the_cap():
    """A thousand causes are as storable as one."""
    error: BaseException = ValueError("the root")
    for number in range(1_000):
        following = ValueError(f"number {number}")
        following.__cause__ = error
        error = following
    assert len(failure_of(decide(claim(), raised(error), ONCE, 5)).traceback) <= TRACEBACK_CAP + 100


def test_an_error_from_the_depths_of_a_recursion_stays_within_the_cap():
    """The end of the traceback matters most, and is kept."""

    def deeper(left: int) -> None:
        if left == 0:
            raise ValueError("at the bottom")
        deeper(left - 1)

    with pytest.raises(ValueError, match="at the bottom") as caught:
        deeper(800)
    failure = failure_of(decide(claim(), caught.value, ONCE, 5))
    assert len(failure.traceback) <= TRACEBACK_CAP + 100
    assert failure.traceback.rstrip().endswith("ValueError: at the bottom")


def test_a_message_of_ten_megabytes_stays_within_the_caps():
    """Head and tail are kept, and it says how much is missing."""
    text = "begin" + "x" * 10_000_000 + "end"
    outcome = decide(claim(), raised(ValueError(text)), ONCE, 5)
    failure = failure_of(outcome)
    assert len(failure.message) <= MESSAGE_CAP + 100
    assert len(failure.traceback) <= TRACEBACK_CAP + 100
    assert failure.message.startswith("begin")
    assert failure.message.endswith("end")
    assert "characters left out" in failure.message
    assert outcome.size < 100_000


def test_a_message_that_no_store_could_take_is_made_storable():
    """NUL and lone surrogates are shown, not kept."""
    failure = failure_of(decide(claim(), ValueError("a\0b\ud800c"), ONCE, 5))
    assert failure.message == r"a\x00b\ud800c"


def test_the_traceback_leaves_our_own_frames_out():
    """It begins where the task's code begins."""

    def task() -> None:
        raise ValueError("no")

    try:
        task()
    except ValueError as error:
        failure = failure_of(decide(claim(), error, ONCE, 5, skip_frames=1))
    assert "in task" in failure.traceback
    assert "in test_the_traceback" not in failure.traceback


def test_a_failure_survives_encoding():
    """It is plain JSON, and never a class to import."""
    failure = Failure(FailureKind.TIMEOUT, "builtins.TimeoutError", "too slow", "Traceback …")
    assert Failure.decode(failure.encode()) == failure
    assert json.loads(failure.encode())[0] == "timeout"


def test_a_refused_job_fails_without_an_attempt():
    """It never began, so nothing is spent."""
    outcome = refuse(claim(), FailureKind.UNKNOWN_TASK, LookupError("who?"))
    assert (outcome.state, outcome.spent, outcome.duration) == (JobState.FAILED, False, None)
    assert failure_of(outcome).kind is FailureKind.UNKNOWN_TASK


@pytest.mark.parametrize(
    ("losses", "fail_at_once", "state"),
    [(0, False, JobState.READY), (1, False, JobState.READY), (2, False, JobState.FAILED), (0, True, JobState.FAILED)],
)
@pytest.mark.parametrize("error", [ProcessExitError("killed"), ProcessPrunedError("silent")])
def test_a_lost_job_runs_again_until_it_was_lost_too_often(error: Any, losses: int, fail_at_once: bool, state: Any):
    """Losses are counted apart from attempts; the third one fails the job, or the first where the task says so."""
    outcome = decide_lost(claim(losses=losses), error, fail_at_once=fail_at_once)
    assert (outcome.state, outcome.spent, outcome.lost) == (state, False, True)
    assert failure_of(outcome).kind is FailureKind.WORKER_LOST


@pytest.mark.parametrize(("ran", "counts"), [(INNOCENT_AFTER - 1, True), (INNOCENT_AFTER, False)])
def test_a_loss_after_a_long_run_does_not_count(ran: int, counts: bool):
    """But it is on record, and where the task says so it fails the job."""
    error = ProcessExitError("killed")
    outcome = decide_lost(claim(losses=2), error, fail_at_once=False, duration=ran)
    assert (outcome.state, outcome.lost) == ((JobState.FAILED, True) if counts else (JobState.READY, False))
    assert failure_of(outcome).kind is FailureKind.WORKER_LOST
    assert decide_lost(claim(), error, fail_at_once=True, duration=ran).state is JobState.FAILED


@pytest.mark.parametrize(
    ("losses", "state"),
    [(1, JobState.READY), (2, JobState.READY), (8, JobState.READY), (9, JobState.FAILED)],
)
def test_a_job_that_ran_alone_is_not_blamed_for_its_worker(losses: int, state: JobState):
    """But something that kills every worker from a process of its own comes to an end, too."""
    error = ProcessExitError("killed")
    outcome = decide_lost(claim(losses=losses), error, fail_at_once=False, alone=True)
    assert (outcome.state, outcome.lost) == (state, True)
    assert decide_lost(claim(losses=losses), error, fail_at_once=True, alone=True).state is JobState.FAILED


def test_the_simple_endings():
    """Success, expiry, a stop before and after the task began, and a claim handed back."""
    assert succeed(TOKEN, 5, b"1")[:7] == (TOKEN, JobState.SUCCEEDED, True, False, 0, 5, b"1")
    assert expire(TOKEN)[1:3] == (JobState.CANCELLED, False)
    assert expire(TOKEN).reason == "expired"
    assert stop(TOKEN, 5)[1:3] == (JobState.CANCELLED, True)
    assert stop(TOKEN, None)[1:3] == (JobState.CANCELLED, False)
    assert release(TOKEN)[1:3] == (JobState.READY, False)


def test_a_bare_outcome_keeps_the_state_and_says_what_is_gone():
    """What the store would not take is replaced by the reason why."""
    done = bare(succeed(TOKEN, 5, b"\xff"), OverflowError("too big"))
    assert (done.state, done.result) == (JobState.SUCCEEDED, None)
    assert done.result_error == "the store refused it (OverflowError)"
    failed = bare(decide(claim(), ValueError("no"), ONCE, 5), OverflowError())
    assert failed.state is JobState.FAILED
    assert failure_of(failed).message == "the store refused it (OverflowError)"
    assert bare(stop(TOKEN, 5, "\ud800"), OverflowError()).reason is None
