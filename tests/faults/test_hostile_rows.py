"""Whole worker processes over a file that somebody else writes to: they stay, and so do the jobs of others."""

import sqlite3

from tests.faults.harness import Place
from tests.waiting import wait_until


def attack(place: Place, statement: str) -> None:
    connection = sqlite3.connect(place.database, timeout=10)
    connection.execute("pragma ignore_check_constraints = on")
    with connection:
        connection.execute(statement)
    connection.close()


def test_poison_ends_no_process(place: Place):
    """A running job with a forged order and an odd nonce, and ready ones whose cells make no sense."""
    held = place.enqueue("hold", "held")
    workers = place.workers("--concurrency", "2")
    first = place.wait_started("held")
    attack(place, "update job set asked = x'00', asked_seal = 5")
    for number, poison in enumerate(("expires_at = 'abc'", "queue = x'00'", "order_key = 'zz'", "attempts = 'zz'")):
        place.enqueue("note", f"poisoned-{number}", run_after=60)
        attack(place, f"update job set {poison}, state = 3 where n = (select max(n) from job)")
    later = place.enqueue("note", "later", run_after=0.3)
    place.wait_state(later, "succeeded")
    wait_until(lambda: "was not ours and is ignored" in workers.log)
    place.let_go("held")
    assert place.wait_state(held, "succeeded").losses == 0
    assert workers.wait_pid("worker") == first.pid
    assert workers.stop() == 0
    assert "Traceback" not in workers.log
