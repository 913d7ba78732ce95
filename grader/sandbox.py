"""The conditions of a graded run: environment, limits, isolation.

One half is used by the runner, the other by the worker, in the process where learner code
will run. Only the standard library is imported, and every call that a system may
lack is guarded: what held is reported, what did not is left out of the report.
"""

import contextlib
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

# Where Jupyter is installed, jsonschema imports this for one format that no test asks for, and
# it builds a grammar: 0.7 s of every run. None in `sys.modules` makes its import fail, which
# jsonschema expects.
SLOW_IMPORT = "rfc3987_syntax"

_KEPT = (
    "PATH",
    "TZ",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    # what some interpreters need to find their own libraries
    "LD_LIBRARY_PATH",
    "DYLD_LIBRARY_PATH",
    "DYLD_FALLBACK_LIBRARY_PATH",
    # Windows does not start a process without these
    "COMSPEC",
    "NUMBER_OF_PROCESSORS",
    "OS",
    "PATHEXT",
    "PROCESSOR_ARCHITECTURE",
    "SYSTEMDRIVE",
    "SYSTEMROOT",
    "WINDIR",
)

FELL_SILENT = 1000  # instead of an exit code: it closed its channel and lived on

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_SYS_LANDLOCK_CREATE_RULESET = 444  # these two are the same on every architecture but alpha
_SYS_LANDLOCK_RESTRICT_SELF = 446
_LANDLOCK_SCOPE_SIGNAL = 1 << 1
_CAPABILITY_VERSION_3 = 0x20080522
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 0x1


def environment(caller: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables a worker starts with: an allow-list, so no key, proxy or PYTHON* gets in."""
    kept = {name: value for name, value in caller.items() if name.upper() in _KEPT}
    return kept | {"NO_COLOR": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def folders(base: Path) -> dict[str, str]:
    """The private folders of one run, made under `base`, as the variables that name them."""
    home, scratch = base / "home", base / "scratch"
    home.mkdir()
    scratch.mkdir()
    (base / "work").mkdir()
    places = {name: str(scratch) for name in ("TMPDIR", "TEMP", "TMP")}
    return places | {name: str(home) for name in ("HOME", "USERPROFILE", "APPDATA", "LOCALAPPDATA")}


def interpreter(hash_seed: int | None = None) -> tuple[list[str], dict[str, str]]:
    """How to start a worker's Python: the first arguments, and variables to add.

    `-P` keeps the working directory off sys.path. A user site folder stays only where it is
    this interpreter's own source of packages.
    """
    executable, added = sys.executable, dict[str, str]()
    base = getattr(sys, "_base_executable", executable)
    if sys.platform == "win32" and base != executable:
        # A venv's python.exe starts the true one as its child, and a job object would miss that.
        added["__PYVENV_LAUNCHER__"] = executable
        executable = base
    arguments = [executable, "-P", "-X", "utf8"]
    site = sys.modules.get("site")
    user_site = getattr(site, "ENABLE_USER_SITE", False) and getattr(site, "USER_SITE", None)
    if user_site and user_site in sys.path:
        added["PYTHONUSERBASE"] = str(getattr(site, "USER_BASE", ""))
    else:
        arguments.append("-s")
    if hash_seed is not None:
        added["PYTHONHASHSEED"] = str(hash_seed)
    return arguments, added


# In the supervisor, which never runs learner code.


def become_subreaper() -> bool:
    """Take over orphans: whatever a run leaves behind becomes this process's child. Linux only."""
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def sweep(seconds: float = 5.0) -> None:
    """Kill and reap every child of this process, and those that these leave, until none is left."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            for child in _children():
                try:
                    os.kill(child, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.001)


def _children() -> list[int]:
    """The direct children of this process, as Linux lists them."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return _children_by_scan()


def _children_by_scan() -> list[int]:
    """The same on a Linux without `children` files; empty where there is no /proc."""
    found: list[int] = []
    me = str(os.getpid())
    try:
        names = os.listdir("/proc")
    except OSError:
        return found
    for name in filter(str.isdigit, names):
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                if file.read().rpartition(")")[2].split()[1] == me:
                    found.append(int(name))
        except (OSError, IndexError):
            continue
    return found


# In the worker, before learner code.


def confine(memory_bytes: int, file_bytes: int) -> list[str]:
    """Bind this process to its limits and take away the network. Returns what held, in words."""
    held: list[str] = []
    if sys.platform == "linux":
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if _limit("RLIMIT_AS", memory_bytes):
        held.append(f"memory limit {size(memory_bytes)}")
    if _limit("RLIMIT_FSIZE", file_bytes):
        held.append(f"file size limit {size(file_bytes)}")
        if hasattr(signal, "SIGXFSZ"):
            signal.signal(
                signal.SIGXFSZ, signal.SIG_IGN
            )  # an OSError says more than a dead process
    _limit("RLIMIT_CORE", 0)
    held.append("no network" if _leave_network() else "no network from Python code")
    if _keep_signals_inside():
        held.append("no signals to other processes")
    sys.addaudithook(_refuse_network())
    return held


def _keep_signals_inside() -> bool:
    """From now on this process and what it starts can signal each other and nobody else.

    A slip such as `os.kill(-1, ...)` would end all that the user has open. Linux 6.12 and later.
    """
    if sys.platform != "linux":
        return False
    try:
        import ctypes

        system_call = ctypes.CDLL(None).syscall
    except (OSError, AttributeError):
        return False
    scope = struct.pack("=QQQ", 0, 0, _LANDLOCK_SCOPE_SIGNAL)
    length, flags = ctypes.c_size_t(len(scope)), ctypes.c_uint(0)
    ruleset = system_call(_SYS_LANDLOCK_CREATE_RULESET, scope, length, flags)
    if ruleset < 0:
        return False
    try:
        if not _prctl(_PR_SET_NO_NEW_PRIVS, 1):
            return False
        return bool(system_call(_SYS_LANDLOCK_RESTRICT_SELF, ruleset, flags) == 0)
    finally:
        os.close(ruleset)


def _limit(name: str, value: int) -> bool:
    try:
        import resource
    except ImportError:
        return False
    kind = getattr(resource, name, None)
    if kind is None:
        return False
    _, hard = resource.getrlimit(kind)
    if hard != resource.RLIM_INFINITY and hard < value:
        value = hard
    try:
        resource.setrlimit(kind, (value, value))
    except (OSError, ValueError):  # macOS knows RLIMIT_AS and refuses to set it
        return False
    return True


def _leave_network() -> bool:
    """Move into a network that has only a loopback. Linux, where the system permits it."""
    if sys.platform != "linux":
        return False
    try:
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(_CLONE_NEWNET) != 0:
            user, group = os.getuid(), os.getgid()
            if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET) != 0:
                return False
            for name, text in (
                ("setgroups", "deny"),
                ("uid_map", f"{user} {user} 1"),
                ("gid_map", f"{group} {group} 1"),
            ):
                with contextlib.suppress(OSError):  # unmapped, the process is nobody, and works
                    Path(f"/proc/self/{name}").write_text(text, encoding="ascii")
            _raise_loopback()
            # The first process of a user namespace is mighty in it: it reads unreadable files.
            header, nothing = struct.pack("Ii", _CAPABILITY_VERSION_3, 0), bytes(24)
            libc.capset(header, nothing)
        else:
            _raise_loopback()
    except (OSError, AttributeError):
        return False
    return True


def _raise_loopback() -> None:
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("16sH14x", b"lo", 0)
        name, flags = struct.unpack("16sH14x", fcntl.ioctl(probe, _SIOCGIFFLAGS, request))
        fcntl.ioctl(probe, _SIOCSIFFLAGS, struct.pack("16sH14x", name, flags | _IFF_UP))


def _refuse_network() -> Callable[[str, tuple[Any, ...]], None]:
    """An audit hook that names the host a test tried to reach, and guards where Linux can't."""
    here = ("localhost", "127.", "::1", "0.0.0.0")
    watched = frozenset(
        ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto")
    )

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in watched:
            return
        target = arguments[0] if event.startswith("socket.get") else arguments[1]
        host = target[0] if isinstance(target, tuple) and target else target
        if isinstance(host, bytes):
            host = host.decode("ascii", "backslashreplace")
        if not isinstance(host, str) or not host or host.startswith(here):
            return
        if event in ("socket.connect", "socket.sendto") and not isinstance(target, tuple):
            return  # the path of a Unix socket
        raise PermissionError(f"a graded run has no network; the code tried to reach {host}")

    return hook


def _prctl(option: int, value: int) -> bool:
    if sys.platform != "linux":
        return False
    try:
        import ctypes

        return bool(ctypes.CDLL(None).prctl(option, value, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False


def size(count: int) -> str:
    """A number of bytes for people, such as "2 GiB"."""
    for unit, one in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= one and count % one == 0:
            return f"{count // one} {unit}"
    return f"{count} bytes"
