"""Run one tool call. Whatever happens, the answer is a tool result with the call's own id."""

import asyncio
import copy
from collections.abc import Callable
from typing import Any

from mini_agent.abort import ABORTED, AbortError, AbortSignal, race
from mini_agent.tools.tool import Tool, ToolError, ToolRegistry
from mini_agent.tools.validate import check_arguments
from mini_agent.types import ToolCall, ToolResultMessage, now_ms, text


def prepare_call(call: ToolCall, tools: ToolRegistry) -> tuple[Tool, dict[str, Any]]:
    """The tool that `call` asks for, and a copy of its arguments that the tool may keep.

    Raises ToolError if the call cannot be run: its arguments were cut off, it names no tool that
    we have, or its arguments do not fit the tool's schema.
    """
    if call.arguments is None:
        raise ToolError("Not executed: the arguments of this call were cut off. Call it again.")
    tool = tools.get(call.name)
    check_arguments(tool.definition, call.arguments)
    # The call stays in the transcript: what the tool does to its arguments must not change it.
    return tool, copy.deepcopy(call.arguments)


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
    try:
        tool, arguments = prepare_call(call, tools)
        output = await race(tool.execute(arguments, signal), signal)
        if not isinstance(output, str):
            raise TypeError(f"Tool `{call.name}` answered with no text: {type(output).__name__}")
    except asyncio.CancelledError:
        if _is_being_cancelled():
            raise
        return error_result(call, ABORTED, clock())  # the tool cancelled something of its own
    except Exception as error:
        aborted = isinstance(error, AbortError) or (signal is not None and signal.aborted)
        problem = ABORTED if aborted else str(error) or type(error).__name__
        return error_result(call, problem, clock())
    return ToolResultMessage(call.id, call.name, (text(output),), timestamp=clock())


def error_result(call: ToolCall, problem: str, timestamp: int = 0) -> ToolResultMessage:
    """The answer to a call that failed or was not run."""
    return ToolResultMessage(
        call.id, call.name, (text(problem),), is_error=True, timestamp=timestamp
    )


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
