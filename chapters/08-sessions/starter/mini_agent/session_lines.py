"""One record, one line: messages as JSON text and back, with nothing lost and nothing guessed.

A line holds every field of its record under the field's own name, and the tag (`role` or `type`)
that says which class it is. Reading is as strict as writing: a field that is missing,
unknown or of another type is an error that names it.
"""

import json
from dataclasses import dataclass
from itertools import product
from operator import itemgetter
from typing import Any, ClassVar, Literal, get_args

from mini_agent.types import (
    AgentMessage,
    AssistantMessage,
    ContentBlock,
    StopReason,
    TextContent,
    ToolCall,
    ToolResultMessage,
    Usage,
    UserMessage,
)

VERSION = 1
"""The version of the form described here. Any change of it, a new field included, counts up."""


class SessionError(Exception):
    """A session can't be read, written or found. Its text says where, and what is wrong."""


@dataclass(frozen=True, slots=True)
class SessionHeader:
    """The first line of a session. `created` is the time in UTC: `2026-11-30T12:00:00.250Z`."""

    type: ClassVar[Literal["session"]] = "session"

    version: int
    id: str
    created: str
    cwd: str


def to_line(record: SessionHeader | AgentMessage) -> bytes:
    """The record as one line of JSON in UTF-8, newline included.

    Characters stand as they are, so that a person can read the file. The exception is text with
    half of a surrogate pair, which UTF-8 can't hold: its line is written with escapes.
    Raises SessionError for what JSON can't say, such as NaN among a tool's arguments.
    """
    raise NotImplementedError("step 8.1")


def header_of(line: bytes) -> SessionHeader:
    """The header in the first line of a session. Raises SessionError, also for another version."""
    raise NotImplementedError("step 8.1")


def message_of(line: bytes, number: int) -> AgentMessage:
    """The message in a line. Raises SessionError that names the line by `number`, and the field."""
    raise NotImplementedError("step 8.1")


def parse_line(line: bytes, number: int) -> Any:
    """The JSON value in a line. Raises SessionError that names the line by `number`."""
    raise NotImplementedError("step 8.1")


# Given: what a record looks like. `_SHAPE.values(data)` is the values in the order of the fields,
# or raises _Wrong with the field that is missing, unknown or of another type.


class _Wrong(Exception):
    """A field is not what it must be. The path to it grows on the way out."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path} {problem}" if path else problem)
        self.path = path
        self.problem = problem

    def under(self, path: str) -> "_Wrong":
        return _Wrong(f"{path}.{self.path}" if self.path else path, self.problem)


class _Shape:
    """The fields of one record, each with the types it may have."""

    def __init__(self, **fields: tuple[type, ...]) -> None:
        self._fields = fields
        self._values_of = itemgetter(*fields)
        self._right = frozenset(product(*fields.values()))  # every right row of types

    def values(self, data: dict[str, Any]) -> tuple[Any, ...]:
        """The values of `data` in the order of the fields. Raises _Wrong that names a field."""
        try:
            values: tuple[Any, ...] = self._values_of(data)
        except KeyError:
            raise self._problem(data) from None
        if len(data) != len(values) or tuple(map(type, values)) not in self._right:
            raise self._problem(data)
        return values

    def _problem(self, data: dict[str, Any]) -> _Wrong:
        for name, types in self._fields.items():
            if name not in data:
                return _Wrong(name, "is missing")
            if type(data[name]) not in types:
                wanted = " or ".join(_KINDS[each] for each in types)
                return _Wrong(name, f"must be {wanted}, not {_kind(data[name])}")
        unknown = next(name for name in data if name not in self._fields)
        return _Wrong(unknown, "is not a field that this version knows")


_KINDS: dict[type, str] = {
    str: "a string",
    int: "an integer",
    float: "a number with a fraction",
    bool: "true or false",
    list: "an array",
    dict: "an object",
    type(None): "null",
}

_NULL = type(None)
_HEADER = _Shape(type=(str,), version=(int,), id=(str,), created=(str,), cwd=(str,))
_USER = _Shape(role=(str,), content=(list,), timestamp=(int,))
_ASSISTANT = _Shape(
    role=(str,),
    content=(list,),
    stop_reason=(str,),
    provider=(str,),
    model=(str,),
    usage=(dict,),
    timestamp=(int,),
    error_message=(str, _NULL),
)
_TOOL_RESULT = _Shape(
    role=(str,),
    tool_call_id=(str,),
    tool_name=(str,),
    content=(list,),
    is_error=(bool,),
    timestamp=(int,),
)
_TEXT = _Shape(type=(str,), text=(str,))
_TOOL_CALL = _Shape(
    type=(str,), id=(str,), name=(str,), arguments=(dict, _NULL), raw_arguments=(str, _NULL)
)
_USAGE = _Shape(input=(int,), output=(int,), cache_read=(int,), cache_write=(int,), total=(int,))
_STOP_REASONS = get_args(StopReason)


def _kind(value: object) -> str:
    return _KINDS[type(value)]
