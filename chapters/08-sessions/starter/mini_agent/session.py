"""Sessions: a conversation in a file that only grows, one line a message.

What `append()` has returned from is on the disk. A process may be killed at any byte: the next
reader finds every acknowledged message, and at most one torn line behind them, which it cuts.
"""

import contextlib
import os
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, Self

from mini_agent.file_lock import try_lock
from mini_agent.session_lines import (
    VERSION,
    SessionError,
    SessionHeader,
    header_of,
    message_of,
    parse_line,
    to_line,
)
from mini_agent.types import AgentMessage, UserMessage, text_of

SUFFIX = ".jsonl"


@dataclass(frozen=True, slots=True)
class SessionContent:
    """What the bytes of a session say.

    `end` tells how the last line ends: "whole", "unended" (all there but its newline) or "torn".
    `size` is the number of bytes that hold, which leaves out a torn line.
    """

    header: SessionHeader
    messages: tuple[AgentMessage, ...]
    end: Literal["whole", "unended", "torn"]
    size: int


def read_content(data: bytes) -> SessionContent:
    """Read all lines of a session, from its bytes.

    A torn line can only be the last one, and only without its newline: what is half of a JSON
    object is never JSON itself. Everything else that can't be read raises SessionError with
    its line number. Lines end at LF and nowhere else: U+2028 is a character like any other.
    """
    raise NotImplementedError("step 8.3")


class Session:
    """A conversation and the file that it is kept in. Make one with `create()` or `resume()`.

    One process writes a session at a time: the file stays locked from the first write, or from
    `resume()`, to `close()` or the end of the process.
    """

    def __init__(self, path: Path, header: SessionHeader) -> None:
        self.path = path
        self.header = header
        self.repair: str | None = None  # what resume() had to mend, as a sentence
        self._messages: list[AgentMessage] = []
        self._file: int | None = None
        self._size = 0
        self._closed = False

    @property
    def messages(self) -> tuple[AgentMessage, ...]:
        """The messages in the file, in order."""
        return tuple(self._messages)

    @classmethod
    def create(
        cls, directory: Path, cwd: str, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> Self:
        """A new session in `directory`. Nothing is written before the first message.

        An id looks like `20261130-120000-1f0c9a3e`: the time in UTC, so that names sort by age, and
        eight hex digits at random. A person types the end of it, and only there do two
        sessions of the same minute differ.
        """
        raise NotImplementedError("step 8.2")

    @classmethod
    def resume(cls, path: Path) -> Self:
        """Open a session to go on with it. A torn last line is cut, a missing last newline added.

        Raises SessionError if it is open already, here or in another process, or if it can't be
        read; then the file is as it was.
        """
        raise NotImplementedError("step 8.3")

    def append(self, message: AgentMessage) -> None:
        """Write the message at the end. On return it is in the file, and the disk has it.

        Raises SessionError if it can't be written; then the file ends where it ended before.
        """
        raise NotImplementedError("step 8.2")

    def close(self) -> None:
        """Let go of the file and its lock. A second call changes nothing."""
        raise NotImplementedError("step 8.2")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """One session of a list. `problem` says why it can't be read; then `id` is the file's name."""

    path: Path
    id: str
    created: str = ""
    title: str = ""
    problem: str | None = None


def list_sessions(directory: Path) -> tuple[SessionInfo, ...]:
    """The sessions in `directory`, the newest first. Each file is read as far as its second line.

    One that can't be read is listed too, with its problem: it is somebody's conversation.
    """
    raise NotImplementedError("step 8.4")


def find_session(directory: Path, wanted: str) -> Path:
    """The session whose id is `wanted`, or the only one whose id ends with it.

    Raises SessionError if there is none, or if there are several.
    """
    raise NotImplementedError("step 8.4")


# Given: opening with the lock, reading, and errors that name their file.


def _open(path: Path, flags: int) -> int:
    """Open and lock a session, readable by its owner only. What it returns is to be closed."""
    file = os.open(path, flags | getattr(os, "O_BINARY", 0), 0o600)
    if not try_lock(file):
        os.close(file)
        raise SessionError("it is open already, and has one writer at a time")
    return file


def _read_all(file: int) -> bytes:
    with open(file, "rb", closefd=False) as reader:
        return reader.read()


@contextlib.contextmanager
def _about(path: Path) -> Iterator[None]:
    """Say which file an error is about; an OSError becomes a SessionError."""
    try:
        yield
    except SessionError as error:
        raise SessionError(f"{path}: {error}") from None
    except OSError as error:
        raise SessionError(f"{path}: {error.strerror or error}") from error
