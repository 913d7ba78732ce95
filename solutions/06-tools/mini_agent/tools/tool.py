"""A tool: what the model is told about it, and the code that does the work."""

from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

from jsonschema.exceptions import SchemaError
from jsonschema.validators import Draft202012Validator, validator_for

from mini_agent.abort import AbortSignal
from mini_agent.types import ToolDefinition

Execute: TypeAlias = Callable[[dict[str, Any], AbortSignal | None], Coroutine[Any, Any, str]]


class ToolError(Exception):
    """A tool cannot do what was asked. Its text is written for the model, which may try again."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A definition for the model, and `execute(arguments, signal)`, which answers with text.

    The arguments have passed the definition's schema, and are the tool's own copy. To report a
    failure a tool raises; it need not watch the signal, unless it has something to release.
    """

    definition: ToolDefinition
    execute: Execute

    @property
    def name(self) -> str:
        return self.definition.name


class ToolRegistry:
    """The tools of one agent, by name, in the order in which they were given.

    Raises ValueError for a name that is taken or a schema that is none: both are mistakes of
    the programmer, and are told when the agent is built and not in the middle of a conversation.
    """

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            self._add(tool)

    def _add(self, tool: Tool) -> None:
        if tool.name in self._tools:
            raise ValueError(f"two tools are named `{tool.name}`")
        schema = tool.definition.parameters
        try:
            validator_for(schema, default=Draft202012Validator).check_schema(schema)
        except SchemaError as error:
            raise ValueError(
                f"the parameters of `{tool.name}` are not a JSON Schema: {error.message}"
            ) from error
        self._tools[tool.name] = tool

    @property
    def definitions(self) -> tuple[ToolDefinition, ...]:
        """What goes into `AgentContext.tools`."""
        return tuple(tool.definition for tool in self._tools.values())

    def get(self, name: str) -> Tool:
        """The tool of that name. Raises ToolError if there is none: a model may invent one."""
        tool = self._tools.get(name)
        if tool is None:
            known = ", ".join(self._tools) or "none"
            raise ToolError(f"Tool `{name}` not found. The tools are: {known}")
        return tool
