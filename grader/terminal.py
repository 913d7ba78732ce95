"""Text on the way to a terminal or a file: colour, width, and what the other side can show."""

import codecs
import os
import re
import sys
import unicodedata
from typing import TextIO

WIDTH = 67

_PLAIN = str.maketrans(
    {"·": "-", "…": "...", "→": "->", "×": "x", "✓": "ok", "—": "-", "–": "-", "’": "'"}
    | {"“": '"', "”": '"', "│": "|", "─": "-"}
)
# A learner's output may hold anything; only tabs and line ends reach the terminal as they are.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")

_COLOR = re.compile(r"\x1b\[[0-9;]*m")


class Style:
    """Colours where they are wanted; the same text without them where they are not."""

    def __init__(self, color: bool) -> None:
        self.color = color

    def good(self, text: str) -> str:
        return self._paint("32", text)

    def bad(self, text: str) -> str:
        return self._paint("31;1", text)

    def faint(self, text: str) -> str:
        return self._paint("2", text)

    def strong(self, text: str) -> str:
        return self._paint("1", text)

    def _paint(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.color and text else text


def is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and not stream.closed and stream.isatty()


def wants_color(stream: TextIO | None) -> bool:
    """Only a terminal gets colour, and not where NO_COLOR is set or the terminal is dumb."""
    return obeys_escapes(stream) and not os.environ.get("NO_COLOR")


def obeys_escapes(stream: TextIO | None) -> bool:
    """A terminal that can clear a line; a dumb one, in an editor's window, shows the sequence."""
    return is_terminal(stream) and os.environ.get("TERM") != "dumb"


def style_for(stream: TextIO | None) -> Style:
    return Style(wants_color(stream))


def write(text: str) -> None:
    """Results go to stdout."""
    put(text, sys.stdout)


def tell(text: str) -> None:
    """Progress and errors go to stderr."""
    put(text, sys.stderr)


def put(text: str, out: TextIO | None) -> None:
    """Write and flush. What the stream's encoding lacks is written in ASCII.

    A reader that went away (`grader list | head -1`) is no error: the rest goes nowhere, and
    the exit code stays what it would have been. So it is with a stream that was never open.
    """
    if out is None or out.closed:
        return
    try:
        out.write(_fitting(text, out.encoding or "utf-8"))
        out.flush()
    except BrokenPipeError:
        _to_nowhere(out)
    except OSError:  # a full disk: told once, and not again by Python's own last flush
        _to_nowhere(out)
        raise


def _fitting(text: str, encoding: str) -> str:
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.encode(encoding, "grader.plainly").decode(encoding)
    return text


def _plainly(error: UnicodeError) -> tuple[str, int]:
    """An encoding's error handler: an ASCII twin where there is one, else a backslash escape."""
    assert isinstance(error, UnicodeEncodeError)
    part = error.object[error.start : error.end].translate(_PLAIN)
    return part.encode("ascii", "backslashreplace").decode(), error.end


codecs.register_error("grader.plainly", _plainly)


def _to_nowhere(stream: TextIO) -> None:
    """Point the stream's descriptor at the null device, so that no later flush can fail."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
    except (OSError, ValueError):
        pass


def visible(text: str) -> str:
    """`text` with control characters spelled out, so that it can't steer the terminal."""
    return _CONTROL.sub(lambda match: repr(match[0])[1:-1], text.replace("\r\n", "\n"))


def columns(text: str) -> int:
    """How many columns `text` takes: a Chinese character two, and a colour code none."""
    text = _COLOR.sub("", text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
    )


def right(left: str, end: str, width: int = WIDTH) -> str:
    """`left`, and `end` at the right edge, with two spaces between at least."""
    return left + " " * max(2, width - columns(left) - columns(end)) + end
