"""An outcome is written only where the job still runs under that very token."""

import pytest

from packhorse.clock import SECOND, ManualClock
from packhorse.job import Claim, JobState, Token
from packhorse.stores import Store
from packhorse.stores.contract import Act
from packhorse.testing.contract.behind import epochs
from packhorse.testing.contract.helpers import (
    Worker,
    cancelled,
    everything,
    failed,
    id_of,
    insert,
    look,
    move,
    new_nonce,
    released,
    retried,
    snoozed,
    state,
    states,
    succeeded,
)

ENDINGS = {
    "succeed": lambda claim: succeeded(claim, b"late result"),
    "fail": failed,
    "retry": retried,
    "snooze": lambda claim: snoozed(claim, SECOND),
    "release": released,
    "cancel": cancelled,
    "go": lambda claim: succeeded(claim)._replace(keep=0),
}
each_ending = pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS.keys())


def invented(token: Token) -> dict[str, Token]:
    """Tokens that differ from a good one in one point."""
    return {
        "wrong nonce": token._replace(nonce=token.nonce + 1),
        "nonce of another claim": token._replace(nonce=new_nonce()),
        "later epoch": token._replace(epoch=token.epoch + 1),
        "earlier epoch": token._replace(epoch=token.epoch - 1),
        "wrong process": token._replace(process=id_of("nobody")),
        "process of another": token._replace(process=id_of("other")),
        "unknown job": token._replace(id=id_of("nothing")),
        "another job": token._replace(id=id_of("b")),
    }


@each_ending
@pytest.mark.parametrize("wrong", list(invented(Token(b"", 0, b"", 0))))
def test_invented_tokens_are_refused(store: Store, worker: Worker, other: Worker, ending, wrong: str):
    """A token that is wrong in one point is reported, and nothing changes."""
    insert(store, "a", "b")
    token = worker.claim_one().token
    before = everything(store)
    bad = invented(token)[wrong]
    assert worker.finish(ending(bad)) == [bad]
    assert other.finish(ending(bad)) == [bad]
    assert everything(store) == before


@each_ending
@pytest.mark.parametrize("first", ENDINGS.values(), ids=ENDINGS.keys())
def test_repeated_tokens_are_refused(store: Store, worker: Worker, first, ending):
    """A claim ends once; what is offered for it afterwards is refused, whatever it says."""
    insert(store, "a")
    claim = worker.claim_one()
    assert worker.finish(first(claim)) == []
    before = everything(store)
    assert worker.finish(ending(claim)) == [claim.token]
    assert everything(store) == before


def again(worker: Worker, nonce: int) -> Claim:
    """The next claim under the same nonce, so that only the epoch tells the two apart."""
    worker.store.promote(10)
    return worker.claim_one(nonce=nonce)


@each_ending
@pytest.mark.parametrize(
    "first", [released, retried, lambda claim: snoozed(claim, 0)], ids=["release", "retry", "snooze"]
)
def test_late_tokens_are_refused(store: Store, worker: Worker, first, ending):
    """After a job was put back and claimed again, the first claim's token is worth nothing: the epoch has risen."""
    insert(store, "a")
    late = worker.claim_one(nonce=7)
    worker.finish(first(late))
    fresh = again(worker, nonce=7)
    assert fresh.token.epoch > late.token.epoch
    before = everything(store)
    assert worker.finish(ending(late)) == [late.token]
    assert everything(store) == before
    assert worker.finish(ending(fresh)) == []


@each_ending
def test_late_tokens_are_refused_after_an_operators_retry(store: Store, worker: Worker, ending):
    """A retry by an operator begins anew with the attempts, not with the epoch."""
    insert(store, "a")
    late = worker.claim_one(nonce=7)
    worker.finish(failed(late))
    move(store, Act.RETRY, "a")
    fresh = again(worker, nonce=7)
    before = everything(store)
    assert worker.finish(ending(late)) == [late.token]
    assert everything(store) == before
    assert worker.finish(ending(fresh)) == []


@each_ending
def test_late_tokens_are_refused_after_leaving(store: Store, worker: Worker, ending):
    """A process that signed off and came back under its id cannot end what it held before."""
    insert(store, "a")
    late = worker.claim_one(nonce=7)
    store.leave(worker.id)
    before = everything(store)
    assert worker.finish(ending(late)) == [late.token]
    assert everything(store) == before
    worker.enroll()
    again(worker, nonce=7)
    before = everything(store)
    assert worker.finish(ending(late)) == [late.token]
    assert everything(store) == before


@each_ending
def test_late_tokens_are_refused_after_adoption(store: Store, worker: Worker, other: Worker, ending):
    """Once another has taken a job over, the old owner cannot write to it, even where all but the epoch is equal."""
    insert(store, "a")
    late = worker.claim_one(nonce=7)
    [orphan] = store.adopt(other.id, 7, 10, dead=[worker.id])
    assert orphan.claim.token.epoch > late.token.epoch
    before = everything(store)
    for token in (late.token, late.token._replace(process=other.id)):
        assert worker.finish(ending(token)) == [token]
    assert everything(store) == before
    assert other.finish(ending(orphan.claim)) == []


def test_the_epoch_rises_with_every_claim_and_act(store: Store, worker: Worker, other: Worker, clock: ManualClock):
    """An epoch never goes down and is never used for two claims."""
    insert(store, "a")
    used = []

    def claimed() -> Token:
        [token] = [claim.token for claim in worker.claim()]
        used.append(token.epoch)
        return token

    worker.finish(released(claimed()))
    worker.finish(retried(claimed()))
    worker.finish(failed(claimed()))
    move(store, Act.RETRY, "a")
    move(store, Act.CHANGE, "a", priority=3)
    worker.finish(snoozed(claimed(), SECOND))
    move(store, Act.RUN_NOW, "a")
    claimed()
    store.leave(worker.id)
    worker.enroll()
    move(store, Act.CANCEL, "a")
    move(store, Act.RETRY, "a")
    claimed()
    [orphan] = store.adopt(other.id, new_nonce(), 1, dead=[worker.id])
    used.append(orphan.claim.token.epoch)
    assert used == sorted(set(used))
    assert epochs(store) in (None, {id_of("a"): used[-1]})


def test_a_forced_release_raises_the_epoch(store: Store, worker: Worker):
    """What is taken from a process without its outcome has another epoch at once, not only with its next claim."""
    insert(store, "a")
    claim = worker.claim_one()
    store.leave(worker.id)
    if (seen := epochs(store)) is not None:
        assert seen[id_of("a")] > claim.token.epoch
    worker.enroll()
    assert worker.claim_one().token.epoch == claim.token.epoch + 2


def test_an_act_raises_the_epoch(store: Store, worker: Worker):
    """An operator's act shows in the epoch, so that no old claim survives it."""
    insert(store, "a")
    claim = worker.claim_one()
    worker.finish(released(claim))
    for number, act in enumerate((Act.CHANGE, Act.CANCEL, Act.RETRY), 1):
        move(store, act, "a", priority=1)
        assert epochs(store) in (None, {id_of("a"): claim.token.epoch + number})
    assert worker.claim_one().token.epoch == claim.token.epoch + 4


def test_good_and_bad_tokens_in_one_batch(store: Store, worker: Worker, other: Worker):
    """Exactly the good ones are written and exactly the bad ones come back, in the order they were offered."""
    insert(store, "a", "b", "c", "d", "e", "f")
    a, b, c, d, e = worker.claim(5)
    worker.finish(released(e))
    bad = [
        invented(a.token)["later epoch"],
        invented(c.token)["wrong nonce"],
        e.token,
        invented(a.token)["unknown job"],
    ]
    refused = worker.finish(
        failed(bad[0]), succeeded(b), retried(bad[1]), failed(d), released(bad[2]), cancelled(a), cancelled(bad[3])
    )
    assert refused == bad
    assert states(store) == {
        "a": JobState.CANCELLED,
        "b": JobState.SUCCEEDED,
        "c": JobState.RUNNING,
        "d": JobState.FAILED,
        "e": JobState.READY,
        "f": JobState.READY,
    }
    assert worker.holds == ["c"]
    assert look(store, "a").failure is None


@pytest.mark.parametrize("size", [5, 70, 300, 1_000])
def test_good_and_bad_tokens_in_a_large_batch(store: Store, worker: Worker, size: int):
    """Neither the size of a batch nor where the bad ones stand in it makes a difference."""
    wanted = [f"{number:04}" for number in range(size)]
    insert(store, *wanted)
    claims = worker.claim(size)
    bad = {number for number in range(size) if number % 5 in (0, 3)}
    offered = [claim.token._replace(nonce=-1) if number in bad else claim.token for number, claim in enumerate(claims)]
    refused = worker.finish(*(succeeded(token, token.id) for token in offered))
    assert refused == [offered[number] for number in sorted(bad)]
    assert worker.holds == [wanted[number] for number in sorted(bad)]
    assert look(store, "0001").result == id_of("0001")
    assert look(store, "0000").result is None


def test_the_same_token_twice_in_one_batch(store: Store, worker: Worker):
    """The first outcome counts, the second is refused."""
    insert(store, "a", "b")
    a, b = worker.claim()
    assert worker.finish(succeeded(a, b"first"), failed(a), succeeded(b)) == [a.token]
    assert look(store, "a").result == b"first"
    assert look(store, "a").failure is None
    assert (look(store, "a").attempts, look(store, "b").attempts) == (1, 1)


def test_the_same_bad_token_twice_in_one_batch(store: Store, worker: Worker):
    """Each refused outcome is reported, so that answers can be counted off against offers."""
    insert(store, "a", "b")
    a, b = worker.claim()
    worker.finish(released(a))
    assert worker.finish(succeeded(a), succeeded(b), failed(a)) == [a.token, a.token]


def test_the_same_token_twice_where_the_first_deletes(store: Store, worker: Worker):
    """The first outcome counts, also where nothing is left of its job; nothing else goes."""
    insert(store, "a", "b", "c")
    a, b, c = worker.claim()
    assert worker.finish(succeeded(a)._replace(keep=0), failed(a), failed(b), succeeded(b)._replace(keep=0)) == [
        a.token,
        b.token,
    ]
    assert states(store) == {"b": JobState.FAILED, "c": JobState.RUNNING}
    assert worker.finish(succeeded(a)._replace(keep=0), succeeded(c)._replace(keep=0)) == [a.token]
    assert states(store) == {"b": JobState.FAILED}


@pytest.mark.parametrize("gap", [0, 1, 10, 300])
def test_the_same_token_twice_far_apart(store: Store, worker: Worker, gap: int):
    """A batch that is sent in pieces still counts a token once."""
    insert(store, *(f"{number:04}" for number in range(gap + 1)))
    first, *between = worker.claim(gap + 1)
    refused = worker.finish(retried(first), *(succeeded(claim) for claim in between), retried(first))
    assert refused == [first.token]
    assert (look(store, "0000").attempts, len(look(store, "0000").failures)) == (1, 1)


def test_refusing_takes_nothing_away_from_claiming(store: Store, worker: Worker):
    """An exchange whose outcomes are all refused still claims."""
    insert(store, "a", "b")
    a = worker.claim_one()
    worker.finish(succeeded(a))
    reply = worker.exchange(succeeded(a), limit=1)
    assert (reply.refused, [claim.token.id for claim in reply.claims]) == ([a.token], [id_of("b")])


def test_the_token_decides_not_the_messenger(store: Store, worker: Worker, other: Worker):
    """A good token is accepted from any process: a late worker offers its results under a new process id."""
    insert(store, "a")
    claim = worker.claim_one()
    assert other.finish(succeeded(claim, b"42")) == []
    assert look(store, "a").result == b"42"
    assert state(store, "a") is JobState.SUCCEEDED


def test_a_discarded_job_accepts_nothing(store: Store, worker: Worker):
    """The token of a job that is gone is refused, also where its id was inserted anew."""
    insert(store, "a")
    late = worker.claim_one()
    worker.finish(failed(late))
    move(store, Act.DISCARD, "a")
    assert worker.finish(succeeded(late)) == [late.token]
    insert(store, "a")
    worker.claim_one()
    before = everything(store)
    assert worker.finish(succeeded(late)) == [late.token]
    assert everything(store) == before


@pytest.mark.parametrize("ending", [succeeded, failed])
def test_who_finished_a_job_can_be_told(store: Store, worker: Worker, other: Worker, ending):
    """Only its own claim: not one before it, nor while it runs, nor a token that is like it."""
    insert(store, "a")
    first = worker.claim_one()
    assert not store.finished(first.token)
    worker.finish(released(first))
    assert not store.finished(first.token)
    second = other.claim_one()
    assert not store.finished(second.token)
    other.finish(ending(second))
    token = second.token
    assert (store.finished(first.token), store.finished(token)) == (False, True)
    assert not store.finished(token._replace(process=worker.id))
    assert not store.finished(token._replace(nonce=token.nonce + 1))
    assert not store.finished(token._replace(epoch=token.epoch + 1))


def test_a_job_that_went_round_again_is_not_finished(store: Store, worker: Worker):
    insert(store, "a")
    claim = worker.claim_one()
    worker.finish(failed(claim))
    move(store, Act.RETRY, "a")
    assert not store.finished(claim.token)


def test_a_job_that_is_not_kept_counts_as_finished(store: Store, worker: Worker):
    insert(store, "a")
    claim = worker.claim_one()
    worker.finish(succeeded(claim)._replace(keep=0))
    assert store.finished(claim.token)
