"""What a graded run promises: order, limits, isolation, and what it tells of a failure."""

import contextlib
import hashlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from toy_course import write_course, write_starter, write_target
from toy_practice import NAMES, RIGHT, WRONG, course, outcomes, practice

from grader import processes
from grader.course import load_course
from grader.errors import GraderError
from grader.output import Output, safe_text
from grader.remarks import remarks
from grader.results import TestResult
from grader.runner import (
    Expected,
    Limits,
    Warm,
    expected_focused,
    expected_stretch,
    run_tests,
)

LIMITS = Limits(test_seconds=10, run_seconds=40)
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.fixture(scope="module")
def warm() -> Iterator[Warm]:
    with Warm(preload=("pytest",)) as parent:
        yield parent


def course_of(
    folder: Path, source: str, *names: str, file: str = "test_98_own.py"
) -> list[Expected]:
    """Expected tests of a course file with this source, outside the practice directory."""
    path = folder / "course" / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source, encoding="utf-8")
    return [Expected(path, name, name, "1.1") for name in names]


# The result


@pytest.mark.parametrize("forked", [True, False])
def test_a_right_solution_is_green(forked: bool, tmp_path: Path) -> None:
    """A cold run of a right solution passes every test, with a fork and without."""
    with Warm(preload=(), fork=forked) as parent:
        run = run_tests(practice(tmp_path), course(tmp_path), limits=LIMITS, warm=parent)

    assert run.green, run.cause
    assert (run.cause, run.trusted, run.notes) == (None, True, ())
    assert run.seconds < 10


def test_results_come_one_by_one_in_the_given_order(tmp_path: Path, warm: Warm) -> None:
    """Tests run in the order of the expected list, any order, and each is told at once."""
    told: list[TestResult] = []
    shuffled = [course(tmp_path)[k] for k in (2, 0, 1)]

    run = run_tests(practice(tmp_path), shuffled, limits=LIMITS, warm=warm, on_result=told.append)

    assert [test.name for test in told] == [NAMES[2], NAMES[0], NAMES[1]]
    assert run.tests == tuple(told)


def test_only_the_expected_tests_run(tmp_path: Path, warm: Warm) -> None:
    """A part of the list is a part of the run."""
    run = run_tests(practice(tmp_path, WRONG), course(tmp_path)[1:2], limits=LIMITS, warm=warm)

    assert [test.name for test in run.tests] == [NAMES[1]]


def test_an_expected_test_that_the_course_lacks_is_not_run(tmp_path: Path, warm: Warm) -> None:
    """A name that the test file does not define is listed, with the cause."""
    expected = [*course(tmp_path)]
    expected.append(Expected(expected[0].file, "test_ghost", "ghost", "1.2"))

    run = run_tests(practice(tmp_path), expected, limits=LIMITS, warm=warm)

    assert outcomes(run) == ["passed", "passed", "passed", "not run"]
    assert run.cause == "test_99_toy.py has no test function test_ghost"
    assert not run.green


def test_a_parametrised_function_is_one_result(tmp_path: Path, warm: Warm) -> None:
    """It passes if every case does; otherwise the first failing case speaks."""
    source = (
        "import pytest\nfrom grader.testing import assert_same\n"
        "@pytest.mark.parametrize('n', [1, 2, 3])\n"
        "def test_all(n): print(n)\n"
        "@pytest.mark.parametrize('n', [1, 2, 3], ids=['a::b', 'ü[x]', 'c'])\n"
        "def test_some(n): assert_same(n, 1)\n"
    )

    run = run_tests(
        practice(tmp_path),
        course_of(tmp_path, source, "test_all", "test_some"),
        limits=LIMITS,
        warm=warm,
    )

    assert outcomes(run) == ["passed", "failed"]
    assert run.tests[0].output == "1\n2\n3\n"
    failure = run.tests[1].failure
    assert failure is not None
    assert failure.message.endswith("expected  1\ngot       2")
    assert failure.message.startswith("[")


def test_a_file_that_cannot_be_loaded_takes_only_its_own_tests(tmp_path: Path, warm: Warm) -> None:
    """The tests of another file still run, and the cause is said once."""
    broken = course_of(
        tmp_path, "from mini_agent.later import x\ndef test_b(): pass\n", "test_b", file="test_b.py"
    )

    run = run_tests(practice(tmp_path), [*broken, *course(tmp_path)], limits=LIMITS, warm=warm)

    assert outcomes(run) == ["not run", "passed", "passed", "passed"]
    assert run.cause == "No module named 'mini_agent.later'"


def test_an_import_that_kills_takes_only_its_own_tests(tmp_path: Path, warm: Warm) -> None:
    """A test file whose import ends the process does not cost the other file its run."""
    broken = course_of(
        tmp_path, "import mini_agent.end\ndef test_b(): pass\n", "test_b", file="test_b.py"
    )
    directory = practice(tmp_path)
    (directory / "mini_agent" / "end.py").write_text("import os; os._exit(3)", encoding="utf-8")

    run = run_tests(directory, [*broken, *course(tmp_path)], limits=LIMITS, warm=warm)

    assert outcomes(run) == ["not run", "passed", "passed", "passed"]
    assert run.cause == "importing tests/test_b.py ended the process (exit code 3)"


def test_a_test_that_the_course_skips_is_not_run(tmp_path: Path, warm: Warm) -> None:
    """Skipping is the course's right, and still no pass; a fixture's error is a failure."""
    source = (
        "import pytest\n"
        "def test_skips(): pytest.skip('not here')\n"
        "@pytest.fixture\ndef broken(): raise ValueError('fixture')\n"
        "def test_setup(broken): pass\n"
    )

    run = run_tests(
        practice(tmp_path),
        course_of(tmp_path, source, "test_skips", "test_setup"),
        limits=LIMITS,
        warm=warm,
    )

    assert outcomes(run) == ["not run", "failed"]
    assert [test.failure and test.failure.message for test in run.tests] == [
        "pytest.skip was called (not here); a skipped test is no pass",
        "ValueError: fixture",
    ]


def test_a_test_that_is_not_for_this_system_is_left_out_and_named(
    tmp_path: Path, warm: Warm
) -> None:
    """A `skipif` of the course's own file counts; the same skip without the mark does not."""
    source = (
        "import pytest\n"
        "@pytest.mark.skipif(True, reason='no pipes here')\ndef test_pipe(): pass\n"
        "@pytest.mark.skipif(False, reason='never')\ndef test_here(): pass\n"
    )
    directory = practice(tmp_path)
    both = run_tests(
        directory,
        course_of(tmp_path, source, "test_pipe", "test_here"),
        limits=LIMITS,
        warm=warm,
    )
    alone = run_tests(directory, course_of(tmp_path, source, "test_pipe"), limits=LIMITS, warm=warm)

    assert [(test.name, test.outcome) for test in both.tests] == [("test_here", "passed")]
    assert [note for note in both.notes if "not for this system" in note] != []
    assert both.green
    assert outcomes(alone) == ["not run"]  # nothing was proved, so nothing is green
    assert not alone.green


def test_nothing_to_run_is_an_error(tmp_path: Path) -> None:
    """No tests, or no directory, is the caller's mistake and no grade."""
    with pytest.raises(GraderError, match="no test to run"):
        run_tests(practice(tmp_path), [])
    with pytest.raises(GraderError, match="is not a directory"):
        run_tests(tmp_path / "absent", course(tmp_path))


def test_a_chapter_says_what_it_expects(tmp_path: Path, warm: Warm) -> None:
    """The focused tests in the manifest's order, and the stretch tests in their files' order."""
    course_root = write_course(tmp_path / "course")
    chapter = load_course(course_root).chapter("02")

    focused, stretch = expected_focused(chapter), expected_stretch(chapter)
    target = write_target(course_root, 2, tmp_path / "target")
    starter = write_starter(course_root, 2, tmp_path / "starter")
    finished = run_tests(target, [*focused, *stretch], limits=LIMITS, warm=warm)
    begun = run_tests(starter, focused, limits=LIMITS, warm=warm)

    assert [(test.step, test.name) for test in focused + stretch] == [
        ("2.1", "test_count_holds_a_number"),
        ("2.2", "test_words_are_counted"),
        ("2.2", "test_words_none"),
        ("stretch", "test_any_gap"),
        ("stretch", "test_many_words"),
    ]
    assert finished.green, finished.cause
    assert outcomes(begun) == ["not run"] * 3
    assert begun.cause == (
        "cannot import name 'Count' from 'mini_agent.greet' (mini_agent/greet.py), "
        "at mini_agent/count.py:3"
    )


# What a failure tells


def test_a_whole_value_mismatch_comes_in_its_parts(tmp_path: Path, warm: Warm) -> None:
    """Expected, got, because and path are apart, for a report to lay out."""
    source = (
        "from grader.testing import assert_same\n"
        "from mini_agent.thing import add\n"
        "def test_it(): assert_same([{'n': add(2, 3)}], [{'n': 5}], because='2 and 3 are 5')\n"
    )

    run = run_tests(
        practice(tmp_path, WRONG), course_of(tmp_path, source, "test_it"), limits=LIMITS, warm=warm
    )

    failure = run.tests[0].failure
    assert failure is not None
    assert (failure.path, failure.expected, failure.got) == ("[0]['n']", "5", "7")
    assert (failure.because, failure.exception) == ("2 and 3 are 5", "Mismatch")


def test_a_failure_names_the_learners_innermost_line(tmp_path: Path, warm: Warm) -> None:
    """Also through the standard library, and NotImplementedError can be told from a mistake."""
    thing = (
        "import json\n"
        "def helper(text): return json.loads(text)\n"
        "def add(a, b): return helper('{')\n"
        "def greet(name): raise NotImplementedError('step 1.2')\n"
    )

    run = run_tests(practice(tmp_path, thing), course(tmp_path), limits=LIMITS, warm=warm)

    adding, greeting, _ = (test.failure for test in run.tests)
    assert adding is not None
    assert greeting is not None
    assert adding.where == "mini_agent/thing.py:2, in helper"
    assert adding.message.startswith("JSONDecodeError: Expecting property name")
    assert 'File "tests/test_99_toy.py", line 7, in test_add_two' in adding.traceback
    assert "assert_same(add(2, 3), 5" in adding.traceback
    assert "worker.py" not in adding.traceback
    assert str(tmp_path) not in adding.traceback
    assert greeting.exception == "NotImplementedError"
    assert greeting.message == "NotImplementedError: step 1.2"


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("input('name? ')", "a test has no keyboard, so input() gets no answer"),
        ("breakpoint()", "a debugger has no keyboard here; under plain `pytest` it has one"),
    ],
)
def test_code_that_waits_for_a_keyboard_is_told_so(
    code: str, says: str, tmp_path: Path, warm: Warm
) -> None:
    """A question in a test fails at once, and says why."""
    directory = practice(
        tmp_path, f"def greet(name): return ''\ndef add(a, b):\n    {code}\n    a\n"
    )

    run = run_tests(directory, course(tmp_path), limits=LIMITS, warm=warm)

    assert run.tests[0].failure is not None
    assert says in run.tests[0].failure.message


def test_a_plain_assert_explains_itself(tmp_path: Path, warm: Warm) -> None:
    """Test files keep pytest's assertion rewriting."""
    run = run_tests(practice(tmp_path, WRONG), course(tmp_path), limits=LIMITS, warm=warm)

    failure = run.tests[1].failure
    assert failure is not None
    assert "assert 'Ada' == 'hello Ada'" in failure.message


def test_a_missing_name_is_one_cause_with_its_file(tmp_path: Path, warm: Warm) -> None:
    """The cause says which name is missing from which file, with no absolute path."""
    run = run_tests(
        practice(tmp_path, "def add(a, b): return 5\n"), course(tmp_path), limits=LIMITS, warm=warm
    )

    assert outcomes(run) == ["not run"] * 3
    assert run.cause == "cannot import name 'greet' from 'mini_agent.thing' (mini_agent/thing.py)"


def test_a_missing_name_in_a_learners_import_names_that_line(tmp_path: Path, warm: Warm) -> None:
    """Where the import stands in the learner's code, its line is said."""
    directory = practice(tmp_path, "\nfrom mini_agent.other import x\n" + RIGHT)
    (directory / "mini_agent" / "other.py").write_text("", encoding="utf-8")

    run = run_tests(directory, course(tmp_path), limits=LIMITS, warm=warm)

    assert run.cause == (
        "cannot import name 'x' from 'mini_agent.other' (mini_agent/other.py), "
        "at mini_agent/thing.py:2"
    )


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda file: file.write_bytes(b"x = 1\ny = '\xff'\n"),
            "SyntaxError in mini_agent/thing.py",
        ),
        (lambda file: file.write_bytes("x = 1\n".encode("utf-16")), "save it as UTF-8"),
        (lambda file: file.mkdir(), "mini_agent/thing.py is a directory"),
        (
            lambda file: file.symlink_to("nowhere.py"),
            "mini_agent/thing.py is a link that leads nowhere",
        ),
        (
            lambda file: file.symlink_to("thing.py"),
            "mini_agent/thing.py is a link that leads nowhere",
        ),
        (lambda file: file.with_suffix("").mkdir(), "mini_agent/thing is a directory"),
        (lambda file: None, "No module named 'mini_agent.thing'"),
    ],
    ids=["not UTF-8", "UTF-16", "a directory", "dangling", "a loop", "a folder", "absent"],
)
def test_a_file_that_is_no_source_is_named(
    make: object, says: str, tmp_path: Path, warm: Warm
) -> None:
    """A red run that names the learner's file."""
    directory = practice(tmp_path)
    file = directory / "mini_agent" / "thing.py"
    file.unlink()
    try:
        make(file)  # type: ignore[operator]
    except (OSError, NotImplementedError):
        pytest.skip("this system has no symbolic links")

    run = run_tests(directory, course(tmp_path), limits=LIMITS, warm=warm)

    assert outcomes(run) == ["not run"] * 3
    assert says in (run.cause or "")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_may_not_be_read_is_named(tmp_path: Path, warm: Warm) -> None:
    """A red run that names the learner's file."""
    directory = practice(tmp_path)
    (directory / "mini_agent" / "thing.py").chmod(0)

    run = run_tests(directory, course(tmp_path), limits=LIMITS, warm=warm)

    assert outcomes(run) == ["not run"] * 3
    assert "Permission denied: 'mini_agent/thing.py'" in (run.cause or "")


def test_without_the_package_nothing_else_is_taken_for_it(tmp_path: Path, warm: Warm) -> None:
    """No mini_agent in the directory is said, whatever else may be installed."""
    directory = practice(tmp_path)
    (directory / "mini_agent").rename(directory / "mini_agents")

    run = run_tests(directory, course(tmp_path), limits=LIMITS, warm=warm)

    assert run.cause == "there is no package mini_agent in the practice directory"


# Limits


def test_the_test_that_hangs_is_named_with_its_line(tmp_path: Path, warm: Warm) -> None:
    """The report says where it was when its time was up; the rest runs in a fresh worker."""
    thing = (
        "def spin():\n    n = 0\n    while True:\n        n += 1\n"
        "def add(a, b): return spin() if b else a\n"
        "def greet(name): return f'hello {name}'\n"
    )

    run = run_tests(
        practice(tmp_path, thing),
        course(tmp_path),
        limits=Limits(test_seconds=0.5, run_seconds=20),
        warm=warm,
    )

    failure = run.tests[0].failure
    assert outcomes(run) == ["failed", "passed", "passed"]
    assert failure is not None
    assert failure.message == "this test took longer than 0.5 s and was stopped"
    assert failure.where in ("mini_agent/thing.py:3, in spin", "mini_agent/thing.py:4, in spin")
    assert failure.exception == "Timeout"
    assert run.cause is None


def test_a_run_past_its_limit_ends_with_one_cause(tmp_path: Path, warm: Warm) -> None:
    """The test in progress fails; the ones that got no chance are not run."""
    run = run_tests(
        practice(tmp_path, "def add(a, b):\n    while True: pass\ndef greet(name): return 1\n"),
        course(tmp_path),
        limits=Limits(test_seconds=5, run_seconds=0.8),
        warm=warm,
    )

    assert outcomes(run) == ["failed", "not run", "not run"]
    assert run.cause == "the run took longer than 0.8 s and was stopped"


def test_a_flood_of_output_is_cut(tmp_path: Path, warm: Warm) -> None:
    """Start and end are kept, and the note says how much was cut; the verdict stays."""
    thing = (
        "def add(a, b):\n"
        "    print('start')\n"
        "    for _ in range(200): print('x' * 100_000)\n"
        "    print('end')\n"
        "    return a + b\n"
        "def greet(name): print('\\xff\\x1b'); return f'hello {name}'\n"
    )

    run = run_tests(practice(tmp_path, thing), course(tmp_path), limits=LIMITS, warm=warm)

    flood = run.tests[0].output
    assert run.green
    assert flood.startswith("start\nxxx")
    assert flood.endswith("xxx\nend\n")
    assert "bytes cut]" in flood
    assert len(flood) < 70_000
    assert run.tests[1].output == "ÿ\\x1b\n"


@needs_fork
def test_memory_is_limited(tmp_path: Path, warm: Warm) -> None:
    """Where the system can, and then the run says so."""
    thing = (
        "def add(a, b): return len(bytes(3 << 30)) and a + b\ndef greet(name): return 'hello Ada'\n"
    )

    run = run_tests(practice(tmp_path, thing), course(tmp_path), limits=LIMITS, warm=warm)

    if "memory limit 2 GiB" in run.protections:
        assert outcomes(run) == ["failed", "passed", "failed"]
        assert run.tests[0].failure is not None
        assert run.tests[0].failure.exception == "MemoryError"


# Isolation


@linux_only
def test_no_process_is_left(tmp_path: Path, warm: Warm) -> None:
    """Not even one in its own session, whose parent is gone."""
    thing = (
        "import os, subprocess, sys, time\n"
        "SLEEPER = 'import os, time; print(os.getpid(), flush=True); time.sleep(100)'\n"
        "def add(a, b):\n"
        "    reading, writing = os.pipe()\n"
        "    subprocess.Popen(\n"
        "        [sys.executable, '-c', SLEEPER], stdout=writing, start_new_session=True\n"
        "    )\n"
        "    if os.fork() == 0:\n"
        "        os.setsid()\n"
        "        if os.fork() == 0:\n"
        "            os.write(writing, b'%d\\n' % os.getpid())\n"
        "            time.sleep(100)\n"
        "        os._exit(0)\n"
        "    with open(reading) as lines: print(lines.readline(), lines.readline())\n"
        "    return a + b\n"
        "def greet(name): return f'hello {name}'\n"
    )

    run = run_tests(practice(tmp_path, thing), course(tmp_path)[:1], limits=LIMITS, warm=warm)

    pids = [int(line) for line in run.tests[0].output.split()]
    assert len(pids) == 2
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []
    assert "stray processes are ended" in run.protections


def test_the_environment_is_an_allow_list(
    tmp_path: Path, warm: Warm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No key, no proxy, no PYTHON* of the caller; a private home and working directory."""
    for name in ("OPENAI_API_KEY", "HTTPS_PROXY", "PYTHONPATH", "PYTEST_ADDOPTS", "PYTEST_PLUGINS"):
        monkeypatch.setenv(name, "test-key")
    thing = (
        "import os, pathlib, sys\n"
        "def add(a, b):\n"
        "    print(sorted(os.environ), sys.flags.dont_write_bytecode)\n"
        "    print(os.getcwd())\n"
        "    print(pathlib.Path.home())\n"
        "    print(sys.path[-1], sys.path[0])\n"
        "    return a + b\n"
        "def greet(name): return 1\n"
    )
    directory = practice(tmp_path, thing)
    with Warm(preload=()) as cold:
        run = run_tests(directory, course(tmp_path)[:1], limits=LIMITS, warm=cold)

    names, cwd, home, path = run.tests[0].output.splitlines()
    assert run.green, run.cause
    for unwanted in ("KEY", "PROXY", "PYTHONPATH", "ADDOPTS", "PLUGINS"):
        assert unwanted not in names
    assert Path(cwd).name == "work"
    assert Path(home).name == "home"
    assert not Path(cwd).exists()
    assert path.startswith(str(directory.resolve()))
    assert not path.endswith(str(directory.resolve()))


def test_the_network_is_off_and_loopback_is_on(tmp_path: Path, warm: Warm) -> None:
    """A failure names the host that was tried; loopback serves."""
    thing = (
        "import socket\n"
        "def add(a, b):\n"
        "    with socket.create_server(('127.0.0.1', 0)) as server:\n"
        "        with socket.create_connection(server.getsockname(), 2) as mine:\n"
        "            mine.sendall(b'x')\n"
        "        return server.accept()[0].recv(9) and a + b\n"
        "def greet(name):\n"
        "    socket.create_connection(('api.example.com', 443), 2)\n"
    )
    run = run_tests(practice(tmp_path, thing), course(tmp_path), limits=LIMITS, warm=warm)

    failure = run.tests[1].failure
    assert outcomes(run) == ["passed", "failed", "passed"]
    assert failure is not None
    assert failure.message == (
        "PermissionError: a graded run has no network; the code tried to reach api.example.com"
    )
    assert any(text.startswith("no network") for text in run.protections)


def _listing(directory: Path) -> dict[str, str]:
    return {
        path.relative_to(directory).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in directory.rglob("*")
        if path.is_file()
    }


def test_nothing_is_written_into_the_directory(tmp_path: Path, warm: Warm) -> None:
    """No bytecode, no cache, no examples; and nothing stays in the temporary folder."""
    source = (
        "from hypothesis import given, strategies as st\n"
        "from mini_agent.thing import add\n"
        "@given(st.integers())\ndef test_it(n): assert add(n, 0) == n\n"
    )
    directory = practice(tmp_path, WRONG)
    before = _listing(directory)
    expected = [*course(tmp_path), *course_of(tmp_path, source, "test_it")]
    told: list[str] = []
    run = run_tests(
        directory,
        expected,
        limits=LIMITS,
        warm=warm,
        on_result=lambda test: told.append(test.outcome),
    )

    assert outcomes(run) == ["failed"] * 4
    assert _listing(directory) == before
    assert sorted(path.name for path in tmp_path.rglob("__pycache__")) == []


def test_stale_bytecode_is_never_run(tmp_path: Path, warm: Warm) -> None:
    """An edit of the same size within the same second is seen, though a cache says otherwise."""
    directory = practice(tmp_path, WRONG)
    file = directory / "mini_agent" / "thing.py"
    moment = 1_700_000_000
    os.utime(file, (moment, moment))
    import py_compile

    py_compile.compile(str(file))
    right = RIGHT + "#" * (len(WRONG) - len(RIGHT))
    wrong = WRONG + "#" * (len(RIGHT) - len(WRONG))
    file.write_text(wrong, encoding="utf-8")
    os.utime(file, (moment, moment))
    py_compile.compile(str(file))
    file.write_text(right, encoding="utf-8")
    os.utime(file, (moment, moment))
    assert len(right) == len(wrong)

    run = run_tests(directory, course(tmp_path), limits=LIMITS, warm=warm)

    assert run.green, run.cause


@pytest.mark.parametrize(
    "name",
    ["with spaces", "练习 目录", 'it\'s "quoted" [x]', "x" * 200, "-dash", "ü%20#?"],
    ids=["spaces", "CJK", "quotes", "long", "dash", "signs"],
)
@pytest.mark.skipif(sys.platform == "win32", reason="names that Windows does not allow")
def test_any_path_works(name: str, tmp_path: Path, warm: Warm) -> None:
    """For the practice directory, and for the course."""
    outer = tmp_path / name
    outer.mkdir()

    run = run_tests(practice(outer), course(outer), limits=LIMITS, warm=warm)

    assert run.green, run.cause


@pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege there")
def test_a_path_through_a_link_works(tmp_path: Path, warm: Warm) -> None:
    """The package is still proved to be the directory's."""
    directory = practice(tmp_path)
    link = tmp_path / "link"
    link.symlink_to(directory)

    run = run_tests(link, course(tmp_path), limits=LIMITS, warm=warm)

    assert run.green, run.cause


def test_a_course_file_that_changes_during_the_run_is_noticed(tmp_path: Path, warm: Warm) -> None:
    """The verdict came from what was read before; still the run is not trusted."""
    expected = course(tmp_path)
    thing = f"open({str(expected[0].file)!r}, 'w').write('def test_add_two(): pass')\n" + RIGHT

    run = run_tests(practice(tmp_path, thing), expected, limits=LIMITS, warm=warm)

    assert not run.green
    assert not run.trusted
    assert run.cause == "the course's own test_99_toy.py was changed while the tests ran"


# Notes


def test_an_edited_copy_of_the_tests_is_named_and_not_used(tmp_path: Path, warm: Warm) -> None:
    """The course's copy runs; an equal copy is no news."""
    directory = practice(tmp_path, WRONG)
    (directory / "tests").mkdir()
    copy = directory / "tests" / "test_99_toy.py"
    copy.write_text("def test_add_two(): pass\n", encoding="utf-8")

    edited = run_tests(directory, course(tmp_path), limits=LIMITS, warm=warm)
    copy.write_bytes(course(tmp_path)[0].file.read_bytes())
    same = run_tests(directory, course(tmp_path), limits=LIMITS, warm=warm)

    assert outcomes(edited) == ["failed"] * 3
    assert edited.notes == (
        "tests/test_99_toy.py differs from the course's copy; the course's copy was run",
    )
    assert same.notes == ()


def test_telling_code_is_reported_and_changes_no_verdict(tmp_path: Path, warm: Warm) -> None:
    """What a reader of the report would look at first; words in text are no code."""
    thing = (
        RIGHT + "import gc, sys, inspect\nassert inspect.iscoroutine(1) is False\n"
        "class A:\n    def __eq__(self, other): return sys._getframe() is None\n"
        "def caller(error): return error.__traceback__.tb_frame\n"
        "TEXT = 'inspect ctypes os._exit f_back'\n"
    )

    run = run_tests(practice(tmp_path, thing), course(tmp_path), limits=LIMITS, warm=warm)

    assert run.green
    assert run.notes == (
        "mini_agent/thing.py:3 imports gc",
        "mini_agent/thing.py:6 defines __eq__, which no test asks",
        "mini_agent/thing.py:6 reads its caller's code (_getframe)",
        "mini_agent/thing.py:7 reads its caller's code (tb_frame)",
    )


@pytest.mark.parametrize("deep", ["-" * 90_000 + "1", "(" * 90_000, "a" + ".b" * 90_000])
def test_code_too_deep_to_parse_has_no_remarks(deep: str, tmp_path: Path) -> None:
    """The parser gives up in one way or another, and the report goes without."""
    assert remarks(practice(tmp_path, f"import gc\n{deep}")) == []


# A warm parent


def test_warm_parents_work_in_parallel(tmp_path: Path) -> None:
    """One for each thread; a run never sees another's directory."""
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    places = [(right, RIGHT), (wrong, WRONG)]
    for place, thing in places:
        practice(place, thing)
    expected = course(tmp_path)

    def grade(place: Path) -> list[list[str]]:
        with Warm(preload=("pytest",)) as parent:
            return [
                outcomes(run_tests(place / "mydir", expected, limits=LIMITS, warm=parent))
                for _ in range(4)
            ]

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(grade, [right, wrong]))

    assert results == [[["passed"] * 3] * 4, [["failed"] * 3] * 4]


def parent_pid(warm: Warm) -> int:
    """The process that forks a child for each run."""
    supervisor = warm._supervisor
    assert supervisor is not None
    return supervisor._process.pid


@needs_fork
def test_a_warm_parent_that_was_killed_is_replaced(tmp_path: Path, warm: Warm) -> None:
    """Whoever kills the parent in the middle of a run costs that run, and not the next one."""

    def kill(result: TestResult) -> None:
        with contextlib.suppress(ProcessLookupError):  # the next test's record finds it gone
            os.kill(parent_pid(warm), signal.SIGKILL)

    run_tests(practice(tmp_path / "a"), course(tmp_path), limits=LIMITS, warm=warm, on_result=kill)
    after = run_tests(practice(tmp_path / "b"), course(tmp_path), limits=LIMITS, warm=warm)

    assert after.green, after.cause


@linux_only
def test_code_that_signals_others_is_refused(tmp_path: Path, warm: Warm) -> None:
    """Neither its parent nor whatever else the user runs; its own children it may end."""
    thing = (
        "import os, signal, subprocess\n"
        "child = subprocess.Popen(['sleep', '100'])\n"
        "child.terminate()\n"
        "assert child.wait() == -signal.SIGTERM\n"
        "os.kill(os.getppid(), 0)\n" + RIGHT
    )

    run = run_tests(practice(tmp_path, thing), course(tmp_path), limits=LIMITS, warm=warm)

    if "no signals to other processes" not in run.protections:
        pytest.skip("this system cannot enforce it")
    assert (
        run.cause == "PermissionError: [Errno 1] Operation not permitted, at mini_agent/thing.py:5"
    )


@linux_only
def test_a_path_that_is_no_text_is_a_path_like_any_other(tmp_path: Path, warm: Warm) -> None:
    """File names are bytes. Records and reports write the odd ones out; the verdict is the same."""
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))

    run = run_tests(practice(folder), course(tmp_path), limits=LIMITS, warm=warm)

    assert run.green, run.cause


@linux_only
def test_a_warm_parent_that_was_crippled_is_replaced(tmp_path: Path, warm: Warm) -> None:
    """Learner code can set its parent's limits, so that it opens no file. The next run is good."""
    crippling = practice(
        tmp_path / "a",
        "import os, resource\n"
        "resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (3, 3))\n" + RIGHT,
    )

    run_tests(crippling, course(tmp_path), limits=LIMITS, warm=warm)
    after = run_tests(practice(tmp_path / "b"), course(tmp_path), limits=LIMITS, warm=warm)

    assert after.green, after.cause


@linux_only
def test_a_warm_parent_that_was_stopped_holds_up_nothing(tmp_path: Path, warm: Warm) -> None:
    """Stopped as by Ctrl+Z in the middle of a run, it is continued. The run's strays end too."""
    thing = (
        "import subprocess\n"
        "stray = subprocess.Popen(['sleep', '100'], start_new_session=True).pid\n"
        f"open({str(tmp_path / 'stray')!r}, 'w').write(str(stray))\n" + RIGHT
    )

    def stop(result: TestResult) -> None:
        os.kill(parent_pid(warm), signal.SIGSTOP)

    directory = practice(tmp_path / "a", thing)
    run = run_tests(directory, course(tmp_path), limits=LIMITS, warm=warm, on_result=stop)
    after = run_tests(practice(tmp_path / "b"), course(tmp_path), limits=LIMITS, warm=warm)

    assert run.green, run.cause
    assert not Path("/proc", (tmp_path / "stray").read_text()).exists()
    assert after.green, after.cause


def test_a_run_that_is_interrupted_leaves_the_warm_parent_usable(
    tmp_path: Path, warm: Warm
) -> None:
    """Ctrl+C in the middle ends the worker; the next run is a good one."""

    def interrupt(test: TestResult) -> None:
        raise KeyboardInterrupt

    directory, expected = practice(tmp_path), course(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run_tests(directory, expected, limits=LIMITS, warm=warm, on_result=interrupt)

    assert run_tests(directory, expected, limits=LIMITS, warm=warm).green


def test_the_hash_seed_can_be_set(tmp_path: Path) -> None:
    """Two runs with one seed hash alike."""
    thing = "def add(a, b): print(hash('a')); return a + b\ndef greet(name): return 1\n"
    directory, expected = practice(tmp_path, thing), course(tmp_path)[:1]

    seen = {
        run_tests(directory, expected, limits=LIMITS, hash_seed=7).tests[0].output for _ in range(2)
    }

    assert len(seen) == 1


def test_no_thread_and_no_descriptor_is_left(tmp_path: Path) -> None:
    """A grader that runs for hours, such as --watch, must not collect them."""
    directory, expected = practice(tmp_path), course(tmp_path)
    with Warm(preload=("pytest",)) as parent:
        run_tests(directory, expected, limits=LIMITS, warm=parent)
        threads, descriptors = threading.active_count(), _open_descriptors()
        for _ in range(3):
            run_tests(directory, expected, limits=LIMITS, warm=parent)

        assert threading.active_count() == threads
        assert _open_descriptors() == descriptors


def _open_descriptors() -> int:
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.exists() else 0


# Parts


def test_safe_text_writes_out_what_a_terminal_would_obey() -> None:
    """Controls and lone surrogates are written out; any real text stays."""
    assert safe_text("a\tb\nc 正在 🎉 é") == "a\tb\nc 正在 🎉 é"
    assert safe_text("\0\x1b[2J\x7f\x9b\ud800\r") == r"\x00\x1b[2J\x7f\x9b\ud800\x0d"


def test_output_is_cut_at_its_markers_wherever_the_reads_end() -> None:
    """A marker split between reads is still a marker, and what only looks like one is output."""
    marker = b"\0abc\0"
    whole = b"before" + marker + b"in\0ab" + marker + b"\0\0ab" + marker + b"rest\0a"
    for size in range(1, len(whole) + 1):
        output = Output(marker, 1000)
        for at in range(0, len(whole), size):
            output.feed(whole[at : at + size])
        output.close()

        segments = [output.segment(number) for number in range(3)]

        assert segments == ["before", r"in\x00ab", r"\x00\x00ab"]
        assert output.rest() == r"rest\x00a"


@needs_fork
def test_a_record_from_another_process_is_refused(tmp_path: Path) -> None:
    """On Linux the kernel names the writer of each piece."""
    if not processes.WRITERS_ARE_KNOWN:
        pytest.skip("this system does not say who wrote")
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    with ours, theirs:
        theirs.sendall(b"mine")
        assert processes.receiver(ours, os.getpid())() == b"mine"
        theirs.sendall(b"mine")
        with pytest.raises(processes.Stranger, match="which is not the worker"):
            processes.receiver(ours, os.getpid() + 1)()


@linux_only
def test_a_grader_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    """The supervisor ends itself and the run when the grader's end of its channel closes."""
    practice(tmp_path, "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(100)\n")
    expected = course(tmp_path)
    (tmp_path / "scratch").mkdir()
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from grader import processes, runner\n"
        "real = processes.Output.feed\n"
        "def feed(self, data): print(data.decode(), flush=True); real(self, data)\n"
        "processes.Output.feed = feed\n"
        "expected = [runner.Expected(Path(sys.argv[2]), 'test_add_two', '', '1.1')]\n"
        "runner.run_tests(Path(sys.argv[1]), expected)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "mydir"), str(expected[0].file)],
        stdout=subprocess.PIPE,
        encoding="utf-8",
        cwd=Path(__file__).parents[1],
        env=os.environ | {"TMPDIR": str(tmp_path / "scratch")},
    ) as grader:
        assert grader.stdout is not None
        learner = int(next(line for line in grader.stdout if line.strip().isdigit()))
        grader.kill()

    deadline = time.monotonic() + 10
    left = [Path(f"/proc/{learner}"), *(tmp_path / "scratch").iterdir()]
    while any(path.exists() for path in left) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert [path for path in left if path.exists()] == []


@linux_only
def test_a_grader_that_is_killed_after_its_worker_leaves_nothing(tmp_path: Path) -> None:
    """The worker has ended, and the folder of the run has not been removed yet."""
    expected = course(tmp_path)
    (tmp_path / "scratch").mkdir()
    script = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from grader import runner\n"
        "runner.remarks = lambda directory: os.kill(os.getpid(), 9)\n"
        "expected = [runner.Expected(Path(sys.argv[2]), 'test_add_two', '', '1.1')]\n"
        "runner.run_tests(Path(sys.argv[1]), expected)\n"
    )
    subprocess.run(
        [sys.executable, "-c", script, str(practice(tmp_path)), str(expected[0].file)],
        cwd=Path(__file__).parents[1],
        env=os.environ | {"TMPDIR": str(tmp_path / "scratch")},
        check=False,
    )

    deadline = time.monotonic() + 10
    while any((tmp_path / "scratch").iterdir()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert list((tmp_path / "scratch").iterdir()) == []
