"""Extensions: code that looks into a run, and may change it, at four places.

Hooks run one after the other, in the order in which their extensions were loaded, and within an
extension in the order in which they were registered. A hook that fails is reported, and the
next one runs as if it had not been there. The exception is `before_tool`: a guard
that fails has not said yes, so the tool doesn't run.
"""

import asyncio
import contextlib
import copy
import importlib.util
import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from mini_agent.abort import ABORTED, AbortError, AbortSignal, race
from mini_agent.types import (
    AgentContext,
    AssistantMessage,
    TextContent,
    ToolCall,
    ToolResultMessage,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Block:
    """What a `before_tool` hook returns to stop the call. The model is told the reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class ResultPatch:
    """What an `after_tool` hook returns to change a result. A field that is None stays as it is."""

    content: tuple[TextContent, ...] | None = None
    is_error: bool | None = None


# A hook is a function or a coroutine function.
BeforeModel: TypeAlias = Callable[
    [AgentContext], Awaitable[AgentContext | None] | AgentContext | None
]
BeforeTool: TypeAlias = Callable[[ToolCall], Awaitable[Block | None] | Block | None]
AfterTool: TypeAlias = Callable[
    [ToolCall, ToolResultMessage], Awaitable[ResultPatch | None] | ResultPatch | None
]
TurnEnd: TypeAlias = Callable[
    [AssistantMessage, tuple[ToolResultMessage, ...]], Awaitable[None] | None
]

Hook = TypeVar("Hook", bound=Callable[..., object])


class Extension:
    """A named set of hooks. Each method registers one, and can stand as a decorator."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.hooks: list[tuple[str, Callable[..., object]]] = []  # (place, hook), as registered

    def before_model(self, hook: BeforeModel) -> BeforeModel:
        """Before each request: `hook(context)` may return another context for this one request.

        It is given a copy, so what it does to that changes nothing.
        """
        return self._register("before_model", hook)

    def before_tool(self, hook: BeforeTool) -> BeforeTool:
        """Before a call that could run: `hook(call)` may return a Block. The first one counts."""
        return self._register("before_tool", hook)

    def after_tool(self, hook: AfterTool) -> AfterTool:
        """After a call that ran: `hook(call, result)` may return a ResultPatch.

        The result it is given has the patches of the hooks before it.
        """
        return self._register("after_tool", hook)

    def turn_end(self, hook: TurnEnd) -> TurnEnd:
        """After each turn, an aborted one included: `hook(reply, results)` looks on."""
        return self._register("turn_end", hook)

    def _register(self, place: str, hook: Hook) -> Hook:
        self.hooks.append((place, hook))
        return hook


@dataclass(frozen=True, slots=True)
class HookFailure:
    """A hook raised, or returned what it may not: where, and what."""

    extension: str
    place: str
    error: Exception

    def __str__(self) -> str:
        said = f"{type(self.error).__name__}: {self.error}"
        return f"extension {self.extension}, {self.place}: {said}"


class Extensions:
    """The loaded extensions of an agent, as the loop calls them.

    `report` is told of each failure. Nothing that a hook or `report` raises comes out of here.
    An aborted signal ends the wait for a hook; the hooks behind it are not asked.
    """

    def __init__(
        self, extensions: Iterable[Extension] = (), *, report: Callable[[HookFailure], object]
    ) -> None:
        self._extensions = tuple(extensions)
        self._report = report

    async def before_model(self, context: AgentContext, signal: AbortSignal | None) -> AgentContext:
        """The context that the model is to be given."""
        raise NotImplementedError("step 9.3")

    async def before_tool(self, call: ToolCall, signal: AbortSignal | None) -> str | None:
        """Why the call may not run, or None if it may."""
        raise NotImplementedError("step 9.2")

    async def after_tool(
        self, call: ToolCall, result: ToolResultMessage, signal: AbortSignal | None
    ) -> ToolResultMessage:
        """The result with the patches of all hooks."""
        raise NotImplementedError("step 9.3")

    async def turn_end(
        self, reply: AssistantMessage, results: tuple[ToolResultMessage, ...]
    ) -> None:
        """Tell all hooks that a turn is over. No signal stops this: an aborted turn ends, too."""
        raise NotImplementedError("step 9.3")


# Given: calling a hook, and loading an extension from a file.


async def _call(
    hook: Callable[..., object], kind: type[T], signal: AbortSignal | None, *arguments: object
) -> T | None:
    """What a hook returns, awaited if need be. Raises TypeError if that is no `kind` nor None."""
    returned = hook(*arguments)
    if inspect.isawaitable(returned):
        try:
            returned = await race(returned, signal)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise RuntimeError("the hook cancelled something of its own") from None
    if returned is not None and not isinstance(returned, kind):
        raise TypeError(f"a hook returned {type(returned).__name__}, not {kind.__name__} or None")
    return returned


class ExtensionError(Exception):
    """An extension can't be loaded. The text says which, and why."""


def load_extension(path: Path) -> Extension:
    """The `extension` that a Python file defines. The file is run, with all that this means."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ExtensionError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ExtensionError(f"{path}: {type(error).__name__}: {error}") from error
    extension: Any = getattr(module, "extension", None)
    if not isinstance(extension, Extension):
        raise ExtensionError(f"{path} defines no `extension`")
    return extension
