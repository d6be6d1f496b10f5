"""Where jobs are performed: at most `concurrency` at once, in threads or on one event loop.

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

from packhorse.job import Claim, Token
from packhorse.outcome import Outcome, broken
from packhorse.runtime.perform import Performer

log = logging.getLogger("packhorse.worker")


class Slots:
    def __init__(self, concurrency: int, performer: Performer, hand_in: Callable[[Outcome], None]) -> None:
        self._concurrency = concurrency
        self._performer = performer
        self._hand_in = hand_in
        self._waiting: deque[tuple[float, Claim]] = deque()
        self._runs: dict[str, deque[tuple[float, Claim]]] = {}  # of each run, who comes after the one that has begun
        self._free = deque([None] * concurrency)
        self._running: dict[Token, float] = {}
        self._coroutines: dict[Token, asyncio.Task[None]] = {}
        self._inbox: SimpleQueue[Claim | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting = threading.Lock()
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
        limit = time.monotonic() - older_than
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
        return taken

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
        return bool(self._waiting) or any(self._runs.values())

    def running_for(self, seconds: float) -> list[Token]:
        """What has run at least so long."""
        limit = time.monotonic() - seconds
        return [token for token, began in self._running.copy().items() if began <= limit]

    def cancel(self, token: Token, reason: str) -> None:
        """Ask a job to end: before it begins, or at its next await."""
        if token in self._performer.cancelled:
            return  # told at every beat; a second time would interrupt its cleaning up
        self._performer.cancelled[token] = reason
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._cancel_coroutine, token)

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
            loop.call_soon_threadsafe(self._start_coroutine, loop, claim)
            return
        self._inbox.put(claim)
        if len(self._threads) < self._concurrency:
            thread = threading.Thread(target=self._thread, name=f"packhorse-slot-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _thread(self) -> None:
        perform, running, is_coroutine = self._performer.in_thread, self._running, self._performer.is_coroutine
        while (claim := self._inbox.get()) is not None:
            while claim is not None:
                running[claim.token] = time.monotonic()
                try:
                    outcome = perform(claim)
                except BaseException as error:  # whatever happens, the job ends and the slot lives
                    outcome = broken(claim.token, error)
                del running[claim.token]
                self._hand_in(outcome)
                claim = self._after(claim)
                if claim is not None and is_coroutine(claim):
                    self._give(claim)
                    claim = None

    def _start_loop(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._run_loop, args=(self._loop,), name="packhorse-loop", daemon=True).start()
            return self._loop

    def _start_coroutine(self, loop: asyncio.AbstractEventLoop, claim: Claim) -> None:
        """One asyncio task and one context for each job, so that nothing of it leaks into the next."""
        # A task made within another would inherit that one's context, hence the new one.
        task = loop.create_task(self._perform_coroutine(loop, claim), context=contextvars.Context())
        self._coroutines[claim.token] = task  # the loop itself holds tasks only weakly

    async def _perform_coroutine(self, loop: asyncio.AbstractEventLoop, claim: Claim) -> None:
        self._running[claim.token] = time.monotonic()
        try:
            outcome = await self._performer.in_loop(claim)
        except BaseException as error:
            outcome = broken(claim.token, error)
        del self._running[claim.token], self._coroutines[claim.token]
        self._hand_in(outcome)
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
        while not self._closed:
            try:
                loop.run_forever()
            except BaseException as error:  # whoever awaits the coroutine that raised it gets it too
                log.error("%s in a coroutine that some task started; the loop runs on", type(error).__name__)
        loop.close()
