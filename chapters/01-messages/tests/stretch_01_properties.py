"""Chapter 01, stretch: what must hold for every message, found by hypothesis."""

import copy
import dataclasses
import pickle

from hypothesis import given, settings
from hypothesis import strategies as st

from grader.testing import assert_same, plain
from mini_agent.types import (
    AgentContext,
    AgentMessage,
    AssistantMessage,
    TextContent,
    ToolCall,
    ToolResultMessage,
    Usage,
    assistant_message,
    text,
    text_of,
    tool_calls,
    unanswered_calls,
    user_message,
)

settings.register_profile("course", deadline=None, database=None, derandomize=True)
settings.load_profile("course")  # the same examples everywhere, and no folder left behind

counts = st.integers(min_value=0, max_value=10**9)
ids = st.sampled_from(["call-1", "call-2", "call-3", ""])
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
calls = st.builds(
    ToolCall,
    id=ids,
    name=st.sampled_from(["read", "calc"]),
    arguments=st.none() | st.dictionaries(st.text(), json_values, max_size=3),
    raw_arguments=st.none() | st.text(),
)
blocks = st.lists(st.builds(TextContent, st.text()) | calls, max_size=5)
replies = st.builds(assistant_message, blocks, timestamp=counts)
results = st.builds(
    ToolResultMessage, tool_call_id=ids, tool_name=st.just("read"), content=st.just(())
)
questions = st.builds(user_message, st.text(), counts)
transcripts = st.lists(questions | replies | results, max_size=8)


@given(st.text())
def test_any_text_comes_back_as_it_was(said: str) -> None:
    """No string is changed on the way in or out: newlines, U+2028 and the empty one included."""
    assert_same(text_of(user_message(said, 0)), said, because="text is stored, never edited")


@given(counts, counts, counts, counts)
def test_the_total_is_the_sum(input: int, output: int, read: int, write: int) -> None:
    """The sum of the four counts, for every four counts."""
    assert_same(
        Usage(input, output, read, write).total,
        input + output + read + write,
        because="input excludes cached tokens, so the four are disjoint",
    )


@given(counts, counts.filter(bool))
def test_a_given_total_survives_every_copy(input: int, total: int) -> None:
    """replace(), deepcopy and pickle go through the constructor or around it: the total stays."""
    usage = Usage(input=input, total=total)
    for copied in (
        dataclasses.replace(usage),
        copy.deepcopy(usage),
        pickle.loads(pickle.dumps(usage)),
    ):
        assert_same(copied, usage, because="a copy has the total of its original")


@given(blocks)
def test_a_message_is_cut_off_from_the_list_it_was_made_of(given_blocks: list[object]) -> None:
    """What happens to the caller's list later does not reach the message."""
    message = assistant_message(given_blocks)  # type: ignore[arg-type]
    before = plain(message)
    given_blocks.clear()
    assert_same(plain(message), before, because="the content is a tuple of the message's own")


@given(transcripts)
def test_reading_changes_nothing(messages: list[AgentMessage]) -> None:
    """The reading functions leave every message as it was, down into the argument dicts."""
    before = copy.deepcopy(messages)
    for message in messages:
        text_of(message)
        if isinstance(message, AssistantMessage):
            tool_calls(message)
    unanswered_calls(messages)
    assert_same(messages, before, because="reading a transcript must not edit it")


@given(transcripts)
def test_every_call_is_answered_once(messages: list[AgentMessage]) -> None:
    """Going through the transcript, each result pays for one open call with its id."""
    balance: dict[str, int] = {}
    for message in messages:
        if isinstance(message, AssistantMessage):
            for call in tool_calls(message):
                balance[call.id] = balance.get(call.id, 0) + 1
        elif isinstance(message, ToolResultMessage):
            balance[message.tool_call_id] = max(0, balance.get(message.tool_call_id, 0) - 1)
    owed: dict[str, int] = {}
    for call in unanswered_calls(messages):
        owed[call.id] = owed.get(call.id, 0) + 1
    assert_same(
        dict(sorted(owed.items())),
        {call: count for call, count in sorted(balance.items()) if count},
        because="two calls with one id need two results, and a result before its call pays nothing",
    )


@given(transcripts)
def test_owed_calls_stand_in_the_order_of_asking(messages: list[AgentMessage]) -> None:
    """What is owed is a part of all calls, and keeps their order."""
    asked = iter([c for m in messages if isinstance(m, AssistantMessage) for c in tool_calls(m)])
    for call in unanswered_calls(message for message in messages):  # any iterable will do
        assert any(plain(call) == plain(other) for other in asked), f"{call} stands out of order"


@given(transcripts)
def test_a_context_survives_pickle_and_deepcopy(messages: list[AgentMessage]) -> None:
    """Frozen, slotted dataclasses copy and pickle like any value."""
    context = AgentContext(tuple(messages), "回答要简洁。")
    assert_same(copy.deepcopy(context), context, because="a deep copy is the same value")
    assert_same(
        pickle.loads(pickle.dumps(context)), context, because="pickle gives back the same value"
    )


@given(replies)
def test_equal_messages_compare_and_hash_alike(message: AssistantMessage) -> None:
    """Values that are the same are equal; without a dict inside they can be keys as well."""
    twin = copy.deepcopy(message)
    assert message == twin, "two messages with the same fields are equal"
    if all(call.arguments is None for call in tool_calls(message)):
        assert len({message, twin}) == 1, "and they are one key in a set"


def test_a_tag_belongs_to_the_class() -> None:
    """`type` and `role` are no constructor arguments: nobody can make a user message of a reply."""
    for made in (
        text("a"),
        user_message("a", 0),
        assistant_message([]),
        ToolCall("call-1", "read"),
    ):
        names = [field.name for field in dataclasses.fields(made)]
        assert not {"type", "role"} & set(names), f"{type(made).__name__}: the tag is a ClassVar"
