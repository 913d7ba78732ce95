"""Chapter 01, the focused tests: one form for every conversation."""

import time
from collections.abc import Iterator

from grader.testing import assert_same, fail, plain
from mini_agent.types import (
    AgentContext,
    AgentMessage,
    AssistantMessage,
    ContentBlock,
    TextContent,
    ToolCall,
    ToolResultMessage,
    Usage,
    UserMessage,
    assistant_message,
    now_ms,
    text,
    text_of,
    tool_calls,
    unanswered_calls,
    user_message,
)


def test_blocks_of_text_and_tool_call() -> None:
    """A block carries its tag; a call has no arguments before its text is complete (step 1.1)."""
    assert_same(
        plain(TextContent("正在读取")),
        {"type": "text", "text": "正在读取"},
        because="a text block is its tag and its text",
    )
    assert_same(
        plain(ToolCall("call-1", "read")),
        {
            "type": "toolCall",
            "id": "call-1",
            "name": "read",
            "arguments": None,
            "raw_arguments": None,
        },
        because="a call of which only id and name are known has neither arguments nor their text",
    )
    assert_same(
        plain(ToolCall("call-1", "read", {"path": "README.md"}, '{"path":"README.md"}')),
        {
            "type": "toolCall",
            "id": "call-1",
            "name": "read",
            "arguments": {"path": "README.md"},
            "raw_arguments": '{"path":"README.md"}',
        },
        because="a complete call keeps the parsed arguments and the text they came from",
    )


def test_messages_of_one_exchange() -> None:
    """Three roles hold the whole exchange, and the context adds the system prompt (step 1.1)."""
    call = ToolCall("call-1", "read", {"path": "README.md"}, '{"path":"README.md"}')
    context = AgentContext(
        messages=(
            UserMessage((TextContent("读取 README.md"),), 1),
            AssistantMessage((call,), "toolUse", timestamp=2),
            ToolResultMessage("call-1", "read", (TextContent("# Project"),), timestamp=3),
            ToolResultMessage("call-9", "read", (TextContent("no such file"),), True, 4),
        ),
        system_prompt="回答要简洁。",
    )

    question, reply, result, failed = (plain(message) for message in context.messages)

    assert_same(
        question,
        {"role": "user", "content": [{"type": "text", "text": "读取 README.md"}], "timestamp": 1},
        because="the user's words are one text block of a user message",
    )
    assert_same(
        {name: value for name, value in reply.items() if name != "usage"},
        {
            "role": "assistant",
            "content": [plain(call)],
            "stop_reason": "toolUse",
            "provider": "",
            "model": "",
            "timestamp": 2,
            "error_message": None,
        },
        because="a reply says why it stopped; what nobody told is empty, and no error is None",
    )
    assert_same(
        result,
        {
            "role": "toolResult",
            "tool_call_id": "call-1",
            "tool_name": "read",
            "content": [{"type": "text", "text": "# Project"}],
            "is_error": False,
            "timestamp": 3,
        },
        because="a result names its call by id, and is no error unless it says so",
    )
    assert_same(
        failed["is_error"], True, because="a tool that failed answers too, with is_error set"
    )
    assert_same(
        context.system_prompt,
        "回答要简洁。",
        because="the system prompt stands beside the messages",
    )
    bare = AgentContext(())
    assert_same(
        (bare.messages, bare.system_prompt),  # these two only: chapter 05 adds a field
        ((), None),
        because="a context needs no system prompt",
    )


def test_messages_never_change() -> None:
    """Nothing can be set on a message or block that was made, not even a new name (step 1.1)."""
    block = TextContent("读取 README.md")
    made: tuple[tuple[object, str], ...] = (
        (block, "text"),
        (ToolCall("call-1", "read"), "raw_arguments"),
        (UserMessage((block,), 1), "content"),
        (AssistantMessage((), "stop"), "stop_reason"),
        (ToolResultMessage("call-1", "read", (block,)), "is_error"),
        (AgentContext(()), "messages"),
    )
    for value, field in made:
        for name in (field, "note"):
            if _can_set(value, name):
                fail(
                    f"{type(value).__name__}.{name} could be set after the value was made; "
                    "whoever holds a message must find it as it was (frozen=True)"
                )


def test_usage_adds_up_a_total_that_nobody_gave() -> None:
    """Without a total from the provider, the total is the sum of the four counts (step 1.2)."""
    assert_same(
        plain(Usage(input=120, output=18, cache_read=64, cache_write=8)),
        {"input": 120, "output": 18, "cache_read": 64, "cache_write": 8, "total": 210},
        because="120 + 18 + 64 + 8: cached tokens are not part of `input`, so they count as well",
    )
    assert_same(
        plain(Usage()),
        {"input": 0, "output": 0, "cache_read": 0, "cache_write": 0, "total": 0},
        because="no tokens is a total of 0",
    )
    assert_same(
        AssistantMessage((), "stop").usage,
        Usage(),
        because="a reply whose tokens nobody counted has an empty Usage",
    )


def test_usage_keeps_the_total_that_was_given() -> None:
    """A provider's own total stands, whatever the sum would be (step 1.2)."""
    assert_same(
        plain(Usage(input=10, output=2, total=15)),
        {"input": 10, "output": 2, "cache_read": 0, "cache_write": 0, "total": 15},
        because="the provider counted 15, and the provider sends the bill",
    )
    if _can_set(Usage(), "output"):
        fail("Usage.output could be set after the value was made; Usage is frozen like all others")


def test_clock_counts_whole_milliseconds() -> None:
    """`now_ms()` is the wall clock in milliseconds, as an int (step 1.2)."""
    before = time.time_ns() // 1_000_000
    now = now_ms()
    after = time.time_ns() // 1_000_000

    assert_same(type(now), int, because="a timestamp is a whole number: JSON keeps it exactly")
    if not before - 1000 <= now <= after + 1000:
        fail(f"now_ms() gave {now}, and the clock shows {after} ms; mind the unit")


def test_factories_make_a_user_message_from_a_string_or_blocks() -> None:
    """`text` and `user_message` take what is at hand and store a tuple of blocks (step 1.3)."""
    assert_same(
        plain(text("读取 README.md")),
        {"type": "text", "text": "读取 README.md"},
        because="text() makes a text block",
    )
    assert_same(
        user_message("读取 README.md", 1),
        UserMessage((TextContent("读取 README.md"),), 1),
        because="a string becomes one text block, in a tuple",
    )

    blocks = [text("读取 "), text("README.md")]
    message = user_message(blocks, 1)
    blocks.append(text("！"))

    assert_same(
        message,
        UserMessage((TextContent("读取 "), TextContent("README.md")), 1),
        because="a list of blocks is copied into a tuple: what is appended later is not in it",
    )


def test_factories_stamp_only_what_has_no_timestamp() -> None:
    """A given timestamp is kept, 0 included; without one the message is stamped now (step 1.3)."""
    assert_same(
        user_message("读取 README.md", 0).timestamp,
        0,
        because="0 is a timestamp like any other: only None means that none was given",
    )
    before = now_ms()
    stamped = user_message("读取 README.md").timestamp
    if not before <= stamped <= now_ms():
        fail(f"a message made now has the timestamp {stamped}, and the clock shows {now_ms()}")


def test_factories_pass_on_all_of_an_assistant_message() -> None:
    """`assistant_message` takes any iterable of blocks, and loses no argument (step 1.3)."""

    def blocks() -> Iterator[ContentBlock]:
        yield TextContent("先读")
        yield ToolCall("call-1", "read", raw_arguments='{"path":')

    assert_same(
        assistant_message(
            blocks(),
            "error",
            provider="scripted",
            model="rules",
            usage=Usage(output=2),
            timestamp=5,
            error_message="the connection was lost",
        ),
        AssistantMessage(
            content=(TextContent("先读"), ToolCall("call-1", "read", raw_arguments='{"path":')),
            stop_reason="error",
            provider="scripted",
            model="rules",
            usage=Usage(output=2),
            timestamp=5,
            error_message="the connection was lost",
        ),
        because="every argument reaches its field, and a generator's blocks become a tuple",
    )
    assert_same(
        assistant_message([]),
        AssistantMessage((), "stop"),
        because='without a word about it, a reply ended by itself: "stop"',
    )


def test_reading_joins_the_text() -> None:
    """`text_of` joins the text blocks as they are and passes over tool calls (step 1.4)."""
    reply = AssistantMessage(
        (TextContent("先读 README"), ToolCall("call-1", "read"), TextContent(".md\n再回答")),
        "toolUse",
    )
    assert_same(
        text_of(reply),
        "先读 README.md\n再回答",
        because="blocks are pieces of one text: nothing goes between them",
    )
    assert_same(
        text_of(AssistantMessage((ToolCall("call-1", "read"),), "toolUse")),
        "",
        because="a reply that is only a tool call has the empty text",
    )


def test_reading_finds_the_tool_calls() -> None:
    """`tool_calls` gives every call in content order, half-written ones too (step 1.4)."""
    second = ToolCall("call-2", "calc", {"expression": "12*8"}, '{"expression":"12*8"}')
    cut_off = ToolCall("call-1", "read", None, '{"path":')
    reply = AssistantMessage((second, TextContent("先算"), cut_off), "length")

    assert_same(
        tool_calls(reply),
        (second, cut_off),
        because="content order, and a call that was cut off is still a call",
    )


def test_reading_sees_what_is_still_owed() -> None:
    """`unanswered_calls` pairs calls and results by id, in the order of asking (step 1.4)."""
    readme = ToolCall("call-1", "read", {"path": "README.md"})
    licence = ToolCall("call-2", "read", {"path": "LICENSE"})
    asked = AssistantMessage((readme, licence), "toolUse")
    readme_result = ToolResultMessage("call-1", "read", (TextContent("# Project"),))
    licence_result = ToolResultMessage("call-2", "read", (TextContent("no file"),), is_error=True)
    transcript: list[AgentMessage] = [UserMessage((TextContent("读取"),), 1), asked]

    assert_same(
        unanswered_calls(transcript),
        (readme, licence),
        because="both calls wait for a result, in the order in which they were made",
    )
    assert_same(
        unanswered_calls([*transcript, licence_result]),
        (readme,),
        because="a result answers the call with its id, and an error is an answer",
    )
    assert_same(
        unanswered_calls([*transcript, licence_result, readme_result]),
        (),
        because="results may come in any order",
    )
    again = AssistantMessage((readme,), "toolUse")
    assert_same(
        unanswered_calls([*transcript, readme_result, licence_result, again]),
        (readme,),
        because="an id that is used again in a later turn is a new call, and is owed again",
    )


def _can_set(value: object, name: str) -> bool:
    try:
        setattr(value, name, None)
    except (AttributeError, TypeError):  # Python 3.11 answers an unknown name with a TypeError
        return False
    return True
