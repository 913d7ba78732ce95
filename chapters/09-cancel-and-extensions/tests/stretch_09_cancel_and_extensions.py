"""Stretch tests of chapter 09: Ctrl+C at every moment, and hooks that behave badly."""

import asyncio
import io
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grader.testing import assert_same, fail, run
from mini_agent.abort import AbortSignal
from mini_agent.agent_loop import messages_for_model, run_agent
from mini_agent.extensions import (
    Block,
    Extension,
    ExtensionError,
    Extensions,
    HookFailure,
    ResultPatch,
    load_extension,
)
from mini_agent.interrupt import aborts_on_interrupt
from mini_agent.main import Repl, main, piped_lines
from mini_agent.scripted_model import ScriptedModel, ScriptedReply, tool_call
from mini_agent.session import read_content
from mini_agent.tools import Tool, ToolRegistry
from mini_agent.types import (
    AgentContext,
    AssistantMessage,
    ToolCall,
    ToolDefinition,
    ToolResultMessage,
    UserMessage,
    text,
    text_of,
    tool_calls,
    unanswered_calls,
    user_message,
)

CALL = tool_call("call-1", "read", {"path": "README.md"})
READ = ToolResultMessage("call-1", "read", (text("# Project"),), timestamp=7)


def tool(execute: Callable[[dict[str, Any], AbortSignal | None], Any]) -> ToolRegistry:
    """A registry with one tool, `read`."""
    return ToolRegistry([Tool(ToolDefinition("read", "Reads.", {"type": "object"}), execute)])


async def project(arguments: dict[str, Any], signal: AbortSignal | None) -> str:
    return "# Project"


def ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


# Ctrl+C


def test_ctrl_c_at_every_moment_leaves_a_conversation_that_goes_on(tmp_path: Path) -> None:
    """Pressed before any piece, or inside any tool, it leaves no open call and no lost message."""
    two = [tool_call(f"call-{n}", "read", {"path": f"{n}"}) for n in (1, 2)]
    script: list[ScriptedReply] = [[text("正在读取"), *two], "一个项目，一行。", "next"]
    for moment in range(1, 40):
        count = 0

        def tick(moment: int = moment) -> bool:
            nonlocal count
            count += 1
            if count == moment:
                ctrl_c()
            return count >= moment

        async def sleep(delay: float, tick: Callable[[], bool] = tick) -> None:
            tick()
            await asyncio.sleep(0)

        async def read(
            arguments: dict[str, Any], signal: AbortSignal | None, tick: Callable[[], bool] = tick
        ) -> str:
            for _ in range(3):
                tick()
                await asyncio.sleep(0)
            return "# Project"

        directory = tmp_path / str(moment)
        model = ScriptedModel(script, chunk_size=4, sleep=sleep, clock=lambda: 7)
        repl = Repl(model, tool(read), write=lambda _: None, clock=lambda: 7, session_dir=directory)
        repl.run(["读取 README.md"])
        pressed = count >= moment
        assert_same(
            repl.aborted, pressed, because=f"moment {moment}: Ctrl+C aborts, nothing else does"
        )
        count = 1_000
        repl.run(["go on"])
        repl.close()

        because = f"Ctrl+C at moment {moment}"
        assert_same(unanswered_calls(repl.messages), (), because=f"{because}: no call is open")
        given = messages_for_model(repl.messages)
        assert_same(unanswered_calls(given), (), because=f"{because}: nor in what a model is given")
        ids = {
            block.id
            for message in given
            if isinstance(message, AssistantMessage)
            for block in message.content
            if isinstance(block, ToolCall)
        }
        orphans = [
            message.tool_call_id
            for message in given
            if isinstance(message, ToolResultMessage) and message.tool_call_id not in ids
        ]
        assert_same(orphans, [], because=f"{because}: no result without its call")
        (path,) = directory.iterdir()
        assert_same(
            read_content(path.read_bytes()).messages,
            tuple(repl.messages),
            because=f"{because}: what the user saw is what was saved",
        )
        if not pressed:
            return
    fail("this conversation has fewer than 40 moments")


def test_a_second_ctrl_c_leaves_code_that_blocks() -> None:
    """A hook that holds up the whole program, event loop included, is left at the second Ctrl+C."""
    stuck = Extension("stuck")

    @stuck.before_tool
    def block(call: ToolCall) -> None:
        ctrl_c()
        ctrl_c()
        time.sleep(60)

    model = ScriptedModel([[CALL], "not asked"])
    repl = Repl(model, tool(project), write=lambda _: None, extensions=[stuck])
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        repl.run(["读取 README.md", "not asked"])
    assert_same(time.monotonic() - began < 30, True, because="the second Ctrl+C doesn't wait")
    assert_same(
        [message.role for message in repl.messages],
        ["user", "assistant"],
        because="the call stays open, and is answered when the session is resumed",
    )


def test_a_second_ctrl_c_leaves_a_hook_that_waits() -> None:
    """What doesn't heed the signal is cancelled at the second Ctrl+C, and cleans up."""
    log: list[str] = []
    slow = Extension("slow")

    @slow.turn_end
    async def wait(reply: AssistantMessage, results: tuple[ToolResultMessage, ...]) -> None:
        try:
            for _ in range(2):
                ctrl_c()
                await asyncio.sleep(0.01)
            await asyncio.sleep(3600)
        finally:
            log.append("cleaned up")

    repl = Repl(ScriptedModel(["fine"]), ToolRegistry(), write=lambda _: None, extensions=[slow])
    with pytest.raises(KeyboardInterrupt):
        repl.run(["one", "two"])
    assert_same(log, ["cleaned up"], because="a cancelled hook runs its `finally`")
    assert_same(repl.aborted, True, because="the first one had asked the turn to stop")


def test_a_third_ctrl_c_leaves_code_that_swallows_its_cancellation() -> None:
    """The abort is not looked at and the cancellation is swallowed: the user has the last word."""
    seen: list[str] = []

    async def press() -> None:
        abort = AbortSignal()
        try:
            with aborts_on_interrupt(abort):
                ctrl_c()
                await abort.wait()
                ctrl_c()
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    seen.append("swallowed")
                ctrl_c()
                seen.append("still inside after the third one")
        except KeyboardInterrupt:
            seen.append("KeyboardInterrupt")

    run(asyncio.wait_for(press(), 10))
    assert_same(seen, ["swallowed", "KeyboardInterrupt"], because="the third press leaves at once")


def test_ctrl_c_ends_a_pipe() -> None:
    """A pipe has no prompt to come back to: the turn is stopped, and so is the program."""
    model = ScriptedModel(["12345678", "not asked"], sleep=_pressing(), clock=lambda: 7)
    repl = Repl(model, ToolRegistry(), write=lambda _: None, clock=lambda: 7)
    with pytest.raises(KeyboardInterrupt):
        repl.run(piped_lines(["one\n", "two\n"], repl))
    assert_same(model.call_count, 1, because="the second line of the pipe is not taken")
    assert_same(
        [message.role for message in repl.messages],
        ["user", "assistant"],
        because="what had arrived is kept",
    )


def _pressing() -> Callable[[float], Any]:
    async def sleep(delay: float) -> None:
        ctrl_c()
        await asyncio.sleep(0)

    return sleep


def test_only_the_main_thread_takes_ctrl_c() -> None:
    """In another thread Python has no signals: the turn runs, and Ctrl+C stays what it was."""
    before = signal.getsignal(signal.SIGINT)
    seen: list[object] = []

    def elsewhere() -> None:
        repl = Repl(ScriptedModel(["fine"]), ToolRegistry(), write=lambda _: None)
        seen.append(repl.run(["hello"]))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert_same(seen, [True], because="a turn in another thread works")
    assert_same(signal.getsignal(signal.SIGINT) is before, True, because="nothing was changed")


def test_the_handler_is_restored_after_an_error() -> None:
    """Whatever ends the block, Ctrl+C does afterwards what it did before."""
    before = signal.getsignal(signal.SIGINT)

    async def fails() -> None:
        inside = signal.getsignal(signal.SIGINT)
        with pytest.raises(ValueError, match="broken"), aborts_on_interrupt(AbortSignal()):
            raise ValueError("broken")
        assert_same(signal.getsignal(signal.SIGINT) is inside, True, because="restored")

    run(fails())
    assert_same(signal.getsignal(signal.SIGINT) is before, True, because="restored")


# Hooks


def reported(*loaded: Extension) -> tuple[Extensions, list[HookFailure]]:
    failures: list[HookFailure] = []
    return Extensions(loaded, report=failures.append), failures


def aborting(place: str, abort: AbortSignal, log: list[str]) -> Extension:
    """An extension whose first hook never ends and aborts the run; its second one logs."""
    extension = Extension("waiting")

    async def wait(*arguments: object) -> None:
        abort.abort()
        await asyncio.sleep(3600)

    def later(*arguments: object) -> None:
        log.append("asked")

    extension.hooks += [(place, wait), (place, later)]
    return extension


def test_an_abort_ends_the_wait_for_a_hook() -> None:
    """A hook that waits for a user is not waited for after Ctrl+C, and the next is not asked."""

    async def three() -> tuple[Any, ...]:
        context = AgentContext((user_message("hi", 1),))
        got: list[Any] = []
        for place, arguments in (
            ("before_model", (context,)),
            ("before_tool", (CALL,)),
            ("after_tool", (CALL, READ)),
        ):
            abort, log = AbortSignal(), list[str]()
            hooks, failures = reported(aborting(place, abort, log))
            got.append((await getattr(hooks, place)(*arguments, abort), log, failures))
        return (context, got)

    context, got = run(three())
    assert_same(
        got,
        [(context, [], []), ("Operation aborted", [], []), (READ, [], [])],
        because="context and result stay as they were, the tool doesn't run, nothing is a failure",
    )


def test_after_an_abort_no_hook_is_asked() -> None:
    """A run that is being stopped asks nobody any more, whatever kind of hook it is."""
    log: list[str] = []
    asker = Extension("asker")
    asker.before_model(lambda context: log.append("before_model"))
    asker.before_tool(lambda call: log.append("before_tool"))
    asker.after_tool(lambda call, result: log.append("after_tool"))

    async def three() -> None:
        abort = AbortSignal()
        abort.abort()
        hooks, _ = reported(asker)
        await hooks.before_model(AgentContext(()), abort)
        await hooks.before_tool(CALL, abort)
        await hooks.after_tool(CALL, READ, abort)

    run(three())
    assert_same(log, [], because="the signal is looked at before each hook")


@pytest.mark.parametrize("place", ["before_model", "before_tool", "after_tool"])
def test_an_abort_in_a_hook_ends_the_turn(place: str) -> None:
    """Whichever hook is waiting, the run ends as aborted, each call with one result."""

    async def aborted_run() -> tuple[str, tuple[object, ...], list[str]]:
        abort = AbortSignal()
        log: list[str] = []
        hooks, _ = reported(aborting(place, abort, log))
        stream = run_agent(
            user_message("hi", 1),
            AgentContext(()),
            ScriptedModel([[CALL], "not asked"]),
            tool(project),
            signal=abort,
            extensions=hooks,
        )
        async with stream:
            end = await stream.result()
        return end.reason, unanswered_calls(end.messages), log

    assert_same(
        run(aborted_run()), ("aborted", (), []), because=f"an abort in {place} ends the run"
    )


def test_turn_end_comes_after_an_abort_too() -> None:
    """Who opened something at the beginning of a turn can close it."""
    seen: list[str] = []
    watcher = Extension("watcher")

    @watcher.turn_end
    async def note(reply: AssistantMessage, results: tuple[ToolResultMessage, ...]) -> None:
        await asyncio.sleep(0)
        seen.append(reply.stop_reason)

    async def aborted_run() -> None:
        abort = AbortSignal()
        abort.abort()
        hooks, _ = reported(watcher)
        stream = run_agent(
            user_message("hi", 1),
            AgentContext(()),
            ScriptedModel(["x"]),
            ToolRegistry(),
            signal=abort,
            extensions=hooks,
        )
        async with stream:
            await stream.result()

    run(aborted_run())
    assert_same(seen, ["aborted"], because="turn_end is told of every turn, and may wait")


def test_nothing_that_a_hook_does_ends_the_loop() -> None:
    """A hook that raises, cancels itself or returns nonsense does no harm; nor does a report."""

    async def cancels(*arguments: object) -> None:
        raise asyncio.CancelledError

    def nonsense(*arguments: object) -> object:
        return 42

    def raises(*arguments: object) -> None:
        raise RuntimeError("broken")

    bad = Extension("bad")
    for place in ("before_model", "after_tool", "turn_end"):
        bad.hooks += [(place, cancels), (place, nonsense), (place, raises)]

    def report(failure: HookFailure) -> None:
        count.append(str(failure))
        raise OSError("the log is full")

    async def whole_run() -> str:
        stream = run_agent(
            user_message("hi", 1),
            AgentContext(()),
            ScriptedModel([[CALL], "done"]),
            tool(project),
            extensions=Extensions([bad], report=report),
        )
        async with stream:
            return (await stream.result()).reason

    count: list[str] = []
    assert_same(run(whole_run()), "done", because="the run is what it is without the hooks")
    assert_same(len(count), 3 * (2 + 1 + 2), because="each failure of each hook was reported")
    assert_same(
        count[2],
        "extension bad, before_model: RuntimeError: broken",
        because="in words, with its place",
    )


def test_a_cancelled_run_is_cancelled_in_a_hook_too() -> None:
    """asyncio's own cancellation is nobody's failure: it goes through, and leaves no task."""
    failures: list[HookFailure] = []
    slow = Extension("slow")

    @slow.before_tool
    async def wait(call: ToolCall) -> None:
        await asyncio.sleep(3600)

    async def cancelled() -> None:
        hooks = Extensions([slow], report=failures.append)
        task = asyncio.create_task(hooks.before_tool(CALL, None))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(cancelled())
    assert_same(failures, [], because="a cancellation is no failure of the hook")


def test_hooks_cannot_change_the_call() -> None:
    """Arguments were checked before the hook saw them, and run as they were checked."""
    seen: list[object] = []

    async def read(arguments: dict[str, Any], signal: AbortSignal | None) -> str:
        seen.append(arguments)
        return "x"

    vandal = Extension("vandal")

    @vandal.before_tool
    def change(call: ToolCall) -> None:
        (call.arguments or {})["path"] = "/etc/passwd"

    @vandal.after_tool
    def change_after(call: ToolCall, result: ToolResultMessage) -> None:
        (call.arguments or {}).clear()

    @vandal.turn_end
    def change_last(reply: AssistantMessage, results: tuple[ToolResultMessage, ...]) -> None:
        for call in tool_calls(reply):
            (call.arguments or {}).clear()

    hooks, failures = reported(vandal)

    async def whole_run() -> object:
        stream = run_agent(
            user_message("hi", 1),
            AgentContext(()),
            ScriptedModel([[CALL], "done"]),
            tool(read),
            extensions=hooks,
        )
        async with stream:
            return (await stream.result()).messages[1].content[0]

    call = run(whole_run())
    assert_same(seen, [{"path": "README.md"}], because="the tool runs with the checked arguments")
    assert_same(call, CALL, because="and the transcript has them")
    assert_same(failures, [], because="a copy may be changed")


def test_a_patch_of_the_wrong_kind_is_a_failure() -> None:
    """Content that is no tuple of text blocks would break the next request: it is not taken."""
    patcher = Extension("patcher")
    patcher.after_tool(lambda call, result: ResultPatch(content="# Project"))  # type: ignore[arg-type]
    patcher.after_tool(lambda call, result: ResultPatch(content=[text("list")]))  # type: ignore[arg-type]
    hooks, failures = reported(patcher)
    result = run(hooks.after_tool(CALL, READ, None))
    assert_same(
        (result.content, len(failures)),
        ((text("list"),), 1),
        because="a list of blocks becomes the tuple it should have been; a string is refused",
    )


def test_one_question_at_a_time() -> None:
    """Hooks before parallel calls run one by one, and no tool starts before the last answer."""
    log: list[str] = []

    async def read(arguments: dict[str, Any], signal: AbortSignal | None) -> str:
        log.append(f"run {arguments['path']}")
        return "x"

    asker = Extension("asker")

    @asker.before_tool
    async def ask(call: ToolCall) -> Block | None:
        log.append(f"ask {call.id}")
        await asyncio.sleep(0)
        log.append(f"answer {call.id}")
        return None

    calls = [tool_call(f"call-{n}", "read", {"path": str(n)}) for n in (1, 2)]
    hooks, _ = reported(asker)

    async def whole_run() -> None:
        stream = run_agent(
            user_message("hi", 1),
            AgentContext(()),
            ScriptedModel([calls, "done"]),
            tool(read),
            extensions=hooks,
        )
        async with stream:
            await stream.result()

    run(whole_run())
    assert_same(
        log,
        ["ask call-1", "answer call-1", "ask call-2", "answer call-2", "run 1", "run 2"],
        because="hooks in source order, one by one; then the tools, together",
    )


# Loading


def test_an_extension_is_loaded_from_a_file(tmp_path: Path) -> None:
    """A Python file that defines `extension` is one; everything else is an error by name."""
    good = tmp_path / "polite.py"
    good.write_text(
        "from mini_agent.extensions import Block, Extension\n"
        "extension = Extension('polite')\n"
        "@extension.before_tool\n"
        "def ask(call):\n"
        "    return Block('say please')\n",
        encoding="utf-8",
    )
    before = sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    try:
        hooks, _ = reported(load_extension(good))
        assert_same(run(hooks.before_tool(CALL, None)), "say please", because="its hook works")
        for name, source in (
            ("none.py", "x = 1\n"),
            ("broken.py", "this is no Python\n"),
            ("raises.py", "raise RuntimeError('at import')\n"),
            ("stranger.py", "extension = 'a string'\n"),
            ("not_python.txt", "extension = 1\n"),
        ):
            path = tmp_path / name
            path.write_text(source, encoding="utf-8")
            with pytest.raises(ExtensionError, match=name.replace(".", r"\.")):
                load_extension(path)
        with pytest.raises(ExtensionError, match="missing"):
            load_extension(tmp_path / "missing.py")
    finally:
        sys.dont_write_bytecode = before


def test_a_failing_hook_is_told_in_the_repl() -> None:
    """The user sees which extension failed, on a line of its own, control characters spelt out."""
    out: list[str] = []
    bad = Extension("bad")

    @bad.turn_end
    def broken(reply: AssistantMessage, results: tuple[ToolResultMessage, ...]) -> None:
        raise ValueError("red \x1b[31m")

    repl = Repl(ScriptedModel(["fine"]), ToolRegistry(), write=out.append, extensions=[bad])
    repl.run(["hello"])
    line = "[extension] extension bad, turn_end: ValueError: red \\x1b[31m\n"
    assert_same(line in "".join(out), True, because=f"the failure is told: {''.join(out)!r}")
    users = [text_of(message) for message in repl.messages if isinstance(message, UserMessage)]
    assert_same(users, ["hello"], because="and the conversation is what it would have been")


def test_extensions_are_loaded_in_the_order_of_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--extension` may be given several times; one that can't be loaded ends it at once."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for name in ("MINI_AGENT_SESSIONS", "ANTHROPIC_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)

    def program(*names: str) -> tuple[int, str, str]:
        argv = [part for name in names for part in ("--extension", str(tmp_path / f"{name}.py"))]
        keyboard = io.TextIOWrapper(io.BytesIO(b"what is 12*8\n"))
        monkeypatch.setattr(sys, "stdin", keyboard)
        code = main(argv)
        out, err = capsys.readouterr()
        return code, out, err

    for name in ("yes", "no"):
        (tmp_path / f"{name}.py").write_text(
            "from mini_agent.extensions import Block, Extension\n"
            f"extension = Extension('{name}')\n"
            "@extension.before_tool\n"
            "def say(call):\n"
            f"    return Block('{name} said it first')\n",
            encoding="utf-8",
        )
    for names in (("yes", "no"), ("no", "yes")):
        code, out, err = program(*names)
        assert_same(
            (code, f"[tool error] calc: {names[0]} said it first\n" in out, err),
            (0, True, ""),
            because=f"the first of the command line is asked first: {out}",
        )
    code, out, err = program("yes", "missing")
    assert_same((code, out, "missing.py" in err), (2, "", True), because=f"said at once: {err}")
    assert_same(program()[:1], (0,), because="without an extension it runs as before")
