"""Grade again at every save, until Ctrl+C."""

import _thread
import contextlib
import functools
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from grader.errors import GraderError

if TYPE_CHECKING:
    from grader.runner import Warm

T = TypeVar("T")

_STEP = 10  # milliseconds without another change before a save counts as done
_IGNORED = (".bak", ".tmp", ".part", "~")


def watch(directory: Path, grade: "Callable[[Warm], T]", show: Callable[[T], int]) -> int:
    """Grade and show, now and after each save. Returns the last exit code, at Ctrl+C.

    A save during a run ends the run: its answer would be about code that is no more.
    """
    from grader.runner import Warm

    code = 1
    with contextlib.suppress(KeyboardInterrupt), saves(directory) as changes:
        while True:
            # A run that was cut short may leave a warm worker in the middle of a sentence.
            with Warm() as warm:
                while True:
                    changes.clear()
                    if not directory.is_dir():
                        raise GraderError(f"`{directory}` is gone")
                    try:
                        graded = _unless_saved(changes, functools.partial(grade, warm))
                    except _Saved:
                        break
                    code = show(graded)
                    changes.wait()
    return code


class _Saved(Exception):
    """A file was saved while its tests ran."""


def _unless_saved(changes: "Saves", work: Callable[[], T]) -> T:
    """What `work` returns. A save that comes first ends it, as Ctrl+C would, and raises _Saved."""
    saved = False

    def end() -> None:
        nonlocal saved
        if not saved:
            saved = True
            _interrupt_main_thread()

    try:
        with changes.calling(end):
            result = work()
        time.sleep(0)  # an interrupt that is on its way arrives here, and not later
    except KeyboardInterrupt:
        if saved:
            raise _Saved from None
        raise
    return result


def _interrupt_main_thread() -> None:
    if hasattr(signal, "pthread_kill"):  # a true signal, which also ends a wait
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, signal.SIGINT)
    else:
        _thread.interrupt_main()


class Saves:
    """Saves as they come, from the thread that watches."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._on_save: Callable[[], None] | None = None
        self._lock = threading.Lock()

    def wait(self) -> None:
        """Return after the next save, or at once if one came since `clear`."""
        while True:
            with contextlib.suppress(queue.Empty):
                # With a timeout, so that Ctrl+C gets through on Windows too.
                return self._take(self._queue.get(timeout=0.5))

    def clear(self) -> None:
        """Forget the saves so far: what is graded next has them."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._take(self._queue.get_nowait())

    @contextlib.contextmanager
    def calling(self, on_save: Callable[[], None]) -> Iterator[None]:
        """Call `on_save`, from the watching thread, at each save inside the block."""
        with self._lock:
            self._on_save = on_save
        try:
            yield
        finally:
            with self._lock:
                self._on_save = None

    def put(self, error: BaseException | None = None) -> None:
        self._queue.put(error)
        with self._lock:
            if self._on_save is not None:
                self._on_save()

    @staticmethod
    def _take(error: BaseException | None) -> None:
        if error is not None:
            raise error


@contextlib.contextmanager
def saves(directory: Path) -> Iterator[Saves]:
    """Watch `directory` inside the block, in a thread of its own."""
    found, stop, ready = Saves(), threading.Event(), threading.Event()

    def look() -> None:
        try:
            from watchfiles import watch

            root = directory.resolve()
            # The first round comes back without changes: from then on nothing is missed.
            for changes in watch(
                root,
                watch_filter=_filter(root),
                step=_STEP,
                debounce=_STEP * 10,
                rust_timeout=100,
                yield_on_timeout=True,
                stop_event=stop,
                raise_interrupt=False,
            ):
                ready.set()
                if changes:
                    found.put()
        except BaseException as error:  # told to the one who waits
            found.put(error)
        finally:
            ready.set()

    thread = threading.Thread(target=look, name="watch", daemon=True)
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join(timeout=2)


def _filter(root: Path) -> Callable[[object, str], bool]:
    """Whether a change is a save, and not a tool's cache, a backup or an editor's swap file."""

    def counts(change: object, path: str) -> bool:
        parts = Path(path).relative_to(root).parts
        if any(part.startswith(".") or part == "__pycache__" for part in parts):
            return False
        return not (".bak" in parts[-1] or parts[-1].endswith(_IGNORED)) if parts else False

    return counts
