"""The Anthropic Messages API: a second provider, with a wire format of its own.

An adapter has three jobs. `to_request_body()` turns a context into the request; `sse.py`, which
knows no provider, cuts the answer into messages; `to_stream_events()` turns those into the
model events that everybody above reads. `AnthropicModel` puts one HTTP request in between.
"""

import copy
import json
import re
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, assert_never

import httpx

from mini_agent.abort import AbortError, AbortSignal, race
from mini_agent.model import ModelError, ModelStream, StreamOptions
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
    text_of,
)

API_URL = "https://api.anthropic.com"
API_VERSION = "2023-06-01"  # of the protocol, not of a model: it stays whichever model is asked
DEFAULT_MODEL = "claude-opus-5"
DEFAULT_MAX_TOKENS = 16_000

# A large model may think for minutes before its next byte; connecting takes seconds or fails.
TIMEOUT = httpx.Timeout(600.0, connect=15.0)


# Job 1: a context becomes a request


def to_request_body(
    context: AgentContext, *, model: str = DEFAULT_MODEL, max_tokens: int = DEFAULT_MAX_TOKENS
) -> dict[str, Any]:
    """The JSON body that asks for the next reply. The context stays as it is.

    Three roles become two: a tool result is a block in a user message. Adjacent messages of one
    role become one message, so that the results of parallel calls stay together.
    """
    ids = _WireIds()
    answered = {m.tool_call_id for m in context.messages if isinstance(m, ToolResultMessage)}
    messages: list[dict[str, Any]] = []
    for message in context.messages:
        role, blocks = _to_blocks(message, ids, answered)
        if not blocks:
            continue  # the API refuses a message without content
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"] += blocks
        else:
            messages.append({"role": role, "content": blocks})

    body: dict[str, Any] = {"model": model, "max_tokens": max_tokens}
    if context.system_prompt and context.system_prompt.strip():
        body["system"] = context.system_prompt
    body["messages"] = messages
    if context.tools:
        body["tools"] = [_to_tool(tool) for tool in context.tools]
    return body | {"stream": True}


def _to_blocks(
    message: AgentMessage, ids: "_WireIds", answered: set[str]
) -> tuple[Literal["user", "assistant"], list[dict[str, Any]]]:
    """One message as a role and its blocks."""
    match message:
        case UserMessage():
            return "user", [_to_text(block) for block in message.content if block.text.strip()]
        case AssistantMessage():
            blocks: list[dict[str, Any]] = []
            failed = message.stop_reason in ("error", "aborted")
            for block in message.content:
                match block:
                    case TextContent():
                        if block.text.strip():  # the API refuses blank text
                            blocks.append(_to_text(block))
                    case ToolCall():
                        # Nobody runs the calls of a reply that failed, and the API refuses a
                        # call that is followed by no result.
                        if not failed or block.id in answered:
                            blocks.append(_to_tool_use(block, ids.of_call(block.id)))
                    case _:
                        assert_never(block)
            return "assistant", blocks
        case ToolResultMessage():
            result: dict[str, Any] = {
                "type": "tool_result",
                "tool_use_id": ids.of_result(message.tool_call_id),
                "content": text_of(message),
            }
            return "user", [result | ({"is_error": True} if message.is_error else {})]
        case _:
            assert_never(message)


def _to_text(block: TextContent) -> dict[str, Any]:
    return {"type": "text", "text": block.text}


def _to_tool_use(call: ToolCall, id: str) -> dict[str, Any]:
    """`input` must be an object, so a call that was cut off goes out with an empty one."""
    return {
        "type": "tool_use",
        "id": id,
        "name": call.name,
        "input": copy.deepcopy(call.arguments or {}),
    }


def _to_tool(tool: ToolDefinition) -> dict[str, Any]:
    return {
        "name": tool.name,
        "description": tool.description,
        "input_schema": copy.deepcopy(tool.parameters),
    }


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
    signal: AbortSignal | None = None,
) -> ModelStream:
    """The model events of one streamed reply, and its message as the stream's result."""

    async def answer(reply: Reply) -> None:
        await read_reply(messages, reply)

    return reply_stream(answer, provider="anthropic", model=model, signal=signal)


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

    Half of them change nothing that anybody sees; they are remembered until another needs them.
    Raises ModelError if the reply fails; what had arrived stays in `reply`.
    """
    pending: dict[int, _Block] = {}  # by the provider's index, from start to stop
    stop_reason: str | None = None
    explanation: str | None = None
    unparsed: ModelError | None = None  # arguments that are no JSON object

    async for message in messages:
        name, event = _read_event(message)
        if name == "message_delta":
            delta = _object(event.get("delta", {}), "message_delta.delta")
            stop_reason = _optional_text(delta, "stop_reason", "message_delta.delta") or stop_reason
            explanation = _explanation(delta) or explanation
            reply.usage = _merge_usage(reply.usage, event.get("usage"), "message_delta.usage")
        cut_off = map_stop_reason(stop_reason) == "length"
        if unparsed is not None and name is not None and not cut_off:
            raise unparsed

        match name:
            case "message_start":
                start = _object(event.get("message", {}), "message_start.message")
                usage = start.get("usage")
                reply.usage = _merge_usage(reply.usage, usage, "message_start.message.usage")
                await reply.start()
            case "content_block_start":
                index = _index(event, name)
                await _end_block(pending.pop(index, None), reply)  # a stop that never came
                pending[index] = await _start_block(event, reply)
            case "content_block_delta":
                index = _index(event, name)
                if index not in pending:
                    raise _invalid(f"{name}.index", f"a block that has started, not {index}")
                await _grow_block(pending[index], event, reply)
            case "content_block_stop":
                try:
                    await _end_block(pending.pop(_index(event, name), None), reply)
                except ModelError as error:
                    # Cut off at max_tokens, or broken? The next message says which.
                    unparsed = error
            case "message_stop":
                if not cut_off:
                    for block in pending.values():
                        await _end_block(block, reply)
                await _end_reply(stop_reason, explanation, reply)
                return
            case "error":
                raise ModelError(_error_text(event))
            case _:
                pass  # message_delta is done; ping, and whatever is invented next, is not for us

    raise unparsed or ModelError("the stream ended before message_stop")


def map_stop_reason(value: str | None) -> Literal["stop", "length", "toolUse", "error"]:
    """Our stop reason for the provider's. One that is missing or unknown is an error.

    To take an unknown one for "stop" would hide for ever that a reply had not ended well.
    """
    match value:
        case "end_turn" | "stop_sequence" | "pause_turn":
            return "stop"
        case "max_tokens" | "model_context_window_exceeded":
            return "length"
        case "tool_use":
            return "toolUse"
        case _:
            return "error"


async def _start_block(event: dict[str, Any], reply: Reply) -> _Block:
    """Take a place in the content. Text that the start brings along is a first delta."""
    path = "content_block_start.content_block"
    block = _object(event.get("content_block"), path)
    match block.get("type"):
        case "text":
            index = await reply.open_text()
            first = _optional_text(block, "text", path)
            if first:
                await reply.add_text(index, first)
            return _TextBlock(index)
        case "tool_use":
            id, name = _text(block, "id", path), _text(block, "name", path)
            given = block.get("input")
            return _ToolBlock(
                index=await reply.open_tool_call(id, name),
                input=_object({} if given is None else given, f"{path}.input"),
            )
        case _:
            return None


async def _grow_block(block: _Block, event: dict[str, Any], reply: Reply) -> None:
    """Add what a delta brings. An empty one brings nothing, and is not told."""
    path = "content_block_delta.delta"
    delta = _object(event.get("delta"), path)
    match delta.get("type"), block:
        case _, None:
            return
        case "text_delta", _TextBlock():
            piece = _text(delta, "text", path)
            if piece:
                await reply.add_text(block.index, piece)
        case "input_json_delta", _ToolBlock():
            # Collected and told, not parsed: most fragments are no JSON.
            piece = _optional_text(delta, "partial_json", path) or ""
            if piece:
                block.has_fragments = True
                await reply.add_arguments(block.index, piece)
        case ("text_delta" | "input_json_delta") as kind, _:
            raise _invalid(f"{path}.type", f"one that fits its block, not {kind}")
        case _:
            return  # citations and the like: about the text, not in it


async def _end_block(block: _Block, reply: Reply) -> None:
    """A tool call is complete now, and only now: parse its arguments."""
    if not isinstance(block, _ToolBlock):
        return
    if block.input and not block.has_fragments:
        # Some servers that imitate this API send the arguments whole, at the start.
        await reply.add_arguments(block.index, json.dumps(block.input, ensure_ascii=False))
    await reply.end_tool_call(block.index)


async def _end_reply(stop_reason: str | None, explanation: str | None, reply: Reply) -> None:
    reason = map_stop_reason(stop_reason)
    if reason != "error":
        await reply.done(reason)
    elif stop_reason is None:
        raise ModelError("the reply ended without a stop_reason")
    elif stop_reason in ("refusal", "sensitive"):
        raise ModelError(explanation or f"the provider refused to answer ({stop_reason})")
    else:
        raise ModelError(f"unknown stop_reason: {stop_reason}")


# Whatever comes from outside is checked before it is used


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
    """The event's name and its payload; no name for one that is not handled, whose data is not read.

    Some proxies drop the `event:` lines. The payload repeats the name as its `type`.
    """
    named = message.event != "message"
    if named and message.event not in _EVENTS:
        return None, {}
    try:
        payload = json.loads(message.data)
    except ValueError:
        payload = None
    if not isinstance(payload, dict):
        raise ModelError(f"Invalid provider event: {message.event} is not a JSON object: {message.data}")
    name = message.event if named else payload.get("type")
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


# The three jobs joined by one HTTP request


class AnthropicModel:
    """A Model behind the Anthropic API, or behind any server that speaks its form.

    The key is in the request's header and nowhere else: not in the repr, not in an error. A
    `client` that is given stays open; without one each request opens and closes its own.
    """

    def __init__(
        self,
        *,
        api_key: str,
        model: str = DEFAULT_MODEL,
        base_url: str = API_URL,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        client: httpx.AsyncClient | None = None,
    ) -> None:
        self._api_key = api_key
        self._model = model
        self._url = base_url.rstrip("/") + "/v1/messages"
        self._max_tokens = max_tokens
        self._client = client

    def __repr__(self) -> str:
        return f"AnthropicModel(model={self._model!r}, url={self._url!r})"

    def stream(self, context: AgentContext, options: StreamOptions | None = None) -> ModelStream:
        """Begin one reply. Whatever goes wrong, the network included, is an `error` event."""
        signal = options.signal if options else None

        async def answer(reply: Reply) -> None:
            body = to_request_body(context, model=self._model, max_tokens=self._max_tokens)
            try:
                async with self._post(body, signal) as response:
                    reads = _raced(response.aiter_bytes(), signal)
                    await read_reply(read_sse_messages(decode_chunks(reads)), reply)
            except Exception as error:
                raise self._without_key(error) from None  # a chained error would show the key

        return reply_stream(answer, provider="anthropic", model=self._model, signal=signal)

    @asynccontextmanager
    async def _post(
        self, body: dict[str, Any], signal: AbortSignal | None
    ) -> AsyncIterator[httpx.Response]:
        """The response to `body`, closed on every way out. Raises ModelError if it is no success."""
        if not _HEADER_VALUE.fullmatch(self._api_key):
            raise ModelError(
                "the API key is empty or has a space, a line break or a non-ASCII character in it"
            )
        client = self._client or httpx.AsyncClient(timeout=TIMEOUT)
        try:
            request = client.build_request(
                "POST",
                self._url,
                headers={
                    "accept": "text/event-stream",
                    "anthropic-version": API_VERSION,
                    "content-type": "application/json",
                    "x-api-key": self._api_key,
                },
                # ASCII: half of a surrogate pair, which a model does write, survives in no other way.
                content=json.dumps(body, allow_nan=False).encode("ascii"),
            )
            response = await race(client.send(request, stream=True), signal)
            try:
                if not response.is_success:
                    raise ModelError(await _http_error(response, signal))
                yield response
            finally:
                await response.aclose()
        finally:
            if client is not self._client:
                await client.aclose()

    def _without_key(self, error: Exception) -> Exception:
        """The error as the user may see it."""
        if isinstance(error, AbortError):
            return error
        what = str(error)
        if not isinstance(error, ModelError):
            what = f"{type(error).__name__}: {what}" if what else type(error).__name__
            what = f"the request failed: {what}"
        return ModelError(what.replace(self._api_key, "[redacted]") if self._api_key else what)


_HEADER_VALUE = re.compile(r"[!-~]+")  # visible ASCII; httpx's own complaint would show the key


async def _raced(reads: AsyncIterator[bytes], signal: AbortSignal | None) -> AsyncIterator[bytes]:
    """The same reads, each raced against the signal: a server that stalls doesn't hold an abort."""
    while True:
        try:
            read = await race(anext(reads), signal)
        except StopAsyncIteration:
            return
        yield read


async def _http_error(response: httpx.Response, signal: AbortSignal | None) -> str:
    """The status, and what the body says about it: it is one JSON object, and no event stream."""
    body = b""
    try:
        async for read in _raced(response.aiter_bytes(), signal):
            body += read
            if len(body) > 10_000:
                break
    except httpx.HTTPError:
        pass  # the status is worth more than the rest of the body
    text = body.decode("utf-8", errors="replace")
    try:
        payload = json.loads(text)
    except ValueError:
        payload = None
    detail = _error_text(payload) if isinstance(payload, dict) else text.strip()
    return f"HTTP {response.status_code}: {detail[:300] or response.reason_phrase}"
