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
    return "".join(map(_visible_character, text))


def call_line(call: ToolCall) -> str:
    """A complete tool call on one line: `[tool call] read {"path":"README.md"}`.

    The arguments are shown as they were understood, since that is what will be run.
    """
    arguments = json.dumps(call.arguments or {}, ensure_ascii=False, separators=(",", ":"))
    return f"[tool call] {call.name} {arguments}"


class Renderer:
    """The events of a reply, one after the other, as text to write out as it is.

    It remembers one thing, whether the last line is still open, so that a notice starts on a
    line of its own. After a terminal event the line is closed, and the next reply may come.
    """

    def __init__(self) -> None:
        self._line_is_open = False

    def render(self, event: ModelEvent) -> str:
        """What to write for this event; "" where there is nothing to see."""
        match event:
            case StartEvent() | ToolCallDeltaEvent():
                return ""
            case TextDeltaEvent(delta=delta):
                return self.text(delta)
            case ToolCallEndEvent(tool_call=call):
                return self.notice(call_line(call))
            case DoneEvent(reason="length"):
                return self.notice("[cut off] the model reached its output limit")
            case DoneEvent():
                return self.close_line()
            case ErrorEvent(reason=reason, message=message):
                return self.notice(f"[{reason}] {message.error_message or 'no reason given'}")
            case _:
                assert_never(event)

    def text(self, text: str) -> str:
        """A piece of running text. The line stays open unless the piece ends with a newline."""
        if text:
            self._line_is_open = not text.endswith("\n")
        return visible(text)

    def notice(self, text: str) -> str:
        """One whole line, whatever is in `text`: a line break inside is spelt out too."""
        line = visible(text).replace("\n", "\\n").replace("\t", "\\t")
        return f"{self.close_line()}{line}\n"

    def close_line(self) -> str:
        """The newline that an open line still needs, else ""."""
        was_open, self._line_is_open = self._line_is_open, False
        return "\n" if was_open else ""


def _visible_character(character: str) -> str:
    if character in _LAYOUT or character in _JOINERS:
        return character
    if unicodedata.category(character) in _UNSAFE:
        return character.encode("unicode_escape").decode("ascii")
    return character
