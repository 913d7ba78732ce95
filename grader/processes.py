"""The processes of a graded run, from the trusted side: start one, hear it, end it and its strays.

Where a system can fork, a supervisor that has imported what runs need forks a child for each.
Elsewhere each worker is a process of its own, and one is kept ready. Records come over one
channel and what is printed over another; a thread reads each.
"""

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any

from grader import sandbox
from grader.output import Output

if TYPE_CHECKING:
    from grader.winjob import Job

WRITERS_ARE_KNOWN = hasattr(socket, "SO_PASSCRED") and hasattr(socket, "SCM_CREDENTIALS")
# The interpreter's path need not hold this package, and what learner code imports must not.
_START = """
import importlib.util, sys
package = sys.argv[1]
spec = importlib.util.spec_from_file_location(
    "grader", package + "/__init__.py", submodule_search_locations=[package]
)
sys.modules["grader"] = importlib.util.module_from_spec(spec)
from grader.worker import main
main(sys.argv[2:])
"""
_CAN_FORK = hasattr(os, "fork") and hasattr(socket, "send_fds")
_RECORD_BYTES = 64 << 20  # of all records of a worker; more is no honest run
_ANSWER_SECONDS = 15.0  # for what a supervisor does at once, even on a busy machine
_PRELOAD = ("pytest", "httpx", "anyio", "jsonschema", "hypothesis")


class Warm:
    """A parent process that has imported what runs need, and forks a child for each.

    Runs through one Warm follow each other; for parallel runs make one for each thread. Starting
    it returns at once. Where a system can't fork, a spare worker is kept ready instead.
    """

    def __init__(
        self,
        *,
        preload: Sequence[str] = _PRELOAD,
        hash_seed: int | None = None,
        fork: bool = _CAN_FORK,
    ) -> None:
        self._preload = tuple(preload)
        self._hash_seed = hash_seed
        self._fork = fork and _CAN_FORK
        self.lock = threading.Lock()
        self._supervisor: _Supervisor | None = None
        self._spare: _Spawned | None = None
        self._running: _Spawned | None = None
        self._aborted = False

    def start(self) -> "Warm":
        """Begin to import now, while the caller does something else."""
        with self.lock:
            self._ready()
        return self

    def _ready(self) -> None:
        if self._fork:
            if self._supervisor is None:
                self._supervisor = _Supervisor(self._command("--serve"))
        elif self._spare is None:
            self._spare = _Spawned(self._command("--once"))

    def _command(self, mode: str) -> "_Command":
        arguments, added = sandbox.interpreter(self._hash_seed)
        package = str(Path(__file__).resolve().parent)
        return _Command([*arguments, "-c", _START, package, mode], list(self._preload), added)

    def launch(self, job: dict[str, Any], output: "Output") -> "Process":
        """A worker for this job. Only run_tests calls it, holding the lock.

        Raises Aborted after `abort`.
        """
        if self._aborted:
            raise Aborted
        self._ready()
        if self._supervisor is not None:
            try:
                if self._supervisor.usable:
                    return self._supervisor.launch(job, output)
            except OSError:
                pass
            if self._aborted:
                raise Aborted
            # It was killed, or interrupted in the middle of a word.
            self._supervisor.close()
            self._supervisor = _Supervisor(self._command("--serve"))
            return self._supervisor.launch(job, output)
        assert self._spare is not None
        worker, self._spare = self._spare, None
        self._running = worker
        worker.launch(job, output)
        return worker

    def renew(self) -> None:
        """Give up the parent, for one that no run has touched. The caller holds the lock."""
        if self._supervisor is not None:
            self._supervisor.close()
            self._supervisor = None

    def refill(self) -> None:
        if not self._fork and self._spare is None:
            self._spare = _Spawned(self._command("--once"))

    def abort(self) -> None:
        """End the run that goes on, from another thread: its worker dies, and no other starts."""
        self._aborted = True
        supervisor, running = self._supervisor, self._running
        if supervisor is not None:
            supervisor.abort()
        if running is not None:
            running.abort()

    def close(self) -> None:
        """End the parent and whatever a run has left."""
        with self.lock:
            if self._supervisor is not None:
                self._supervisor.close()
                self._supervisor = None
            if self._spare is not None:
                self._spare.stop(died=False)
                self._spare = None

    def __enter__(self) -> "Warm":
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Aborted(Exception):
    """No worker is started any more: another thread has called `Warm.abort`."""


@dataclass
class _Command:
    arguments: list[str]
    preload: list[str]
    added: dict[str, str] = field(default_factory=dict)

    def popen(self, channel: int, **options: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*self.arguments, str(channel), *self.preload],
            env=sandbox.environment() | self.added,
            cwd=tempfile.gettempdir(),
            **options,
        )


class Process:
    """A worker that has its job: the events it sends, and a way to end it with all it started."""

    protections: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.events: SimpleQueue[tuple[str, Any]] = SimpleQueue()

    def stop(self, *, died: bool) -> int:
        """End it if it has not ended, with what it left. Returns its exit status."""
        raise NotImplementedError


class _Supervisor:
    """The warm parent and its control channel. When that closes, it ends all its children."""

    def __init__(self, command: _Command) -> None:
        self._control, theirs = socket.socketpair()
        self._busy = False
        with theirs:
            self._process = command.popen(
                theirs.fileno(),
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    def launch(self, job: dict[str, Any], output: Output) -> "_Forked":
        body = json.dumps(job).encode()
        records, their_records = socket.socketpair()
        if WRITERS_ARE_KNOWN:  # before the first byte: one sent earlier carries no writer
            records.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        printed, their_output = socket.socketpair()
        try:
            with their_records, their_output:
                self._busy = True
                socket.send_fds(
                    self._control,
                    [struct.pack("!cI", b"R", len(body))],
                    [their_records.fileno(), their_output.fileno()],
                )
                self._control.sendall(body)
                pid = self._reply()
        except BaseException:
            records.close()
            printed.close()
            raise
        return _Forked(self, pid, records, printed, output)

    def ask(self, kind: bytes) -> int:
        """Have the running child ended. Returns its exit status."""
        self._busy = True
        self._process.send_signal(signal.SIGCONT)  # learner code may have stopped its parent
        self._control.settimeout(_ANSWER_SECONDS)
        self._control.sendall(struct.pack("!cI", kind, 0))
        return self._reply()

    @property
    def usable(self) -> bool:
        """It lives, and no answer of it is outstanding."""
        return not self._busy and self._process.poll() is None

    def _reply(self) -> int:
        answer = b""
        while len(answer) < 4:
            piece = self._control.recv(4 - len(answer))
            if not piece:
                raise ConnectionResetError("the supervisor is gone")
            answer += piece
        self._busy = False
        return int(struct.unpack("!i", answer)[0])

    def abort(self) -> None:
        """As `close`, while another thread uses it: that one finds the channel's end."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._control.close()
        self._process.send_signal(signal.SIGCONT)
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class _Forked(Process):
    """A child of the supervisor."""

    protections = ("stray processes are ended",) if sys.platform == "linux" else ()

    def __init__(
        self,
        supervisor: _Supervisor,
        pid: int,
        records: socket.socket,
        printed: socket.socket,
        output: Output,
    ) -> None:
        super().__init__()
        self._supervisor = supervisor
        self._status: int | None = None
        self._sockets = (records, printed)
        receive = receiver(records, pid)
        self._threads = (
            threading.Thread(target=_read_records, args=(receive, self.events), daemon=True),
            threading.Thread(target=_read_output, args=(printed.recv, output), daemon=True),
        )
        for thread in self._threads:
            thread.start()

    def stop(self, *, died: bool) -> int:
        if self._status is None:
            try:
                self._status = self._supervisor.ask(b"D" if died else b"S")
            except OSError:
                self._status = -9
            for thread, sock in zip(self._threads, self._sockets, strict=True):
                thread.join(timeout=0.5)  # it ends with the last process that holds the other side
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
                thread.join(timeout=0.5)
                sock.close()
        return self._status


def receiver(records: socket.socket, pid: int) -> Callable[[], bytes]:
    """Reads records. Linux says which process wrote each piece; a stranger's is refused."""
    if not WRITERS_ARE_KNOWN:
        return lambda: records.recv(1 << 16)
    room = socket.CMSG_SPACE(struct.calcsize("3i"))

    def receive() -> bytes:
        data, extra, _, _ = records.recvmsg(1 << 16, room)
        for level, kind, value in extra:
            if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
                writer = struct.unpack("3i", value[:12])[0]
                if data and writer != pid:
                    raise Stranger(f"process {writer}, which is not the worker, wrote a record")
        return data

    return receive


class Stranger(Exception):
    """A record came from another process than the worker."""


def _read_records(receive: Callable[[], bytes], events: "SimpleQueue[tuple[str, Any]]") -> None:
    held = bytearray()
    total = 0
    while True:
        try:
            data = receive()
        except Stranger as stranger:
            events.put(("tampered", str(stranger)))
            return
        except OSError:
            data = b""
        if not data:
            events.put(("eof", None))
            return
        total += len(data)
        held += data
        if total > _RECORD_BYTES:
            events.put(("tampered", "far more records came than an honest run writes"))
            return
        while len(held) >= 4:
            size = int.from_bytes(held[:4], "big")
            if len(held) < 4 + size:
                break
            events.put(("record", bytes(held[4 : 4 + size])))
            del held[: 4 + size]


def _read_output(receive: Callable[[int], bytes], output: Output) -> None:
    while True:
        try:
            data = receive(1 << 18)
        except OSError:
            data = b""
        if not data:
            output.close()
            return
        output.feed(data)


class _Spawned(Process):
    """A worker that is a process of its own, where none can fork. It gets its job on stdin."""

    def __init__(self, command: _Command) -> None:
        super().__init__()
        self._reading, writing = os.pipe()
        options: dict[str, Any] = {}
        if sys.platform == "win32":
            import msvcrt

            handle = msvcrt.get_osfhandle(writing)
            os.set_handle_inheritable(handle, True)
            startup = subprocess.STARTUPINFO(lpAttributeList={"handle_list": [handle]})
            options = {
                "startupinfo": startup,
                "creationflags": subprocess.CREATE_NEW_PROCESS_GROUP,
            }
            channel = handle
        else:
            options = {"pass_fds": (writing,), "start_new_session": True}
            channel = writing
        try:
            self._process = command.popen(
                channel,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                **options,
            )
        finally:
            os.close(writing)
        self._threads: tuple[threading.Thread, ...] = ()
        self._job: Job | None = None

    def launch(self, job: dict[str, Any], output: Output) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        printed, reading = self._process.stdout.fileno(), self._reading
        if sys.platform == "win32":  # before the worker gets its job, and so any learner code
            from grader.winjob import Job

            self._job = Job(self._process, job["memory_bytes"])
            if self._job.held:
                limit = f"memory limit {sandbox.size(job['memory_bytes'])}"
                self.protections = (limit, "stray processes are ended")
        self._threads = (
            threading.Thread(
                target=_read_records,
                args=(lambda: os.read(reading, 1 << 16), self.events),
                daemon=True,
            ),
            threading.Thread(
                target=_read_output, args=(lambda size: os.read(printed, size), output), daemon=True
            ),
        )
        for thread in self._threads:
            thread.start()
        try:
            with self._process.stdin as stdin:
                stdin.write(json.dumps(job).encode())
        except OSError:
            return  # it died; the readers see that

    def stop(self, *, died: bool) -> int:
        silent = False
        if died:
            try:
                self._process.wait(timeout=0.3)
            except subprocess.TimeoutExpired:
                silent = True
        if self._job is not None:
            self._job.end()
        _kill_tree(self._process)
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        for thread in self._threads:
            thread.join(timeout=0.5)
        if not any(thread.is_alive() for thread in self._threads):
            # a stray that holds a pipe keeps a reader waiting; closing under it would be worse
            if self._process.stdout is not None and not self._process.stdout.closed:
                self._process.stdout.close()
            if self._reading >= 0:
                os.close(self._reading)
                self._reading = -1
        return sandbox.FELL_SILENT if silent else self._process.returncode

    def abort(self) -> None:
        """End it while another thread reads its records: that one finds their end."""
        _kill_tree(self._process)


def _kill_tree(process: subprocess.Popen[bytes]) -> None:
    if sys.platform == "win32":
        if process.poll() is None:
            subprocess.run(
                ["taskkill", "/F", "/T", "/PID", str(process.pid)],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                check=False,
            )
    else:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    if process.poll() is None:
        process.kill()
    process.wait()
