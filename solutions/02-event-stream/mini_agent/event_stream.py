"""A stream of events that also has a result: the channel between a producer and its reader."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, Self, TypeAlias, TypeVar

E = TypeVar("E")
R = TypeVar("R")


class StreamEndedError(Exception):
    """The stream ended, or was closed, before a terminal event gave it a result."""


class EventStream(Generic[E, R]):
    """Events in order for one reader, and a result for everyone who asks.

    `result_of` returns the result that an event carries, or None for an event that is not
    terminal. The first terminal event ends the stream, and is itself delivered.

    `producer` is a coroutine function that fills the stream it is given. It starts when somebody
    first reads or asks for the result; `aclose()` and `async with` cancel it and wait for
    it to clean up. An exception that escapes from it comes out where the stream is read.
    """

    def __init__(
        self,
        result_of: Callable[[E], R | None],
        producer: "Producer[E, R] | None" = None,
    ) -> None:
        self._result_of = result_of
        self._producer = producer
        self._task: asyncio.Task[None] | None = None  # a task that nobody holds may vanish
        self._events: deque[E] = deque()
        self._result: R | None = None
        self._failure: Exception | None = None
        self._has_reader = False
        self._closing = False
        self._result_waiters = 0
        self._arrived = asyncio.Event()  # for the reader: an event, or the end
        self._taken = asyncio.Event()  # for the producer: the reader took all there was
        self._ended = asyncio.Event()

    # For the producer

    def push(self, event: E) -> None:
        """Add an event without waiting. After the end it is dropped without a word."""
        if self._ended.is_set():
            return
        self._events.append(event)
        self._arrived.set()
        result = self._result_of(event)
        if result is not None:
            self._result = result
            self._finish()

    async def send(self, event: E) -> None:
        """Add an event and wait until the reader has taken it.

        So a fast producer runs at its reader's pace, and holds one event and not thousands.
        Where somebody awaits `result()`, there may be no reader, and it only gives way to others.
        """
        self.push(event)
        if self._ended.is_set() or self._result_waiters:
            await asyncio.sleep(0)  # a loop of sends that never waits would shut everyone else out
        while self._events and not (self._ended.is_set() or self._result_waiters):
            self._taken.clear()
            await self._taken.wait()

    def end(self, failure: Exception | None = None) -> None:
        """End without a terminal event: `result()` raises `failure`, or StreamEndedError."""
        if self._ended.is_set():
            return
        if isinstance(failure, StopAsyncIteration):
            # Raised in the reader's loop it would pass for the end.
            failure = RuntimeError("the producer raised StopAsyncIteration")
        self._failure = failure
        self._finish()

    def _finish(self) -> None:
        self._ended.set()
        self._arrived.set()
        self._taken.set()

    # For the reader

    def __aiter__(self) -> Self:
        if self._has_reader:
            raise RuntimeError("an EventStream is read once: two readers would share its events")
        self._has_reader = True
        return self

    async def __anext__(self) -> E:
        self._start()
        while not self._events:
            if self._ended.is_set():
                await self._producer_done()
                if self._failure is not None:
                    raise self._failure
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()
        event = self._events.popleft()
        if not self._events:
            self._taken.set()
        return event

    async def result(self) -> R:
        """The result, with or without reading the events. What was not read stays readable."""
        self._start()
        self._result_waiters += 1
        self._taken.set()
        try:
            await self._ended.wait()
            await self._producer_done()
        finally:
            self._result_waiters -= 1  # who gave up asking leaves the pace to the reader again
        if self._result is not None:
            return self._result
        raise self._failure or StreamEndedError("the stream ended without a terminal event")

    async def aclose(self) -> None:
        """Cancel the producer, wait until it has released what it holds, drop what is unread."""
        try:
            if self._task is not None:
                if not self._closing:
                    self._task.cancel()  # once: a second one would break off its cleaning up
                self._closing = True
                await self._producer_done()
        finally:
            self.end()
            self._events.clear()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    # Between the two

    def _start(self) -> None:
        if self._producer is not None and self._task is None and not self._ended.is_set():
            self._task = asyncio.create_task(self._produce(self._producer))
            # Not in a `finally` of the task: cancelled before its first step, it runs no line.
            self._task.add_done_callback(lambda _: self.end())

    async def _produce(self, producer: "Producer[E, R]") -> None:
        try:
            await producer(self)
        except Exception as error:
            if not self._ended.is_set():
                self.end(error)
                return
            # Too late for the reader. Told here and now: a task that dies of an exception
            # that nobody fetches is reported whenever the garbage collector finds it.
            asyncio.get_running_loop().call_exception_handler(
                {"message": "a producer failed after its stream had ended", "exception": error}
            )

    async def _producer_done(self) -> None:
        if self._task is not None:
            await asyncio.wait({self._task})


Producer: TypeAlias = Callable[[EventStream[E, R]], Awaitable[None]]
