"""The Anthropic Messages API: a second provider, with a wire format of its own.

An adapter has three jobs. `to_request_body()` turns a context into the request; `sse.py`, which
knows no provider, cuts the answer into messages; `to_stream_events()` turns those into the
model events that everybody above reads. `AnthropicModel` puts one HTTP request in between.
"""

import contextlib
import copy
import json
import re
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, assert_never

import httpx

from mini_agent.abort import AbortSignal, race
from mini_agent.model import ModelError, ModelStream, StreamOptions
from mini_agent.providers.openai_compatible import sanitized_transport_error
from mini_agent.reply import Reply, reply_stream
from mini_agent.sse import SseMessage, decode_chunks, read_sse_messages
from mini_agent.types import (
    AgentContext,
    AgentMessage,
    AssistantMessage,
    TextContent,
    ToolCall,
    ToolDefinition,
    ToolResultMessage,
    Usage,
    UserMessage,
    now_ms,
    text_of,
)

API_URL = "https://api.anthropic.com"
API_VERSION = "2023-06-01"  # of the protocol, not of a model: it stays whichever model is asked
DEFAULT_MODEL = "claude-opus-5"
DEFAULT_MAX_TOKENS = 16_000

# A model may think for minutes before its next byte; httpx alone would wait five seconds.
DEFAULT_TIMEOUT = httpx.Timeout(connect=10, read=600, write=60, pool=60)
_HTTPX_TIMEOUT = httpx.Timeout(5.0)

# What a wrong base URL, or a network that wants a login, answers with status 200. Any other type
# is read as an event stream: some servers send one without saying so.
_NO_EVENT_STREAM = ("application/json", "text/html")

_ERROR_BODY_LIMIT = 65_536  # bytes read of an error response


# Job 1: a context becomes a request


def to_request_body(
    context: AgentContext, *, model: str = DEFAULT_MODEL, max_tokens: int = DEFAULT_MAX_TOKENS
) -> dict[str, Any]:
    """The JSON body that asks for the next reply. The context stays as it is.

    Three roles become two: a tool result is a block in a user message. Adjacent messages of one
    role become one message, so that the results of parallel calls stay together.
    """
    raise NotImplementedError("step 10.1: to_request_body")


def _to_blocks(
    message: AgentMessage, ids: "_WireIds", answered: set[str]
) -> tuple[Literal["user", "assistant"], list[dict[str, Any]]]:
    """One message as a role and its blocks.

    `answered` has the ids of all results: a failed reply's call goes out only if it has one.
    """
    raise NotImplementedError("step 10.1: _to_blocks")


class _WireIds:
    """Tool ids in the form the API takes: [a-zA-Z0-9_-], at most 64, each for one call only.

    A conversation may have begun with another provider, whose ids are longer, or are the same in
    each turn. A result gets the id of the latest call with its own id.
    """

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._latest: dict[str, str] = {}
        self._uses: dict[str, int] = {}

    def of_call(self, id: str) -> str:
        plain = re.sub(r"[^a-zA-Z0-9_-]", "_", id)[:64] or "call"
        wire = plain
        while wire in self._taken:
            self._uses[plain] = self._uses.get(plain, 1) + 1
            suffix = f"_{self._uses[plain]}"
            wire = plain[: 64 - len(suffix)] + suffix
        self._taken.add(wire)
        self._latest[id] = wire
        return wire

    def of_result(self, id: str) -> str:
        return self._latest.get(id) or self.of_call(id)


# Job 3: the provider's events become ours (job 2 is sse.py)


def to_stream_events(
    messages: AsyncIterable[SseMessage],
    *,
    model: str = DEFAULT_MODEL,
    clock: Callable[[], int] = now_ms,
) -> ModelStream:
    """The model events of one streamed reply, and its message as the stream's result."""
    raise NotImplementedError("step 10.2: to_stream_events")


@dataclass(slots=True)
class _TextBlock:
    """A text block that has started: its place in our content."""

    index: int


@dataclass(slots=True)
class _ToolBlock:
    """A tool call that has started: its place in our content, and the input it started with."""

    index: int
    input: dict[str, Any]
    has_fragments: bool = False


# None is a block of a kind that we do not keep, such as thinking: its deltas are skipped.
_Block: TypeAlias = _TextBlock | _ToolBlock | None


async def read_reply(messages: AsyncIterable[SseMessage], reply: Reply) -> None:
    """Fill `reply` from the provider's messages, up to `message_stop`.

    Some of them change nothing that anybody sees: they are remembered until another needs them.
    Raises ModelError if the reply fails; what had arrived stays in `reply`.
    """
    raise NotImplementedError("step 10.2: read_reply")


def map_stop_reason(value: str | None) -> Literal["stop", "length", "toolUse", "error"]:
    """Our stop reason for the provider's. One that is missing or unknown is an error.

    To take an unknown one for "stop" would hide for ever that a reply had not ended well.
    """
    raise NotImplementedError("step 10.2: map_stop_reason")


async def _start_block(event: dict[str, Any], reply: Reply) -> _Block:
    """Take the next place in the content. Text that the start brings along is a first delta."""
    raise NotImplementedError("step 10.2: _start_block")


async def _grow_block(block: _Block, event: dict[str, Any], reply: Reply) -> None:
    """Add what a delta brings. An empty one brings nothing, and nothing is told."""
    raise NotImplementedError("step 10.2: _grow_block")


async def _end_block(block: _Block, reply: Reply) -> None:
    """A tool call is complete now, and only now: parse its arguments."""
    raise NotImplementedError("step 10.2: _end_block")


async def _end_reply(stop_reason: str | None, explanation: str | None, reply: Reply) -> None:
    raise NotImplementedError("step 10.3: _end_reply")


# The three jobs, joined by one HTTP request


class AnthropicModel:
    """A Model behind the Anthropic API, or behind any server that speaks its format.

    The key is in the request's header and nowhere else: not in the repr, not in an error. A client
    that is passed in stays the caller's to close, and keeps the timeouts it was given. Without one,
    each request opens and closes its own.
    """

    def __init__(
        self,
        *,
        api_key: str,
        model: str = DEFAULT_MODEL,
        base_url: str = API_URL,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        client: httpx.AsyncClient | None = None,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        self._api_key = api_key
        self._model = model
        self._url = base_url.rstrip("/") + "/v1/messages"
        self._max_tokens = max_tokens
        self._client = client
        self._clock = clock

    def __repr__(self) -> str:
        return f"{type(self).__name__}(model={self._model!r})"

    def stream(self, context: AgentContext, options: StreamOptions | None = None) -> ModelStream:
        """Begin one reply. Whatever goes wrong, the network included, is an `error` event."""
        raise NotImplementedError("step 10.4: stream")

    @asynccontextmanager
    async def _post(
        self, body: dict[str, Any], signal: AbortSignal | None
    ) -> AsyncIterator[httpx.Response]:
        """Send the request; yield the response once it is known to be an event stream."""
        raise NotImplementedError("step 10.4: _post")
        yield  # makes this a generator; yours yields the response


def _check_key(api_key: str) -> None:
    """A key that can't stand in a header is said in words; httpx's own complaint would show it."""
    raise NotImplementedError("step 10.4: _check_key")


def _to_json(body: dict[str, Any]) -> bytes:
    """The body in UTF-8. Two surrogates that belong together are joined; a lone one is U+FFFD.

    A model may write half of an emoji at the end of a delta. It is no reason to lose the
    conversation, and the API refuses it.
    """
    text = json.dumps(body, ensure_ascii=False, allow_nan=False)
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


async def _read_bytes(
    response: httpx.Response, signal: AbortSignal | None
) -> AsyncGenerator[bytes, None]:
    """The body, read by read. Each read is raced: a server that stalls doesn't hold an abort."""
    async with aclosing(response.aiter_bytes()) as chunks:  # type: ignore[type-var]
        while (chunk := await race(anext(chunks, None), signal)) is not None:
            yield chunk


async def _http_error(response: httpx.Response, signal: AbortSignal | None) -> str:
    """The status, and what the body says about it: it is one JSON object, or a page."""
    raise NotImplementedError("step 10.4: _http_error")


def _content_type(response: httpx.Response) -> str:
    """The media type without its parameters; "" where there is none."""
    value: str = response.headers.get("content-type", "")
    return value.partition(";")[0].strip().lower()


# The unknown boundary: whatever comes from outside is checked before it is used

_EVENTS = frozenset(
    {
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
        "error",
    }
)


def _read_event(message: SseMessage) -> tuple[str | None, dict[str, Any]]:
    """An event's name and payload. None for one that is not handled, whose data is not even read.

    Some proxies drop the `event:` lines; the payload repeats the name as its `type`.
    """
    name: str | None = message.event
    if name not in _EVENTS and name != "message":
        return None, {}
    try:
        payload = json.loads(message.data)
    except ValueError:
        payload = None
    if not isinstance(payload, dict):
        raise ModelError(f"Invalid provider event: {name} must be a JSON object: {message.data}")
    if name == "message":
        name = payload.get("type")
    return (name if name in _EVENTS else None), payload


def _error_text(event: dict[str, Any]) -> str:
    """What the provider says went wrong: `overloaded_error: Overloaded`."""
    error = event.get("error")
    if isinstance(error, dict):
        parts = [error[key] for key in ("type", "message") if isinstance(error.get(key), str)]
        if parts:
            return ": ".join(parts)
    return json.dumps(event, ensure_ascii=False)


def _explanation(delta: dict[str, Any]) -> str | None:
    """Why the provider refused, if it says so."""
    details = delta.get("stop_details")
    explanation = details.get("explanation") if isinstance(details, dict) else None
    return explanation if isinstance(explanation, str) else None


def _merge_usage(usage: Usage, counts: object, path: str) -> Usage:
    """`usage` with the counts that are given. One that is null or missing stays what it was."""
    if counts is None:
        return usage
    given = _object(counts, path)

    def count(key: str, before: int) -> int:
        value = given.get(key)
        if value is None:
            return before
        if type(value) is not int or value < 0:
            raise _invalid(f"{path}.{key}", "a token count")
        return value

    return Usage(
        input=count("input_tokens", usage.input),
        output=count("output_tokens", usage.output),
        cache_read=count("cache_read_input_tokens", usage.cache_read),
        cache_write=count("cache_creation_input_tokens", usage.cache_write),
    )


def _index(event: dict[str, Any], name: str) -> int:
    index = event.get("index")
    if type(index) is not int or index < 0:
        raise _invalid(f"{name}.index", "a non-negative integer")
    return index


def _object(value: object, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _invalid(path, "an object")
    return value


def _text(owner: dict[str, Any], key: str, path: str) -> str:
    value = owner.get(key)
    if not isinstance(value, str):
        raise _invalid(f"{path}.{key}", "a string")
    return value


def _optional_text(owner: dict[str, Any], key: str, path: str) -> str | None:
    return None if owner.get(key) is None else _text(owner, key, path)


def _invalid(path: str, rule: str) -> ModelError:
    return ModelError(f"Invalid provider event: {path} must be {rule}")
