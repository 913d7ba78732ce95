"""Chapter 05: one model call, from the agent's messages to HTTP and back."""

import asyncio
import copy
import json
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import httpx

from grader.testing import aiter_of, assert_same, collect, fail, plain, run, soon
from mini_agent.abort import AbortError, AbortSignal
from mini_agent.events import (
    DoneEvent,
    ErrorEvent,
    ModelEvent,
    StartEvent,
    TextDeltaEvent,
    ToolCallDeltaEvent,
    ToolCallEndEvent,
)
from mini_agent.model import StreamOptions
from mini_agent.provider_adapter import (
    FinishChunk,
    ProviderChunk,
    ProviderModel,
    ProviderRequest,
    ProviderTransport,
    TextChunk,
    ToolChunk,
    fixed_transport,
    to_provider_messages,
    to_provider_tools,
)
from mini_agent.providers.openai_compatible import (
    OpenAICompatibleTransport,
    sanitized_transport_error,
)
from mini_agent.sse import SseMessage, decode_chunks, read_sse_messages
from mini_agent.types import (
    AgentContext,
    AssistantMessage,
    TextContent,
    ToolCall,
    ToolDefinition,
    ToolResultMessage,
    Usage,
    assistant_message,
    text,
    user_message,
)

KEY = "test-key-05"
CONTEXT = AgentContext((user_message("读取 README.md", 1),))
REQUEST = ProviderRequest("test-model", [{"role": "user", "content": "读取 README.md"}])


def final(*content: TextContent | ToolCall, **fields: Any) -> AssistantMessage:
    """The message that a reply of these tests ends in; its time is left out of the comparison."""
    return assistant_message(content, provider="test", model="test-model", timestamp=0, **fields)


def model_of(transport: ProviderTransport) -> ProviderModel:
    return ProviderModel(transport, provider="test", model="test-model")


async def tell(model: ProviderModel, signal: AbortSignal | None = None) -> list[ModelEvent]:
    """All events of one reply. Fails if `result()` is another message than the last event's."""
    stream = model.stream(CONTEXT, StreamOptions(signal=signal))
    events = await soon(
        collect(stream), because="the stream must end by itself, in `done` or in `error`"
    )
    last = events[-1]
    not_written(last)
    if not isinstance(last, DoneEvent | ErrorEvent):
        fail(f"the last event must be `done` or `error`, and it is {last!r}")
    else:
        assert_same(
            await stream.result(), last.message, because="result() gives the last event's message"
        )
    return [without_time(event) for event in events]


def not_written(event: ModelEvent) -> None:
    """Say it plainly where the stream has made an `error` event of a body not yet written."""
    said = error_text(event)
    if said.startswith("step 5."):
        raise NotImplementedError(said)


def error_text(event: ModelEvent) -> str:
    """What an `error` event says; "" for any other event."""
    return (event.message.error_message or "") if isinstance(event, ErrorEvent) else ""


def without_time(event: ModelEvent) -> ModelEvent:
    match event:
        case DoneEvent() | ErrorEvent():
            return replace(event, message=replace(event.message, timestamp=0))
        case _:
            return event


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


def sse(*payloads: object) -> bytes:
    """One SSE message for each payload, then the one that says it is over."""
    data = [json.dumps(payload, ensure_ascii=False) for payload in payloads]
    return "".join(f"data: {line}\n\n" for line in [*data, "[DONE]"]).encode()


def choice(delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}


def tool_delta(index: int, arguments: str, **call: Any) -> dict[str, Any]:
    """A payload with one piece of one tool call."""
    function: dict[str, Any] = {"arguments": arguments}
    if "name" in call:
        function["name"] = call.pop("name")
    return choice({"tool_calls": [{"index": index, **call, "function": function}]})


Handler = Callable[[httpx.Request], Awaitable[httpx.Response]]


def transport_to(
    answer: Body | Handler, base_url: str = "https://provider.test/v1"
) -> OpenAICompatibleTransport:
    """The real transport over an httpx client that has no network."""

    async def handler(request: httpx.Request) -> httpx.Response:
        if isinstance(answer, Body):
            return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=answer)
        return await answer(request)

    client = httpx.AsyncClient(transport=httpx.MockTransport(handler))
    return OpenAICompatibleTransport(base_url=base_url, api_key=KEY, client=client)


# 5.1 Types and outbound conversion


def test_outbound_full_context_becomes_wire_messages_and_tools() -> None:
    """Four roles and the tools are written as the provider has them (step 5.1)."""
    parameters = {"type": "object", "properties": {"path": {"type": "string"}}}
    context = AgentContext(
        system_prompt="回答要简洁。",
        messages=(
            user_message((text("读取 "), text("README.md")), 1),
            assistant_message(
                [ToolCall("call-1", "read", {"path": "README.md"}, '{"path":"README.md"}')],
                "toolUse",
            ),
            ToolResultMessage("call-1", "read", (text("# Project"),), timestamp=1),
            assistant_message(
                [
                    text("再读一个。"),
                    ToolCall("call-2", "read", {"path": "a.md"}, '{ "path" : "a.md" }'),
                ],
                "toolUse",
            ),
        ),
        tools=(ToolDefinition("read", "Read a file.", parameters),),
    )
    before = copy.deepcopy(context)

    assert_same(
        to_provider_messages(context),
        [
            {"role": "system", "content": "回答要简洁。"},
            {"role": "user", "content": "读取 README.md"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [wire_call("call-1", '{"path":"README.md"}')],
            },
            {"role": "tool", "tool_call_id": "call-1", "name": "read", "content": "# Project"},
            {
                "role": "assistant",
                "content": "再读一个。",
                "tool_calls": [wire_call("call-2", '{ "path" : "a.md" }')],
            },
        ],
        because="system prompt first; raw arguments go back character by character as they came",
    )
    without_raw = assistant_message([ToolCall("call-3", "read", {"path": "说明.md"})], "toolUse")
    (wire,) = to_provider_messages(AgentContext((without_raw,)))
    assert_same(
        json.loads(wire["tool_calls"][0]["function"]["arguments"]),
        {"path": "说明.md"},
        because="call-3 has no raw arguments, so its `arguments` are written as JSON text",
    )
    assert_same(
        to_provider_tools(context.tools),
        [
            {
                "type": "function",
                "function": {
                    "name": "read",
                    "description": "Read a file.",
                    "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
                },
            }
        ],
        because="each tool is wrapped as the provider wants it",
    )
    assert_same(to_provider_tools(()), None, because="no tools: None, and never an empty list")
    assert_same(
        to_provider_messages(CONTEXT),
        [{"role": "user", "content": "读取 README.md"}],
        because="no system prompt: no system message",
    )
    assert_same(plain(context), plain(before), because="the conversion reads the context only")


def wire_call(id: str, arguments: str) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": "read", "arguments": arguments}}


# 5.2 Normalized transport


def test_normalized_text_deltas_build_cumulative_partials() -> None:
    """Each event's partial is the whole text so far, and stays as it was (step 5.2)."""
    model = model_of(
        fixed_transport(
            [TextChunk("正在"), TextChunk("读取"), FinishChunk("stop", Usage(output=2))]
        )
    )

    events = run(tell(model))

    assert_same(
        events,
        [
            StartEvent(()),
            TextDeltaEvent(0, "正在", (text("正在"),)),
            TextDeltaEvent(0, "读取", (text("正在读取"),)),
            DoneEvent("stop", final(text("正在读取"), stop_reason="stop", usage=Usage(output=2))),
        ],
        because="a partial holds all the text so far; the finish brings reason and usage",
    )


def test_normalized_two_tools_keep_their_content_slots() -> None:
    """Content stands in order of first appearance, whatever the provider's index (step 5.2)."""
    model = model_of(
        fixed_transport(
            [
                ToolChunk(4, "call-4", "read", '{"path":'),
                TextChunk("先读"),
                ToolChunk(2, "call-2", "search", '{"query":'),
                ToolChunk(4, arguments_delta='"README.md"}'),
                TextChunk("，再查"),
                ToolChunk(2, arguments_delta='"pi"}'),
                FinishChunk("tool_calls"),
            ]
        )
    )

    def read(raw: str, arguments: dict[str, Any] | None = None) -> ToolCall:
        return ToolCall("call-4", "read", arguments, raw)

    def search(raw: str, arguments: dict[str, Any] | None = None) -> ToolCall:
        return ToolCall("call-2", "search", arguments, raw)

    half_read, half_search = read('{"path":'), search('{"query":')
    raw_read, raw_search = read('{"path":"README.md"}'), search('{"query":"pi"}')
    whole_read = read('{"path":"README.md"}', {"path": "README.md"})
    whole_search = search('{"query":"pi"}', {"query": "pi"})
    first, both = text("先读"), text("先读，再查")
    expected = [
        StartEvent(()),
        ToolCallDeltaEvent(0, '{"path":', (half_read,)),
        TextDeltaEvent(1, "先读", (half_read, first)),
        ToolCallDeltaEvent(2, '{"query":', (half_read, first, half_search)),
        ToolCallDeltaEvent(0, '"README.md"}', (raw_read, first, half_search)),
        TextDeltaEvent(1, "，再查", (raw_read, both, half_search)),
        ToolCallDeltaEvent(2, '"pi"}', (raw_read, both, raw_search)),
        ToolCallEndEvent(0, whole_read, (whole_read, both, raw_search)),
        ToolCallEndEvent(2, whole_search, (whole_read, both, whole_search)),
        DoneEvent("toolUse", final(whole_read, both, whole_search, stop_reason="toolUse")),
    ]

    assert_same(
        run(tell(model)),
        expected,
        because="tools 4 and 2 and the text keep the slots 0, 2 and 1 in which they first came",
    )
    assert_same(
        run(tell(model)),
        expected,
        because="a second stream() of the same model begins with nothing: state belongs to a call",
    )


def test_normalized_failure_and_length_keep_what_arrived() -> None:
    """What arrived before a failure or a cut is in the final message, unparsed (step 5.2)."""
    arrived: list[ProviderChunk] = [
        TextChunk("先读"),
        ToolChunk(0, "call-1", "read", '{"path":"READ'),
    ]
    kept = (text("先读"), ToolCall("call-1", "read", None, '{"path":"READ'))

    def last_of(transport: ProviderTransport) -> ModelEvent:
        events = run(tell(model_of(transport)))
        ended = [event for event in events if isinstance(event, ToolCallEndEvent)]
        assert_same(ended, [], because="the call never became complete, so nothing says it ended")
        return events[-1]

    assert_same(
        last_of(fixed_transport(arrived, error=RuntimeError("connection lost"))),
        ErrorEvent("error", final(*kept, stop_reason="error", error_message="connection lost")),
        because="the transport raised: an `error` event with its text and with what had arrived",
    )
    assert_same(
        last_of(fixed_transport(arrived, error=AbortError("stopped by the user"))),
        ErrorEvent(
            "aborted", final(*kept, stop_reason="aborted", error_message="stopped by the user")
        ),
        because="an AbortError is the user's wish and no failure: the reason is `aborted`",
    )
    assert_same(
        last_of(fixed_transport([*arrived, FinishChunk("length", Usage(output=9))])),
        DoneEvent("length", final(*kept, stop_reason="length", usage=Usage(output=9))),
        because="`length` cut the reply: raw_arguments stay as text and arguments stay None",
    )


# 5.3 SSE and the unknown boundary


def test_sse_interleaved_arguments_survive_splits() -> None:
    """Where a read ends means nothing: not to an id, and not to a character (step 5.3)."""
    body = sse(
        tool_delta(0, '{"path":', id="call-1", type="function", name="read"),
        tool_delta(1, '{"query":', id="call-2", type="function", name="search"),
        tool_delta(0, '"README.md"}'),
        tool_delta(1, '"流式"}'),
        choice({}, "tool_calls"),
    )
    in_id = body.index(b"call-1") + len(b"call-")
    in_character = body.index("流".encode()) + 1
    reads = (body[:in_id], body[in_id:in_character], body[in_character:])

    async def messages() -> list[SseMessage]:
        return await collect(read_sse_messages(decode_chunks(aiter_of(*reads))))

    assert_same(
        run(messages()),
        [SseMessage(line.removeprefix("data: ")) for line in body.decode().split("\n\n")[:-1]],
        because="three reads, cut after `call-` and after the first of the three bytes of 流, "
        "are still six messages",
    )
    assert_same(
        run(collect(transport_to(Body(*reads)).stream(REQUEST))),
        [
            ToolChunk(0, "call-1", "read", '{"path":'),
            ToolChunk(1, "call-2", "search", '{"query":'),
            ToolChunk(0, arguments_delta='"README.md"}'),
            ToolChunk(1, arguments_delta='"流式"}'),
            FinishChunk("tool_calls"),
        ],
        because="each payload becomes its chunk; index, id and fragments keep their values",
    )


def test_sse_finish_and_trailing_usage_merge_into_one_finish() -> None:
    """The finish reason waits for the usage that comes behind it (step 5.3)."""
    usage = {
        "prompt_tokens": 12,
        "completion_tokens": 2,
        "total_tokens": 14,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
    body = Body(
        sse(
            choice({"role": "assistant", "content": "正在读取"}),
            choice({}, "stop") | {"usage": None},
            {"choices": [], "usage": usage},
        )
    )

    chunks = run(collect(transport_to(body).stream(REQUEST)))

    assert_same(
        chunks,
        [
            TextChunk("正在读取"),
            FinishChunk("stop", Usage(input=8, output=2, cache_read=4, total=14)),
        ],
        because="one finish, last, with both; of 12 prompt tokens 4 came from the cache",
    )


def test_sse_missing_finish_is_an_error_that_keeps_the_partial() -> None:
    """`[DONE]` says that the stream is over, and not that the reply is whole (step 5.3)."""
    events = run(tell(model_of(transport_to(Body(sse(choice({"content": "正在"})))))))

    last = events[-1]
    said = error_text(last)
    assert_same(
        [event.type for event in events],
        ["start", "text_delta", "error"],
        because="text came, and no finish_reason: the reply was cut off"
        + (f"; its error says {said!r}" if said else ""),
    )
    assert isinstance(last, ErrorEvent)
    assert_same(
        (last.reason, last.message),
        ("error", final(text("正在"), stop_reason="error", error_message=said)),
        because="the error keeps what had arrived",
    )
    assert_same(bool(said), True, because="and it says in words what is missing")


def test_sse_cancel_mid_stream_is_aborted_and_closes_the_response() -> None:
    """A signal is heard while a read waits, and the response is closed (step 5.3)."""
    start = sse(choice({"content": "正在"})).removesuffix(b"data: [DONE]\n\n")
    body = Body(start, stalls=True)

    async def abort_at_first_text() -> ModelEvent:
        signal = AbortSignal()
        stream = model_of(transport_to(body)).stream(CONTEXT, StreamOptions(signal=signal))
        async for event in stream:
            if isinstance(event, TextDeltaEvent):
                signal.abort("stopped by the user")
        not_written(event)
        return without_time(event)

    heard = "the provider has stalled: the abort must be heard in the middle of a read"
    last = run(soon(abort_at_first_text(), because=heard))
    assert_same(
        last,
        ErrorEvent(
            "aborted",
            final(text("正在"), stop_reason="aborted", error_message="stopped by the user"),
        ),
        because="an abort is one `error` event with the reason `aborted` and the text so far; "
        f"this one says {error_text(last)!r}",
    )
    assert_same(body.closed, True, because="an abort must close the response")

    body = Body(start, stalls=True)

    async def abort_the_transport_alone() -> list[ProviderChunk]:
        signal = AbortSignal()
        chunks = []
        try:
            async for chunk in transport_to(body).stream(REQUEST, signal=signal):
                chunks.append(chunk)
                asyncio.get_running_loop().call_soon(signal.abort)
        except AbortError:
            return chunks
        raise AssertionError("the transport must raise AbortError when its signal is aborted")

    assert_same(
        run(soon(abort_the_transport_alone(), because=heard)),
        [TextChunk("正在")],
        because="the transport hears the signal by itself, whoever reads it",
    )
    assert_same(body.closed, True, because="an abort must close the response")


def test_sse_invalid_field_and_unknown_finish_reason_are_named() -> None:
    """What the provider sends is unknown until a check has named it (step 5.3)."""

    def message_after(payload: object) -> AssistantMessage:
        body = Body(sse(choice({"content": "正在"}), payload, choice({}, "stop")))
        last = run(tell(model_of(transport_to(body))))[-1]
        if not isinstance(last, ErrorEvent):
            fail(f"{json.dumps(payload)} must end in an `error` event, and it ended in {last!r}")
        assert isinstance(last, ErrorEvent)
        assert_same(
            last.message.content,
            (text("正在"),),
            because=f"an error keeps the partial; this one says {error_text(last)!r}",
        )
        return last.message

    assert_same(
        message_after({"choices": [{"delta": {"content": 42}}]}).error_message,
        "Invalid provider chunk: choices[0].delta.content must be a string",
        because="the error names the field by its path, and says what it must be",
    )
    for payload, path in [
        ({"choices": "none"}, "choices"),
        ({"choices": [{"delta": "text"}]}, "choices[0].delta"),
        (tool_delta(-1, "{}"), "choices[0].delta.tool_calls[0].index"),
        (tool_delta(0, "{}", id=7), "choices[0].delta.tool_calls[0].id"),
        ({"choices": [], "usage": {"prompt_tokens": "12"}}, "usage.prompt_tokens"),
        ({"choices": [], "usage": {"prompt_tokens": True}}, "usage.prompt_tokens"),
    ]:
        said = message_after(payload).error_message or ""
        if not said.startswith(f"Invalid provider chunk: {path} "):
            fail(
                f'{json.dumps(payload)}\nexpected  "Invalid provider chunk: {path} must be ..."\n'
                f"got       {said!r}\nthe error names the first field that is wrong"
            )
    said = message_after(choice({}, "content_filter")).error_message or ""
    if "content_filter" not in said:
        fail(
            f'finish_reason "content_filter": {said!r} does not name it; a reason that the agent '
            "does not know must not pass for another one"
        )


# 5.4 HTTP and the key


def test_http_request_is_exact_and_abort_cancels_it() -> None:
    """URL, headers and body are as the provider wants them, and it can be stopped (step 5.4)."""
    requests: list[httpx.Request] = []

    async def record(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return httpx.Response(200, stream=Body(sse(choice({}, "stop"))))

    for base_url, url in [
        ("https://provider.test/v1", "https://provider.test/v1/chat/completions"),
        ("https://provider.test/v1/", "https://provider.test/v1/chat/completions"),
        ("http://localhost:11434/a/b", "http://localhost:11434/a/b/chat/completions"),
    ]:
        requests.clear()
        run(collect(transport_to(record, base_url).stream(REQUEST)))
        sent = [(request.method, str(request.url)) for request in requests]
        assert_same(
            sent,
            [("POST", url)],
            because=f"base_url is {base_url!r}: its path stays, and one slash joins the rest",
        )

    tools = [{"type": "function", "function": {"name": "read"}}]
    run(collect(transport_to(record).stream(replace(REQUEST, tools=tools))))
    without_tools, with_tools = requests
    names = ("accept", "authorization", "content-type")
    assert_same(
        {name: with_tools.headers.get(name) for name in names},
        {
            "accept": "text/event-stream",
            "authorization": f"Bearer {KEY}",
            "content-type": "application/json",
        },
        because="three headers; the key stands in `Authorization`",
    )
    body = {
        "model": "test-model",
        "messages": [{"role": "user", "content": "读取 README.md"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert_same(
        json.loads(with_tools.content),
        body | {"tools": tools},
        because="the body is the request, `stream`, and the wish for a usage at the end",
    )
    assert_same(json.loads(without_tools.content), body, because="without tools: no such key")

    async def abort_in_flight() -> list[str]:
        signal, seen = AbortSignal(), []

        async def never_answer(request: httpx.Request) -> httpx.Response:
            asyncio.get_running_loop().call_soon(signal.abort)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                seen.append("request cancelled")
                raise
            raise AssertionError("unreachable")

        try:
            await collect(transport_to(never_answer).stream(REQUEST, signal=signal))
        except AbortError:
            seen.append("AbortError")
        return seen

    assert_same(
        run(soon(abort_in_flight(), because="no answer has come: the abort must stop the request")),
        ["request cancelled", "AbortError"],
        because="an abort while the request waits cancels it, and is an AbortError",
    )


def test_http_key_never_leaves_the_transport() -> None:
    """The key is in the request's header, and in no text that comes out (step 5.4)."""

    async def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError(f"cannot send Authorization: Bearer {KEY}")

    async def unauthorized(request: httpx.Request) -> httpx.Response:
        return httpx.Response(401, json={"error": {"message": f"Incorrect API key: {KEY}"}})

    last = run(tell(model_of(transport_to(refuse))))[-1]
    assert isinstance(last, ErrorEvent)
    assert_same(
        last.message.error_message,
        "cannot send Authorization: Bearer [redacted]",
        because="an error's text leaves the transport with `[redacted]` in the key's place",
    )

    last = run(tell(model_of(transport_to(unauthorized))))[-1]
    assert isinstance(last, ErrorEvent)
    said = last.message.error_message or ""
    for part, reason in [
        ("401", "the status is in the message"),
        ("Incorrect API key: [redacted]", "the provider's own words are in it, without the key"),
    ]:
        if part not in said:
            fail(f"HTTP 401\nexpected  a message with {part!r}\ngot       {said!r}\n{reason}")

    def traceback_of(answer: Handler) -> str:
        try:
            run(collect(transport_to(answer).stream(REQUEST)))
        except Exception as error:
            return "".join(traceback.format_exception(error))
        raise AssertionError("the transport must raise when the request fails")

    for shown, what in [
        (traceback_of(refuse), "a traceback of the transport's error"),
        (traceback_of(unauthorized), "a traceback of the transport's error"),
        (repr(transport_to(refuse)), "the transport's repr"),
    ]:
        if KEY in shown:
            fail(f"{what} shows the key\nraise the new error `from None`, and keep repr() clean")

    kept = sanitized_transport_error(AbortError("stopped by the user"), KEY)
    assert_same(
        (type(kept), str(kept)),
        (AbortError, "stopped by the user"),
        because="an AbortError stays one: only so is an abort known as an abort",
    )
