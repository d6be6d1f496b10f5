"""Tasks of the tests' site. What they saw is kept in `seen`, for tests that perform them in their own process."""

import asyncio
import os
import threading
import time
from datetime import timedelta
from typing import Any

from django.db import connection, connections, models, transaction
from django.utils import timezone, translation

from packhorse import limit
from packhorse.django import TaskContext, compat, limits_concurrency, recurring, task
from packhorse.errors import Retry
from tests.django.shop.models import Order

try:
    from django.tasks import task as stock_task
except ImportError:
    from django_tasks import task as stock_task

seen: list[Any] = []
moments: list[str] = []  # of the schedules, which go on meanwhile
gate = threading.Event()


@stock_task
def double(number: int) -> int:
    return 2 * number


@task
def keep(*args: Any, **kwargs: Any) -> None:
    seen.append((args, kwargs))


@task
def keep_one(value: Any) -> None:
    seen.append(((value,), {}))


@task
async def adouble(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


@stock_task(takes_context=True)
def which_attempt(context: compat.TaskContext, wanted: int) -> list[Any]:
    if context.attempt < wanted:
        raise Retry(after=0)
    return [context.attempt, context.task_result.id, len(context.task_result.errors)]


@task(retries=2, backoff=0, takes_context=True)
def third_time_lucky(context: TaskContext) -> list[Any]:
    if context.attempt < 3:
        raise ValueError(f"attempt {context.attempt}")
    context.packhorse.progress(1, 1, "done")
    return [context.attempt, len(context.task_result.errors), context.packhorse.attempt]


@task(retries=1, backoff=0)
def never(why: str = "in vain") -> None:
    raise ValueError(why)


@task(retries=2, backoff=0, give_up_on=KeyError)
def picky(error: str) -> None:
    raise {"KeyError": KeyError, "ValueError": ValueError}[error]


@task(takes_context=True)
def hold(context: TaskContext, order: Order) -> None:
    """Counts its beginnings, and ends when somebody has paid."""
    Order.objects.filter(pk=order.pk).update(number=models.F("number") + 1)
    deadline = time.monotonic() + 60
    while not Order.objects.get(pk=order.pk).paid and time.monotonic() < deadline:
        time.sleep(0.02)


@task
def pay(order: Order, *others: Any) -> int:
    order.paid = True
    order.save()
    return order.number


@task
async def apay(order: Order) -> int:
    order.paid = True
    await order.asave()
    return order.number


@task(discard_missing=True)
def pay_if_there(order: Order) -> None:
    order.paid = True
    order.save()


@task
def anything(value: Any) -> Any:
    seen.append(value)
    return value


@task
def unstorable() -> object:
    return object()


@task
def leak() -> list[str]:
    found = [translation.get_language(), timezone.get_current_timezone_name()]
    translation.activate("de")
    timezone.activate("Asia/Tokyo")
    return found


@task
def whose_process() -> int:
    return os.getpid()


@task
def look_again() -> None:
    """In short steps, between which it can be interrupted."""
    while not gate.wait(0.01):
        pass


@task
def wait() -> None:
    assert gate.wait(20)


@task
def enter(name: str) -> str:
    if not gate.is_set():
        raise PermissionError(f"the gate is closed to {name}")
    return f"{name} is inside"


@task(limit=limit("{account}"), expires=timedelta(hours=1), tags=("money",), timeout=30)
def book(account: str) -> None:
    pass


@task(unique=True)
def once(number: int) -> None:
    pass


@task(enqueue_on_commit=True)
def after_commit(number: int) -> None:
    pass


@task(backend="elsewhere", enqueue_on_commit=False)
def at_once(number: int) -> None:
    pass


@task(queue_name="mail", priority=7, isolate=True)
def apart(number: int) -> int:
    return -number


@task
def complete_inside(order: Order) -> None:
    from packhorse import current_context

    with transaction.atomic():
        Order.objects.filter(pk=order.pk).update(paid=True)
        current_context().complete_with(connection)


@task
def take_number(order: Order) -> None:
    """Two statements, the second of which fails."""
    Order.objects.create(number=order.number)
    Order.objects.create(pk=order.pk)


@task
def tell_after_commit(value: str) -> None:
    with transaction.atomic():
        transaction.on_commit(lambda: seen.append(value))
        keep.using(enqueue_on_commit=True).enqueue(value)


@task
def again(number: int) -> None:
    again.enqueue(number + 1)


@task(takes_context=True)
async def by_steps(context: TaskContext, number: int) -> int:
    context.packhorse.progress(1, 2)
    kept = await context.packhorse.astep("double", double.func, number)
    result = await keep.aenqueue(kept)
    at_once = keep.enqueue(kept)  # which Django's own connection would refuse here
    await keep.aget_result(result.id)
    return int(kept + (await Order.objects.acount()) + bool(at_once.id))


@recurring("every 2s", key="often", args=("often",))
@recurring("0 4 * * *", key="at_four", kwargs={"value": "at_four"}, queue_name="mail", priority=-5)
@task(priority=3)
def recur(value: str) -> None:
    moments.append(value)


@limits_concurrency(key=lambda order: order, to=2, duration=timedelta(minutes=3))
@task
def one_of_two(order: Order) -> None:
    assert gate.wait(20)


@limits_concurrency("{account}", group="bank", on_conflict="discard")
@task
def transfer(account: str) -> None:
    pass


@limits_concurrency("{account}", group="bank")
@task
def withdraw(account: str) -> None:
    pass


@limits_concurrency("{account}")
@task
def look_at(account: str) -> None:
    pass


@task
def connections_in_use(queries: int) -> int:
    """How many connections of this thread to the site's databases are open, after some queries."""
    for _ in range(queries):
        Order.objects.count()
    return sum(it.connection is not None for it in connections.all(initialized_only=True))
