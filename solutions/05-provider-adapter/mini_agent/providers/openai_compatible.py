"""The OpenAI-compatible transport: HTTP out, checked `ProviderChunk`s in.

Everything the provider sends is unknown until a check has named it. Past this file there are
no `choices`, no headers and no key.
"""

import json
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx

from mini_agent.abort import AbortError, AbortSignal, race
from mini_agent.model import ModelError
from mini_agent.provider_adapter import (
    FinishChunk,
    FinishReason,
    ProviderChunk,
    ProviderRequest,
    TextChunk,
    ToolChunk,
)
from mini_agent.sse import SseMessage, decode_chunks, read_sse_messages
from mini_agent.types import Usage

# A model may think for minutes before its first byte; httpx alone would wait five seconds.
DEFAULT_TIMEOUT = httpx.Timeout(connect=10, read=600, write=60, pool=60)
_HTTPX_TIMEOUT = httpx.Timeout(5.0)

# What a wrong base URL, or a server that can't stream, answers with status 200. Any other type
# is read as an event stream: some servers send one without saying so.
_NO_EVENT_STREAM = ("application/json", "text/html")

_ERROR_BODY_LIMIT = 65_536  # bytes read of an error response
_ERROR_TEXT_LIMIT = 1_000  # characters of an error message


class OpenAICompatibleTransport:
    """Sends requests to `{base_url}/chat/completions` and reads the event stream that answers.

    A client that is passed in stays the caller's to close, and keeps the timeouts it was given.
    Without one, each request opens and closes its own. A bad URL or key is an error of the
    request, before anything is sent.
    """

    def __init__(
        self, *, base_url: str, api_key: str, client: httpx.AsyncClient | None = None
    ) -> None:
        self._base_url = base_url
        self._api_key = api_key
        self._client = client

    def __repr__(self) -> str:
        return f"{type(self).__name__}(base_url={_redact(self._base_url, self._api_key)!r})"

    async def stream(
        self, request: ProviderRequest, signal: AbortSignal | None = None
    ) -> AsyncGenerator[ProviderChunk, None]:
        """The chunks of one reply. Every error that leaves here is free of the key."""
        try:
            async with (
                self._open(request, signal) as response,
                aclosing(_read_bytes(response, signal)) as chunks,
                aclosing(decode_chunks(chunks)) as pieces,
                aclosing(read_sse_messages(pieces)) as messages,
                aclosing(_read_chunks(messages)) as provider_chunks,
            ):
                async for chunk in provider_chunks:
                    yield chunk
            return
        except Exception as error:
            failure = sanitized_transport_error(error, self._api_key)
        # Raised out here, the new error has no `__context__` that could hold the key.
        raise failure from None

    @asynccontextmanager
    async def _open(
        self, request: ProviderRequest, signal: AbortSignal | None
    ) -> AsyncIterator[httpx.Response]:
        """Send the request; yield the response once its status is known to be good."""
        url = _endpoint(self._base_url)
        _check_key(self._api_key)
        client = self._client or httpx.AsyncClient(timeout=DEFAULT_TIMEOUT)
        try:
            wire = client.build_request(
                "POST",
                url,
                headers={
                    "Accept": "text/event-stream",
                    "Authorization": f"Bearer {self._api_key}",
                    "Content-Type": "application/json",
                },
                content=_body(request),
                timeout=DEFAULT_TIMEOUT if client.timeout == _HTTPX_TIMEOUT else client.timeout,
            )
            response = await race(client.send(wire, stream=True), signal)
            try:
                if not response.is_success or _content_type(response) in _NO_EVENT_STREAM:
                    raise ModelError(await _error_text(response, signal))
                yield response
            finally:
                await response.aclose()
        finally:
            if self._client is None:
                await client.aclose()


def sanitized_transport_error(error: Exception, api_key: str) -> Exception:
    """The error to raise in place of `error`: the key in its text replaced by `[redacted]`.

    Raise it `from None`, outside the handler if you can: a chained exception would bring the text
    back. An AbortError stays one, so that an abort is still known as an abort.
    """
    # First redact, then shorten: the other way round could leave half a key at the end.
    text = _redact(str(error) or type(error).__name__, api_key)
    if len(text) > _ERROR_TEXT_LIMIT:
        text = text[:_ERROR_TEXT_LIMIT] + "…"
    return AbortError(text) if isinstance(error, AbortError) else ModelError(text)


def parse_provider_chunk(payload: object) -> list[ProviderChunk]:
    """The chunks in one payload: the data of one SSE message, as text or already as JSON.

    Token counts without a finish reason are a FinishChunk without a reason.

    Raises ModelError that names the first field which is not as it must be. Fields that the
    agent has no use for are not looked at.
    """
    root = _record(_loads(payload) if isinstance(payload, str) else payload, "payload")
    _raise_provider_error(root.get("error"))
    usage = _usage(root.get("usage"), "usage")
    choices = root.get("choices")
    if choices is not None or usage is None:
        choices = _array(choices, "choices")
    if not choices:  # a trailing usage, or a content filter's first words
        return [] if usage is None else [FinishChunk(None, usage)]
    if len(choices) > 1:
        raise _invalid("choices", "must hold one choice")

    choice = _record(choices[0], "choices[0]")
    _raise_provider_error(choice.get("error"))
    chunks: list[ProviderChunk] = []
    if choice.get("delta") is not None:
        chunks.extend(_delta_chunks(_record(choice["delta"], "choices[0].delta")))
    usage = usage or _usage(choice.get("usage"), "choices[0].usage")
    reason = _finish_reason(choice.get("finish_reason"))
    if reason is not None or usage is not None:
        chunks.append(FinishChunk(reason, usage))
    return chunks


# The request


def _endpoint(base_url: str) -> str:
    """`base_url` with the path's last part added; a path prefix and a query stay."""
    try:
        parts = urlsplit(base_url)
        url = parts._replace(path=parts.path.rstrip("/") + "/chat/completions").geturl()
        valid = parts.scheme in ("http", "https") and bool(httpx.URL(url).host)
    except (ValueError, httpx.InvalidURL):
        valid = False
    if not valid:
        raise ModelError(f"Invalid base_url: {base_url!r} is not an http or https URL")
    return url


def _check_key(api_key: str) -> None:
    """A key that can't stand in a header, said in words and without showing it."""
    if not api_key:
        raise ModelError("Invalid API key: it is empty")
    if api_key != api_key.strip():
        raise ModelError("Invalid API key: it begins or ends with white space, or with a newline")
    if not (api_key.isascii() and api_key.isprintable()):
        raise ModelError("Invalid API key: it holds a character that is not printable ASCII")


def _body(request: ProviderRequest) -> bytes:
    body: dict[str, Any] = {"model": request.model, "messages": request.messages}
    if request.tools is not None:
        body["tools"] = request.tools
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    # A lone surrogate, as a broken file name brings it, is no reason to lose the conversation.
    return json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")


# The response


async def _read_bytes(
    response: httpx.Response, signal: AbortSignal | None
) -> AsyncGenerator[bytes, None]:
    """The body, read by read. Each read is raced: a server that stalls doesn't hold an abort."""
    async with aclosing(response.aiter_bytes()) as chunks:  # type: ignore[type-var]
        while (chunk := await race(anext(chunks, None), signal)) is not None:
            yield chunk


async def _read_chunks(messages: AsyncIterator[SseMessage]) -> AsyncGenerator[ProviderChunk, None]:
    """Payloads to chunks. The finish reason waits for a usage behind it; they leave as one."""
    reason: FinishReason | None = None
    usage: Usage | None = None
    async for message in messages:
        if message.event == "error":
            raise ModelError(f"Provider error: {_error_detail(message.data)}")
        data = message.data.strip()
        if not data:
            continue
        if data == "[DONE]":
            break
        for chunk in parse_provider_chunk(data):
            if isinstance(chunk, FinishChunk):
                reason, usage = chunk.reason or reason, chunk.usage or usage
            else:
                yield chunk
    if reason is not None or usage is not None:
        yield FinishChunk(reason, usage)


async def _error_text(response: httpx.Response, signal: AbortSignal | None) -> str:
    """Status and the provider's own words."""
    body = b""
    async with aclosing(_read_bytes(response, signal)) as chunks:
        async for chunk in chunks:
            body += chunk
            if len(body) >= _ERROR_BODY_LIMIT:
                break
    detail = _error_detail(body.decode("utf-8", "replace")) or response.reason_phrase
    status = f"HTTP {response.status_code}"
    if response.is_success:
        status += f", {_content_type(response)} and no event stream"
    return f"Provider returned {status}: {detail}"


def _content_type(response: httpx.Response) -> str:
    """The media type without its parameters; "" where there is none."""
    value: str = response.headers.get("content-type", "")
    return value.partition(";")[0].strip().lower()


def _error_detail(text: str) -> str:
    """The message inside an error body, or the body where it is in no known form."""
    try:
        value = json.loads(text)
    except ValueError:
        return text.strip()
    return _error_message(value) or text.strip()


def _error_message(value: object) -> str | None:
    """The text that a person should read in an error value, wherever the provider puts it."""
    match value:
        case str():
            return value
        case [first, *_]:
            return _error_message(first)
        case {"error": inner} if inner:
            return _error_message(inner)
        case {"message": str(text)} | {"detail": str(text)} | {"msg": str(text)}:
            return text
        case _:
            return None


def _redact(text: str, api_key: str) -> str:
    """`text` without the key, written plainly, in URL encoding or with JSON escapes."""
    key = api_key.strip()  # with a newline at its end it would be found nowhere
    if not key:
        return text
    pattern = "".join(
        rf"(?:\\?{re.escape(character)}|\\u{ord(character):04x}|{_percent(character)})"
        for character in key
    )
    return re.sub(pattern, "[redacted]", text, flags=re.IGNORECASE)


def _percent(character: str) -> str:
    return "".join(f"%{byte:02x}" for byte in character.encode("utf-8", "replace"))


# The unknown boundary


def _delta_chunks(delta: dict[str, Any]) -> list[ProviderChunk]:
    chunks: list[ProviderChunk] = []
    for field in ("content", "refusal"):  # a refusal is what the model says to the user
        text = _text(delta.get(field), f"choices[0].delta.{field}")
        if text:
            chunks.append(TextChunk(text))
    for field in ("function_call", "audio"):  # an old and a new way to answer without text
        if delta.get(field):
            raise _invalid(f"choices[0].delta.{field}", "is not handled")
    if delta.get("tool_calls") is not None:
        calls = _array(delta["tool_calls"], "choices[0].delta.tool_calls")
        for at, call in enumerate(calls):
            chunks.append(_tool_chunk(call, f"choices[0].delta.tool_calls[{at}]"))
    return chunks


def _tool_chunk(value: object, path: str) -> ToolChunk:
    call = _record(value, path)
    function: dict[str, Any] = {}
    if call.get("function") is not None:
        function = _record(call["function"], f"{path}.function")
    return ToolChunk(
        index=_count(call.get("index"), f"{path}.index"),
        id=_text(call.get("id"), f"{path}.id"),
        name=_text(function.get("name"), f"{path}.function.name"),
        arguments_delta=_text(function.get("arguments"), f"{path}.function.arguments"),
    )


def _finish_reason(value: object) -> FinishReason | None:
    match _text(value, "choices[0].finish_reason"):
        case None | "":
            return None
        case ("stop" | "length" | "tool_calls") as reason:
            return reason
        case unknown:
            raise ModelError(f"Provider finish_reason: {unknown}")


def _usage(value: object, path: str) -> Usage | None:
    """Token counts; `input` without what a cache gave or took, `total` as the provider counts."""
    if value is None:
        return None
    usage = _record(value, path)

    def count(record: dict[str, Any], field: str, at: str) -> int:
        return _count(record.get(field), f"{at}.{field}") or 0

    details: dict[str, Any] = {}
    if usage.get("prompt_tokens_details") is not None:
        details = _record(usage["prompt_tokens_details"], f"{path}.prompt_tokens_details")
    prompt = count(usage, "prompt_tokens", path)
    # The cached tokens are a part of the prompt. A server that counts more of them than it has
    # prompt tokens is wrong about the part: the three counts must still add up to the whole.
    at = f"{path}.prompt_tokens_details"
    cache_read = min(prompt, count(details, "cached_tokens", at))
    cache_write = min(prompt - cache_read, count(details, "cache_write_tokens", at))
    return Usage(
        input=prompt - cache_read - cache_write,
        output=count(usage, "completion_tokens", path),
        cache_read=cache_read,
        cache_write=cache_write,
        total=count(usage, "total_tokens", path),
    )


def _raise_provider_error(value: object) -> None:
    """An error inside a 200 stream: the status came before the provider knew."""
    if value:
        raise ModelError(f"Provider error: {_error_message(value) or json.dumps(value)}")


def _loads(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise ModelError(f"Invalid provider chunk: payload must be JSON: {text}") from None


def _record(value: object, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _invalid(path, "must be an object")
    return value


def _array(value: object, path: str) -> list[Any]:
    if not isinstance(value, list):
        raise _invalid(path, "must be an array")
    return value


def _text(value: object, path: str) -> str | None:
    if isinstance(value, list):
        raise _invalid(path, "must be a string; a list of parts is not handled")
    if value is not None and not isinstance(value, str):
        raise _invalid(path, "must be a string")
    return value


def _count(value: object, path: str) -> int | None:
    """A whole number from 0, or None. True is an int to Python and no number to JSON."""
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise _invalid(path, "must be a non-negative integer")
    return value


def _invalid(path: str, problem: str) -> ModelError:
    return ModelError(f"Invalid provider chunk: {path} {problem}")
