"""Mistakes that a type checker should find. Each line that ends in `# error` must be reported, and no other."""

from datetime import timedelta

from packhorse import (
    Batch,
    Context,
    Flow,
    JobHandle,
    Middleware,
    Packhorse,
    Secret,
    chord,
    cron,
    daily,
    every,
    gather,
    limit,
    rate,
    unique,
)

app = Packhorse("shop", "memory://")


@app.task
def resize(photo: int, *, width: int = 100) -> str:
    return f"{photo} is {width} wide"


@app.task(retries=3)
async def fetch(url: str) -> str | None:
    return None


# Arguments are those of the function.
resize.enqueue()  # error
resize.enqueue("42")  # error
resize.enqueue(42, 100)  # error
resize.enqueue(42, height=3)  # error
resize.delay("42")  # error
resize.call("42")  # error
resize("42")  # error
fetch.enqueue(42)  # error
fetch.using(priority=1).enqueue(42)  # error

# Results too.
number: int = resize.enqueue(42).result()  # error
text: str = fetch.enqueue("x").result()  # error
wrong_handle: JobHandle[int] = resize.enqueue(42)  # error
many: list[JobHandle[int]] = app.enqueue_many([resize.call(1)])  # error

# Options are known by name and type, where a task is declared and where one job differs.
resize.using(retries="three")  # error
resize.using(priority="high")  # error
resize.using(queue="mail")  # error
resize.using(run_after="tomorrow")  # error
resize.using(tags=["a"])  # error
app.task(retires=3)  # error
app.task(retries="3")  # error
app.task(on_worker_lost="panic")  # error
app.task(retry_for="ValueError")  # error
app.task(timedelta(seconds=1))  # error

# Options do not go into enqueue: they would get in the way of the function's own arguments.
resize.enqueue(42, priority=5)  # error
resize.enqueue(42, run_after=timedelta(hours=1))  # error

# A job is not awaited, and only a call can be enqueued with others.
app.enqueue_many([resize.enqueue(1)])  # error
app.enqueue(resize)  # error


async def twins() -> None:
    await resize.enqueue(42)  # error
    await resize(42)  # error
    await resize.aenqueue("42")  # error
    await (await fetch.aenqueue("x")).aresult(timeout="soon")  # error
    await app.control.acancel(["id"], because="enough")  # error
    await app.inspection.ajobs()  # error


async def wrong_result() -> int:
    return await (await fetch.aenqueue("x")).aresult()  # error


# The context is the worker's to give, and typed like the rest.
@app.task(takes_context=True)
def climb(context: Context, steps: int) -> int:
    context.progress("half")  # error
    context.attempt = 2  # error
    context.step("double", len, 5)  # error
    number: int = context.step("text", str, 5)  # error
    context.sleep("a while")  # error
    context.wait_for("go", until=5)  # error
    return steps + number


climb.enqueue(Context, 3)  # error
climb.enqueue("3")  # error
climb()  # error


@app.task(takes_context=True)  # error
def no_context(steps: int) -> int:
    return steps


# Secrets must be wrapped, and stay wrapped.
@app.task
def login(password: Secret[str]) -> None:
    password.upper()  # error


login.enqueue("hunter2")  # error
login.enqueue(Secret(5))  # error
app.task(results="no")  # error
app.task(version="2")  # error
app.task(keep_failed="90 days")  # error
resize.using(metadata=["trace"])  # error
app.use(Middleware)  # error
app.subscribe(resize)  # error


@app.subscribe("failed")  # error
def alarm(event: str) -> None: ...


texts: list[int] = gather(resize.enqueue(1))  # error
gather([resize.enqueue(1)])  # error

# Limits, rates and unique jobs are made by their functions.
app.task(limit=5)  # error
app.task(unique="user")  # error
limit(to="3")  # error
unique(on_conflict="wait")  # error
app.task(rate=5)  # error
app.task(rate=[limit()])  # error
rate(100)  # error
rate("1/s", burst="3")  # error
rate("1/s", on_conflict="discard")  # error
unique("k", merge=max)  # error
unique("k", on_conflict="merge", merge=lambda earlier: earlier)  # error
resize.using(rate=5)  # error
resize.using(share=5)  # error
app.control.set_weight("ann", "3")  # error


@app.task(takes_context=True)
def wait_for_token(context: Context) -> int:
    context.take(5)  # error
    return context.take("5/s", timeout="soon")  # error


# Flows.
flow = Flow()
node = flow.add(resize.call(1))
resize.call(node.result)  # error
flow.add(resize)  # error
flow.add(resize.call(2), after="first")  # error
flow.add(resize.call(2), on_failure="maybe")  # error
chord([resize.call(1)], resize)  # error
Batch([resize])  # error
Batch(on_finish=resize)  # error
app.task(on_finish=resize)  # error
app.task(on_finish="told")  # error
resize.using(on_failure=resize)  # error
resize.map(["a"])  # error
resize.map(5)  # error
chord(resize.map([1]), resize)  # error
every("minute")  # error
cron(5)  # error
daily("09:00")  # error
app.recurring(5)  # error
app.recurring(every(60), overlap="never")  # error
node.result.nonsense()  # error
