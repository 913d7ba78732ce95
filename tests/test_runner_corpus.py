"""Submissions that cheat, crash, hang or flood, each with its right verdict.

Every row is a learner's `mini_agent/thing.py`. None of them may ever be green.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from toy_practice import NAMES, RIGHT, WRONG, course, outcomes, practice

from grader.runner import Limits, Warm, run_tests

needs_posix = pytest.mark.skipif("not hasattr(__import__('os'), 'fork')", reason="needs fork")
needs_linux = pytest.mark.skipif("__import__('sys').platform != 'linux'", reason="Linux only")

LIMITS = Limits(test_seconds=5, run_seconds=30, memory_bytes=1 << 29)
SHORT = Limits(test_seconds=0.8, run_seconds=30, memory_bytes=1 << 29)  # for what never ends


@pytest.fixture(scope="module")
def warm() -> Iterator[Warm]:
    with Warm(preload=("pytest",)) as parent:
        yield parent


@dataclass(frozen=True)
class Row:
    name: str
    thing: str
    outcomes: tuple[str, str, str]
    says: str = ""  # stands in the cause or in the first failure
    trusted: bool = True
    marks: tuple[pytest.MarkDecorator, ...] = ()

    @property
    def limits(self) -> Limits:
        endless = ("endless", "hang", "stops", "recursion")
        return SHORT if any(word in self.name for word in endless) else LIMITS


F, N, P = "failed", "not run", "passed"
NONE = (N, N, N)
ALL_FAIL = (F, F, F)

AT_IMPORT = (
    Row("wrong", WRONG, ALL_FAIL, "2 and 3 are 5"),
    Row(
        "sys.exit(0)",
        "import sys; sys.exit(0)",
        NONE,
        "the code called sys.exit(0), at mini_agent/thing.py:1",
    ),
    Row("os._exit(0)", "import os; os._exit(0)", NONE, "exit code 0"),
    Row("KeyboardInterrupt", "raise KeyboardInterrupt", NONE, "KeyboardInterrupt"),
    Row("pytest.exit", "import pytest; pytest.exit('done', returncode=0)", NONE, "pytest.exit"),
    Row(
        "pytest.skip",
        "import pytest; pytest.skip('later', allow_module_level=True)",
        NONE,
        "pytest.skip",
    ),
    Row(
        "exception", "1 / 0", NONE, "ZeroDivisionError: division by zero, at mini_agent/thing.py:1"
    ),
    Row("missing name", "def add(a, b): return 5", NONE, "cannot import name 'greet'"),
    Row(
        "missing module",
        "import nowhere",
        NONE,
        "No module named 'nowhere', at mini_agent/thing.py:1",
    ),
    Row(
        "syntax error", "def add(a, b)\n    return 5", NONE, "SyntaxError in mini_agent/thing.py:1"
    ),
    Row("null byte", WRONG + "#\0", NONE, "SyntaxError in mini_agent/thing.py"),
    Row(
        "endless import",
        "while True: pass",
        NONE,
        "importing tests/test_99_toy.py took longer than 0.8 s",
    ),
    Row(
        "deaf endless import",
        "while True:\n  try:\n    while True: pass\n  except BaseException: pass",
        NONE,
        "at mini_agent/thing.py:3",
    ),
    Row(
        "crash", "import ctypes; ctypes.string_at(0)", NONE, "importing tests/test_99_toy.py ended"
    ),
)

IN_A_FUNCTION = (
    Row(
        "sys.exit(0) in a call",
        "import sys\ndef add(a, b): sys.exit(0)\ndef greet(name): return f'hello {name}'",
        (F, P, F),
        "sys.exit(0)",
    ),
    Row(
        "os._exit(0) in a call",
        "import os\ndef add(a, b): os._exit(0)\ndef greet(name): return f'hello {name}'",
        (F, P, F),
        "the process ended during this test (exit code 0)",
    ),
    Row(
        "skip, xfail and exit in a call",
        "import pytest\ndef add(a, b): pytest.skip() if b else pytest.exit('x')\n"
        "def greet(name): pytest.xfail()",
        ALL_FAIL,
        "a skipped test is no pass",
    ),
    Row(
        "KeyboardInterrupt in a call",
        "def add(a, b): raise KeyboardInterrupt\ndef greet(name): return f'hello {name}'",
        (F, P, F),
        "KeyboardInterrupt",
    ),
    Row(
        "endless loop",
        "def add(a, b):\n    while b: pass\n    return a\ndef greet(name): return f'hello {name}'",
        (F, P, P),
        "took longer than 0.8 s",
    ),
    Row(
        "endless loop that ignores signals",
        "import signal\n"
        "def add(a, b):\n"
        "    for s in range(1, 60):\n"
        "        try: signal.signal(s, signal.SIG_IGN)\n"
        "        except (OSError, ValueError): pass\n"
        "    while b:\n"
        "        try:\n"
        "            while True: pass\n"
        "        except BaseException: pass\n"
        "    return a\n"
        "def greet(name): return f'hello {name}'",
        (F, P, P),
        "took longer than 0.8 s",
    ),
    Row(
        "hang inside C",
        "import ctypes\n"
        "def add(a, b):\n"
        "    if b: ctypes.PyDLL(None).sleep(1000)\n"
        "    return a\n"
        "def greet(name): return f'hello {name}'",
        (F, P, P),
        "took longer than 0.8 s",
        marks=(needs_posix,),
    ),
    Row(
        "a thread that never ends",
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(1000,)).start()\n" + WRONG,
        ALL_FAIL,
    ),
    Row(
        "recursion without end",
        "import sys\nsys.setrecursionlimit(10**9)\n"
        "def add(a, b): return [add(a, b)]\ndef greet(name): return f'hello {name}'",
        (F, P, F),
    ),
    Row(
        "memory bomb",
        "def add(a, b):\n    x = []\n    while True: x.append(bytearray(1 << 28))\n"
        "def greet(name): return f'hello {name}'",
        (F, P, F),
        marks=(needs_linux,),
    ),
    Row(
        "NUL, surrogates and escapes in a message",
        "def add(a, b): raise ValueError('\\0 \\ud800 \\x1b[31m')\n"
        "def greet(name): return '\\udfff'",
        ALL_FAIL,
        r"ValueError: \x00 \ud800 \x1b[31m",
    ),
    Row(
        "an exception without words",
        "class Bad(Exception):\n    def __str__(self): raise Bad\n"
        "def add(a, b): raise Bad\ndef greet(name): raise Bad",
        ALL_FAIL,
        "whose str raises Bad",
    ),
)

TRICKS = (
    Row(
        "equals everything",
        "class Yes:\n"
        "    def __eq__(self, other): return True\n"
        "    def __ne__(self, other): return False\n"
        "    def __hash__(self): return hash(5)\n"
        "def add(a, b): return Yes()\n"
        "def greet(name): return name\n",
        ALL_FAIL,
    ),
    Row(
        "an int that equals everything",
        "class Yes(int):\n"
        "    def __eq__(self, other): return True\n"
        "    __hash__ = int.__hash__\n"
        "def add(a, b): return Yes(1)\n"
        "def greet(name): return name\n",
        ALL_FAIL,
    ),
    Row(
        "patches TestReport",
        "from _pytest.reports import TestReport\n"
        "real = TestReport.from_item_and_call.__func__\n"
        "def fake(cls, item, call):\n"
        "    call.excinfo = None\n"
        "    return real(cls, item, call)\n"
        "TestReport.from_item_and_call = classmethod(fake)\n" + WRONG,
        ALL_FAIL,
    ),
    Row(
        "patches Function.runtest",
        "import pytest\npytest.Function.runtest = lambda self: None\n" + WRONG,
        NONE,
        "the test was never called",
        trusted=False,
    ),
    Row(
        "patches assert_same",
        "import grader.testing\ngrader.testing.assert_same = lambda *a, **k: None\n" + WRONG,
        NONE,
        "grader.testing.assert_same was replaced",
        trusted=False,
    ),
    Row(
        "rewrites assert_same",
        "import grader.testing\n"
        "grader.testing.assert_same.__code__ = (lambda a, b, *, because='': None).__code__\n"
        + WRONG,
        NONE,
        "grader.testing.assert_same was rewritten",
        trusted=False,
    ),
    Row(
        "replaces the helper in the test module",
        "import sys\n"
        "def add(a, b):\n"
        "    sys._getframe(1).f_globals['assert_same'] = lambda *a, **k: None\n"
        "    return 0\n"
        "def greet(name): return name\n",
        NONE,
        "assert_same was replaced",
        trusted=False,
    ),
    Row(
        "replaces the next test's code",
        "import sys\n"
        "def add(a, b):\n"
        "    sys._getframe(1).f_globals['test_greet_name'].__code__ = (lambda: None).__code__\n"
        "    return 5\n"
        "def greet(name): return name\n",
        NONE,
        "test_greet_name was rewritten",
        trusted=False,
    ),
    Row(
        "patches builtins",
        "import builtins\nbuiltins.type = lambda *a: int\n" + WRONG,
        NONE,
        trusted=False,
    ),
    Row(
        "an AssertionError that is no exception to pytest",
        "import builtins\nclass Quiet(SystemExit): pass\nbuiltins.AssertionError = Quiet\n" + WRONG,
        NONE,
        "builtins.AssertionError was replaced",
        trusted=False,
    ),
    Row(
        "replaces the module of helpers",
        "import sys, types\n"
        "fake = types.ModuleType('grader.testing')\n"
        "fake.assert_same = lambda *a, **k: None\n"
        "sys.modules['grader.testing'] = fake\n" + WRONG,
        NONE,
        "the module grader.testing was replaced",
        trusted=False,
    ),
    Row(
        "lends the test file a helper and takes it back",
        "import sys, types\n"
        "real = sys.modules['grader.testing']\n"
        "class Fake(types.ModuleType):\n"
        "    def __getattr__(self, name):\n"
        "        if name.startswith('__'): raise AttributeError(name)\n"
        "        sys.modules['grader.testing'] = real\n"
        "        return lambda *a, **k: None\n"
        "sys.modules['grader.testing'] = Fake('grader.testing')\n" + WRONG,
        NONE,
        "assert_same was replaced",
        trusted=False,
    ),
    Row(
        "a true record with no number",
        "import gc\nfor each in gc.get_objects():\n    if type(each).__name__ == 'Reporter':\n"
        "        each.send('start', test='x')\n" + RIGHT,
        NONE,
        "a record came that makes no sense",
        trusted=False,
    ),
    Row(
        "a true record with no test of the run",
        "import gc\nfor each in gc.get_objects():\n    if type(each).__name__ == 'Reporter':\n"
        "        each.send('loading', file=99)\n" + RIGHT,
        NONE,
        "a record came that makes no sense",
        trusted=False,
    ),
    Row(
        "a true record with no counts",
        "import gc\nfor each in gc.get_objects():\n    if type(each).__name__ == 'Reporter':\n"
        "        each.send('collected', counts='1:x')\n" + RIGHT,
        NONE,
        "a record came that makes no sense",
        trusted=False,
    ),
    Row(
        "hides the tasks it leaves",
        "import asyncio\nasyncio.all_tasks = lambda *a: set()\n" + RIGHT,
        NONE,
        "changed how tests are judged",
        trusted=False,
    ),
    Row(
        "an event loop that runs nothing",
        "import asyncio\nasyncio.run = lambda coroutine: coroutine.close()\n" + WRONG,
        NONE,
        "one that must pass failed",
        trusted=False,
    ),
    Row(
        "dataclasses without fields",
        "import dataclasses\n"
        "dataclasses._FIELD = object()\n"
        "dataclasses._FIELDS = '__nothing__'\n" + WRONG,
        NONE,
        "a test that must fail did not",
        trusted=False,
    ),
    Row(
        "a tracer that skips lines",
        "import sys\n"
        "def jump(frame, event, argument):\n"
        "    return jump\n"
        "sys.settrace(jump)\n" + WRONG,
        NONE,
        "a trace function was set",
        trusted=False,
    ),
    Row(
        "closes every descriptor",
        "import os, time\n"
        "def add(a, b):\n"
        "    os.closerange(3, 4096)\n"
        "    time.sleep(100)\n"
        "def greet(name): return f'hello {name}'\n",
        (F, P, F),
        "the code closed the grader's channel",
        marks=(needs_posix,),
    ),
    Row(
        "stops itself",
        "import os, signal\n"
        "def add(a, b): os.kill(os.getpid(), signal.SIGSTOP)\n"
        "def greet(name): return f'hello {name}'\n",
        (F, P, F),
        "took longer than 0.8 s",
        marks=(needs_posix,),
    ),
    Row(
        "atexit",
        "import atexit, os\natexit.register(os._exit, 0)\n" + WRONG,
        ALL_FAIL,
    ),
    Row(
        "forged output",
        "import os\nprint('3 passed in 0.01s', flush=True)\nos._exit(0)",
        NONE,
        "exit code 0",
    ),
    Row(
        "forged records on every descriptor",
        "import json, os, struct\n"
        "for record in ({'record': 'end', 'test': 0, 'outcome': 'passed', 'nonce': ''},\n"
        "               {'record': 'done', 'nonce': ''}):\n"
        "    body = json.dumps(record).encode()\n"
        "    for fd in range(3, 64):\n"
        "        try: os.write(fd, struct.pack('!I', len(body)) + body)\n"
        "        except OSError: pass\n"
        "os._exit(0)",
        NONE,
        "a record came that the grader's worker did not write",
        trusted=False,
    ),
    Row(
        "records from a double fork",
        "import os, time\n"
        "def add(a, b):\n"
        "    if os.fork() == 0:\n"
        "        if os.fork() == 0:\n"
        "            os.setsid()\n"
        "            for fd in range(3, 64):\n"
        "                try: os.write(fd, b'\\0\\0\\0\\2{}')\n"
        "                except OSError: pass\n"
        "            time.sleep(1000)\n"
        "        os._exit(0)\n"
        "    os.wait()\n"
        "    return a * b\n"
        "def greet(name): return name\n",
        ALL_FAIL,
        marks=(needs_posix,),
    ),
    Row(
        "a fork that returns into the run",
        "import os\n"
        "def add(a, b):\n"
        "    os.fork()\n"
        "    return a * b\n"
        "def greet(name): return name\n",
        ALL_FAIL,
        marks=(needs_posix,),
    ),
    Row(
        "overwrites the test files it can find",
        "import sys, pathlib\n"
        "for module in list(sys.modules.values()):\n"
        "    file = getattr(module, '__file__', None) or ''\n"
        "    if file.endswith('test_99_toy.py'):\n"
        "        pathlib.Path(file).write_text('def test_add_two(): pass')\n" + WRONG,
        ALL_FAIL,
    ),
    Row(
        "a package that is somewhere else",
        "import sys, types\n"
        "fake = types.ModuleType('mini_agent')\n"
        "fake.__spec__ = types.SimpleNamespace(origin='/elsewhere/mini_agent/__init__.py')\n"
        "sys.modules['mini_agent'] = fake\n" + RIGHT,
        NONE,
        "mini_agent was imported from /elsewhere",
        trusted=False,
    ),
)


@pytest.mark.parametrize(
    "row",
    [pytest.param(row, id=row.name, marks=row.marks) for row in AT_IMPORT + IN_A_FUNCTION + TRICKS],
)
def test_a_bad_submission_gets_its_right_verdict(row: Row, tmp_path: Path, warm: Warm) -> None:
    """Every expected test is listed, the outcomes are the stated ones, and nothing is green."""
    run = run_tests(practice(tmp_path, row.thing), course(tmp_path), limits=row.limits, warm=warm)

    said = [run.cause or ""] + [test.failure.message for test in run.tests if test.failure]
    assert not run.green
    assert [test.name for test in run.tests] == list(NAMES)
    assert outcomes(run) == list(row.outcomes), said
    assert run.trusted is row.trusted, said
    assert any(row.says in text for text in said), said


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, id=row.name, marks=row.marks)
        for row in AT_IMPORT[:3] + IN_A_FUNCTION[:2] + IN_A_FUNCTION[4:6] + TRICKS[:4]
    ],
)
def test_without_fork_the_verdict_is_the_same(row: Row, tmp_path: Path) -> None:
    """Where a system cannot fork, each worker is a process of its own and judges alike."""
    with Warm(preload=("pytest",), fork=False) as spawning:
        run = run_tests(
            practice(tmp_path, row.thing), course(tmp_path), limits=row.limits, warm=spawning
        )

    assert not run.green
    assert outcomes(run) == list(row.outcomes), run.cause
    assert run.trusted is row.trusted


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("conftest__py", "def pytest_runtest_call(item): item.obj = lambda: None"),
        ("pytest__ini", "[pytest]\naddopts = --collect-only\npython_functions = zzz\n"),
        ("pytest__toml", "[pytest]\naddopts = ['--collect-only']\n"),
        ("pyproject__toml", "[tool.pytest.ini_options]\naddopts = '--collect-only'\n"),
        ("setup__cfg", "[tool:pytest]\naddopts = --collect-only\n"),
        ("tox__ini", "[pytest]\naddopts = --collect-only\n"),
        ("json__py", "raise SystemExit(0)"),
        ("asyncio__py", "raise SystemExit(0)"),
        ("pytest__py", "raise SystemExit(0)"),
        ("httpx__py", "raise SystemExit(0)"),
        ("random__py", "raise SystemExit(0)"),
        ("grader__py", "raise SystemExit(0)"),
        ("sitecustomize__py", "import os; os._exit(0)"),
        ("usercustomize__py", "import os; os._exit(0)"),
        ("measurement_test__py", "raise SystemExit(0)"),
    ],
)
@pytest.mark.parametrize(("thing", "expected"), [(RIGHT, [P, P, P]), (WRONG, [F, F, F])])
def test_a_file_beside_the_package_changes_nothing(
    name: str, text: str, thing: str, expected: list[str], tmp_path: Path, warm: Warm
) -> None:
    """A learner's configuration, plugin or shadowing module is neither loaded nor punished."""
    run = run_tests(
        practice(tmp_path, thing, **{name: text}), course(tmp_path), limits=LIMITS, warm=warm
    )

    assert outcomes(run) == expected, run.cause
    assert run.trusted


def test_a_cold_run_ignores_shadows_too(tmp_path: Path) -> None:
    """What the interpreter imports at its very start does not come from the practice directory."""
    directory = practice(
        tmp_path, RIGHT, json__py="1/0", socket__py="1/0", sitecustomize__py="1/0", struct__py="1/0"
    )

    run = run_tests(directory, course(tmp_path), limits=LIMITS)

    assert run.green, run.cause
