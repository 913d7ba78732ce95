"""Stop what is under way: one signal, handed down to everything that waits."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import TypeVar

T = TypeVar("T")

ABORTED = "Operation aborted"


class AbortError(Exception):
    """Work was stopped because its signal was aborted.

    Not to be confused with `asyncio.CancelledError`, which is the event loop's own
    and always propagates.
    """


class AbortSignal:
    """A switch that goes from off to on once, and stays on. The first reason stays."""

    def __init__(self) -> None:
        raise NotImplementedError("step 2.4")

    @property
    def aborted(self) -> bool:
        raise NotImplementedError("step 2.4")

    @property
    def reason(self) -> str | None:
        """Why it was aborted, or None if it was not, or if nobody said."""
        raise NotImplementedError("step 2.4")

    def abort(self, reason: str | None = None) -> None:
        """Turn the signal on and wake all who wait for it. A second call changes nothing."""
        raise NotImplementedError("step 2.4")

    async def wait(self) -> None:
        """Return once the signal is aborted, at once if it already is."""
        raise NotImplementedError("step 2.4")

    def raise_if_aborted(self) -> None:
        """Raise AbortError with the reason if the signal is aborted."""
        raise NotImplementedError("step 2.4")

    def add_callback(self, callback: Callable[[], object]) -> None:
        """Call `callback` at the moment of the abort; if that has passed, never."""
        raise NotImplementedError("step 2.4")

    def remove_callback(self, callback: Callable[[], object]) -> None:
        """Forget a callback that was added."""
        raise NotImplementedError("step 2.4")


async def race(awaitable: Awaitable[T], signal: AbortSignal | None) -> T:
    """Await `awaitable`, or raise AbortError as soon as `signal` is aborted.

    By then the work was cancelled and has cleaned up; on a signal that was aborted before it
    is not started. A cancellation by anybody else stays a CancelledError.
    """
    raise NotImplementedError("step 2.4")
