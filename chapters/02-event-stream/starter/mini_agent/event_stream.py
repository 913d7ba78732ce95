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
        raise NotImplementedError("step 2.1")

    # For the producer

    def push(self, event: E) -> None:
        """Add an event without waiting. After the end it is dropped without a word."""
        raise NotImplementedError("step 2.1")

    async def send(self, event: E) -> None:
        """Add an event and wait until the reader has taken it.

        So a fast producer runs at its reader's pace, and holds one event and not thousands.
        Where somebody awaits `result()`, there may be no reader, and it only gives way to others.
        """
        raise NotImplementedError("step 2.3")

    def end(self, failure: Exception | None = None) -> None:
        """End without a terminal event: `result()` raises `failure`, or StreamEndedError."""
        raise NotImplementedError("step 2.1")

    # For the reader

    def __aiter__(self) -> Self:
        raise NotImplementedError("step 2.1")

    async def __anext__(self) -> E:
        raise NotImplementedError("step 2.1")

    async def result(self) -> R:
        """The result, with or without reading the events. What was not read stays readable."""
        raise NotImplementedError("step 2.2")

    async def aclose(self) -> None:
        """Cancel the producer, wait until it has released what it holds, drop what is unread."""
        raise NotImplementedError("step 2.3")

    async def __aenter__(self) -> Self:
        raise NotImplementedError("step 2.3")

    async def __aexit__(self, *exc_info: object) -> None:
        raise NotImplementedError("step 2.3")


Producer: TypeAlias = Callable[[EventStream[E, R]], Awaitable[None]]
