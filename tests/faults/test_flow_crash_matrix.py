"""Die wherever a gate opens, children are waited for or a signal comes: nobody is dropped, and nobody goes on twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from packhorse import Flow, JobState
from packhorse.clock import SECOND
from packhorse.failpoints import POINTS
from packhorse.ids import from_text, new_id
from packhorse.outcome import Awaits, Outcome
from packhorse.queues import EVERYTHING, parse_queues
from packhorse.runtime.worker import new_nonce
from tests.faults.harness import Place, Workers
from tests.faults.test_crash_matrix import enroll, silence

# What a worker passes while it performs; nothing is handed back unstarted here.
HOT = [point for point in POINTS if point.startswith(("exchange.", "worker.", "slot.")) and point != "worker.release"]
INSERTS = [point for point in POINTS if point.startswith("insert.")]
RECORDS = [point for point in POINTS if point.startswith("record.")]
VERDICTS = [point for point in POINTS if point.startswith(("adopt.", "dispatcher.", "exchange."))]
BEGIN = ["worker.claimed", "slot.before_perform", "slot.after_perform"]
WRITE = [point for point in HOT if point not in BEGIN]
SIZE = 4


@dataclass(frozen=True)
class Death:
    point: str
    hit: int

    @property
    def all_die(self) -> bool:
        """An early death is mended by the living supervisor, a later one by the next start."""
        return self.hit > 2


def deaths(points: list[str], *hits: int) -> Iterator[Any]:
    for point in points:
        for hit in hits:
            marks = [pytest.mark.thorough] if hit != hits[0] else []
            yield pytest.param(Death(point, hit), id=f"{point}@{hit}", marks=marks)


def die_and_go_on(
    place: Place, death: Death, role: str = "worker", meanwhile: Callable[[], None] = lambda: None
) -> None:
    """Something may happen as soon as it is dead, before anybody goes on for certain."""
    doomed = place.workers("--concurrency", "1", failpoints=f"{death.point}=kill@{death.hit}", armed=role)
    wait_armed_killed(doomed, death, role)
    check_gates(place)
    meanwhile()
    last = doomed
    if death.all_die:
        doomed.kill()
        place.end_leases(doomed.armed_pid())
        last = place.workers("--concurrency", "1")
        last.wait_pid("scheduler")  # all are there, so that all can be stopped
    place.wait_all_finished()
    if last is not doomed:
        doomed.wait_children_gone()
    assert last.stop() == 0
    assert "Traceback" not in doomed.log + last.log
    check_gates(place)


def wait_armed_killed(doomed: Workers, death: Death, role: str) -> None:
    try:
        doomed.wait_armed_killed(role)
    except AssertionError as error:
        pytest.fail(f"The {role} did not die at hit {death.hit} of {death.point!r}: {error}\n{doomed.log}")


def check_gates(place: Place) -> None:
    """At any time: whoever stands at a gate watches one that has not ended, and nobody before that one."""
    unended = "select 1 from edge join job as other on other.id = parent where child = job.id and other.state < 5"
    blind = f"select hex(id) from job where waits_on = 'gate:' and not exists ({unended} and parent = job.watched)"
    assert place.sql(blind) == [], "one at a gate waits for nobody who could open it"
    late = f"select hex(id) from job where waits_on = 'gate:' and exists ({unended} and parent < job.watched)"
    assert place.sql(late) == [], "one at a gate watches another than the first"
    early = f"select hex(id) from job where state in (1, 3, 4, 5) and exists ({unended} and ended = 0)"
    assert place.sql(early) == [], "one went on before its time"


def check_done_once(place: Place) -> None:
    """Again only where its process was lost, and that happened to nobody twice."""
    starts, finishes = (Counter(line.key for line in place.lines(what=what)) for what in ("start", "finish"))
    for row in place.rows().values():
        assert row.losses <= 1, "one death, so at most one loss"
        if row.state == "succeeded":
            assert row.attempts == 1, row
            assert 1 <= finishes[row.key] <= 1 + row.losses, f"{row} was done {finishes[row.key]} times"
            parks = 1 if row.key.startswith(("family", "hear")) else 0
            assert starts[row.key] <= 1 + parks + row.losses, f"{row} was begun {starts[row.key]} times"


def began(place: Place, key: str) -> int:
    return min(line.at for line in place.lines(key, "start"))


def ended(place: Place, key: str) -> int:
    return min(line.at for line in place.lines(key, "finish"))


# Gates.


@pytest.mark.parametrize("death", [*deaths(HOT, 2, 5)])
def test_followers_go_on_though_the_worker_dies_at_a_gate(place: Place, death: Death):
    """A chain, a chord, and one that needs no success, all of it written at once."""
    call = place.app.tasks["note"].call
    flow = Flow()
    first = flow.add(call("first"))
    second = flow.add(call("second"), after=first)
    sides = flow.group([call("left"), call("right")], after=second)
    end = flow.add(call("end"), after=sides)
    flow.add(call("whatever"), after=[first, end], on_failure="continue")
    ids = [job.id for job in flow.enqueue().jobs()]
    place.app.close()
    die_and_go_on(place, death)
    place.check(ids)
    assert len(place.rows()) == len(ids) == 6
    check_done_once(place)
    order = [("first", "second"), ("second", "left"), ("second", "right"), ("left", "end"), ("right", "end")]
    for before, after in [*order, ("end", "whatever")]:
        assert ended(place, before) <= began(place, after), f"{after} began before {before} had ended"


@pytest.mark.parametrize("death", [*deaths(VERDICTS, 1)])
def test_a_verdict_opens_and_closes_gates_though_the_judge_dies(place: Place, death: Death):
    """A job that may not be lost is lost: who needs its success is cancelled, who does not goes on."""
    tasks = place.app.tasks
    flow = Flow()
    lost = flow.add(tasks["die_strictly"].using(queue_name="left").call("lost"))
    needy = flow.add(tasks["note"].call("needy"), after=lost)
    flow.add(tasks["note"].call("behind-needy"), after=needy)
    flow.add(tasks["note"].call("sturdy"), after=lost, on_failure="continue")
    ids = [job.id for job in flow.enqueue().jobs()]
    dead = new_id()
    enroll(place, dead, lease=60)
    assert len(place.app.store.exchange(dead, new_nonce(), [], parse_queues("left"), 1, starting=1).claims) == 1
    place.app.close()
    silence(place, dead)
    die_and_go_on(place, death, "dispatcher")
    rows = place.rows()
    assert [rows[from_text(id)].state for id in ids] == ["failed", "cancelled", "cancelled", "succeeded"]
    assert rows[from_text(ids[0])].losses == 1
    place.check(ids, others=ids[:3])
    assert {line.key for line in place.lines()} == {"sturdy"}
    check_done_once(place)


# Children.


@pytest.mark.parametrize("death", [*deaths(INSERTS, 1), *deaths(RECORDS, 1), *deaths(HOT, 2, 3)])
def test_a_parent_resumes_once_though_the_worker_dies(place: Place, death: Death):
    """While it makes its children, while it goes to wait for them, while they run, and when the last has ended."""
    id = place.enqueue("family", "family", SIZE)
    die_and_go_on(place, death)
    place.check([id])
    assert len(place.rows()) == 1 + SIZE, "the children were made once"
    check_done_once(place)
    assert place.app.job(id).result(0) == sum(n * n for n in range(SIZE))
    last = max(ended(place, f"family/{n}") for n in range(SIZE))
    assert last <= ended(place, "family"), "it resumed before its children had ended"


# Signals.


@pytest.mark.parametrize("death", [*deaths(BEGIN, 1), *deaths(WRITE, 2)])
def test_a_signal_that_comes_while_its_waiter_goes_to_sleep_is_heard(place: Place, death: Death):
    """It is sent when the worker has just died there, whether the job waits already or not yet."""
    id = place.enqueue("hear", "hear", "go")
    die_and_go_on(place, death, meanwhile=lambda: send(place))
    check_heard(place, id)


@pytest.mark.thorough
@pytest.mark.parametrize("death", [*deaths(RECORDS, 1), *deaths(BEGIN, 1), *deaths(WRITE, 2)])
def test_a_signal_that_was_sent_before_is_heard_once(place: Place, death: Death):
    """The job finds it kept, and records that it got it."""
    send(place)
    id = place.enqueue("hear", "hear", "go")
    die_and_go_on(place, death)
    check_heard(place, id)


@pytest.mark.thorough
@pytest.mark.parametrize("death", [*deaths(BEGIN, 1), *deaths(WRITE, 2)])
def test_a_waiter_that_was_woken_goes_on_though_the_worker_dies(place: Place, death: Death):
    """The signal was delivered to it in the stroke that woke it."""
    id = place.enqueue("hear", "hear", "go")
    process = new_id()
    enroll(place, process, lease=60)
    [claim] = place.app.store.exchange(process, new_nonce(), [], EVERYTHING, 1).claims
    asleep = Outcome(claim.token, JobState.SCHEDULED, spent=False, delay=3_600 * SECOND, awaits=Awaits("go"))
    place.app.store.exchange(process, new_nonce(), [asleep], EVERYTHING, 0)
    place.app.store.leave(process)
    assert place.app.signal("go", "now") == 1
    place.app.close()
    die_and_go_on(place, death)
    check_heard(place, id)


def send(place: Place) -> None:
    place.app.signal("go", "now")
    place.app.close()


def check_heard(place: Place, id: str) -> None:
    place.check([id])
    check_done_once(place)
    assert place.sql("select count(*) from entry where kind = 'signal'") == [(1,)]
    assert place.sql("select count(*) from job where awaits is not null") == [(0,)]
    assert place.job(id).state is JobState.SUCCEEDED
