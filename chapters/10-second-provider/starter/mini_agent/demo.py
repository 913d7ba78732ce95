"""Three scenes without a network: a request, a recorded reply, and a run of the whole agent.

`python -m mini_agent.demo` prints what stands in `expected_output.txt`. With a number, as in
`python -m mini_agent.demo 1`, the reply is cut every so many characters: the events stay the same.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterable

from mini_agent.agent_events import MessageEndEvent, TurnEndEvent, TurnStartEvent
from mini_agent.agent_loop import run_agent
from mini_agent.events import (
    DoneEvent,
    ErrorEvent,
    ModelEvent,
    StartEvent,
    TextDeltaEvent,
    ToolCallEndEvent,
)
from mini_agent.offline import offline_model
from mini_agent.providers.anthropic import to_request_body, to_stream_events
from mini_agent.providers.recorded_stream import RECORDED_RESPONSE, to_chunks
from mini_agent.providers.select import choose_model
from mini_agent.render import call_line
from mini_agent.sse import decode_chunks, read_sse_messages
from mini_agent.tools import ToolRegistry, calc_tool
from mini_agent.types import (
    AgentContext,
    AssistantMessage,
    ToolCall,
    ToolResultMessage,
    assistant_message,
    text,
    text_of,
    tool_calls,
    user_message,
)

QUESTION = "算一下 12*8"
TOOLS = ToolRegistry([calc_tool()])

CONTEXT = AgentContext(
    messages=(
        user_message(QUESTION, timestamp=1),
        assistant_message(
            [
                text("这个我算一下。"),
                ToolCall("toolu_demo", "calc", {"expression": "12*8"}, '{"expression":"12*8"}'),
            ],
            "toolUse",
        ),
        ToolResultMessage("toolu_demo", "calc", (text("96"),), timestamp=2),
    ),
    system_prompt="你是一个会用工具的助手。",
    tools=TOOLS.definitions,
)


def request_scene() -> None:
    """Scene 1: job 1, whose whole outcome is data."""
    print("== Scene 1: a context becomes a request body (nothing is sent)\n")
    print(json.dumps(to_request_body(CONTEXT), ensure_ascii=False, indent=2))


async def reply_scene(size: int) -> None:
    """Scene 2: jobs 2 and 3, on a reply that arrives in chunks of `size` characters."""
    chunks = to_chunks(RECORDED_RESPONSE, size)
    print("\n== Scene 2: a recorded reply becomes model events\n")
    number = "1 chunk" if len(chunks) == 1 else f"{len(chunks)} chunks"
    print(f"The reply has {len(RECORDED_RESPONSE)} characters and comes in {number}.")
    print(f"Chunk 1 begins with {chunks[0].decode()[:37]!r}.")
    print("Where a chunk ends says nothing about where an event ends: the reader keeps a buffer.\n")
    messages = read_sse_messages(decode_chunks(_reads(chunks)))
    async for event in to_stream_events(messages):
        if line := event_line(event):
            print(f"  {line}")
    print("\nThe arguments came as '{\"expres' + 'sion\":\"12*8\"}': only together are they JSON.")


def event_line(event: ModelEvent) -> str:
    """A model event on one line; "" for a fragment of arguments: the whole call is shown."""
    match event:
        case StartEvent():
            return "start"
        case TextDeltaEvent(delta=delta):
            return f'text_delta  "{delta}"'
        case ToolCallEndEvent(tool_call=call):
            arguments = json.dumps(call.arguments, ensure_ascii=False, separators=(",", ":"))
            return f"toolcall    {call.name} {arguments}"
        case DoneEvent(reason=reason, message=message):
            return f"done        stop_reason={reason}, {len(message.content)} content blocks"
        case ErrorEvent(message=message):
            return f"error       {message.error_message}"
        case _:
            return ""


async def agent_scene() -> None:
    """Scene 3: the choice of a model, and a run on the scripted one."""
    print("\n== Scene 3: another model, and nothing above it changes\n")
    for name in ("(nothing is set)", "ANTHROPIC_API_KEY", "OPENAI_API_KEY"):
        print(f"  {name:18} {choose_model({name: 'test-key'}).reason}")
    print("\nThis demo always asks the scripted model, and so needs no network.\n")

    print(f"you> {QUESTION}")
    turn = count = 0
    context = AgentContext((), CONTEXT.system_prompt)
    async for event in run_agent(user_message(QUESTION), context, offline_model(delay=0), TOOLS):
        match event:
            case TurnStartEvent():
                turn += 1
                print(f"[turn {turn}]")
            case MessageEndEvent(message=message):
                count += 1
                if isinstance(message, AssistantMessage):
                    print(f"assistant> {text_of(message)}")
                    for call in tool_calls(message):
                        print(call_line(call))
                elif isinstance(message, ToolResultMessage):
                    print(f"[tool result] {message.tool_name}: {text_of(message)}")
            case TurnEndEvent():
                print(f"[end of turn {turn}]")
            case _:
                pass
    print(f"\n{count} messages. The loop, the tools and the screen are those of chapter 09.")


async def _reads(chunks: Iterable[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


def main(size: int = 37) -> None:
    sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # type: ignore[union-attr]
    request_scene()
    asyncio.run(reply_scene(size))
    asyncio.run(agent_scene())


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
