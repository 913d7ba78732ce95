"""Focused tests of chapter 09: Ctrl+C stops a turn, and hooks look into it."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from grader.testing import assert_same, fail, run
from mini_agent.abort import AbortSignal
from mini_agent.agent_events import AgentEndEvent, AgentEvent
from mini_agent.agent_loop import run_agent
from mini_agent.extensions import Block, Extension, Extensions, HookFailure, ResultPatch
from mini_agent.interrupt import aborts_on_interrupt
from mini_agent.main import Repl
from mini_agent.scripted_model import ScriptedModel, ScriptedReply, tool_call
from mini_agent.session import read_content
from mini_agent.tools import Tool, ToolRegistry
from mini_agent.types import (
    AgentContext,
    AgentMessage,
    AssistantMessage,
    ToolCall,
    ToolDefinition,
    ToolResultMessage,
    text,
    text_of,
    tool_calls,
    user_message,
)

T = TypeVar("T")

CALL = tool_call("call-1", "read", {"path": "README.md"})
READ = ToolResultMessage("call-1", "read", (text("# Project"),), timestamp=7)
CONTEXT = AgentContext((user_message("读取 README.md", 1),), "You read files.")


def tool(name: str, execute: Callable[[dict[str, Any]], Awaitable[str]]) -> Tool:
    """A tool that takes an optional path."""
    schema = {"type": "object", "properties": {"path": {"type": "string"}}}

    async def run_it(arguments: dict[str, Any], signal: AbortSignal | None) -> str:
        return await execute(arguments)

    return Tool(ToolDefinition(name, f"The tool {name}.", schema), run_it)


async def project(arguments: dict[str, Any]) -> str:
    return "# Project"


def extensions(*loaded: Extension, failures: list[HookFailure] | None = None) -> Extensions:
    """These extensions. What they report goes into `failures`."""
    return Extensions(loaded, report=(failures if failures is not None else []).append)


def contained(asking: Coroutine[Any, Any, T]) -> T:
    """What Extensions answer; an exception of a hook must not come out of them."""
    __tracebackhide__ = True
    try:
        return run(asking)
    except NotImplementedError:
        raise
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        rule = "what a hook raises is reported, and goes no further"
        raise AssertionError(f"{rule}; {what} came out") from error


def ctrl_c() -> None:
    """What the terminal does at Ctrl+C."""
    signal.raise_signal(signal.SIGINT)


def press_ctrl_c_before(piece: int) -> Callable[[float], Awaitable[None]]:
    """A sleep for ScriptedModel: Ctrl+C is pressed before the n-th piece of all replies."""
    count = 0

    async def sleep(delay: float) -> None:
        nonlocal count
        count += 1
        if count == piece:
            ctrl_c()
        await asyncio.sleep(0)

    return sleep


def agent_run(
    replies: list[ScriptedReply], tools: list[Tool], hooks: Extensions
) -> tuple[AgentEndEvent, list[AgentEvent], ScriptedModel]:
    """One run of the loop on 读取 README.md: its end, all its events, and the model."""
    model = ScriptedModel(replies, clock=lambda: 7)

    async def collect() -> tuple[AgentEndEvent, list[AgentEvent]]:
        stream = run_agent(
            user_message("读取 README.md", 1),
            AgentContext(()),
            model,
            ToolRegistry(tools),
            clock=lambda: 7,
            extensions=hooks,
        )
        async with stream:
            events = [event async for event in stream]
            return await stream.result(), events

    end, events = run(collect())
    return end, events, model


# 9.1 Ctrl+C


def test_interrupt_asks_once_and_then_insists() -> None:
    """The first Ctrl+C aborts the signal, a second one ends in KeyboardInterrupt (step 9.1)."""
    before = signal.getsignal(signal.SIGINT)
    seen: list[object] = []

    async def press() -> None:
        abort = AbortSignal()
        try:
            with aborts_on_interrupt(abort):
                ctrl_c()
                await asyncio.wait_for(abort.wait(), timeout=5)
                seen.append("aborted")
                ctrl_c()
                for _ in range(10):
                    await asyncio.sleep(0)
                seen.append("still inside after the second one")
        except KeyboardInterrupt:
            seen.append("KeyboardInterrupt")

    try:
        run(press())
    except TimeoutError:
        fail("the first Ctrl+C aborts the signal: whoever waits for it is woken")
    assert_same(
        seen,
        ["aborted", "KeyboardInterrupt"],
        because="the first Ctrl+C aborts the signal and raises nothing; the second one leaves",
    )
    assert_same(
        signal.getsignal(signal.SIGINT) is before,
        True,
        because="after the `with`, Ctrl+C does again what it did before",
    )


def test_cancel_stops_the_reply_and_the_prompt_comes_back(tmp_path: Path) -> None:
    """Ctrl+C in a reply keeps what had arrived, and the next prompt is answered (step 9.1)."""
    out: list[str] = []
    model = ScriptedModel(
        ["12345678abcdefgh", "fine"],
        sleep=press_ctrl_c_before(piece=2),
        chunk_size=8,
        clock=lambda: 7,
    )
    repl = Repl(model, ToolRegistry(), write=out.append, clock=lambda: 7, session_dir=tmp_path)
    try:
        repl.run(["tell me something long", "still there?"])
    except KeyboardInterrupt:
        fail("Ctrl+C in a turn stops the turn, and not the program")
    finally:
        repl.close()

    shown = [(message.role, text_of(message)) for message in repl.messages]
    assert_same(
        shown,
        [
            ("user", "tell me something long"),
            ("assistant", "12345678"),
            ("user", "still there?"),
            ("assistant", "fine"),
        ],
        because="the reply keeps the 8 characters that had come, and the next prompt is answered",
    )
    (path,) = tmp_path.iterdir()
    assert_same(
        read_content(path.read_bytes()).messages,
        tuple(repl.messages),
        because="the reply that was stopped is saved like any other",
    )


def test_cancel_gives_every_call_a_result() -> None:
    """Ctrl+C while tools run: each call is answered, and the conversation goes on (step 9.1)."""
    ended: list[str] = []

    async def wait(arguments: dict[str, Any]) -> str:
        path = arguments["path"]
        try:
            if path == "b":
                ctrl_c()
            for _ in range(1000):  # long enough to be stopped, and it does end if it is not
                await asyncio.sleep(0)
        finally:
            ended.append(path)
        return "was not stopped"

    calls = [tool_call(f"call-{path}", "wait", {"path": path}) for path in ("a", "b", "c")]
    model = ScriptedModel([calls, "fine"], clock=lambda: 7)
    repl = Repl(model, ToolRegistry([tool("wait", wait)]), write=lambda _: None, clock=lambda: 7)
    try:
        repl.run(["wait for three", "still there?"])
    except KeyboardInterrupt:
        fail("Ctrl+C in a turn stops the turn, and not the program")

    results = [
        (message.tool_call_id, text_of(message), message.is_error)
        for message in repl.messages
        if isinstance(message, ToolResultMessage)
    ]
    assert_same(
        results,
        [(f"call-{path}", "Operation aborted", True) for path in ("a", "b", "c")],
        because="every call has a result, an error that says it was aborted, in the reply's order",
    )
    assert_same(sorted(ended), ["a", "b", "c"], because="every tool is stopped, and none is left")
    assert_same(
        [message.role for message in model.contexts[-1].messages],
        ["user", "assistant", "toolResult", "toolResult", "toolResult", "user"],
        because="the next request has a result for each call: a provider refuses an open one",
    )


# 9.2 A guard before each tool


def test_hooks_run_in_the_order_of_loading() -> None:
    """First by extension, then by registration, one after the other (step 9.2)."""
    log: list[str] = []
    first, second = Extension("first"), Extension("second")

    def logging(name: str) -> Callable[[ToolCall], Awaitable[None]]:
        async def hook(call: ToolCall) -> None:
            log.append(f"{name} begins")
            await asyncio.sleep(0)
            log.append(f"{name} ends")

        return hook

    second.before_tool(logging("second/1"))  # registered early, loaded late
    first.before_tool(logging("first/1"))
    first.turn_end(lambda reply, results: log.append("turn_end"))
    first.before_tool(logging("first/2"))

    allowed = run(extensions(first, second).before_tool(CALL, None))

    assert_same(allowed, None, because="no hook blocks the call")
    assert_same(
        log,
        [
            f"{name} {what}"
            for name in ("first/1", "first/2", "second/1")
            for what in ("begins", "ends")
        ],
        because="hooks of one place run one by one: by extension as loaded, then as registered",
    )


def test_hooks_before_a_tool_block_it_with_a_reason() -> None:
    """The first Block counts, and no later hook is asked (step 9.2)."""
    guard = Extension("guard")
    asked: list[str] = []
    guard.before_tool(lambda call: asked.append("first"))
    guard.before_tool(lambda call: Block(f"{call.name} is not allowed here"))
    guard.before_tool(lambda call: asked.append("third"))

    reason = run(extensions(guard).before_tool(CALL, None))

    assert_same(reason, "read is not allowed here", because="the reason of the Block is the answer")
    assert_same(asked, ["first"], because="after a Block nobody needs to be asked any more")


def test_hooks_that_fail_before_a_tool_block_it() -> None:
    """A guard that fails has not agreed: it blocks the call, and is reported (step 9.2)."""
    wrong: tuple[tuple[Callable[[ToolCall], Any], str], ...] = (
        (lambda call: (call.arguments or {})["no such argument"], "KeyError"),
        (lambda call: True, "TypeError"),
    )
    for failing, error in wrong:
        failures: list[HookFailure] = []
        guard = Extension("guard")
        guard.before_tool(failing)
        reason = contained(extensions(guard, failures=failures).before_tool(CALL, None))
        if not reason:
            fail("a hook that fails in before_tool blocks the call: it has not agreed")
        assert_same(
            [(each.extension, each.place, type(each.error).__name__) for each in failures],
            [("guard", "before_tool", error)],
            because="a failing guard is reported like any other hook",
        )


# 9.3 Hooks that change, and hooks that look on


def test_hooks_that_fail_are_reported_and_the_next_runs() -> None:
    """A failing hook is as if it were not there, but somebody is told (step 9.3)."""
    failures: list[HookFailure] = []
    bad, good = Extension("bad"), Extension("good")
    turns: list[str] = []

    @bad.before_model
    def broken(context: AgentContext) -> AgentContext:
        raise ValueError("no context for you")

    @bad.after_tool
    async def wrong(call: ToolCall, result: ToolResultMessage) -> Any:
        return "a string is no ResultPatch"

    @bad.turn_end
    def unlucky(reply: AssistantMessage, results: tuple[ToolResultMessage, ...]) -> None:
        raise IndexError("no such turn")

    good.before_model(lambda context: AgentContext(context.messages, "Another prompt."))
    good.after_tool(lambda call, result: ResultPatch(is_error=True))
    good.turn_end(lambda reply, results: turns.append(reply.stop_reason))

    async def all_three() -> tuple[str | None, bool]:
        hooks = extensions(bad, good, failures=failures)
        context = await hooks.before_model(CONTEXT, None)
        result = await hooks.after_tool(CALL, READ, None)
        await hooks.turn_end(AssistantMessage((), "stop"), ())
        return context.system_prompt, result.is_error

    assert_same(
        contained(all_three()),
        ("Another prompt.", True),
        because="the hooks behind a failing one run, and work",
    )
    assert_same(turns, ["stop"], because="that is so for turn_end, too")
    assert_same(
        [(each.extension, each.place, type(each.error).__name__) for each in failures],
        [
            ("bad", "before_model", "ValueError"),
            ("bad", "after_tool", "TypeError"),
            ("bad", "turn_end", "IndexError"),
        ],
        because="each failure is reported once: which extension, at which place, and what",
    )


def test_hooks_after_a_tool_patch_field_by_field() -> None:
    """A patch replaces whole fields; what it leaves out stays, patches of others too (step 9.3)."""
    failed = ToolResultMessage("call-1", "read", (text("a"), text("b")), is_error=True, timestamp=7)
    seen: list[tuple[str, bool]] = []
    patcher = Extension("patcher")

    @patcher.after_tool
    def reword(call: ToolCall, result: ToolResultMessage) -> ResultPatch:
        return ResultPatch(content=(text("reworded"),))

    @patcher.after_tool
    def forgive(call: ToolCall, result: ToolResultMessage) -> ResultPatch:
        seen.append((text_of(result), result.is_error))
        return ResultPatch(is_error=False)

    patcher.after_tool(lambda call, result: None)

    result = run(extensions(patcher).after_tool(CALL, failed, None))

    assert_same(
        seen,
        [("reworded", True)],
        because="a hook is given the result as the hooks before it left it",
    )
    assert_same(
        result,
        ToolResultMessage("call-1", "read", (text("reworded"),), is_error=False, timestamp=7),
        because="content is replaced as a whole and not merged, and False is a value, not a gap",
    )


def test_hooks_before_the_model_work_on_a_copy() -> None:
    """What a hook does to its context changes nothing; what it returns does (step 9.3)."""
    call = ToolCall("call-1", "read", {"path": "README.md"}, '{"path":"README.md"}')
    definition = ToolDefinition("read", "Reads.", {"type": "object"})
    context = AgentContext((AssistantMessage((call,), "toolUse"), READ), None, (definition,))
    vandal, editor = Extension("vandal"), Extension("editor")

    @vandal.before_model
    def spoil(given: AgentContext) -> None:
        given.tools[0].parameters.clear()
        reply = given.messages[0]
        if isinstance(reply, AssistantMessage):
            (tool_calls(reply)[0].arguments or {})["path"] = "/etc/passwd"

    @editor.before_model
    async def shorten(given: AgentContext) -> AgentContext:
        return AgentContext(given.messages[1:], "Short.", given.tools)

    result = run(extensions(vandal, editor).before_model(context, None))

    assert_same(
        (call.arguments, definition.parameters),
        ({"path": "README.md"}, {"type": "object"}),
        because="a hook has its own copy, down to the dicts: the transcript is not its to change",
    )
    assert_same(
        result,
        AgentContext((READ,), "Short.", (ToolDefinition("read", "Reads.", {"type": "object"}),)),
        because="the context that a hook returns is the one that the next hook and the model get",
    )


# 9.4 Hooks in the loop


def test_loop_does_not_run_a_blocked_call() -> None:
    """A blocked call gets an error result with the reason; the others run (step 9.4)."""
    ran: list[str] = []

    async def note(arguments: dict[str, Any]) -> str:
        ran.append(arguments["path"])
        return "done"

    guard = Extension("guard")
    asked: list[str] = []

    @guard.before_tool
    async def no_secrets(call: ToolCall) -> Block | None:
        asked.append(call.id)
        await asyncio.sleep(0)
        path = (call.arguments or {}).get("path")
        return Block("secrets are not read") if path == ".env" else None

    guard.after_tool(lambda call, result: asked.append(f"after {call.id}"))
    calls = [
        tool_call("call-1", "read", {"path": ".env"}),
        tool_call("call-2", "read", {"path": 42}),  # does not fit the schema
        tool_call("call-3", "read", {"path": "README.md"}),
    ]

    end, _, _ = agent_run([calls, "ok"], [tool("read", note)], extensions(guard))

    results = [each for each in end.messages if isinstance(each, ToolResultMessage)]
    assert_same(ran, ["README.md"], because="a blocked call is not run, and an invalid one neither")
    assert_same(
        [(each.tool_call_id, each.is_error) for each in results],
        [("call-1", True), ("call-2", True), ("call-3", False)],
        because="every call has its result, in the reply's order",
    )
    assert_same(
        text_of(results[0]), "secrets are not read", because="the model is told why it was blocked"
    )
    assert_same(
        asked,
        ["call-1", "call-3", "after call-3"],
        because="hooks are asked in order, and only about what can run, or has run",
    )


def test_loop_takes_the_patched_result() -> None:
    """What after_tool makes of a result is what the transcript and the model have (step 9.4)."""
    redactor = Extension("redactor")
    redactor.after_tool(lambda call, result: ResultPatch(content=(text("[removed]"),)))

    end, events, model = agent_run([[CALL], "ok"], [tool("read", project)], extensions(redactor))

    patched = ToolResultMessage("call-1", "read", (text("[removed]"),), timestamp=7)
    told = [event.result for event in events if event.type == "tool_execution_end"]
    assert_same(told, [patched], because="the event that ends the call has the patched result")
    assert_same(end.messages[2], patched, because="so has the transcript")
    assert_same(model.contexts[1].messages[-1], patched, because="and the model's next request")


def test_loop_gives_the_model_what_the_hook_returned() -> None:
    """before_model changes each request, and never the conversation (step 9.4)."""
    reminder = Extension("reminder")
    count = 0

    @reminder.before_model
    def remind(context: AgentContext) -> AgentContext:
        nonlocal count
        count += 1
        note: tuple[AgentMessage, ...] = (user_message(f"This is request {count}.", 1),)
        return AgentContext(context.messages + note, context.system_prompt, context.tools)

    end, _, model = agent_run([[CALL], "ok"], [tool("read", project)], extensions(reminder))

    last_words = [text_of(context.messages[-1]) for context in model.contexts]
    assert_same(
        last_words,
        ["This is request 1.", "This is request 2."],
        because="the hook runs before each request, and the model gets what it returned",
    )
    assert_same(
        [[message.role for message in context.messages] for context in model.contexts],
        [["user", "user"], ["user", "assistant", "toolResult", "user"]],
        because="each request is made of the conversation, and not of the request before it",
    )
    assert_same(
        [message.role for message in end.messages],
        ["user", "assistant", "toolResult", "assistant"],
        because="what a hook adds to a request is not part of the conversation",
    )


def test_loop_ends_every_turn_with_its_hook() -> None:
    """turn_end has the reply and its results, in a turn that failed too (step 9.4)."""
    seen: list[tuple[str, int]] = []
    watcher = Extension("watcher")
    watcher.turn_end(lambda reply, results: seen.append((reply.stop_reason, len(results))))

    agent_run(
        [[CALL, tool_call("call-2", "read", {})], "ok"],
        [tool("read", project)],
        extensions(watcher),
    )
    agent_run([], [], extensions(watcher))  # the script is empty: the model's reply is an error

    assert_same(
        seen,
        [("toolUse", 2), ("stop", 0), ("error", 0)],
        because="one call of turn_end a turn, with the turn's reply and all its results",
    )
