"""Chapter 05, stretch: the habits of real providers, and every way to cut their streams."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any
from urllib.parse import quote

import httpx
from hypothesis import given
from hypothesis import strategies as st

from grader.testing import aiter_of, assert_same, collect, every_cut, fail, pieces, run, soon
from mini_agent.abort import AbortSignal
from mini_agent.events import ModelEvent, TextDeltaEvent
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
)
from mini_agent.providers.openai_compatible import OpenAICompatibleTransport, parse_provider_chunk
from mini_agent.sse import SseMessage, decode_chunks, read_sse_messages
from mini_agent.types import (
    AgentContext,
    AssistantMessage,
    TextContent,
    ToolCall,
    Usage,
    text,
    tool_calls,
    user_message,
)

KEY = "test-key/05+b"
CONTEXT = AgentContext((user_message("读取 README.md", 1),))
REQUEST = ProviderRequest("test-model", [{"role": "user", "content": "读取 README.md"}])

CALL_1 = '{"index":0,"id":"call-1","type":"function","function":{"name":"read","arguments":"%s"}}'
REPLY = (
    'data: {"choices":[{"delta":{"content":"先读，再查"}}]}\n\n'
    'data: {"choices":[{"delta":{"tool_calls":[' + CALL_1 % r"{\"path\":" + "]}}]}\n\n"
    'data: {"choices":[{"delta":{"tool_calls":['
    r'{"index":0,"function":{"arguments":"\"说明.md\"}"}}]}}]}'
    "\n\n"
    'data: {"choices":[{"delta":{},"finish_reason":"tool_calls"}]}\n\n'
    "data: [DONE]\n\n"
)
REPLY_CHUNKS: list[ProviderChunk] = [
    TextChunk("先读，再查"),
    ToolChunk(0, "call-1", "read", '{"path":'),
    ToolChunk(0, arguments_delta='"说明.md"}'),
    FinishChunk("tool_calls"),
]


class Body(httpx.AsyncByteStream):
    """A response body in these reads; then it ends, breaks with `error`, or stalls for ever."""

    def __init__(
        self, reads: Sequence[bytes], *, error: Exception | None = None, stalls: bool = False
    ) -> None:
        self.reads = reads
        self.error = error
        self.stalls = stalls
        self.closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for read in self.reads:
            yield read
        if self.error is not None:
            raise self.error
        if self.stalls:
            await asyncio.Event().wait()

    async def aclose(self) -> None:
        self.closed = True


class Server:
    """Answers every request with one response, and remembers the requests."""

    def __init__(self, body: Body, status: int = 200, content_type: str | None = None) -> None:
        self.body = body
        self.status = status
        self.headers = {"content-type": content_type} if content_type else {}
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        return httpx.Response(self.status, headers=self.headers, stream=self.body)

    def transport(
        self,
        *,
        base_url: str = "https://provider.test/v1",
        api_key: str = KEY,
        **client: Any,
    ) -> OpenAICompatibleTransport:
        return OpenAICompatibleTransport(
            base_url=base_url,
            api_key=api_key,
            client=httpx.AsyncClient(transport=httpx.MockTransport(self), **client),
        )


def chunks_of(*reads: bytes) -> list[ProviderChunk]:
    """What the transport makes of a body that arrives in these reads."""
    return run(collect(Server(Body(reads)).transport().stream(REQUEST)))


def sse(*payloads: object) -> bytes:
    """One SSE message for each payload; a string is taken as it is."""
    data = [p if isinstance(p, str) else json.dumps(p, ensure_ascii=False) for p in payloads]
    return "".join(f"data: {line}\n\n" for line in data).encode()


def choice(finish_reason: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}


def call(arguments: str | None = None, **fields: Any) -> dict[str, Any]:
    """A payload with a piece of one tool call."""
    function = {"name": fields.pop("name")} if "name" in fields else {}
    return choice(tool_calls=[{**fields, "function": {**function, "arguments": arguments}}])


def model_of(transport: ProviderTransport) -> ProviderModel:
    return ProviderModel(transport, provider="test", model="test-model")


def message_of(transport: ProviderTransport) -> AssistantMessage:
    return run(model_of(transport).stream(CONTEXT).result())


def message_from(*payloads: object) -> AssistantMessage:
    """The message of a reply that the server sends as these payloads."""
    return message_of(Server(Body([sse(*payloads)])).transport())


def assert_error(message: AssistantMessage, *parts: str, content: Sequence[TextContent]) -> None:
    """The message is an error that keeps `content` and whose text holds every part."""
    assert_same(
        (message.stop_reason, message.content),
        ("error", tuple(content)),
        because=f"an error keeps what had arrived; it says {message.error_message!r}",
    )
    for part in parts:
        if part not in (message.error_message or ""):
            fail(f"expected  an error that says {part!r}\ngot       {message.error_message!r}")


async def _sse_messages(*reads: bytes) -> list[SseMessage]:
    return await collect(read_sse_messages(decode_chunks(aiter_of(*reads))))


def sse_messages(*reads: bytes) -> list[SseMessage]:
    return run(_sse_messages(*reads))


# Cuts


def test_cuts_every_byte_position() -> None:
    """No place is too bad for a read to end: the chunks are the same for every cut."""
    body = REPLY.encode()

    async def all_cuts() -> None:
        for at, reads in every_cut(body):
            chunks = await collect(Server(Body(reads)).transport().stream(REQUEST))
            assert_same(chunks, REPLY_CHUNKS, because=f"the body was cut after byte {at}")

    run(all_cuts())
    assert_same(chunks_of(*pieces(body, 1)), REPLY_CHUNKS, because="one byte at a time")


@given(st.data())
def test_cuts_pairs_of_positions(data: st.DataObject) -> None:
    """Two cuts anywhere, in a body with any of the three line ends, change nothing."""
    end = data.draw(st.sampled_from(["\n", "\r\n", "\r"]))
    body = REPLY.replace("\n", end).encode()
    first = data.draw(st.integers(0, len(body)))
    second = data.draw(st.integers(first, len(body)))

    chunks = chunks_of(body[:first], body[first:second], body[second:])

    assert_same(
        chunks, REPLY_CHUNKS, because=f"line end {end!r}, cut after bytes {first} and {second}"
    )


def test_cuts_long_lines_and_long_reads() -> None:
    """One line in 20,000 reads, and 20,000 messages in one read, are read alike."""
    long = b"data: " + b"x" * 20_000
    assert_same(sse_messages(*pieces(long, 1)), [SseMessage("x" * 20_000)], because="one byte each")
    assert_same(
        sse_messages(b"data: x\n\n" * 20_000), [SseMessage("x")] * 20_000, because="all in one read"
    )


# SSE


def test_sse_line_ends() -> None:
    """CR, LF and CRLF end a line, a CRLF cut in two is one end, and U+2028 is none."""
    expected = [SseMessage("a\u2028b\x85c\x0cd"), SseMessage("1\n2", "two")]
    body = "data: a\u2028b\x85c\x0cd\n\nevent: two\ndata: 1\ndata: 2\n\n"
    for end in ("\n", "\r\n", "\r"):
        for at, reads in every_cut(body.replace("\n", end).encode()):
            assert_same(
                sse_messages(*reads), expected, because=f"line end {end!r}, cut after byte {at}"
            )
    for mixed in [
        [b"data: 1\r\n\rdata: 2\n\r\ndata: 3\r\n\r\n"],
        [b"data: 1\r\n\r", b"\ndata: 2", b"\n", b"\n", b"data: 3"],
    ]:
        assert_same(
            sse_messages(*mixed),
            [SseMessage("1"), SseMessage("2"), SseMessage("3")],
            because=f"{mixed}: the three line ends may stand in one stream",
        )


def test_sse_fields() -> None:
    """Comments and unknown fields are passed over, and one space behind the colon is dropped."""
    body = (
        b"\xef\xbb\xbfdata:1\n: a comment\n\n"  # a byte order mark stands in front
        b"id: 7\nretry: 100\nnothing\n\n"  # no data: no message
        b"event: ping\n\n"  # the same
        b"data:  two spaces\n\n"
        b"data\n\n"  # a field without a colon is there, and empty
        b"event: first\nevent: second\ndata: {\ndata: }\n\n"
        b"data: last"  # neither a line end nor a blank line
    )
    expected = [
        SseMessage("1"),
        SseMessage(" two spaces"),
        SseMessage(""),
        SseMessage("{\n}", "second"),
        SseMessage("last"),
    ]
    for reads in ([body], pieces(body, 1)):
        assert_same(sse_messages(*reads), expected, because="the rules of the SSE format")
    assert_same(
        sse_messages(b"data: a\xffb\n\ndata: \xe6\xad"),
        [SseMessage("a\ufffdb"), SseMessage("\ufffd")],
        because="what is not UTF-8 becomes U+FFFD: it is seen, and it stops nothing",
    )


def test_sse_end_of_stream() -> None:
    """A last message without its blank line counts, and what stands behind `[DONE]` does not."""
    cut = REPLY.removesuffix("\n\ndata: [DONE]\n\n")
    for end in ("", "\n", "\n\n"):
        assert_same(
            chunks_of((cut + end).encode()),
            REPLY_CHUNKS,
            because=f"the body ends in {end!r} and has no [DONE]",
        )
    assert_same(
        chunks_of(REPLY.encode() + sse(choice(content="more"))),
        REPLY_CHUNKS,
        because="[DONE] ends the stream",
    )


# What a payload may hold


def test_payload_usage() -> None:
    """The last usage that is not null wins, wherever it stands."""

    def usage(prompt: int, output: int) -> dict[str, Any]:
        return {"prompt_tokens": prompt, "completion_tokens": output}

    def details(cached: int, written: int) -> dict[str, Any]:
        counts = {"cached_tokens": cached, "cache_write_tokens": written}
        return {"total_tokens": 20, "prompt_tokens_details": counts}

    def with_usage(payload: dict[str, Any], value: object) -> dict[str, Any]:
        return {**payload, "usage": value}

    text_chunk = choice(content="正在")
    for payloads, expected, because in [
        (
            [with_usage(text_chunk, None), with_usage(choice("stop"), None)],
            None,
            "`usage: null` is no usage",
        ),
        ([text_chunk, with_usage(choice("stop"), usage(3, 1))], Usage(3, 1), "in the finish"),
        (
            [with_usage(text_chunk, usage(3, 1)), with_usage(choice("stop"), usage(3, 2))],
            Usage(3, 2),
            "on every chunk",
        ),
        (
            [with_usage(text_chunk, usage(3, 1)), with_usage(choice("stop"), None)],
            Usage(3, 1),
            "null after a usage",
        ),
        (
            [text_chunk, {"choices": [{**choice("stop")["choices"][0], "usage": usage(3, 2)}]}],
            Usage(3, 2),
            "in the choice",
        ),
        (
            [text_chunk, choice("stop"), {"usage": usage(3, 2)}],
            Usage(3, 2),
            "behind the finish, without choices",
        ),
        (
            [text_chunk, with_usage(choice("stop"), {**usage(12, 2), **details(4, 3)})],
            Usage(input=5, output=2, cache_read=4, cache_write=3, total=20),
            "what a cache gave or took is no input, and the total is the provider's own",
        ),
        (
            [text_chunk, with_usage(choice("stop"), {**usage(3, 2), **details(4, 0)})],
            Usage(input=0, output=2, cache_read=3, total=20),
            "more cached than prompt tokens: input and cache still add up to the prompt",
        ),
    ]:
        assert_same(
            chunks_of(sse(*payloads)),
            [TextChunk("正在"), FinishChunk("stop", expected)],
            because=because,
        )


def test_payload_without_content() -> None:
    """What holds nothing for the agent does no harm."""
    chunks = chunks_of(
        sse(
            {"choices": [], "prompt_filter_results": [{"prompt_index": 0}]},
            choice(role="assistant", content=None),
            choice(role="assistant", content="", tool_calls=None),
            {"choices": [{"index": 0, "finish_reason": None}]},
            {"choices": [{"index": 0, "delta": None}]},
            "",
            choice("", content="正在", reasoning_content="hm", reasoning=None, annotations=[]),
            {**choice("stop"), "system_fingerprint": None, "error": None, "x": {"y": [1]}},
        )
    )

    assert_same(
        chunks,
        [TextChunk("正在"), FinishChunk("stop")],
        because="empty choices, no delta, no content, empty data, unknown fields: no chunk",
    )


def test_payload_error_inside_the_stream() -> None:
    """A provider that fails after its status 200 says so in the stream, in one of these forms."""
    partial = sse(choice(content="正在"))
    for said in [
        b'data: {"error":{"message":"server is overloaded","code":503}}\n\n',
        b'data: {"error":"server is overloaded"}\n\n',
        b'event: error\ndata: {"message":"server is overloaded"}\n\n',
        b"event: error\ndata: server is overloaded\n\n",
        b'data: {"choices":[{"delta":{},"error":{"message":"server is overloaded"}}]}\n\n',
    ]:
        end = sse(choice("stop"), "[DONE]")
        message = message_of(Server(Body([partial + said + end])).transport())
        assert_error(message, "server is overloaded", content=[text("正在")])


def test_payload_usage_without_a_finish() -> None:
    """A reply that was cut off was paid for: its error keeps the usage."""
    usage = {"prompt_tokens": 3, "completion_tokens": 1}
    message = message_from(choice(content="正在"), {"choices": [], "usage": usage}, "[DONE]")

    assert_error(message, "finish", content=[text("正在")])
    assert_same(message.usage, Usage(3, 1), because="the usage came, the finish_reason did not")


def test_payload_that_is_not_handled() -> None:
    """What the agent cannot show is an error that names it, and is never left out."""
    for payload, part in [
        ({"object": "chat.completion.chunk"}, "choices must be an array"),
        ({"choices": [1]}, "choices[0] must be an object"),
        (choice(tool_calls={}), "choices[0].delta.tool_calls must be an array"),
        (choice(tool_calls=[1]), "choices[0].delta.tool_calls[0] must be an object"),
        (
            choice(tool_calls=[{"function": "read"}]),
            "choices[0].delta.tool_calls[0].function must be an object",
        ),
        (
            call("{}", index=0, name=1),
            "choices[0].delta.tool_calls[0].function.name must be a string",
        ),
        (
            choice(tool_calls=[{"function": {"arguments": {}}}]),
            "choices[0].delta.tool_calls[0].function.arguments must be a string",
        ),
        ({"choices": [{"finish_reason": 1}]}, "choices[0].finish_reason must be a string"),
        ({"choices": [], "usage": [1]}, "usage must be an object"),
        ({"choices": [{"usage": 1}]}, "choices[0].usage must be an object"),
        (
            {"choices": [], "usage": {"prompt_tokens_details": 1}},
            "usage.prompt_tokens_details must be an object",
        ),
        *(
            ({"choices": [], "usage": {field: -1}}, f"usage.{field} must be")
            for field in ("prompt_tokens", "completion_tokens", "total_tokens")
        ),
        *(
            (
                {"choices": [], "usage": {"prompt_tokens_details": {field: 1.5}}},
                f"usage.prompt_tokens_details.{field} must be",
            )
            for field in ("cached_tokens", "cache_write_tokens")
        ),
        (choice(content=[{"type": "text", "text": "读"}]), "choices[0].delta.content"),
        ({"choices": [choice()["choices"][0]] * 2}, "choices"),
        ("[1]", "payload must be an object"),
        ('{"choices":[', "payload must be JSON"),
        (choice("function_call"), "function_call"),
        (choice("stop", function_call={"name": "read"}), "choices[0].delta.function_call"),
    ]:
        message = message_from(choice(content="正在"), payload, choice("stop"))
        assert_error(message, part, content=[text("正在")])


def test_payload_text_and_parsed_json_are_one() -> None:
    """`parse_provider_chunk` takes a message's data as it came, or parsed."""
    payload = choice("stop", content="正在")
    for form in (payload, json.dumps(payload)):
        assert_same(
            list(parse_provider_chunk(form)),
            [TextChunk("正在"), FinishChunk("stop")],
            because="one payload, and its chunks in order",
        )
    assert_same(list(parse_provider_chunk('{"choices":[]}')), [], because="nothing in it")


# Tool calls


def test_calls_id_and_name_are_set_once() -> None:
    """The first id and the first name stay; later ones may repeat, be empty, be null or be late."""
    whole = ToolCall("call-1", "read", {"path": "a"}, '{"path":"a"}')
    deltas: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"id": "call-1", "name": "read"}, {"id": "call-1", "name": "read"}),
        ({"id": "call-1", "name": "read"}, {"id": "", "name": ""}),
        ({"id": "call-1", "name": "read"}, {"id": None, "name": None}),
        ({"id": "call-1"}, {"name": "read"}),
        ({"name": "read"}, {"id": "call-1"}),
    ]
    for first, second in deltas:
        message = message_from(
            call('{"path":', index=0, **first),
            call(None, index=0),
            call('"a"}', index=0, **second),
            choice("tool_calls"),
        )
        assert_same(
            (message.stop_reason, tool_calls(message)),
            ("toolUse", (whole,)),
            because=f"first {first}, then {second}: one call; `arguments: null` is no fragment",
        )


def test_calls_with_a_missing_or_reused_index() -> None:
    """Two ids are never one call, whatever the provider does with its index."""
    two = (
        ToolCall("call-1", "read", {"path": "a"}, '{"path":"a"}'),
        ToolCall("call-2", "read", {"path": "b"}, '{"path":"b"}'),
    )
    habits: list[tuple[dict[str, Any], str]] = [
        ({}, "no index: a new id opens a call, and what has no id continues it"),
        ({"index": None}, "the index is null"),
        ({"index": 0}, "both calls have index 0"),
    ]
    for index, because in habits:
        message = message_from(
            call('{"path":', **index, id="call-1", name="read"),
            call('"a"}', **index),
            call('{"path":', **index, id="call-2", name="read"),
            call('"b"}', **index),
            choice("tool_calls"),
        )
        assert_same((message.stop_reason, tool_calls(message)), ("toolUse", two), because=because)

    message = message_from(
        call('{"path":', index=0, id="call-1", name="read"),
        call('{"path":', index=0, id="call-2", name="read"),
        call('"a"}', index=0, id="call-1"),
        call('"b"}', index=0, id="call-2"),
        choice("tool_calls"),
    )
    assert_same(tool_calls(message), two, because="one index, and each piece says its id")


def test_calls_with_another_finish() -> None:
    """`stop` after a whole call loses no call; broken arguments are an error that keeps them."""
    pieces_of_call = [
        ToolChunk(0, "call-1", "read", '{"path":"a"}'),
        ToolChunk(1, "call-2", "now", ""),
    ]
    message = message_of(fixed_transport([*pieces_of_call, FinishChunk("stop")]))
    assert_same(
        (message.stop_reason, message.content),
        (
            "toolUse",
            (
                ToolCall("call-1", "read", {"path": "a"}, '{"path":"a"}'),
                ToolCall("call-2", "now", {}, ""),
            ),
        ),
        because="the calls are whole, so they are what the reply is about",
    )

    broken = ToolChunk(0, "call-1", "read", '{"path":')
    message = message_of(fixed_transport([broken, FinishChunk("tool_calls")]))
    assert_same(
        (message.stop_reason, message.content),
        ("error", (ToolCall("call-1", "read", None, '{"path":'),)),
        because="arguments that are no JSON object can't be run, and their text is kept",
    )


# HTTP


def test_http_errors_carry_status_and_words_and_no_key() -> None:
    """An HTTP error says what the provider said, and never the key in any spelling."""
    for status, body, words in [
        (401, {"error": {"message": f"Incorrect API key: {KEY}"}}, "Incorrect API key: [redacted]"),
        (429, {"error": {"message": "Rate limit", "type": "requests"}}, "Rate limit"),
        (403, {"message": f"key={quote(KEY)}"}, "key=[redacted]"),
        (403, {"detail": f"key={quote(KEY, safe='').lower()}"}, "key=[redacted]"),
        (400, [{"error": {"message": "no such model"}}], "no such model"),
        (400, {"error": "no such model"}, "no such model"),
        (500, "upstream timed out", "upstream timed out"),
        (500, r"bad key: test-key\/05\u002bb", "bad key: [redacted]"),
        (502, "", "502"),
    ]:
        content = body if isinstance(body, str) else json.dumps(body)
        server = Server(Body(pieces(content.encode(), 9)), status)
        message = message_of(server.transport())
        assert_error(message, str(status), words, content=[])
        assert_same(server.body.closed, True, because="an error response is closed too")
        if "{" in (message.error_message or ""):
            fail(f"the provider's words are shown, and not its JSON: {message.error_message!r}")


def test_http_answer_that_is_no_event_stream() -> None:
    """A page or a plain JSON object with status 200 is an error that says what came."""
    for content_type, body, words in [
        ("application/json", b'{"error":{"message":"no such model"}}', "no such model"),
        ("text/html; charset=utf-8", b"<h1>Welcome</h1>", "text/html"),
    ]:
        message = message_of(Server(Body([body]), content_type=content_type).transport())
        assert_error(message, words, content=[])
    chunks = run(
        collect(
            Server(Body([REPLY.encode()]), content_type="text/plain").transport().stream(REQUEST)
        )
    )
    assert_same(chunks, REPLY_CHUNKS, because="a stream with another type is read all the same")


def test_http_long_error_is_cut_without_half_a_key() -> None:
    """A page of HTML is cut to what a person reads, and the cut shows no part of the key."""
    for before in range(980, 1000):
        page = "x" * before + KEY + "y" * 100_000
        message = message_of(Server(Body([page.encode()]), 500).transport())
        said = message.error_message or ""
        if len(said) > 2_000:
            fail(f"an error of {len(said)} characters is no message")
        if KEY[:6] in said:
            fail(f"first redact, then cut: the message ends in {said[-30:]!r}")


def test_http_an_error_without_text_has_a_name() -> None:
    """An exception that says nothing is called by its class."""
    body = Body([sse(choice(content="正在"))], error=httpx.ReadTimeout(""))
    assert_error(message_of(Server(body).transport()), "ReadTimeout", content=[text("正在")])


def test_http_an_error_response_that_stalls_can_be_aborted() -> None:
    """The body of an error is read like any other: an abort is heard."""
    body = Body([b"one moment"], stalls=True)

    async def aborted() -> AssistantMessage:
        signal = AbortSignal()
        options = StreamOptions(signal=signal)
        stream = model_of(Server(body, 500).transport()).stream(CONTEXT, options)
        asyncio.get_running_loop().call_later(0, signal.abort)
        return await stream.result()

    message = run(soon(aborted(), because="the error's body never ends; the abort must be heard"))
    assert_same(message.stop_reason, "aborted", because="an abort is an abort")
    assert_same(body.closed, True, because="the response is closed on every way out")


def test_http_text_that_is_no_unicode_is_sent_anyway() -> None:
    """A lone surrogate in the conversation, as a broken file name brings it, doesn't end it."""
    server = Server(Body([REPLY.encode()]))
    request = ProviderRequest("test-model", [{"role": "user", "content": "读 \ud800.md"}])

    chunks = run(collect(server.transport().stream(request)))

    assert_same(chunks, REPLY_CHUNKS, because="the request was sent and answered")
    assert_same(len(server.requests), 1, because="it was sent once")


def test_http_bad_key_or_url_stops_before_the_request() -> None:
    """A key that can't stand in a header, or a URL that is none, is said before any request."""
    for settings, part in [
        ({"api_key": "test-key\n"}, "key"),
        ({"api_key": " test-key"}, "key"),
        ({"api_key": " "}, "API key"),
        ({"api_key": ""}, "API key"),
        ({"api_key": "test-ключ"}, "key"),
        ({"base_url": "provider.test/v1"}, "base_url"),
        ({"base_url": "ftp://provider.test"}, "base_url"),
        ({"base_url": "https://"}, "base_url"),
        ({"base_url": "https://[provider.test"}, "base_url"),
    ]:
        server = Server(Body([REPLY.encode()]))
        message = message_of(server.transport(**settings))
        assert_error(message, part, content=[])
        assert_same(server.requests, [], because=f"{settings}: nothing was sent")
        if "test-" in (message.error_message or ""):
            fail(f"the error shows the key: {message.error_message!r}")


def test_http_timeouts_fit_a_slow_model() -> None:
    """A client that nobody set up waits long enough; one with timeouts of its own keeps them."""

    def read_timeout(**client: Any) -> float:
        server = Server(Body([REPLY.encode()]))
        run(collect(server.transport(**client).stream(REQUEST)))
        timeout: dict[str, float] = server.requests[0].extensions["timeout"]
        return timeout["read"]

    if read_timeout() < 60:
        fail(f"a read may take {read_timeout()} s: a model may think longer before its first byte")
    assert_same(read_timeout(timeout=7.0), 7.0, because="the caller's own timeout stands")


def test_http_connection_cut_mid_stream() -> None:
    """A connection that breaks is an error that keeps what had arrived."""
    error = httpx.RemoteProtocolError("peer closed connection")
    body = Body([sse(choice(content="正在"))], error=error)

    message = message_of(Server(body).transport())

    assert_error(message, "peer closed connection", content=[text("正在")])
    assert_same(body.closed, True, because="the response is closed on every way out")


def test_http_a_reader_that_stops_early_closes_the_response() -> None:
    """Whoever leaves the stream in the middle leaves nothing open and nothing running."""
    body = Body([sse(choice(content="正在"), choice(content="读取"))], stalls=True)

    async def first_text() -> ModelEvent:
        async with model_of(Server(body).transport()).stream(CONTEXT) as stream:
            async for event in stream:
                if isinstance(event, TextDeltaEvent):
                    return event
        raise AssertionError("no text came")

    event = run(soon(first_text(), because="leaving the stream must not wait for the provider"))

    assert_same(event, TextDeltaEvent(0, "正在", (text("正在"),)), because="the first text")
    assert_same(body.closed, True, because="closing the stream closes the response")

    log: list[str] = []

    class Holding:
        """A transport that keeps what it returned, so that no garbage collector closes it."""

        async def _chunks(self) -> AsyncIterator[ProviderChunk]:
            try:
                yield TextChunk("正在")
                yield TextChunk("读取")
            finally:
                log.append("closed")

        def stream(
            self, request: ProviderRequest, signal: AbortSignal | None = None
        ) -> AsyncIterator[ProviderChunk]:
            self.chunks = self._chunks()
            return self.chunks

    async def leave() -> list[str]:
        async with model_of(Holding()).stream(CONTEXT) as stream:
            async for _ in stream:
                break
        return list(log)  # as it is now: the event loop's own end closes what is left

    assert_same(run(leave()), ["closed"], because="the model closes its chunks, whoever has them")


def test_model_that_is_aborted_before_it_begins_asks_nobody() -> None:
    """An aborted signal ends the reply before any request."""
    server = Server(Body([REPLY.encode()]))

    async def aborted() -> AssistantMessage:
        signal = AbortSignal()
        signal.abort()
        options = StreamOptions(signal=signal)
        return await model_of(server.transport()).stream(CONTEXT, options).result()

    assert_same(run(aborted()).stop_reason, "aborted", because="the signal was aborted before")
    assert_same(server.requests, [], because="nothing was sent")


def test_model_ignores_empty_text_and_stamps_its_message() -> None:
    """A text chunk without text is nothing; the message carries the clock's time."""
    chunks: list[ProviderChunk] = [
        TextChunk(""),
        TextChunk("正在"),
        TextChunk(""),
        FinishChunk("stop"),
    ]
    model = ProviderModel(
        fixed_transport(chunks), provider="test", model="test-model", clock=lambda: 7
    )

    message = run(model.stream(CONTEXT).result())

    assert_same(
        (message.content, message.provider, message.model, message.timestamp),
        ((text("正在"),), "test", "test-model", 7),
        because="one block; the reply says who gave it and when",
    )
    empty = message_of(fixed_transport([TextChunk(""), FinishChunk("stop")]))
    assert_same(empty.content, (), because="no text: no block")


def test_model_aborts_over_a_transport_that_forgets_its_signal() -> None:
    """The model hears an abort even where a transport of your own doesn't listen."""

    class Deaf:
        async def stream(
            self, request: ProviderRequest, signal: AbortSignal | None = None
        ) -> AsyncIterator[ProviderChunk]:
            yield TextChunk("正在")
            await asyncio.Event().wait()

    async def aborted() -> AssistantMessage:
        signal = AbortSignal()
        stream = model_of(Deaf()).stream(CONTEXT, StreamOptions(signal=signal))
        async for event in stream:
            if isinstance(event, TextDeltaEvent):
                signal.abort()
        return await stream.result()

    message = run(soon(aborted(), because="the transport waits for ever; the model must not"))
    assert_same(
        (message.stop_reason, message.content), ("aborted", (text("正在"),)), because="an abort"
    )
