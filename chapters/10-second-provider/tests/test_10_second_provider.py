"""Chapter 10: a second provider, and nothing above the model changes."""

import asyncio
import copy
import io
import json
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import httpx
import pytest

import mini_agent.main
from grader.testing import aiter_of, assert_same, collect, every_cut, fail, pieces, plain, run, soon
from mini_agent.abort import AbortSignal
from mini_agent.events import (
    DoneEvent,
    ErrorEvent,
    ModelEvent,
    StartEvent,
    TextDeltaEvent,
    ToolCallDeltaEvent,
    ToolCallEndEvent,
)
from mini_agent.model import Model, ModelStream, StreamOptions
from mini_agent.providers import select
from mini_agent.providers.anthropic import (
    AnthropicModel,
    map_stop_reason,
    to_request_body,
    to_stream_events,
)
from mini_agent.providers.recorded_stream import RECORDED_RESPONSE, to_chunks
from mini_agent.providers.select import ModelChoice, choose_model, create_model
from mini_agent.scripted_model import ScriptedModel
from mini_agent.sse import decode_chunks, read_sse_messages
from mini_agent.types import (
    AgentContext,
    AssistantMessage,
    ContentBlock,
    TextContent,
    ToolCall,
    ToolDefinition,
    ToolResultMessage,
    Usage,
    assistant_message,
    text,
    user_message,
)

KEY = "test-key-10"
CONTEXT = AgentContext((user_message("算一下 12*8", 1),))

SENTENCE = TextContent("这个我算一下。")
RAW = '{"expression":"12*8"}'
CALL = ToolCall("toolu_demo", "calc", {"expression": "12*8"}, RAW)
RECORDED_MESSAGE = assistant_message([SENTENCE, CALL], "toolUse", usage=Usage(412, 42))


def wire(*events: tuple[str, Mapping[str, Any]]) -> bytes:
    """Provider events as they stand on the wire; each payload repeats its event's name."""
    return "".join(
        f"event: {name}\ndata: {json.dumps({'type': name} | dict(payload), ensure_ascii=False)}\n\n"
        for name, payload in events
    ).encode()


def start_text(index: int) -> tuple[str, dict[str, Any]]:
    return "content_block_start", {"index": index, "content_block": {"type": "text", "text": ""}}


def start_call(index: int, id: str, name: str) -> tuple[str, dict[str, Any]]:
    block = {"type": "tool_use", "id": id, "name": name, "input": {}}
    return "content_block_start", {"index": index, "content_block": block}


def text_delta(index: int, piece: str) -> tuple[str, dict[str, Any]]:
    return "content_block_delta", {"index": index, "delta": {"type": "text_delta", "text": piece}}


def json_delta(index: int, fragment: str) -> tuple[str, dict[str, Any]]:
    delta = {"type": "input_json_delta", "partial_json": fragment}
    return "content_block_delta", {"index": index, "delta": delta}


def stop_block(index: int) -> tuple[str, dict[str, Any]]:
    return "content_block_stop", {"index": index}


def stops_for(reason: str | None, **delta: Any) -> list[tuple[str, dict[str, Any]]]:
    """The two events that end a reply."""
    return [("message_delta", {"delta": {"stop_reason": reason} | delta}), ("message_stop", {})]


START: tuple[str, dict[str, Any]] = (
    "message_start",
    {"message": {"id": "msg_1", "usage": {"input_tokens": 7, "output_tokens": 1}}},
)


async def tell(stream: ModelStream) -> list[ModelEvent]:
    """All events of one reply. Fails if `result()` is another message than the last event's."""
    events = await soon(
        collect(stream), because="the stream must end by itself, in `done` or in `error`"
    )
    last = events[-1] if events else None
    if not isinstance(last, DoneEvent | ErrorEvent):
        fail(f"the last event must be `done` or `error`, and it is {last!r}")
    else:
        assert_same(
            await stream.result(), last.message, because="result() gives the last event's message"
        )
    return [comparable(event) for event in events]


def comparable(event: ModelEvent) -> ModelEvent:
    """The event without the time, and without the names that a caller may choose."""
    match event:
        case DoneEvent() | ErrorEvent():
            message = replace(event.message, timestamp=0, provider="", model="")
            return replace(event, message=message)
        case _:
            return event


def translate(reads: Iterable[bytes]) -> list[ModelEvent]:
    """The model events of a reply that arrives in these reads."""
    return run(tell(stream_of(reads)))


def stream_of(reads: Iterable[bytes]) -> ModelStream:
    return to_stream_events(read_sse_messages(decode_chunks(aiter_of(*reads))))


def failure(reads: Iterable[bytes], *, because: str) -> tuple[str, tuple[ContentBlock, ...]]:
    """What the `error` event says and keeps. Fails if the reply ends in another way."""
    last = translate(reads)[-1]
    if not isinstance(last, ErrorEvent):
        fail(f"expected an `error` event, got {last!r}\n{because}")
        raise AssertionError
    assert_same(last.reason, "error", because=because)
    return last.message.error_message or "", last.message.content


def assert_says(message: str, part: str, *, because: str) -> None:
    if part not in message:
        fail(f"expected a message with {part!r}, got {message!r}\n{because}")


class Body(httpx.AsyncByteStream):
    """A response body that arrives in these reads. After them it ends, or it stalls for ever."""

    def __init__(self, *reads: bytes, stalls: bool = False) -> None:
        self.reads = reads
        self.stalls = stalls
        self.closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for read in self.reads:
            yield read
        if self.stalls:
            await asyncio.Event().wait()

    async def aclose(self) -> None:
        self.closed = True


Handler = Callable[[httpx.Request], Awaitable[httpx.Response]]


def client_of(answer: Body | Handler, requests: list[httpx.Request] | None = None) -> Any:
    """An httpx client that has no network: `answer` answers every request."""

    async def handler(request: httpx.Request) -> httpx.Response:
        if requests is not None:
            requests.append(request)
        if isinstance(answer, Body):
            return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=answer)
        return await answer(request)

    return httpx.AsyncClient(transport=httpx.MockTransport(handler))


def recorded(size: int = 37) -> Body:
    return Body(*to_chunks(RECORDED_RESPONSE, size))


def model_with(client: httpx.AsyncClient, api_key: str = KEY) -> AnthropicModel:
    return AnthropicModel(
        api_key=api_key,
        model="test-model",
        base_url="https://provider.test",
        max_tokens=100,
        client=client,
    )


# 10.1 A context becomes a request


def test_request_is_the_whole_context_in_the_providers_words() -> None:
    """System at the top, three roles to two, neighbours of one role merged (step 10.1)."""
    schema = {"type": "object", "properties": {"path": {"type": "string"}}}
    context = AgentContext(
        system_prompt="你是一个会用工具的助手。",
        messages=(
            user_message("读取 README.md 和 a.md", 1),
            assistant_message(
                [
                    text("两个都读。"),
                    ToolCall("call-1", "read", {"path": "README.md"}, '{"path":"README.md"}'),
                    ToolCall("call-2", "read", {"path": "a.md"}, '{"path":"a.md"}'),
                ],
                "toolUse",
            ),
            ToolResultMessage("call-1", "read", (text("# Pro"), text("ject")), timestamp=2),
            ToolResultMessage("call-2", "read", (text("no such file"),), True, timestamp=2),
            user_message("继续", 3),
        ),
        tools=(ToolDefinition("read", "Read a file.", schema),),
    )
    before = copy.deepcopy(context)

    body = to_request_body(context, model="test-model", max_tokens=100)

    assert_same(
        [message["role"] for message in body["messages"]],
        ["user", "assistant", "user"],
        because="a tool result is a block of a user message, and neighbours of one role are merged",
    )
    assert_same(
        body,
        {
            "model": "test-model",
            "max_tokens": 100,
            "system": "你是一个会用工具的助手。",
            "messages": [
                {"role": "user", "content": [wire_text("读取 README.md 和 a.md")]},
                {
                    "role": "assistant",
                    "content": [
                        wire_text("两个都读。"),
                        wire_call("call-1", "read", {"path": "README.md"}),
                        wire_call("call-2", "read", {"path": "a.md"}),
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        wire_result("call-1", "# Project"),
                        wire_result("call-2", "no such file") | {"is_error": True},
                        wire_text("继续"),
                    ],
                },
            ],
            "tools": [{"name": "read", "description": "Read a file.", "input_schema": schema}],
            "stream": True,
        },
        because="`is_error` stands only where it is true; `arguments` is an object called `input`",
    )
    assert_same(context, before, because="the context belongs to the caller and stays as it was")
    assert_same(
        to_request_body(CONTEXT, model="test-model", max_tokens=100),
        {
            "model": "test-model",
            "max_tokens": 100,
            "messages": [{"role": "user", "content": [wire_text("算一下 12*8")]}],
            "stream": True,
        },
        because="without a system prompt and without tools the body has no such keys",
    )


def test_request_holds_nothing_that_the_api_refuses() -> None:
    """Blank text, long ids and missing arguments are put right (step 10.1)."""
    long_id = "call|1:" + "x" * 80
    context = AgentContext(
        messages=(
            user_message([text("  \n"), text("算一下")], 1),
            assistant_message([text(""), ToolCall(long_id, "calc", None, '{"expr')], "length"),
            ToolResultMessage(long_id, "calc", (text("not run"),), True, timestamp=2),
            assistant_message([text(" ")]),
            user_message("再算", 3),
        )
    )

    messages = to_request_body(context, model="test-model", max_tokens=100)["messages"]

    call = messages[1]["content"][-1] if len(messages) > 1 else {}
    if not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", str(call.get("id"))):
        fail(f"expected an id of 1 to 64 characters out of [a-zA-Z0-9_-], got {call.get('id')!r}")
    assert_same(
        messages,
        [
            {"role": "user", "content": [wire_text("算一下")]},
            {"role": "assistant", "content": [wire_call(call["id"], "calc", {})]},
            {
                "role": "user",
                "content": [
                    wire_result(call["id"], "not run") | {"is_error": True},
                    wire_text("再算"),
                ],
            },
        ],
        because="blank text is dropped, and a message with it if nothing is left; a call that was "
        "cut off has the input {}; call and result carry the same id",
    )


def wire_text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def wire_call(id: str, name: str, input: dict[str, Any]) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": name, "input": input}


def wire_result(id: str, content: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, "content": content}


# 10.2 Provider events become model events


def test_events_of_the_recorded_reply() -> None:
    """Eleven provider events become seven of ours, and arguments are parsed last (step 10.2)."""
    first = TextContent("这个我")
    begun = ToolCall("toolu_demo", "calc", None, '{"expres')
    unparsed = ToolCall("toolu_demo", "calc", None, RAW)

    events = translate(to_chunks(RECORDED_RESPONSE))

    assert_same(
        events,
        [
            StartEvent(()),
            TextDeltaEvent(0, "这个我", (first,)),
            TextDeltaEvent(0, "算一下。", (SENTENCE,)),
            ToolCallDeltaEvent(1, '{"expres', (SENTENCE, begun)),
            ToolCallDeltaEvent(1, 'sion":"12*8"}', (SENTENCE, unparsed)),
            ToolCallEndEvent(1, CALL, (SENTENCE, CALL)),
            DoneEvent("toolUse", RECORDED_MESSAGE),
        ],
        because="fragments are told as they come; only content_block_stop makes arguments of them",
    )


def test_events_are_the_same_wherever_the_reply_is_cut() -> None:
    """Sizes 1, 37 and 5000, and each of the 1,230 places in the bytes, in 这 too (step 10.2)."""
    whole = RECORDED_RESPONSE.encode()

    async def outcome(reads: Iterable[bytes]) -> list[ModelEvent]:
        return await tell(stream_of(reads))

    async def check() -> None:
        expected = await outcome([whole])
        assert_same(
            expected[-1],
            DoneEvent("toolUse", RECORDED_MESSAGE),
            because="the whole reply in one read is one message with a sentence and a call",
        )
        for size in (1, 37, 5000):
            assert_same(
                await outcome(to_chunks(RECORDED_RESPONSE, size)),
                expected,
                because=f"the reply was cut every {size} characters; a cut is no event",
            )
        assert_same(
            await outcome(pieces(whole, 1)), expected, because="the reply came byte by byte"
        )
        for cut, (left, right) in every_cut(whole):
            assert_same(
                await outcome([left, right]),
                expected,
                because=f"the reply was cut after byte {cut}; a cut is no event",
            )

    run(check())


def test_events_of_interleaved_blocks_keep_their_places() -> None:
    """Blocks stand in the order in which they start, whatever their numbers (step 10.2)."""
    reply = wire(
        START,
        start_call(4, "call-1", "read"),
        json_delta(4, '{"path":'),
        start_text(1),
        text_delta(1, "先读"),
        start_call(2, "call-2", "search"),
        json_delta(2, '{"query":'),
        json_delta(4, '"README.md"}'),
        text_delta(1, "，再查"),
        stop_block(4),
        json_delta(2, '"pi"}'),
        stop_block(2),
        stop_block(1),
        *stops_for("tool_use"),
    )
    read = ToolCall("call-1", "read", {"path": "README.md"}, '{"path":"README.md"}')
    search = ToolCall("call-2", "search", {"query": "pi"}, '{"query":"pi"}')

    events = translate([reply])

    assert_same(
        [where_and_what(event) for event in events[1:-1]],
        [
            (0, '{"path":'),
            (1, "先读"),
            (2, '{"query":'),
            (0, '"README.md"}'),
            (1, "，再查"),
            (0, plain(read)),
            (2, '"pi"}'),
            (2, plain(search)),
        ],
        because="the provider's index finds the open block; content_index is its place in ours",
    )
    assert_same(
        events[-1],
        DoneEvent(
            "toolUse",
            assistant_message(
                [read, TextContent("先读，再查"), search], "toolUse", usage=Usage(7, 1)
            ),
        ),
        because="the content holds the blocks in the order of their starts",
    )


def where_and_what(event: ModelEvent) -> tuple[int, Any] | str:
    match event:
        case TextDeltaEvent() | ToolCallDeltaEvent():
            return event.content_index, event.delta
        case ToolCallEndEvent():
            return event.content_index, plain(event.tool_call)
        case _:
            return event.type


# 10.3 How a reply ends


def test_failure_of_arguments_keeps_their_text() -> None:
    """Arguments must be a JSON object; no text at all is {} (step 10.3)."""

    def reply(*fragments: str) -> list[bytes]:
        deltas = [json_delta(0, fragment) for fragment in fragments]
        call = start_call(0, "call-1", "calc")
        return [wire(START, call, *deltas, stop_block(0), *stops_for("tool_use"))]

    for raw in ('{"expres', "[1]", '"12*8"'):
        rule = f"the arguments {raw} are not a JSON object: an `error` event that holds the text"
        said, content = failure(reply(raw[:2], raw[2:]), because=rule)
        assert_says(said, raw, because=rule)
        assert_same(
            content,
            (ToolCall("call-1", "calc", None, raw),),
            because="the call stays in the content with its raw text, and without arguments",
        )
    for fragments in ((), ("", " ")):
        last = translate(reply(*fragments))[-1]
        assert_same(
            [block.arguments for block in content_of(last) if isinstance(block, ToolCall)],
            [{}],
            because="a tool without parameters is called with no text at all: that is {}",
        )


def content_of(event: ModelEvent) -> tuple[ContentBlock, ...]:
    return event.message.content if isinstance(event, DoneEvent) else ()


def test_failure_mid_stream_keeps_the_partial() -> None:
    """A stream that breaks off, or reports an error, is an `error` with what came (step 10.3)."""
    begun = wire(START, start_text(0), text_delta(0, "这个我"))
    error = {"error": {"type": "overloaded_error", "message": "Overloaded"}}
    kept = (TextContent("这个我"),)

    said, content = failure([begun], because="without message_stop a reply is not complete")
    assert_says(said, "message_stop", because="the message says what is missing")
    assert_same(content, kept, because="what had arrived before the end stays")

    ended = begun + wire(stop_block(0), stops_for("end_turn")[0])
    said, content = failure([ended], because="a stop_reason alone is no end: message_stop is")
    assert_same(content, kept, because="what had arrived before the end stays")

    rule = "`event: error` may come after a 200 and in the middle of a reply"
    said, content = failure([begun + wire(("error", error))], because=rule)
    assert_says(said, "Overloaded", because="the message holds the provider's words")
    assert_same(content, kept, because="what had arrived before the error stays")

    rule = "a payload that is not JSON is an error that shows it"
    said, content = failure([begun + b'event: message_delta\ndata: {"type":"m\n\n'], because=rule)
    assert_says(said, '{"type":"m', because=rule)
    assert_same(content, kept, because="what had arrived before the broken payload stays")


def test_failure_or_not_is_what_the_stop_reason_says() -> None:
    """A limit is `length`; a refusal and an unknown reason are errors (step 10.3)."""
    known = {
        "end_turn": "stop",
        "stop_sequence": "stop",
        "pause_turn": "stop",
        "tool_use": "toolUse",
        "max_tokens": "length",
        "refusal": "error",
    }
    assert_same(
        {reason: map_stop_reason(reason) for reason in known},
        known,
        because="each of the provider's stop reasons has one of ours",
    )

    def reply(*end: tuple[str, Mapping[str, Any]]) -> list[bytes]:
        return [wire(START, start_text(0), text_delta(0, "这个我"), stop_block(0), *end)]

    said, content = failure(
        reply(*stops_for("weather")), because="an unknown stop_reason is an error, and no `stop`"
    )
    assert_says(said, "weather", because="the message names the unknown stop_reason")
    assert_same(content, (TextContent("这个我"),), because="the text stays")

    details = {"type": "refusal", "explanation": "This is not allowed here."}
    said, _ = failure(
        reply(*stops_for("refusal", stop_details=details)), because="a refusal is an error"
    )
    assert_says(said, "not allowed here", because="the provider's explanation is the message")

    half = wire(START, start_call(0, "call-1", "calc"), json_delta(0, '{"expres'), stop_block(0))
    cut = assistant_message(
        [ToolCall("call-1", "calc", None, '{"expres')], "length", usage=Usage(7, 1)
    )
    assert_same(
        translate([half, wire(*stops_for("max_tokens"))])[-1],
        DoneEvent("length", cut),
        because="arguments that max_tokens cut off are no broken ones: they stay raw, in `length`",
    )


# 10.4 One request, and the key


def test_http_request_is_exact() -> None:
    """POST to /v1/messages with the key, the version and the body (step 10.4)."""
    requests: list[httpx.Request] = []
    client = client_of(recorded(), requests)
    model = AnthropicModel(
        api_key=KEY,
        model="test-model",
        base_url="https://provider.test/prefix/",
        max_tokens=100,
        client=client,
    )

    async def ask() -> AssistantMessage:
        stream = model.stream(CONTEXT)
        await tell(stream)
        return await stream.result()

    message = run(ask())

    shown = ("x-api-key", "anthropic-version", "content-type", "authorization")
    assert_same(
        [
            (
                request.method,
                str(request.url),
                {name: request.headers[name] for name in shown if name in request.headers},
                json.loads(request.content),
            )
            for request in requests
        ],
        [
            (
                "POST",
                "https://provider.test/prefix/v1/messages",
                {
                    "x-api-key": KEY,
                    "anthropic-version": "2023-06-01",
                    "content-type": "application/json",
                },
                {
                    "model": "test-model",
                    "max_tokens": 100,
                    "messages": [{"role": "user", "content": [wire_text("算一下 12*8")]}],
                    "stream": True,
                },
            )
        ],
        because="one request; the key is in `x-api-key`, and there is no `Authorization`",
    )
    assert_same(
        replace(message, timestamp=0),
        replace(RECORDED_MESSAGE, provider="anthropic", model="test-model"),
        because="the response is read through the three stages into one message",
    )


def test_http_error_is_the_status_and_the_providers_words() -> None:
    """The body of a failed request is one JSON object, and no event stream (step 10.4)."""
    error = {"type": "error", "error": {"type": "not_found_error", "message": "model: nope"}}

    async def json_error(request: httpx.Request) -> httpx.Response:
        return httpx.Response(404, json=error)

    async def text_error(request: httpx.Request) -> httpx.Response:
        return httpx.Response(503, text="no upstream")

    async def no_connection(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("connection refused")

    for answer, parts in (
        (json_error, ("404", "model: nope")),
        (text_error, ("503", "no upstream")),
        (no_connection, ("connection refused",)),
    ):
        event = run(tell(model_with(client_of(answer)).stream(CONTEXT)))[-1]
        said = (event.message.error_message or "") if isinstance(event, ErrorEvent) else ""
        for part in parts:
            assert_says(
                said, part, because="an HTTP error is told as its status and the body's words"
            )


def test_http_abort_keeps_the_partial_and_closes_the_response() -> None:
    """An abort is an `error` event with `aborted`, also while a server stalls (step 10.4)."""
    signal = AbortSignal()
    body = Body(wire(START, start_text(0), text_delta(0, "这个我")), stalls=True)

    async def abort_in_the_text() -> list[ModelEvent]:
        stream = model_with(client_of(body)).stream(CONTEXT, StreamOptions(signal))
        events: list[ModelEvent] = []
        async for event in stream:
            events.append(event)
            if event.type == "text_delta":
                signal.abort()
        return events

    rule = "an abort ends the reply at once: each read is raced against the signal"
    events = run(soon(abort_in_the_text(), because=rule))

    last = comparable(events[-1])
    if not isinstance(last, ErrorEvent):
        fail(f"expected an `error` event, got {last!r}")
        return
    assert_same(
        (last.reason, last.message.stop_reason, last.message.content, last.message.usage),
        ("aborted", "aborted", (TextContent("这个我"),), Usage(7, 1)),
        because="an abort keeps what had arrived, and the tokens that were counted",
    )
    assert_same(body.closed, True, because="whoever opens a response closes it, on every way out")

    async def never(request: httpx.Request) -> httpx.Response:
        connecting.set()
        await asyncio.Event().wait()
        raise AssertionError("the wait has no end")

    connecting = asyncio.Event()

    async def abort_before_the_answer() -> str:
        signal = AbortSignal()
        stream = model_with(client_of(never)).stream(CONTEXT, StreamOptions(signal))
        result = asyncio.ensure_future(stream.result())
        await connecting.wait()
        signal.abort()
        return (await result).stop_reason

    rule = "an abort does not wait for a server to answer: sending is raced, too"
    assert_same(run(soon(abort_before_the_answer(), because=rule)), "aborted", because=rule)


def test_key_is_in_one_header_and_nowhere_else() -> None:
    """Not in a repr, not in an error; a broken one is not even sent (step 10.4)."""

    async def echo(request: httpx.Request) -> httpx.Response:
        return httpx.Response(401, text=f"bad key: {request.headers['x-api-key']}")

    async def raises(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError(f"while sending {dict(request.headers)}")

    for answer in (echo, raises):
        model = model_with(client_of(answer))
        events = run(tell(model.stream(CONTEXT)))
        for shown in (repr(model), str(model), repr(events)):
            if KEY in shown:
                fail(f"expected no key, got {shown}\nthe key is nowhere but in the header")
        assert_says(repr(events), "[redacted]", because="the rest of the error is still told")

    for broken in (f"{KEY}\n", f"{KEY}钥", " "):
        requests: list[httpx.Request] = []
        event = run(tell(model_with(client_of(recorded(), requests), broken).stream(CONTEXT)))[-1]
        said = event.message.error_message or "" if isinstance(event, ErrorEvent) else ""
        assert_same(len(requests), 0, because=f"the key {broken!r} fits no header: nothing is sent")
        assert_says(said.lower(), "key", because="the message says that the key is at fault")
        if KEY in said:
            fail(f"expected no key, got {said!r}\na broken key is a key, too")


# 10.5 The choice, and the one place that is rewired


def test_select_by_environment() -> None:
    """Anthropic, then OpenAI-compatible, else scripted; the reason holds no key (step 10.5)."""
    environments: list[tuple[dict[str, str], str]] = [
        ({}, "scripted"),
        ({"ANTHROPIC_API_KEY": " ", "OPENAI_API_KEY": ""}, "scripted"),
        ({"ANTHROPIC_API_KEY": KEY}, "anthropic"),
        ({"ANTHROPIC_API_KEY": KEY, "OPENAI_API_KEY": KEY}, "anthropic"),
        ({"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": "http://127.0.0.1:8080/v1"}, "openai"),
        ({"ANTHROPIC_API_KEY": "  ", "OPENAI_API_KEY": KEY}, "openai"),
    ]
    assert_same(
        [choose_model(env).kind for env, _ in environments],
        [kind for _, kind in environments],
        because="ANTHROPIC_API_KEY comes before OPENAI_API_KEY, and a blank key is no key",
    )
    for env, _ in environments:
        reason = choose_model(env).reason
        if KEY in reason or not reason:
            fail(f"expected a reason without the key, got {reason!r}")

    requests: list[httpx.Request] = []
    settings = {
        "MINI_AGENT_MODEL": "test-model",
        "ANTHROPIC_BASE_URL": "https://one.test",
        "OPENAI_BASE_URL": "https://two.test/v1",
    }
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY"):
        _, model = create_model(settings | {name: KEY}, client_of(Body(), requests))
        run(tell(model.stream(CONTEXT)))
    assert_same(
        [(str(request.url), json.loads(request.content)["model"]) for request in requests],
        [
            ("https://one.test/v1/messages", "test-model"),
            ("https://two.test/v1/chat/completions", "test-model"),
        ],
        because="the chosen model is asked at its own address, under the name that is set",
    )
    choice, model = create_model({})
    assert_same(
        (choice, type(model)),
        (choose_model({}), ScriptedModel),
        because="without a key the model is the scripted one, and needs no network",
    )


def test_main_asks_the_model_that_was_chosen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`main` hands the environment to `create_model` and takes what comes (step 10.5)."""
    environments: list[Mapping[str, str]] = []

    def chosen(
        env: Mapping[str, str], client: object = None, **options: object
    ) -> tuple[ModelChoice, Model]:
        environments.append(dict(env))
        return ModelChoice("scripted", "the test says so"), ScriptedModel(["我是另一个模型。"])

    monkeypatch.setattr(select, "create_model", chosen)
    monkeypatch.setattr(mini_agent.main, "create_model", chosen, raising=False)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("你好\n".encode())))
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    monkeypatch.delenv("MINI_AGENT_SESSIONS", raising=False)

    code = mini_agent.main.main([])

    shown = capsys.readouterr().out
    assert_says(shown, "我是另一个模型。", because="the model that create_model returns answers")
    assert_same(code, 0, because="a prompt that was answered is exit code 0")
    assert_same(
        [env.get("ANTHROPIC_API_KEY") for env in environments],
        [KEY],
        because="create_model is called once, with the environment of the process",
    )
    if KEY in shown:
        fail(f"expected no key, got {shown!r}")
