"""Claims of recorded output: a file of the target that holds what a program prints."""

import functools
import os
import sys
from collections.abc import Iterator

from grader.claims.claim import Claim, Job, Workspace
from grader.claims.command import run_command
from grader.course import Recording

_SECONDS = 60.0
_KEPT = ("PATH", "SYSTEMROOT", "TEMP", "TMP", "TMPDIR", "HOME")  # what a bare Python needs


def jobs(space: Workspace) -> Iterator[Job]:
    """One job for each recording of the manifest."""
    for recording in space.chapter.manifest.recordings:
        yield Job(space.number, "demo", functools.partial(_recorded, space, recording))


def _recorded(space: Workspace, recording: Recording) -> list[Claim]:
    found = _problem(space, recording)
    return [
        Claim(
            id=f"{space.number}.demo.{recording.file}",
            kind="demo",
            claim=f"`{' '.join(recording.command)}` prints {recording.file}, byte for byte",
            holds=not found,
            where=space.where(space.chapter.solution / recording.file),
            found=found,
            todo="correct the program, or record its output anew",
        )
    ]


def _problem(space: Workspace, recording: Recording) -> str:
    target = space.target()
    file = target / recording.file
    if not file.is_file():
        return "there is no such file"
    environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
    try:
        ended = run_command(
            [sys.executable if word == "python" else word for word in recording.command],
            cwd=target,
            env=environment | {"PYTHONUTF8": "1", "PYTHONDONTWRITEBYTECODE": "1"},
            seconds=_SECONDS,
            stop=space.stop,
            apart=True,
        )
    except OSError as error:
        return f"it cannot be run: {error.strerror}"
    if ended.status is None:
        return f"it had not ended after {_SECONDS:.0f} s"
    if ended.status:
        printed = ended.errors.decode("utf-8", "replace").strip()
        return f"it ended with {ended.status}: {printed[-1000:]}"
    # A text stream writes the platform's line ends; the file is kept with LF on all of them.
    recorded = file.read_bytes().replace(b"\r\n", b"\n")
    return first_difference(ended.output.replace(b"\r\n", b"\n"), recorded)


def first_difference(printed: bytes, recorded: bytes) -> str:
    """The first line that differs, as a sentence; "" if there is none."""
    if printed == recorded:
        return ""
    left, right = printed.split(b"\n"), recorded.split(b"\n")
    for number, (one, other) in enumerate(zip(left, right, strict=False), 1):
        if one != other:
            return f"line {number} is printed as {_show(one)} and recorded as {_show(other)}"
    return f"{len(left)} lines are printed and {len(right)} recorded"


def _show(line: bytes) -> str:
    return repr(line.decode("utf-8", "replace"))
