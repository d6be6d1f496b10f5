"""The public API as a type checker should see it: everything here is right, and the types are those named."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

from packhorse import (
    Batch,
    Call,
    Cancel,
    Context,
    CoroutineTask,
    Draft,
    Event,
    Exponential,
    Failure,
    Fixed,
    Flow,
    FlowHandle,
    Job,
    JobFailed,
    JobHandle,
    JobState,
    Mapped,
    Middleware,
    Packhorse,
    Progress,
    Retry,
    Secret,
    Snooze,
    Task,
    aas_completed,
    agather,
    as_completed,
    await_jobs,
    chain,
    chord,
    current_context,
    gather,
    group,
    limit,
    rate,
    unique,
    wait_jobs,
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
    assert_type(await app.control.acancel(["id"], reason="enough"), int)
    assert_type(await app.inspection.acounts(), dict[JobState, int])
    assert_type([job async for job in app.inspection.ajobs(page=10)], list[Job])


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


# A context comes first and is not the caller's business.
@app.task(takes_context=True, retries=2)
def climb(context: Context, steps: int, *, slowly: bool = False) -> int:
    context.progress(1, steps, "on the way")
    context.log.info("attempt %d", context.attempt)
    assert_type(context.remaining, float | None)
    assert_type(context.stop_requested, bool)
    assert_type(context.metadata, dict[str, Any])
    assert_type(current_context(), Context)
    assert_type(context.step("charge", charge, 42, currency="EUR"), str)
    context.checkpoint({"row": 1})
    context.sleep(timedelta(days=1), "night")
    return steps


async def wait_for(context: Context) -> None:
    context.wait_for("approved:42", timeout=60)
    await context.await_for("approved:42")


def charge(order: int, *, currency: str = "USD") -> str:
    return f"{order} {currency}"


async def acharge(order: int) -> str | None:
    return None


@app.task(takes_context=True)
async def aclimb(context: Context, steps: int) -> int:
    assert_type(await context.astep("charge", charge, 42, currency="EUR"), str)
    assert_type(await context.astep("again", acharge, 42), str | None)
    await context.acheckpoint(await context.acursor(0))
    await context.asleep(1.5)
    return steps


assert_type(app.signal("approved:42", {"by": "ann"}, keep=timedelta(hours=1)), int)


assert_type(climb(3, slowly=True), int)
assert_type(climb.enqueue(3, slowly=True), JobHandle[int])
assert_type(climb.enqueue(3).progress(), Progress | None)
assert_type(aclimb.enqueue(3), JobHandle[int])


@app.task(aliases=("old.login",), version=2, upgrade=lambda version, args, kwargs: (args, kwargs), results=False)
def login(user: str, password: Secret[str]) -> None:
    assert_type(password.reveal(), str)


login.using(metadata={"trace": "abc"}).enqueue("ada", Secret("x"))


@app.task(keep_succeeded=0, keep_failed=timedelta(days=90), keep_cancelled=None, result_ttl=3600)
def forget() -> None: ...


# Extensions.
class Point:
    x: int


app.register_type(Point, name="point", encode=lambda point: point.x, decode=lambda data: Point())


class Tracing(Middleware):
    def enqueue(self, draft: Draft) -> Draft:
        return replace(draft, metadata={**draft.metadata, "trace": "abc"})

    @contextmanager
    def perform(self, context: Context) -> Iterator[None]:
        yield


app.use(Tracing())


@app.subscribe("failed", "lost")
def alarm(event: Event) -> None:
    assert_type(event.failure, Failure | None)


# What may run now.
@app.task(limit=limit("{account}", to=3), unique=unique(arguments=["account"], until=timedelta(hours=1)))
def serve(account: int) -> None: ...


@app.task(limit=[limit(to=1, group="printer"), limit(lambda page: page)], unique=True)
def print_page(page: int) -> None: ...


@app.task(rate="100/min", share="ann")
def call_api(path: str) -> None: ...


@app.task(limit=limit(to=2), rate=["5/s", rate("1000/2h", "{site}", burst=10, group="sites")])
async def crawl(site: str) -> None: ...


def newest(earlier: dict[str, Any], later: dict[str, Any]) -> dict[str, Any]:
    return {**earlier, **later}


@app.task(unique=unique("{user}", on_conflict="merge"))
def notify(user: int, lines: list[str]) -> int:
    return len(lines)


@app.task(unique=unique(arguments=["user"], on_conflict="merge", merge=newest))
def show(user: int, line: str) -> None: ...


assert_type(notify.using(share="bob").enqueue(1, ["hello"]), JobHandle[int])


@app.task(takes_context=True)
async def poll(context: Context, site: str) -> bool:
    assert_type(context.take(rate("5/s", site, group="sites"), timeout=timedelta(seconds=3)), bool)
    return await context.atake("1/min", timeout=0.5)


def turns() -> None:
    app.control.set_weight("ann", 3, reason="pays more")
    assert_type(app.inspection.weights(), dict[str, int])
    for view in app.inspection.rates():
        assert_type(view.waiting, int)


# Flows: what stands for a result has its type.
@app.task
def count(lines: list[str], least: int = 0) -> int:
    return max(least, len(lines))


@app.task
def tell(id: str, loudly: bool = False) -> None: ...


@app.task(on_success=nothing.call(), on_failure=tell, on_finish=tell)
def watched() -> None: ...


flow = Flow()
first = flow.add(resize.call(1))
assert_type(first.result, str)
sides = flow.group([resize.call(2), resize.call(3)], after=first)
assert_type(sides.results, list[str])
flow.add(count.call(sides.results), after=[first, sides], on_failure="continue")
flow.include(chain(resize.call(4), fetch), after=sides)
assert_type(flow.enqueue(), FlowHandle)
chord([resize.call(5), resize.call(6)], count).enqueue()
assert_type(group(resize.call(number) for number in range(3)).enqueue().counts(), dict[JobState, int])
batch = Batch([resize.call(7)], on_success=nothing.call(), on_finish=nothing.call()).enqueue()
Batch([resize.call(7)], on_finish=tell)
assert_type(batch.add([resize.call(8)]), list[JobHandle[Any]])
assert_type(batch.finished, bool)


# Maps.
assert_type(resize.map([1, 2]), Mapped[str])
assert_type(resize.map(range(3)).enqueue(), FlowHandle)
assert_type(fetch.map(["a", "b"]), Mapped[str | None])
assert_type(flow.group(resize.map([9])).results, list[str])
assert_type(resize.using(priority=3).map([1, 2]), Mapped[str])
assert_type(mail.starmap([("ann", ["bob"]), ("cid",)]), Mapped[None])
chord(resize.map([1, 2]), count).enqueue()
chain(resize.map([1, 2]), count).enqueue()
app.enqueue_many(resize.map([1, 2]))
resize.using(on_finish=tell, on_failure=nothing.call()).enqueue(1)


async def later(handle: FlowHandle) -> None:
    assert_type(await flow.aenqueue(), FlowHandle)
    assert_type(await handle.awaited(timeout=1), dict[JobState, int])
    assert_type(await handle.acancel(reason="why"), int)


# Waiting for many.
def many_results() -> None:
    assert_type(gather(resize.enqueue(1), resize.enqueue(2)), list[str])
    finished, unfinished = wait_jobs([resize.enqueue(1)], timeout=3, first=True)
    assert_type(finished, list[JobHandle[str]])
    assert_type(unfinished, list[JobHandle[str]])
    for handle in as_completed([resize.enqueue(1)]):
        assert_type(handle.result(), str)


async def many_results_later() -> None:
    assert_type(await agather(climb.enqueue(1)), list[int])
    finished, _ = await await_jobs([climb.enqueue(1)])
    assert_type(finished, list[JobHandle[int]])
    async for handle in aas_completed([resize.enqueue(1)]):
        assert_type(await handle.aresult(), str)


def declared() -> tuple[Task[[int], str], CoroutineTask[[str], str | None]]:
    return app.task(name="other")(other), app.task(name="another")(another)


def other(number: int, /) -> str:
    return str(number)


async def another(text: str, /) -> str | None:
    return text
