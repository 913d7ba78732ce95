"""Run one tool call. Whatever happens, the answer is a tool result with the call's own id."""

from collections.abc import Callable
from typing import Any

from mini_agent.abort import AbortSignal
from mini_agent.tools.tool import Tool, ToolRegistry
from mini_agent.types import ToolCall, ToolResultMessage, now_ms, text


def prepare_call(call: ToolCall, tools: ToolRegistry) -> tuple[Tool, dict[str, Any]]:
    """The tool that `call` asks for, and a copy of its arguments that the tool may keep.

    Raises ToolError if the call cannot be run: its arguments were cut off, it names no tool that
    we have, or its arguments do not fit the tool's schema.
    """
    raise NotImplementedError("step 6.3")


async def execute_call(
    call: ToolCall,
    tools: ToolRegistry,
    signal: AbortSignal | None = None,
    *,
    clock: Callable[[], int] = now_ms,
) -> ToolResultMessage:
    """Check `call`, run its tool, and return what came of it. A failure is an error result.

    An abort makes the result "Operation aborted", whether the tool has begun or not. Only a
    cancellation of the task that runs this is not turned into a result.
    """
    raise NotImplementedError("step 6.3")


def error_result(call: ToolCall, problem: str, timestamp: int = 0) -> ToolResultMessage:
    """The answer to a call that failed or was not run."""
    return ToolResultMessage(
        call.id, call.name, (text(problem),), is_error=True, timestamp=timestamp
    )
