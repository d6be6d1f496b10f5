"""The application whose jobs are performed: tasks of every kind, which tell the world what they do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from packhorse import Context, Packhorse, limit, rate, unique
from packhorse.context import current_context
from packhorse.errors import Interrupted, TimedOut
from packhorse.middleware import Middleware
from packhorse.moments import every
from simulation.loop import Nap

if TYPE_CHECKING:
    from simulation.world import World

RETRIES = {"flaky": 3, "stepped": 2, "timed": 1, "threaded": 1, "limited": 1}
EVERY = 7
STRICT = "fragile"
SETTINGS: dict[str, Any] = {
    "heartbeat": 2.0,
    "lease": 12.0,
    "polling_interval": 4.0,
    "shutdown_timeout": 6.0,
    "ending_timeout": 1.0,
    "boot_timeout": 10.0,
    "max_restarts": None,
    "keys": ("a key that is the same in every run of it",),
}


class Boom(Exception):
    """What tasks of the simulation fail with."""


class Stage:
    """Where the tasks find the world of the seed that runs."""

    world: World


class Ledger(Middleware):
    """Tells the world when an attempt begins and how it ends."""

    def perform(self, context: Context) -> AbstractContextManager[Any]:
        return _attempt(context)


@contextmanager
def _attempt(context: Context) -> Iterator[None]:
    ledger = Stage.world.ledger
    attempt = ledger.begin(context._claim)
    try:
        yield
    except BaseException as error:
        ledger.end(attempt, error)
        raise
    ledger.end(attempt, None)


def _step(name: str) -> str:
    return Stage.world.ledger.step(current_context()._claim.token, name)


def make_app() -> Packhorse:
    app = Packhorse("simulated", "memory://", **SETTINGS)
    app.use(Ledger())

    @app.task(name="plain")
    async def plain(n: int, length: float) -> int:
        await Nap(length)
        return n

    @app.task(name="threaded", retries=RETRIES["threaded"], backoff=1)
    def threaded(n: int, length: float, failures: int = 0) -> int:
        for _ in range(3):
            Stage.world.kernel.sleep(length / 3)
        if current_context().attempt <= failures:
            raise Boom(n)
        return n

    @app.task(name="flaky", retries=RETRIES["flaky"], backoff=2)
    async def flaky(n: int, length: float, failures: int) -> int:
        await Nap(length)
        if current_context().attempt <= failures:
            raise Boom(n)
        return n

    @app.task(name="stepped", takes_context=True, retries=RETRIES["stepped"], backoff=1)
    async def stepped(context: Context, n: int, length: float, failures: int) -> list[str]:
        first = await context.astep("first", _step, "first")
        await Nap(length)
        second = await context.astep("second", _step, "second")
        if context.attempt <= failures:
            raise Boom(n)
        await context.asleep(2)
        await Nap(length)
        third = await context.astep("third", _step, "third")
        return [first, second, third]

    @app.task(name="limited", limit=limit("{key}", to=2), retries=RETRIES["limited"], backoff=2)
    async def limited(key: str, length: float, failures: int) -> str:
        await Nap(length)
        if current_context().attempt <= failures:
            raise Boom(key)
        return key

    @app.task(name="single", limit=limit("{key}", to=1))
    def single(key: str, length: float) -> str:
        Stage.world.kernel.sleep(length)
        return key

    @app.task(name="only", unique=unique("{key}"))
    async def only(key: str, length: float) -> str:
        await Nap(length)
        return key

    @app.task(name="merged", unique=unique("{key}", on_conflict="merge"))
    async def merged(key: str, values: list[int]) -> list[int]:
        await Nap(0.5)
        return values

    @app.task(name="paced", rate=rate("1/s", burst=2))
    async def paced(n: int) -> int:
        await Nap(0.1)
        return n

    @app.task(name="link")
    async def link(length: float, given: Any = None) -> int:
        await Nap(length)
        return 1 if given is None else given + 1

    @app.task(name="total")
    async def total(given: list[Any]) -> int:
        await Nap(0.2)
        return len(given)

    @app.task(name="listening", takes_context=True)
    async def listening(context: Context, name: str) -> Any:
        return await context.await_for(name)

    @app.task(name="parent", takes_context=True)
    async def parent(context: Context, n: int, length: float) -> int:
        await Nap(length)
        return sum(await context.achildren("all", [plain.call(i, length) for i in range(n)]))

    @app.task(name="timed", timeout=3, retries=RETRIES["timed"], backoff=1)
    def timed(n: int, length: float, stubborn: bool) -> int:
        until = Stage.world.kernel.now + round(length * 1e6)
        while Stage.world.kernel.now < until:
            try:
                Stage.world.kernel.sleep(0.5)
            except (Interrupted, TimedOut):
                if not stubborn:
                    raise
        return n

    @app.task(name=STRICT, on_worker_lost="fail")
    async def fragile(n: int, length: float) -> int:
        await Nap(length)
        return n

    @app.recurring(every(EVERY), key="each", misfire="all")
    @app.task(name="ticked")
    async def ticked() -> None:
        await Nap(1)

    @app.recurring(every(EVERY + 2), key="unless", overlap="skip")
    @app.task(name="skipped")
    async def skipped() -> None:
        await Nap(4)

    @app.recurring(every(EVERY + 4), key="behind", overlap="queue")
    @app.task(name="queued")
    async def queued() -> None:
        await Nap(3)

    return app
