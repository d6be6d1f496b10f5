"""The public API as a type checker should see it: everything here is right, and the types are those named."""

from datetime import UTC, datetime, timedelta
from typing import assert_type

from packhorse import (
    Call,
    Cancel,
    Exponential,
    Failure,
    Fixed,
    Job,
    JobFailed,
    JobHandle,
    JobState,
    Packhorse,
    Retry,
    Snooze,
)

app = Packhorse("shop", "memory://", heartbeat=1, lease=10)


@app.task
def resize(photo: int, *, width: int = 100) -> str:
    return f"{photo} is {width} wide"


@app.task
async def fetch(url: str) -> str | None:
    return None


@app.task(name="mail", queue_name="mail", priority=10, retries=None, backoff=timedelta(seconds=5), tags=("a", "b"))
def mail(to: str, copies: list[str] | None = None) -> None:
    if not to:
        raise Cancel("nobody to write to")
    if copies is None:
        raise Retry("busy", after=timedelta(seconds=1))
    raise Snooze(1.5)


@app.task(retries=3, backoff=Exponential(base=1), retry_for=(OSError, ValueError), give_up_on=KeyError)
async def pay(order: int) -> dict[str, int]:
    return {"order": order}


@app.task(backoff=lambda attempt, error: 2.0 * attempt, on_worker_lost="fail", expires=60, share="a")
def report(day: str = "today") -> list[int]:
    return [len(day)]


@app.task(retries=1, backoff=Fixed(3))
def nothing() -> None: ...


# A task is its function, and more.
assert_type(resize(42, width=3), str)
assert_type(resize.name, str)
assert_type(resize.enqueue(42), JobHandle[str])
assert_type(resize.enqueue(photo=42, width=3), JobHandle[str])
assert_type(resize.delay(42), JobHandle[str])

# Options go into `using`, which keeps the type.
urgent = resize.using(queue_name="urgent", priority=50, tags=("vip",), share=None)
assert_type(urgent.enqueue(42, width=3), JobHandle[str])
assert_type(fetch.using(run_after=timedelta(hours=1)).enqueue("x"), JobHandle[str | None])
resize.using(run_after=datetime.now(UTC), expires=60)
resize.using(run_after=2.5, expires=None)

# Calls, one or many.
assert_type(resize.call(1), Call[str])
assert_type(app.enqueue(resize.call(1)), JobHandle[str])
assert_type(app.enqueue_many(resize.call(number) for number in range(3)), list[JobHandle[str]])
assert_type(app.enqueue_many([resize.call(1), urgent.call(2)]), list[JobHandle[str]])
app.enqueue_many([resize.call(1), fetch.call("x"), report.call()])


def results() -> None:
    assert_type(resize.enqueue(42).result(), str)
    assert_type(fetch.enqueue("https://example.org").result(timeout=1.5), str | None)
    assert_type(mail.enqueue("ann", ["bob"]).result(), None)
    assert_type(pay.enqueue(1).result(), dict[str, int])
    assert_type(report.enqueue().result(), list[int])


async def twins() -> None:
    assert_type(await resize.aenqueue(42), JobHandle[str])
    assert_type(await fetch("x"), str | None)
    assert_type(await (await pay.aenqueue(1)).aresult(timeout=1), dict[str, int])
    assert_type(await app.aenqueue_many([resize.call(1)]), list[JobHandle[str]])
    assert_type(await (await app.ajob("id")).alook(), Job)


def look(job: JobHandle[str]) -> None:
    assert_type(job.id, str)
    assert_type(job.state, JobState)
    assert_type(job.look().failure, Failure | None)
    assert_type(job.cancel("why"), bool)
    assert_type(job.retry(), bool)
    anything: JobHandle[object] = job  # a handle may be used as one with a wider result
    anything.result()
    try:
        job.result()
    except JobFailed as error:
        assert_type(error.failure.traceback, str)


def operate() -> None:
    app.control.pause("mail", until=timedelta(hours=1), reason="the server moves")
    app.control.resume("mail")
    assert_type(app.control.cancel(["id"], reason="why"), int)
    assert_type(app.inspection.counts(), dict[JobState, int])
    for job in app.inspection.jobs():
        assert_type(job, Job)
