"""How long a learner waits: the grader's commands against plain pytest, as whole processes.

    python tests/benchmarks/bench_grader.py [--runs 9]

Takes the finished chapter 05 into a temporary folder and measures, in turns, so that a busy
machine is busy for all of them. Plain pytest runs with warm bytecode caches and without the
plugins of this project's development. Exit code 1 if a limit is passed.
"""

import argparse
import os
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

TEST_FILE = "tests/test_05_provider_adapter.py"
LIMITS = {"grader test": 1.2, "watch, save to report": 0.6, "grader --help": 0.25}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=9, help="how often each is measured")
    runs: int = parser.parse_args().runs
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        done = Path(scratch) / "done"
        grader = [sys.executable, "-m", "grader"]
        _run([*grader, "export", "05", str(done)], environment, cwd=None)
        pytest = [sys.executable, "-m", "pytest", "-q", TEST_FILE]
        pytest += ["-p", "no:randomly", "-p", "no:xdist"]
        measured: dict[str, Callable[[], float]] = {
            "plain pytest": lambda: _run(pytest, environment, cwd=done),
            "grader test": lambda: _run([*grader, "test", str(done)], environment, cwd=None),
            "grader --help": lambda: _run([*grader, "--help"], environment, cwd=None),
        }
        times: dict[str, list[float]] = {name: [] for name in measured}
        times["watch, save to report"] = []
        with _Watch([*grader, "test", str(done), "--watch"], environment) as watch:
            for turn in range(runs + 1):  # the first turn warms caches and does not count
                for name, once in [*measured.items(), ("watch, save to report", watch.save(done))]:
                    seconds = once()
                    if turn:
                        times[name].append(seconds)
    return _report(times)


def _run(command: list[str], environment: dict[str, str], cwd: Path | None) -> float:
    began = time.perf_counter()
    subprocess.run(command, env=environment, cwd=cwd, check=True, capture_output=True)
    return time.perf_counter() - began


class _Watch:
    """`grader test --watch` at work, and the time from a save to the report's end."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            command,
            env=environment | {"PYTHONUNBUFFERED": "1", "PYTHONUTF8": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
        )
        self._reports: queue.SimpleQueue[float] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()
        self._next_report()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("watching"):
                self._reports.put(time.perf_counter())

    def _next_report(self) -> float:
        return self._reports.get(timeout=60)

    def save(self, directory: Path) -> Callable[[], float]:
        file = directory / "mini_agent" / "sse.py"

        def once() -> float:
            time.sleep(0.3)  # an editor is slower than this
            while not self._reports.empty():
                self._reports.get()
            text = file.read_bytes()
            began = time.perf_counter()
            file.write_bytes(text)
            return self._next_report() - began

        return once

    def __enter__(self) -> "_Watch":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()


def _report(times: dict[str, list[float]]) -> int:
    plain = statistics.median(times["plain pytest"])
    late = 0
    print(f"{'':24}{'median':>9}{'range':>16}{'of pytest':>11}{'limit':>7}")
    for name, seconds in times.items():
        median = statistics.median(seconds)
        limit = LIMITS.get(name)
        spread = f"{min(seconds):.3f}-{max(seconds):.3f}"
        ratio = f"{median / plain:.2f}"
        shown = "" if limit is None else f"{limit:g}"
        print(f"{name:24}{median:>7.3f} s{spread:>16}{ratio:>11}{shown:>7}")
        late += limit is not None and median / plain > limit
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
