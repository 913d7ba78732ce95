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
    """While this lasts, Ctrl+C aborts `abort`. A second one ends it with KeyboardInterrupt.

    For use inside a task. The second Ctrl+C cancels that task, so that all in it is cleaned up;
    only a loop that is stuck in somebody's code gets its KeyboardInterrupt at once. Python delivers
    signals to the main thread: in any other this changes nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None, "aborts_on_interrupt() is used inside a task"
    presses = 0
    cancelled = False

    def cancel() -> None:
        nonlocal cancelled
        cancelled = True
        task.cancel()

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        # This runs between any two instructions of the program, so it leaves the work to the loop.
        nonlocal presses
        presses += 1
        if presses == 1:
            loop.call_soon_threadsafe(abort.abort)  # it also wakes a loop that waits
        elif presses == 2 and abort.aborted:
            loop.call_soon_threadsafe(cancel)
        else:
            raise KeyboardInterrupt  # nobody does what was asked for

    # Not loop.add_signal_handler(), which would do the same, but not on Windows.
    before = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield
    except asyncio.CancelledError:
        if not cancelled:
            raise  # somebody else's
        task.uncancel()
        raise KeyboardInterrupt from None
    finally:
        signal.signal(signal.SIGINT, before)
