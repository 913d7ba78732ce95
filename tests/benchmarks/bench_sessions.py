"""How long a session of 1,000 turns takes to resume, next to reading and parsing its lines.

    python tests/benchmarks/bench_sessions.py

Three kinds of turns, since a short message costs more to check, for its size, than a long one.
"Lines" is `json.loads` of each line, of a file opened as text or as bytes, whichever was faster.
Both read the same file, in pairs, one after the other; medians are printed, and the ratio is the
median of the pairs' ratios. The exit code is 1 if a resume takes twice as long as the lines.
"""

import argparse
import gc
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
LIMIT = 2.0


def greeting(number: int) -> Iterable[Any]:
    """Two short messages."""
    from mini_agent.types import Usage, assistant_message, text, user_message

    yield user_message("hi", number)
    yield assistant_message([text("Hello!")], usage=Usage(30, 4), timestamp=number)


def calculation(number: int) -> Iterable[Any]:
    """A call of `calc`, as the offline model makes it."""
    yield from _with_tool(number, "what is 12*8", "calc", {"expression": "12*8"}, "96")


def reading(number: int) -> Iterable[Any]:
    """A call of `read` on a file of 2 KB."""
    content = "# Project\n" + "A line of a small file, not a long one.\n" * 50
    yield from _with_tool(number, "读取 README.md", "read", {"path": "README.md"}, content)


def _with_tool(
    number: int, prompt: str, name: str, arguments: dict[str, Any], result: str
) -> Iterable[Any]:
    from mini_agent.scripted_model import tool_call
    from mini_agent.types import ToolResultMessage, Usage, assistant_message, text, user_message

    call = tool_call(f"call-{number}", name, arguments)
    origin: dict[str, Any] = {"provider": "scripted", "model": "scripted", "timestamp": number}
    yield user_message(prompt, number)
    yield assistant_message([text("One moment."), call], "toolUse", usage=Usage(90, 20), **origin)
    yield ToolResultMessage(call.id, name, (text(result),), timestamp=number)
    yield assistant_message([text("That is what it says.")], usage=Usage(120, 9), **origin)


def session_of(directory: Path, turn: Callable[[int], Iterable[Any]], turns: int) -> Path:
    """A session of so many such turns."""
    from mini_agent.session import Session

    fsync, os.fsync = os.fsync, lambda file: None  # what writing costs is not the question
    try:
        with Session.create(directory / turn.__name__, "/home/me") as session:
            for number in range(turns):
                for message in turn(number):
                    session.append(message)
    finally:
        os.fsync = fsync
    return session.path


def text_lines(path: Path) -> int:
    with path.open(encoding="utf-8") as file:
        return len([json.loads(line) for line in file]) - 1


def byte_lines(path: Path) -> int:
    with path.open("rb") as file:
        return len([json.loads(line) for line in file]) - 1


def resumed(path: Path) -> int:
    from mini_agent.session import Session

    with Session.resume(path) as session:
        return len(session.messages)


def seconds(read: Callable[[Path], int], path: Path, messages: int) -> float:
    """The seconds of one reading. Checks that all messages are there."""
    gc.collect()
    start = time.perf_counter()
    count = read(path)
    took = time.perf_counter() - start
    assert count == messages, f"{count} of {messages} messages"
    return took


def measure(directory: Path, turns: int, pairs: int) -> float:
    """Print a row for each kind of turn. Returns the worst ratio."""
    print(f"Sessions of {turns:,} turns, {pairs} pairs, medians")
    print()
    print("| turn | messages | KB | lines, ms | resume, ms | ratio |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    worst = 0.0
    for turn in (greeting, calculation, reading):
        path = session_of(directory, turn, turns)
        messages = resumed(path)
        lines, resumes, ratios = [], [], []
        for _ in range(pairs):
            lines.append(min(seconds(read, path, messages) for read in (text_lines, byte_lines)))
            resumes.append(seconds(resumed, path, messages))
            ratios.append(resumes[-1] / lines[-1])
        ratio = statistics.median(ratios)
        worst = max(worst, ratio)
        kilobytes = path.stat().st_size / 1000
        took = f"{statistics.median(lines) * 1e3:.1f} | {statistics.median(resumes) * 1e3:.1f}"
        row = f"| {turn.__name__} | {messages:,} | {kilobytes:,.0f} | {took} | {ratio:.2f} |"
        print(row, flush=True)
    return worst


def main() -> int:
    """Print the table. 0 if every ratio is under the limit, else 1."""
    parser = argparse.ArgumentParser(description="Time the resume of a session.")
    parser.add_argument("--turns", type=int, default=1_000)
    parser.add_argument("--pairs", type=int, default=15, help="paired runs (default 15)")
    options = parser.parse_args()

    sys.path.insert(0, str(ROOT))
    from grader.checkpoint import compose_target
    from grader.course import load_course

    with tempfile.TemporaryDirectory() as directory:
        course = load_course(ROOT)
        compose_target(course, course.chapter("08"), Path(directory))
        sys.path.insert(0, directory)
        worst = measure(Path(directory) / "sessions", options.turns, options.pairs)
    print()
    print(f"the slowest resume takes {worst:.2f} times as long as its lines; the limit is {LIMIT}")
    return 0 if worst < LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
