"""Ctrl+C: the first one asks the turn to stop, the second one leaves."""

import asyncio
import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from mini_agent.abort import AbortSignal


@contextlib.contextmanager
def aborts_on_interrupt(abort: AbortSignal) -> Iterator[None]:
    """While this lasts, Ctrl+C aborts `abort`. A second one raises KeyboardInterrupt.

    For use inside a running event loop. Python delivers signals to the main thread only; in any
    other this changes nothing. `loop.add_signal_handler()` would do the same, but not on Windows.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    asked = False

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        # This runs between any two instructions of the program, so it does next to nothing.
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        loop.call_soon_threadsafe(abort.abort)  # which also wakes a loop that waits

    before = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
