"""Where jobs are performed: at most `concurrency` at once, in threads, on one event loop, or each in a process.

Slots pull: whoever ends a job takes the next one from a plain queue, so a job costs no lock, no future and no wake-up.
The right to perform is a token that goes with the job; where the next job is of the other kind, the token is passed on
with it. So the total holds whatever the mix.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue

from packhorse import forks
from packhorse.job import Claim, Token
from packhorse.outcome import Outcome, broken
from packhorse.runtime.begun import Begun
from packhorse.runtime.isolated import Pool
from packhorse.runtime.loops import new_loop
from packhorse.runtime.perform import Performer
from packhorse.runtime.seats import Seat, Why
from packhorse.stores.contract import Order

log = logging.getLogger("packhorse.worker")


class Slots:
    def __init__(
        self,
        concurrency: int,
        performer: Performer,
        hand_in: Callable[[Outcome], None],
        pool: Pool | None = None,
        begun: Begun | None = None,
    ) -> None:
        self._concurrency = concurrency
        self._mark_begun = None if begun is None else begun.begin
        self._performer = performer
        self._pool = pool
        self._seats: dict[int, Seat] = {}
        self._given_up: set[Token] = set()
        self._given: dict[Token, tuple[float, Claim]] = {}  # to the loop, which has not begun them
        self._stalled_since: float | None = None
        self._hand_in = hand_in
        self._waiting: deque[tuple[float, Claim]] = deque()
        self._runs: dict[str, deque[tuple[float, Claim]]] = {}  # of each run, who comes after the one that has begun
        self._free = deque([None] * concurrency)
        self._running: dict[Token, float] = {}
        self._apart: set[Token] = set()  # of those that run: in a process of their own, or about to get one
        self._coroutines: dict[Token, asyncio.Task[None]] = {}
        self._inbox: SimpleQueue[Claim | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting = threading.Lock()
        self._taking = threading.Lock()
        self._closed = False

    def put(self, claims: list[Claim]) -> None:
        now = time.monotonic()
        first: list[tuple[float, Claim]] = []
        runs: dict[str, deque[tuple[float, Claim]]] = {}
        for claim in claims:
            if claim.run is None or claim.run not in runs:
                first.append((now, claim))
            if claim.run is not None:
                runs.setdefault(claim.run, deque()).append((now, claim))
        for rest in runs.values():
            rest.popleft()
        self._runs.update(runs)  # before the first of them can end
        self._waiting.extend(first)
        self._serve()

    def _serve(self) -> None:
        while self._waiting and self._take_token():
            if (claim := self._next()) is not None:
                self._give(claim)

    def unstarted(self, older_than: float) -> list[Claim]:
        """Take back claims that have waited so many seconds for a slot."""
        with self._taking:
            return self._take_unstarted(time.monotonic() - older_than)

    def _take_unstarted(self, limit: float) -> list[Claim]:
        taken = []
        while self._waiting:
            try:
                if self._waiting[0][0] > limit:
                    break
                put_at, claim = self._waiting.popleft()
            except IndexError:
                break
            if put_at > limit:  # a slot was faster, and this is the one behind; nobody may have seen it meanwhile
                self._waiting.appendleft((put_at, claim))
                self._serve()
                break
            taken.append(claim)
            if claim.run is not None:  # nobody of it has begun
                taken += [behind for _, behind in self._runs.pop(claim.run)]
        for rest in list(self._runs.values()):
            taken += self._take_back(rest, limit)
        if self._given:
            taken += self._take_from_loop(limit)
        return taken

    def _take_from_loop(self, limit: float) -> list[Claim]:
        """A loop that begins nothing is blocked by some task."""
        taken = []
        for token, (given_at, claim) in list(self._given.items()):
            if given_at <= limit and self._given.pop(token, None) is not None:
                taken.append(claim)
                if claim.run is not None:
                    taken += [behind for _, behind in self._runs.pop(claim.run)]
                self._free.append(None)
                if self._stalled_since is None and self._loop is not None:
                    self._stalled_since = given_at
                    self._loop.call_soon_threadsafe(self._unstall)
        return taken

    def _unstall(self) -> None:
        self._stalled_since = None

    @property
    def stalled(self) -> float:
        """Seconds that the loop has been seen blocked."""
        since = self._stalled_since
        return 0.0 if since is None else time.monotonic() - since

    @property
    def on_loop(self) -> list[Token]:
        return list(self._coroutines)

    def _take_back(self, rest: deque[tuple[float, Claim]], limit: float) -> list[Claim]:
        """Those who would come after one that has begun, from the last on, since slots take from the first on."""
        taken: list[Claim] = []
        try:
            while rest[-1][0] <= limit:
                taken.append(rest.pop()[1])
        except IndexError:
            pass
        return taken

    @property
    def waiting(self) -> bool:
        return bool(self._waiting) or bool(self._given) or any(self._runs.values())

    @property
    def bytes_waiting(self) -> int:
        """Of the payloads of claims that have no slot."""
        waiting = [self._waiting.copy(), *(rest.copy() for rest in self._runs.copy().values())]
        return sum(len(claim.payload) for claims in waiting for _, claim in claims)

    @property
    def busy(self) -> bool:
        return bool(self._running)

    @property
    def running(self) -> list[Token]:
        """What has begun in this process."""
        return [token for token in list(self._running) if token not in self._apart]

    def running_for(self, seconds: float) -> list[Token]:
        """What has run at least so long."""
        limit = time.monotonic() - seconds
        return [token for token, began in self._running.copy().items() if began <= limit]

    def obey(self, order: Order) -> None:
        """Ask a job to end: before it begins, or at its next await. What runs elsewhere gets some time to notice."""
        performer, token = self._performer, order.token
        before = performer.orders.get(token)
        performer.orders[token] = order
        if self._pool is not None and before != order:
            self._pool.tell(order)
        if before is not None:
            return  # told again and again; a second time would interrupt its cleaning up
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._cancel_coroutine, token)
        if token in self._running and token not in self._coroutines:
            performer.deadlines.set(token, performer.ending_timeout, Why.ORDERED)

    def interrupt(self, token: Token, why: Why) -> bool:
        """End it now: at its next await, or its next line of Python. False where it has not begun, or has ended."""
        performer = self._performer
        performer.interrupted[token] = why
        if self._pool is not None and self._pool.has(token):
            reached = self._pool.interrupt(token, why)
        elif token in self._coroutines and self._loop is not None:
            self._loop.call_soon_threadsafe(self._cancel_coroutine, token)
            reached = True
        else:
            reached = any(seat.interrupt(token, why.error) for seat in list(self._seats.values()))
        if not reached:
            performer.interrupted.pop(token, None)
        return reached

    def interrupt_all(self, why: Why) -> None:
        """Each may still take its time to end; who does not is ended by force."""
        for token in list(self._running):
            self._performer.deadlines.set(token, 0, why)

    def end(self, token: Token, why: Why) -> bool:
        """By force; False where that cannot be done."""
        if self._pool is None or not self._pool.has(token):
            return token not in self._running
        self._pool.end(token, why)
        return True

    def give_up(self, token: Token) -> None:
        """A job that will not end keeps its thread, and another one takes over its slot."""
        if token in self._running:
            self._given_up.add(token)
            self._concurrency += 1
            self._free.append(None)
            self._serve()

    def seat(self) -> Seat:
        """Of this thread."""
        ident = threading.get_ident()
        if ident not in self._seats:
            self._seats[ident] = Seat()
        self._seats[ident].sit()
        return self._seats[ident]

    def close(self) -> None:
        """Let go of idle threads and the loop; what still runs is abandoned."""
        self._closed = True
        for _ in self._threads:
            self._inbox.put(None)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)

    def _take_token(self) -> bool:
        try:
            self._free.pop()
        except IndexError:
            return False
        return True

    def _next(self) -> Claim | None:
        """The next waiting claim for the holder of a token; None where the token was given back."""
        while True:
            try:
                return self._waiting.popleft()[1]
            except IndexError:
                self._free.append(None)
                # A put may have come between the look and the giving back; whoever gets the token serves it.
                if not self._waiting or not self._take_token():
                    return None

    def _after(self, claim: Claim) -> Claim | None:
        """Who comes next for the holder of a token."""
        if claim.run is None:
            return self._next()
        try:
            return self._runs[claim.run].popleft()[1]
        except IndexError:
            del self._runs[claim.run]
            return self._next()

    def _give(self, claim: Claim) -> None:
        if self._performer.is_coroutine(claim):
            loop = self._loop or self._start_loop()
            self._given[claim.token] = (time.monotonic(), claim)
            loop.call_soon_threadsafe(self._begin_coroutine, loop, claim)
            return
        self._inbox.put(claim)
        if len(self._threads) < self._concurrency:
            thread = threading.Thread(target=self._thread, name=f"packhorse-slot-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _thread(self) -> None:
        perform, running, is_coroutine = self._performer.in_thread, self._running, self._performer.is_coroutine
        isolated, is_isolated = self._performer.isolated, self._performer.is_isolated
        seat, mark_begun, made_in = self.seat(), self._mark_begun, forks.generation
        while (claim := self._inbox.get()) is not None:
            while claim is not None:
                running[claim.token] = time.monotonic()
                try:
                    if is_isolated(claim):
                        self._apart.add(claim.token)
                        outcome = isolated(claim)
                    else:
                        if mark_begun is not None:
                            mark_begun(claim.token)
                        outcome = perform(claim, seat)
                except BaseException as error:  # whatever happens, the job ends and the slot lives
                    if forks.generation != made_in:
                        forks.end_copy(error)
                    outcome = broken(claim.token, error)
                if forks.generation != made_in:
                    forks.end_copy()
                del running[claim.token]
                if self._apart:
                    self._apart.discard(claim.token)
                self._hand_in(outcome)
                if self._given_up and self._is_given_up(claim):
                    return
                claim = self._after(claim)
                if claim is not None and is_coroutine(claim):
                    self._give(claim)
                    claim = None

    def _is_given_up(self, claim: Claim) -> bool:
        """It has ended after all, and another has its slot."""
        if claim.token not in self._given_up:
            return False
        self._given_up.discard(claim.token)
        if (me := threading.current_thread()) in self._threads:
            self._threads.remove(me)  # first: whoever puts a job meanwhile rather starts a thread too many
        self._concurrency -= 1
        return True

    def _start_loop(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._loop is None:
                self._loop = new_loop()
                threading.Thread(target=self._run_loop, args=(self._loop,), name="packhorse-loop", daemon=True).start()
            return self._loop

    def _begin_coroutine(self, loop: asyncio.AbstractEventLoop, claim: Claim) -> None:
        if self._given.pop(claim.token, None) is not None:
            self._start_coroutine(loop, claim)

    def _start_coroutine(self, loop: asyncio.AbstractEventLoop, claim: Claim) -> None:
        """One asyncio task and one context for each job, so that nothing of it leaks into the next."""
        # A task made within another would inherit that one's context, hence the new one.
        task = loop.create_task(self._perform_coroutine(loop, claim), context=contextvars.Context())
        self._coroutines[claim.token] = task  # the loop itself holds tasks only weakly

    async def _perform_coroutine(self, loop: asyncio.AbstractEventLoop, claim: Claim) -> None:
        made_in = forks.generation
        self._running[claim.token] = time.monotonic()
        if self._mark_begun is not None:
            self._mark_begun(claim.token)
        try:
            outcome = await self._performer.in_loop(claim)
        except BaseException as error:
            if forks.generation != made_in:
                forks.end_copy(error)
            outcome = broken(claim.token, error)
        if forks.generation != made_in:
            forks.end_copy()
        del self._running[claim.token], self._coroutines[claim.token]
        self._hand_in(outcome)
        if self._given_up and self._is_given_up(claim):
            return
        following = self._after(claim)
        if following is None:
            return
        if self._performer.is_coroutine(following):
            self._start_coroutine(loop, following)
        else:
            self._give(following)

    def _cancel_coroutine(self, token: Token) -> None:
        # One that has not begun would never begin, and its slot be lost; it sees the order when it does.
        if token in self._running and (task := self._coroutines.get(token)) is not None:
            task.cancel()

    def _run_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Until it is closed here: a task can stop the loop, and asyncio lets SystemExit and KeyboardInterrupt out."""
        made_in = forks.generation
        while not self._closed:
            try:
                loop.run_forever()
            except BaseException as error:  # whoever awaits the coroutine that raised it gets it too
                if forks.generation != made_in:
                    forks.end_copy(error)
                log.error("%s in a coroutine that some task started; the loop runs on", type(error).__name__)
        if forks.generation != made_in:
            forks.end_copy()
        loop.close()
