"""One record, one line: messages as JSON text and back, with nothing lost and nothing guessed.

A line holds every field of its record under the field's own name, and the tag (`role` or `type`)
that says which class it is. Reading is as strict as writing: a field that is missing,
unknown or of another type is an error that names it.
"""

import json
from dataclasses import dataclass, fields
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
    data = _to_data(record)
    try:
        try:
            return _dumps(data, ensure_ascii=False).encode() + b"\n"
        except UnicodeEncodeError:
            return _dumps(data, ensure_ascii=True).encode() + b"\n"
    except (ValueError, TypeError, RecursionError) as error:
        raise SessionError(f"a message can't be written as JSON: {error}") from None


def header_of(line: bytes) -> SessionHeader:
    """The header in the first line of a session. Raises SessionError, also for another version."""
    data = parse_line(line, 1)
    if type(data) is not dict or data.get("type") != "session":
        raise SessionError("line 1 is not the header of a session")
    if data.get("version") != VERSION:
        raise SessionError(
            f"line 1: version is {json.dumps(data.get('version'))}; this program reads {VERSION}"
        )
    try:
        _, *values = _HEADER.values(data)
    except _Wrong as wrong:
        raise SessionError(f"line 1: {wrong}") from None
    return SessionHeader(*values)


def message_of(line: bytes, number: int) -> AgentMessage:
    """The message in a line. Raises SessionError that names the line by `number`, and the field."""
    data = parse_line(line, number)
    try:
        return _message(data)
    except _Wrong as wrong:
        raise SessionError(f"line {number}: {wrong}") from None


def parse_line(line: bytes, number: int) -> Any:
    """The JSON value in a line. Raises SessionError that names the line by `number`."""
    try:
        text = line.decode()
        try:
            value, end = _scan(text)  # json.loads() less its search for blanks: a third faster
            if end == len(text):
                return value
        except ValueError:
            pass
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SessionError(f"line {number} is not JSON: {error}") from None


_scan = json.JSONDecoder().raw_decode


# To data


def _to_data(record: SessionHeader | AgentMessage) -> dict[str, Any]:
    match record:
        case SessionHeader():
            return {"type": record.type, **_fields(record)}
        case UserMessage() | ToolResultMessage():
            content = [{"type": block.type, **_fields(block)} for block in record.content]
            return {"role": record.role, **_fields(record), "content": content}
        case AssistantMessage():
            content = [{"type": block.type, **_fields(block)} for block in record.content]
            usage = _fields(record.usage)
            return {"role": record.role, **_fields(record), "content": content, "usage": usage}


def _fields(record: SessionHeader | AgentMessage | ContentBlock | Usage) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in fields(record)}


def _dumps(data: dict[str, Any], *, ensure_ascii: bool) -> str:
    return json.dumps(data, ensure_ascii=ensure_ascii, allow_nan=False, separators=(",", ":"))


# From data


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


def _message(data: Any) -> AgentMessage:
    match data.get("role") if type(data) is dict else None:
        case "user":
            _, content, timestamp = _USER.values(data)
            return UserMessage(_texts(content), timestamp)
        case "assistant":
            _, content, stop_reason, provider, model, usage, *rest = _ASSISTANT.values(data)
            if stop_reason not in _STOP_REASONS:
                raise _Wrong("stop_reason", f"must be a stop reason, not {stop_reason!r}")
            blocks = _blocks(content)
            return AssistantMessage(blocks, stop_reason, provider, model, _usage(usage), *rest)
        case "toolResult":
            _, call_id, name, content, is_error, timestamp = _TOOL_RESULT.values(data)
            return ToolResultMessage(call_id, name, _texts(content), is_error, timestamp)
        case _:
            raise _Wrong("", "is not a message: its role is none of user, assistant, toolResult")


def _texts(content: list[Any]) -> tuple[TextContent, ...]:
    blocks = _blocks(content)
    for index, block in enumerate(blocks):
        if not isinstance(block, TextContent):
            raise _Wrong(f"content[{index}]", "must be a text block")
    return blocks  # type: ignore[return-value]  # each was looked at


def _blocks(content: list[Any]) -> tuple[ContentBlock, ...]:
    blocks: list[ContentBlock] = []
    try:
        for data in content:
            blocks.append(_block(data))
    except _Wrong as wrong:
        raise wrong.under(f"content[{len(blocks)}]") from None
    return tuple(blocks)


def _block(data: Any) -> ContentBlock:
    match data.get("type") if type(data) is dict else None:
        case "text":
            return TextContent(_TEXT.values(data)[1])
        case "toolCall":
            return ToolCall(*_TOOL_CALL.values(data)[1:])
        case _:
            raise _Wrong("", "must be a text block or a tool call")


def _usage(data: dict[str, Any]) -> Usage:
    try:
        return Usage(*_USAGE.values(data))
    except _Wrong as wrong:
        raise wrong.under("usage") from None


def _kind(value: object) -> str:
    return _KINDS[type(value)]
