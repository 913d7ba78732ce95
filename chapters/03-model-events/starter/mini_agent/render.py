"""Show a reply in a terminal: model events in, text out. Nothing here prints.

What a model writes is not ours. A terminal obeys control characters, so none of them is
passed on: an escape sequence is shown, as `\\x1b[2J`, and not carried out.
"""

import json
import unicodedata
from typing import assert_never

from mini_agent.events import (
    DoneEvent,
    ErrorEvent,
    ModelEvent,
    StartEvent,
    TextDeltaEvent,
    ToolCallDeltaEvent,
    ToolCallEndEvent,
)
from mini_agent.types import ToolCall

# Control, format, surrogate, line separator, paragraph separator: they move the cursor, turn the
# writing direction round, hide text, or cannot be encoded at all.
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_LAYOUT = frozenset("\n\t")
_JOINERS = frozenset("\u200c\u200d")  # format characters that emoji and some scripts are spelt with


def visible(text: str) -> str:
    """`text` with every unsafe character spelt out, as in a Python string: `\\x1b`, `\\u202e`.

    Newline and tab stay. Each character is judged alone, so a sequence that was cut in two by
    the stream is spelt out just the same.
    """
    raise NotImplementedError("step 3.5")


def call_line(call: ToolCall) -> str:
    """A complete tool call on one line: `[tool call] read {"path":"README.md"}`.

    The arguments are shown as they were understood, since that is what will be run.
    """
    raise NotImplementedError("step 3.5")


class Renderer:
    """The events of a reply, one after the other, as text to write out as it is.

    It remembers one thing, whether the last line is still open, so that a notice starts on a
    line of its own. After a terminal event the line is closed, and the next reply may come.
    """

    def __init__(self) -> None:
        self._line_is_open = False

    def render(self, event: ModelEvent) -> str:
        """What to write for this event; "" where there is nothing to see."""
        raise NotImplementedError("step 3.5")

    def text(self, text: str) -> str:
        """A piece of running text. The line stays open unless the piece ends with a newline."""
        raise NotImplementedError("step 3.5")

    def notice(self, text: str) -> str:
        """One whole line, whatever is in `text`: a line break inside is spelt out too."""
        raise NotImplementedError("step 3.5")

    def close_line(self) -> str:
        """The newline that an open line still needs, else ""."""
        raise NotImplementedError("step 3.5")
