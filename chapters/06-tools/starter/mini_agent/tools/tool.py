"""A tool: what the model is told about it, and the code that does the work."""

from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeAlias

from mini_agent.abort import AbortSignal
from mini_agent.types import ToolDefinition

Execute: TypeAlias = Callable[[dict[str, Any], AbortSignal | None], Coroutine[Any, Any, str]]


class ToolError(Exception):
    """A tool cannot do what was asked. Its text is written for the model, which may try again."""


class Tool:
    """A definition for the model, and `execute(arguments, signal)`, which answers with text.

    The arguments have passed the definition's schema, and are the tool's own copy. To report a
    failure a tool raises; it need not watch the signal, unless it has something to release.
    """

    # step 6.1: the fields, and the name that the definition gives


class ToolRegistry:
    """The tools of one agent, by name, in the order in which they were given.

    Raises ValueError for a name that is taken or a schema that is none: both are mistakes of
    the programmer, and are told when the agent is built and not in the middle of a conversation.
    """

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        raise NotImplementedError("step 6.1")

    @property
    def definitions(self) -> tuple[ToolDefinition, ...]:
        """What goes into `AgentContext.tools`."""
        raise NotImplementedError("step 6.1")

    def get(self, name: str) -> Tool:
        """The tool of that name. Raises ToolError if there is none: a model may invent one."""
        raise NotImplementedError("step 6.1")
