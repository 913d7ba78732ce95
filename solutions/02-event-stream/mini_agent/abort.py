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
        self._event = asyncio.Event()
        self._reason: str | None = None
        self._callbacks: list[Callable[[], object]] = []

    @property
    def aborted(self) -> bool:
        return self._event.is_set()

    @property
    def reason(self) -> str | None:
        """Why it was aborted, or None if it was not, or if nobody said."""
        return self._reason

    def abort(self, reason: str | None = None) -> None:
        """Turn the signal on and wake all who wait for it. A second call changes nothing."""
        if self.aborted:
            return
        self._reason = reason
        self._event.set()
        for callback in tuple(self._callbacks):
            callback()

    async def wait(self) -> None:
        """Return once the signal is aborted, at once if it already is."""
        await self._event.wait()

    def raise_if_aborted(self) -> None:
        """Raise AbortError with the reason if the signal is aborted."""
        if self.aborted:
            raise AbortError(self._reason or ABORTED)

    def add_callback(self, callback: Callable[[], object]) -> None:
        """Call `callback` at the moment of the abort; if that has passed, never."""
        self._callbacks.append(callback)

    def remove_callback(self, callback: Callable[[], object]) -> None:
        """Forget a callback that was added."""
        self._callbacks.remove(callback)


async def race(awaitable: Awaitable[T], signal: AbortSignal | None) -> T:
    """Await `awaitable`, or raise AbortError as soon as `signal` is aborted.

    By then the work was cancelled and has cleaned up; on a signal that was aborted before it
    is not started. A cancellation by anybody else stays a CancelledError.
    """
    if signal is None:
        return await awaitable
    if signal.aborted:
        if isinstance(awaitable, asyncio.Future):
            awaitable.cancel()
        elif isinstance(awaitable, Coroutine):
            awaitable.close()  # never started: without this Python warns that nobody awaited it
        signal.raise_if_aborted()

    # As `asyncio.timeout()` does it, with a signal in the clock's place: an abort cancels the
    # current task, and on the way out that one cancellation becomes an AbortError.
    task = asyncio.current_task()
    assert task is not None, "race() runs inside a task"
    loop = asyncio.get_running_loop()
    others = task.cancelling()
    fired = False
    pending: asyncio.Handle | None = None

    def cancel_task() -> None:
        nonlocal fired
        fired = True
        task.cancel()

    def cancel_soon() -> None:
        # Not at once: where the awaited code itself aborts and then returns, the
        # cancellation would strike whatever this task awaits next.
        nonlocal pending
        pending = loop.call_soon(cancel_task)

    signal.add_callback(cancel_soon)
    try:
        return await awaitable
    except asyncio.CancelledError:
        if fired and task.cancelling() == others + 1:
            raise AbortError(signal.reason or ABORTED) from None
        raise
    finally:
        signal.remove_callback(cancel_soon)
        if pending is not None:
            pending.cancel()
        if fired:
            task.uncancel()
