"""The untrusted side of a graded run: the process in which learner code runs under pytest.

A process of its own, started by processes.py. As `--serve FD` it is a supervisor: it imports what
every run needs, runs no learner code, and forks a child for each run. As `--once FD` it is one
run, for systems that cannot fork.

A test's record says what happened when this module called the test function. It leaves over a
private channel. What pytest concludes, prints or exits with decides nothing.
"""

import ast
import contextlib
import faulthandler
import gc
import hashlib
import importlib.machinery
import importlib.util
import io
import json
import linecache
import os
import signal
import socket
import struct
import sys
import time
import traceback
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from grader import sandbox
from grader.explain import Explainer, safe
from grader.guard import Guard, Helpers, imported_helpers

# The course's test files, compiled, by name and hash.
_CODE: dict[tuple[str, str], tuple[types.CodeType, Helpers]] = {}
_PLUGINS_OFF = (
    "cacheprovider",
    "debugging",
    "doctest",
    "faulthandler",
    "junitxml",
    "pastebin",
    "setuponly",
    "setupplan",
    "stepwise",
    "terminal",
    "threadexception",
    "unittest",
    "unraisableexception",
    "warnings",
)


class Reporter:
    """Writes records to the runner. What it needs is bound before learner code can replace it."""

    def __init__(self, write: Callable[[bytes], Any], nonce: str, marker: bytes) -> None:
        quote = json.encoder.encode_basestring_ascii
        pack = struct.Struct("!I").pack
        out = os.dup(1)
        put, size, text = os.write, len, str
        mine, whoami, leave = os.getpid(), os.getpid, os._exit

        def send(record: str, **fields: str | int) -> None:
            if whoami() != mine:  # a fork of learner code that returned into the run
                leave(71)
            fields["record"] = record
            fields["nonce"] = nonce
            body = ",".join(
                f"{quote(name)}:{quote(value) if isinstance(value, text) else int(value)}"
                for name, value in fields.items()
            )
            frame = f"{{{body}}}".encode("ascii")
            write(pack(size(frame)) + frame)

        def mark() -> None:
            if whoami() != mine:
                leave(71)
            for stream in (sys.stdout, sys.stderr):
                try:
                    stream.flush()
                except BaseException:  # a learner's stream may do anything
                    continue
            view = memoryview(marker)
            while view:
                view = view[put(out, view) :]

        self.send = send
        self.mark = mark


# The learner's package


class _FreshLoader(importlib.machinery.SourceFileLoader):
    """Compiles a learner's module from its source each time: no bytecode is read or written."""

    def path_stats(self, path: Any) -> Any:
        raise OSError("no bytecode for learner code")

    def source_to_code(  # type: ignore[override]
        self, data: Any, path: Any, *, _optimize: int = -1
    ) -> types.CodeType:
        try:
            return super().source_to_code(data, path, _optimize=_optimize)
        except SyntaxError as error:
            if not error.filename or error.filename == "<unknown>":
                error.filename = str(path)
            raise
        except ValueError as error:  # Python 3.11: a null byte
            problem = SyntaxError(str(error))
            line = bytes(data).partition(b"\0")[0].count(b"\n") + 1
            problem.filename, problem.lineno = str(path), line
            raise problem from None


class _LearnerFinder:
    """Finds `mini_agent` in the practice directory and nowhere else, whatever is installed."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        inside = os.path.join(directory, "")

        def hook(path: str) -> importlib.machinery.FileFinder:
            if path == directory or path.startswith(inside):
                return importlib.machinery.FileFinder(path, (_FreshLoader, [".py"]))
            raise ImportError(path)

        sys.path_hooks.insert(0, hook)
        sys.path.append(directory)  # last: a learner's json.py shadows nothing
        sys.path_importer_cache.pop(directory, None)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "mini_agent":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, [self._directory])
        if spec is None:
            raise ModuleNotFoundError(
                "there is no package mini_agent in the practice directory", name=name
            )
        return spec


# The run


def compiled(name: str, source: bytes) -> tuple[types.CodeType, Helpers]:
    """A test file as code whose asserts explain themselves, and what it imports to judge with.

    A supervisor makes it once.
    """
    key = (name, hashlib.sha256(source).hexdigest())
    found = _CODE.get(key)
    if found is None:
        tree = ast.parse(source, filename=name)
        helpers = imported_helpers(tree)
        try:
            from _pytest.assertion.rewrite import rewrite_asserts

            rewrite_asserts(tree, source, name)
        except (ImportError, TypeError, AttributeError):  # not a public function: do without
            tree = ast.parse(source, filename=name)
        _CODE[key] = found = compile(tree, name, "exec", dont_inherit=True), helpers
    return found


def execute(job: dict[str, Any], write: Callable[[bytes], Any]) -> None:
    """One run, in this process, which does not survive it."""
    base, directory = job["base"], job["directory"]
    sys.dont_write_bytecode = True
    reporter = Reporter(write, job["nonce"], bytes.fromhex(job["marker"]))
    os.environ.update(job["environment"])
    os.chdir(os.path.join(base, "work"))
    import pytest

    held = sandbox.confine(job["memory_bytes"], job["file_bytes"])
    if any("hypothesis" in source for _, _, source in job["files"]):
        _settle_hypothesis(base)
    explainer = Explainer(directory)
    guard = Guard()
    reporter.send("hello", protections="\n".join(held))
    finder: Any = _LearnerFinder(directory)
    sys.meta_path.insert(0, finder)
    plugin = _plugin(job, reporter, explainer, guard)
    arguments = [
        *(argument for name in _PLUGINS_OFF for argument in ("-p", f"no:{name}")),
        "-c",
        os.path.join(base, "grader.ini"),
        f"--rootdir={base}",
        f"--basetemp={os.path.join(base, 'tmp')}",
        "--noconftest",
        "--import-mode=importlib",
        "--assert=plain",
        "--capture=no",
        "--continue-on-collection-errors",
        *(path for path, _, _ in job["files"]),
    ]
    pytest.main(arguments, plugins=[plugin])
    loaded = sys.modules.get("mini_agent")
    spec = getattr(loaded, "__spec__", None)
    origin = getattr(spec, "origin", None) or next(
        iter(getattr(spec, "submodule_search_locations", None) or ()), ""
    )
    reporter.send("done", origin=safe(origin))


def _settle_hypothesis(base: str) -> None:
    """The same examples in every run, no time limit of its own, and nothing written elsewhere."""
    try:
        import hypothesis
        from hypothesis.configuration import set_hypothesis_home_dir
    except ImportError:
        return
    set_hypothesis_home_dir(os.path.join(base, "hypothesis"))  # what it learns of the code's texts
    hypothesis.settings.register_profile(
        "grader", derandomize=True, database=None, deadline=None, print_blob=False
    )
    hypothesis.settings.load_profile("grader")


def _plugin(job: dict[str, Any], reporter: Reporter, explainer: Explainer, guard: Guard) -> Any:
    """The pytest plugin that loads the test files, keeps the order, and records each test."""
    import pytest
    from _pytest._io import TerminalWriter

    send, mark = reporter.send, reporter.mark
    same = os.path.normcase  # Windows spells a path in more than one way
    files: dict[str, tuple[str, str]] = {
        same(path): (name, source) for path, name, source in job["files"]
    }
    wanted: dict[tuple[str, str], int] = {(same(path), name): k for k, path, name in job["tests"]}
    limit: float = job["test_seconds"]
    trace = open(os.path.join(job["base"], "trace"), "w", encoding="utf-8")  # noqa: SIM115
    watchdog, rest = faulthandler.dump_traceback_later, faulthandler.cancel_dump_traceback_later
    ahead = max(limit * 0.9, limit - 0.3)
    base_exception = BaseException

    def arm() -> None:
        trace.seek(0)
        trace.truncate()
        watchdog(ahead, file=trace)

    class CourseModule(pytest.Module):
        """A test file of the course, run from the text that the runner read."""

        def _getobj(self) -> Any:
            path: str = same(self.path)
            name, source = files[path]
            number = list(files).index(path)
            module = types.ModuleType(f"tests_{number}_{Path(name).stem}")
            module.__file__ = path
            linecache.cache[name] = (len(source), None, source.splitlines(True), name)
            sys.modules[module.__name__] = module
            send("loading", file=number)
            arm()
            try:
                code, helpers = compiled(name, source.encode())
                exec(code, vars(module))
            except base_exception as error:
                send(
                    "unloadable",
                    file=number,
                    cause=safe(explainer.cause(error), 4000),
                    **explainer.failure(error),
                )
                raise self.CollectError(name) from None
            finally:
                rest()
            guard.watch(module, helpers)
            broken = guard.broken()
            if broken:
                send("tampered", message=broken)
            return module

    class Plugin:
        def __init__(self) -> None:
            self.error: BaseException | None = None
            self.called = False

        def pytest_configure(self, config: pytest.Config) -> None:
            # To explain an assert, older versions ask for two things of the terminal plugin.
            vars(config.option).setdefault("verbose", 0)
            config.pluginmanager.register(quiet, "terminalreporter")

        @pytest.hookimpl(tryfirst=True)
        def pytest_pycollect_makemodule(self, module_path: Path, parent: Any) -> Any:
            return CourseModule.from_parent(parent, path=module_path)

        @pytest.hookimpl(trylast=True)
        def pytest_collection_modifyitems(self, items: list[Any]) -> None:
            chosen = []
            for item in items:
                k = wanted.get((same(item.path), getattr(item, "originalname", item.name)))
                if k is not None:
                    item.stash[key] = k
                    chosen.append(item)
            chosen.sort(key=lambda item: item.stash[key])
            items[:] = chosen
            counts: dict[int, int] = {}
            for item in chosen:
                counts[item.stash[key]] = counts.get(item.stash[key], 0) + 1
            send("collected", counts=" ".join(f"{k}:{n}" for k, n in counts.items()))

        @pytest.hookimpl(wrapper=True, tryfirst=True)
        def pytest_runtest_protocol(self, item: Any) -> Iterator[None]:
            self.error, self.called = None, False
            mark()
            send("start", test=item.stash[key])
            arm()
            try:
                return (yield)
            finally:
                rest()
                mark()
                self._record(item)

        @pytest.hookimpl(tryfirst=True)
        def pytest_pyfunc_call(self, pyfuncitem: Any) -> bool:
            names = pyfuncitem._fixtureinfo.argnames
            arguments = {name: pyfuncitem.funcargs[name] for name in names}
            try:
                result = pyfuncitem.obj(**arguments)
                if result is not None:
                    raise TypeError(
                        "a test function returned a value; an async test needs run(...)"
                    )
            except base_exception as error:
                self.error = error
            self.called = True
            return True

        @pytest.hookimpl(tryfirst=True)
        def pytest_runtest_makereport(self, item: Any, call: Any) -> None:
            if call.when != "call" and call.excinfo is not None and self.error is None:
                self.error = call.excinfo.value

        def _record(self, item: Any) -> None:
            broken = guard.broken()
            case = getattr(item, "callspec", None)
            shown = f"[{safe(case.id, 200)}]" if case is not None else ""
            error, test = self.error, item.stash[key]
            if broken:
                send("end", test=test, outcome="tampered", message=broken)
            elif error is not None:
                skipped = type(error).__name__ == "Skipped" and not explainer.where(error)
                outcome = "skipped" if skipped else "failed"
                send("end", test=test, outcome=outcome, case=shown, **explainer.failure(error))
            elif not self.called:
                send("end", test=test, outcome="tampered", message="the test was never called")
            else:
                send("end", test=test, outcome="passed", case=shown)
            self.error = None

    key = pytest.StashKey[int]()
    quiet = type("Quiet", (), {"_tw": TerminalWriter(io.StringIO())})()
    return Plugin()


# How a worker starts


def serve(control: socket.socket, preload: list[str]) -> None:
    """The supervisor: fork a child a run, end what it leaves. It goes when the grader goes."""
    sandbox.become_subreaper()
    for name in preload:
        try:
            importlib.import_module(name)
        except ImportError:
            continue
    if preload:
        _import_default_plugins()
    from grader import testing

    del testing
    gc.freeze()  # what is here now is no garbage, and no child need copy it to find that out
    child, scratch, grader = 0, "", os.getppid()
    while True:
        try:
            head, descriptors, _, _ = socket.recv_fds(control, 5, 2)
        except OSError:
            head = b""
        if not head:
            break
        kind, size = struct.unpack("!cI", head)
        if kind == b"R":
            job = json.loads(_exactly(control, size))
            scratch = job["scratch"]
            for _, name, source in job["files"]:
                try:
                    compiled(name, source.encode())
                except (SyntaxError, ValueError):
                    continue  # the child reports it
            child = os.fork()
            if child == 0:
                control.close()
                _as_child(job, *descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
            control.sendall(struct.pack("!i", child))
        else:  # b"D": it is gone; b"S": stop it
            control.sendall(struct.pack("!i", _end(child, patient=kind == b"D")))
            child = 0
    _end(child, patient=False)
    if os.path.exists(scratch) and _gone(grader):  # it was killed before it could tidy up
        import shutil

        shutil.rmtree(scratch, ignore_errors=True)
    os._exit(0)  # there is nothing else to tidy, and somebody waits


def _gone(parent: int) -> bool:
    """The parent has died. Its channel closes a moment before that shows."""
    for _ in range(50):
        if os.getppid() != parent:
            return True
        time.sleep(0.002)
    return False


def _import_default_plugins() -> None:
    try:
        from _pytest.config import default_plugins
    except ImportError:
        return
    for name in default_plugins:
        importlib.import_module(f"_pytest.{name}")


def _exactly(control: socket.socket, size: int) -> bytes:
    whole = bytearray()
    while len(whole) < size:
        piece = control.recv(min(size - len(whole), 1 << 20))
        if not piece:
            os._exit(1)
        whole += piece
    return bytes(whole)


def _as_child(job: dict[str, Any], records: int, output: int) -> None:
    try:
        os.setsid()
        silence = os.open(os.devnull, os.O_RDONLY)
        os.dup2(silence, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(silence)
        os.close(output)
        os.set_inheritable(records, False)
        _keep_from_forks(records)
        _run(job, records)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(70)


def _keep_from_forks(records: int) -> None:
    """Close the record channel in what learner code forks; once, as its number may be reused."""
    held = [records]

    def close() -> None:
        if held:
            os.close(held.pop())

    os.register_at_fork(after_in_child=close)


def _run(job: dict[str, Any], records: int) -> None:
    put = os.write

    def write(frame: bytes) -> None:
        view = memoryview(frame)
        while view:
            view = view[put(records, view) :]

    for number, name in ((1, "stdout"), (2, "stderr")):  # the inherited ones know another file
        stream = open(  # noqa: SIM115
            number, "w", encoding="utf-8", errors="backslashreplace", closefd=False
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    try:
        execute(job, write)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(70)
    os._exit(0)


def _end(child: int, *, patient: bool) -> int:
    """Kill the child's group and every stray. Returns its exit code, or its signal below zero."""
    status = 0
    if child:
        for _ in range(100 if patient else 1):
            pid, code = os.waitpid(child, os.WNOHANG)
            if pid:
                status = code
                _kill_group(child)
                child = 0
                break
            if patient:
                time.sleep(0.002)
        if child:
            _kill_group(child)
            os.kill(child, signal.SIGKILL)  # it may not have its own group yet
            _, status = os.waitpid(child, 0)
            if patient:
                sandbox.sweep()
                return sandbox.FELL_SILENT
    sandbox.sweep()
    return os.waitstatus_to_exitcode(status)


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def main(arguments: list[str]) -> None:
    mode, number, *preload = arguments
    sys.modules.setdefault(sandbox.SLOW_IMPORT, None)  # type: ignore[arg-type]
    if mode == "--serve":
        serve(socket.socket(fileno=int(number)), preload)
        return
    for name in preload:
        importlib.import_module(name)
    descriptor = int(number)
    if sys.platform == "win32":
        import msvcrt

        descriptor = msvcrt.open_osfhandle(descriptor, os.O_WRONLY | os.O_BINARY)
    os.set_inheritable(descriptor, False)
    job = json.loads(sys.stdin.buffer.read())
    if hasattr(os, "register_at_fork"):
        _keep_from_forks(descriptor)
    if hasattr(os, "setsid"):
        with contextlib.suppress(OSError):
            os.setsid()
    _run(job, descriptor)
