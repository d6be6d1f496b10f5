"""Mistakes that type checkers find in Django's tasks with our options; each is on a line marked so."""

from packhorse.django import TaskContext, task


@task
def resize(photo: int, width: int = 100) -> str:
    return f"{photo} {width}"


@task(takes_context=True)
def report(context: TaskContext, year: int) -> float:
    return year / 2


resize.enqueue("a")  # error
resize.enqueue()  # error
resize.enqueue(1, height=5)  # error
resize.later(photo="a")  # error
report.enqueue("this year")  # error
resize.using(retries="many")  # error
resize.using(retrys=1)  # error
resize.using(retry_for=ValueError)  # error
resize.using(isolate="yes")  # error
resize.using(on_worker_lost="weep")  # error
resize.using(run_after="tomorrow")  # error
task(retrys=1)  # error
task(backoff="soon")  # error
text: int = resize.call(1)  # error


async def later() -> None:
    await resize.aenqueue("a")  # error
