"""Scripts that talk to the store and may be killed anywhere: `python -m tests.faults.client insert`.

A line is printed once the store has answered, so what was printed is what had been acknowledged. A script that lives to
its end prints `survived`.
"""

import os
import sys
import threading
import time
from collections.abc import Callable

from packhorse import Packhorse
from packhorse.clock import SECOND
from packhorse.ids import new_id, to_text
from packhorse.job import Claim, JobState, NewJob
from packhorse.outcome import Awaits, Outcome, succeed
from packhorse.queues import EVERYTHING, parse_queues
from packhorse.runtime.worker import new_nonce
from packhorse.stores.contract import Entry, ProcessInfo, Retention
from packhorse.stores.sqlite import SQLiteStore
from tests.faults.apps import app

LEASE = 600 * SECOND  # the test ends it when the script is dead
SCRIPTS: dict[str, Callable[..., None]] = {}


def script(function: Callable[..., None]) -> Callable[..., None]:
    SCRIPTS[function.__name__] = function
    return function


def say(*words: object) -> None:
    # One write, so that many writers and a kill leave whole lines; print makes two.
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def note(key: str, padding: str = "", queue: str = "default") -> NewJob:
    return app.tasks["note"].using(queue_name=queue).call(key, padding).new_job()


def enqueue(*keys: str, queue: str = "default") -> list[str]:
    """Insert them at once, and say so."""
    ids = [to_text(id) for id in app.store.insert([note(key, queue=queue) for key in keys])]
    for id in ids:
        say("enqueued", id)
    return ids


def join() -> bytes:
    id = new_id()
    app.store.enroll(ProcessInfo(id, "worker", "here", os.getpid()), LEASE)
    return id


def claim(process: bytes, limit: int, queues: str = "*") -> list[Claim]:
    return app.store.exchange(process, new_nonce(), [], parse_queues(queues), limit).claims


@script
def insert() -> None:
    """Says what it is about to insert, so that the test can repeat it."""
    for batch in range(8):
        jobs = [note(f"{batch}-{n}") for n in range(1 + 3 * (batch % 2))]
        for job in jobs:
            say("intends", to_text(job.id), job.payload.hex())
        for id in app.store.insert(jobs):
            say("enqueued", to_text(id))


@script
def move() -> None:
    ids = enqueue(*(f"job-{n}" for n in range(8)))
    for start in (0, 2, 4):
        pair = ids[start : start + 2]
        app.control.cancel(pair, reason="not wanted", actor="client")
        say("cancelled", *pair)


@script
def pause() -> None:
    enqueue(*(f"job-{n}" for n in range(4)))
    for _ in range(3):
        app.control.pause("default", reason="for a while", actor="client")
        say("paused")
        app.control.resume("default", actor="client")
        say("resumed")


@script
def schedule() -> None:
    enqueue(*(f"job-{n}" for n in range(4)))
    for n in range(5):
        view = app.schedules.add(app.tasks["note"].call(f"never-{n}"), "@yearly", key=f"yearly-{n}")
        say("scheduled", view.key)


@script
def record() -> None:
    enqueue(*(f"job-{n}" for n in range(4)))
    claims = claim(join(), 4)
    for number, each in enumerate(claims):
        assert app.store.record(each.token, [Entry("step", "one", b"%d" % number), Entry("step", "two", b"2")])
        say("recorded", to_text(each.token.id), number)


@script
def signal() -> None:
    """Two jobs wait for each signal; their keys are what the signals are for."""
    for n in range(4):
        for m in range(2):
            call = app.tasks["hear"].call(f"job-{n}-{m}", f"go-{n}")
            [id] = app.store.insert([call.new_job()])
            say("enqueued", to_text(id))
    process = join()
    claims = claim(process, 8)
    outcomes = [
        Outcome(each.token, JobState.SCHEDULED, spent=False, delay=3_600 * SECOND, awaits=Awaits(f"go-{n // 2}"))
        for n, each in enumerate(claims)
    ]
    assert not app.store.exchange(process, new_nonce(), outcomes, EVERYTHING, 0).refused
    app.store.leave(process)
    for n in range(4):
        assert app.signal(f"go-{n}", n) == 2
        say("signalled", f"go-{n}")


@script
def send(*names: str) -> None:
    """Signals, each said before and after."""
    for name in names:
        say("intends", name)
        app.signal(name, name)
        say("signalled", name)


@script
def prune() -> None:
    enqueue(*(f"job-{n}" for n in range(4)))
    enqueue(*(f"old-{n}" for n in range(6)), queue="old")
    process = join()
    claims = claim(process, 6, "old")
    outcomes = [succeed(each.token, 1, b"1") for each in claims]
    assert not app.store.exchange(process, new_nonce(), outcomes, EVERYTHING, 0).refused
    app.store.leave(process)
    for _ in range(3):
        say("pruned", app.store.prune(Retention(0, 0, 0), 2))


@script
def enroll() -> None:
    enqueue(*(f"job-{n}" for n in range(6)))
    for _ in range(3):
        process = join()
        say("joined", process.hex())
        say("claimed", *(to_text(each.token.id) for each in claim(process, 2)))


@script
def leave() -> None:
    enqueue(*(f"job-{n}" for n in range(6)))
    processes = [join() for _ in range(3)]
    for process in processes:
        claim(process, 2)
    for process in processes:
        app.store.leave(process)
        say("left", process.hex())


@script
def write_one_by_one(name: str, count: str) -> None:
    for n in range(int(count)):
        began = time.monotonic()
        [id] = app.store.insert([note(f"{name}-{n}")])
        say("enqueued", to_text(id), time.monotonic() - began)


@script
def write_in_threads(name: str, threads: str, count: str) -> None:
    """A crowd that enqueues at once, each one so many jobs; a refusal is said."""
    together = threading.Barrier(int(threads))

    def write(number: int) -> None:
        together.wait()
        for n in range(int(count)):
            try_it(f"{name}-{number}-{n}")

    crowd = [threading.Thread(target=write, args=[number]) for number in range(int(threads))]
    for thread in crowd:
        thread.start()
    for thread in crowd:
        thread.join()


@script
def write_in_bulk(name: str, count: str) -> None:
    for n in range(int(count)):
        began = time.monotonic()
        ids = app.store.insert([note(f"{name}-{n}-{m}") for m in range(100)])
        took = time.monotonic() - began
        for id in ids:
            say("enqueued", to_text(id), took)


@script
def write_exchanges(name: str, count: str) -> None:
    """Enqueues to a queue of its own, claims from it and writes what ended."""
    process = join()
    queues = parse_queues(name)
    ended: list[Outcome] = []
    for n in range(int(count)):
        [id] = app.store.insert([note(f"{name}-{n}", queue=name)])
        say("enqueued", to_text(id), 0)
        began = time.monotonic()
        answer = app.store.exchange(process, new_nonce(), ended, queues, 5)
        took = time.monotonic() - began
        assert answer.alive
        assert not answer.refused
        for outcome in ended:
            say("finished", to_text(outcome.token.id), took)
        ended = [succeed(each.token, 1, None) for each in answer.claims]
    app.store.exchange(process, new_nonce(), ended, queues, 0)
    for outcome in ended:
        say("finished", to_text(outcome.token.id), 0)
    app.store.leave(process)


@script
def stress(name: str, commits: str) -> None:
    """As fast as it can, with a checkpoint every few pages, through connections of ours."""
    store = app.store
    assert isinstance(store, SQLiteStore)
    app.store.schema_version()
    pool = store._connections
    connection = pool.take()
    connection.sqlite.execute("pragma wal_autocheckpoint = 3")
    pool.give_back(connection)
    for number in range(int(commits)):
        [id] = app.store.insert([note(f"{name}-{number}")])
        say("enqueued", to_text(id))


@script
def durable(count: str) -> None:
    """Acknowledged inserts and exchanges, one after the other, with payloads large enough to need checkpoints."""
    process = join()
    ended: list[Outcome] = []
    for n in range(int(count)):
        [id] = app.store.insert([note(f"job-{n}", padding=f"{n:04d}" * 1000)])
        say("enqueued", to_text(id))
        if n % 4 == 3:
            claims = app.store.exchange(process, new_nonce(), ended, EVERYTHING, 2).claims
            for outcome in ended:
                say("finished", to_text(outcome.token.id))
            ended = [succeed(each.token, 1, None) for each in claims]


@script
def try_to_enqueue(count: str) -> None:
    """One enqueue after the other; an error is said, not raised."""
    for n in range(int(count)):
        try_it(f"try-{n}")


def try_it(key: str) -> None:
    try:
        say("enqueued", app.tasks["note"].enqueue(key).id)
    except Exception as error:
        say("refused", type(error).__name__, str(error).replace("\n", " "))


@script
def as_nobody(uid: str) -> None:
    """What a user without rights meets."""
    # Python's own folders may be closed to that user, so everything is imported before, by using another store.
    Packhorse("another", f"sqlite:///{os.environ['LEDGER']}.db").store.schema_version()
    os.setgroups([])
    os.setgid(int(uid))
    os.setuid(int(uid))
    try_to_enqueue("1")


@script
def fork_beside_writers() -> None:
    """Forks twenty times beside three threads that never stop writing."""
    done = threading.Event()

    def write() -> None:
        while not done.is_set():
            app.store.insert([note("beside")])

    threads = [threading.Thread(target=write) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        if (child := os.fork()) == 0:
            status = 1
            try:
                app.store.insert([note("child")])
                status = 0
            finally:
                os._exit(status)
        say("status", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    done.set()
    for thread in threads:
        thread.join()


@script
def steps() -> None:
    """Does one thing for each line it is told."""
    parent = os.getpid()
    watches = []
    taken: list[object] = []
    store = app.store
    assert isinstance(store, SQLiteStore)
    for line in sys.stdin:
        match line.split():
            case ["enqueue", key]:
                try_it(key)
            case ["leave"]:
                break
            case ["watch"]:
                watches.append(app.store.watch(EVERYTHING))
                say("watching")
            case ["wait"]:
                say("changed" if watches[-1].wait(20) else "unchanged")
            case ["busy"]:
                thread = threading.Thread(target=lambda: taken.append(store._connections.take()))
                thread.start()
                thread.join()
                say("busy")
            case ["fork", key]:
                # As a daemon does: the parent goes, the child carries on.
                if os.fork() != 0:
                    os._exit(0)
                while os.getppid() == parent:
                    time.sleep(0.001)
                try_it(key)
            case ["fork_aside", key]:
                if (child := os.fork()) == 0:
                    try_it(key)
                    app.close()
                    os._exit(0)
                os.waitpid(child, 0)
            case ["locks"]:
                inode = os.stat(os.environ["PACKHORSE_STORE"].removeprefix("sqlite:///")).st_ino
                with open("/proc/locks") as locks:
                    ours = [lock.split() for lock in locks if lock.split()[4] == str(os.getpid())]
                say("held" if any(lock[5].endswith(f":{inode}") for lock in ours) else "not held")


if __name__ == "__main__":
    SCRIPTS[sys.argv[1]](*sys.argv[2:])
    say("survived")
