"""Run a command for a claim: bounded in time, ended with all it started, stopped at Ctrl+C."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from grader.claims.claim import Stopped

_LOOK = 0.2  # seconds between two looks at the stop event


@dataclass(frozen=True, slots=True)
class Ended:
    """What a command did. `status` is None where it ran out of time."""

    status: int | None
    output: bytes  # stdout, and stderr with it unless that was asked for apart
    errors: bytes = b""


def run_command(
    arguments: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    seconds: float,
    stop: threading.Event,
    apart: bool = False,
) -> Ended:
    """Run `arguments`; `apart` keeps stderr apart. Raises Stopped when `stop` is set meanwhile.

    Output goes to files: a grandchild that keeps a pipe open would keep its reader waiting.
    """
    end = time.monotonic() + seconds
    with contextlib.ExitStack() as stack:
        output = stack.enter_context(tempfile.TemporaryFile())
        errors = stack.enter_context(tempfile.TemporaryFile()) if apart else output
        process = subprocess.Popen(
            list(arguments),
            cwd=cwd,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            start_new_session=os.name == "posix",
        )
        stack.callback(_end, process)
        status: int | None = None
        while status is None and time.monotonic() < end:
            if stop.is_set():
                raise Stopped
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = process.wait(timeout=_LOOK)
        _end(process)
        output.seek(0)
        errors.seek(0)
        return Ended(status, output.read(), errors.read() if apart else b"")


def shell() -> str | None:
    """A POSIX shell, which `sh run` fences are written for. On Windows, the one of Git."""
    found = shutil.which("sh")
    if found is None and sys.platform == "win32":
        git = shutil.which("git")  # …\Git\cmd\git.exe, and beside it …\Git\bin\sh.exe
        beside = Path(git).parents[1] / "bin" / "sh.exe" if git else None
        found = str(beside) if beside is not None and beside.is_file() else None
    return found


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End the process, if it has not ended, and what it left behind in its group."""
    if sys.platform == "win32":
        if process.poll() is None:
            process.kill()
    else:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()
