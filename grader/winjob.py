"""A Windows job object: what ends a worker with all it started, and limits its memory.

Nothing else does on Windows: a process group is no tree there, and an orphan has no parent to ask.
"""

import contextlib
import ctypes
import subprocess
import sys

_EXTENDED_LIMITS = 9  # JobObjectExtendedLimitInformation
_PROCESS_MEMORY = 0x100
_KILL_ON_JOB_CLOSE = 0x2000


class _Basic(ctypes.Structure):
    _fields_ = (
        ("PerProcessUserTimeLimit", ctypes.c_int64),
        ("PerJobUserTimeLimit", ctypes.c_int64),
        ("LimitFlags", ctypes.c_uint32),
        ("MinimumWorkingSetSize", ctypes.c_size_t),
        ("MaximumWorkingSetSize", ctypes.c_size_t),
        ("ActiveProcessLimit", ctypes.c_uint32),
        ("Affinity", ctypes.c_size_t),
        ("PriorityClass", ctypes.c_uint32),
        ("SchedulingClass", ctypes.c_uint32),
    )


class _Extended(ctypes.Structure):
    _fields_ = (
        ("BasicLimitInformation", _Basic),
        ("IoInfo", ctypes.c_uint64 * 6),
        ("ProcessMemoryLimit", ctypes.c_size_t),
        ("JobMemoryLimit", ctypes.c_size_t),
        ("PeakProcessMemoryUsed", ctypes.c_size_t),
        ("PeakJobMemoryUsed", ctypes.c_size_t),
    )


class Job:
    """A job with one process in it. `held` is False if the system refused; then it does nothing."""

    def __init__(self, process: subprocess.Popen[bytes], memory_bytes: int) -> None:
        self._handle = 0
        if sys.platform == "win32":
            with contextlib.suppress(OSError, AttributeError, ctypes.ArgumentError):
                self._handle = self._make(process, memory_bytes)

    if sys.platform == "win32":

        def _make(self, process: subprocess.Popen[bytes], memory_bytes: int) -> int:
            kernel = ctypes.WinDLL("kernel32", use_last_error=True)
            kernel.CreateJobObjectW.restype = ctypes.c_void_p
            job: int | None = kernel.CreateJobObjectW(None, None)
            if not job:
                return 0
            limits = _Extended()
            limits.BasicLimitInformation.LimitFlags = _KILL_ON_JOB_CLOSE | _PROCESS_MEMORY
            limits.ProcessMemoryLimit = memory_bytes
            handle = ctypes.c_void_p(job)
            size = ctypes.c_uint32(ctypes.sizeof(limits))
            owned = ctypes.c_void_p(int(process._handle))  # type: ignore[attr-defined]
            if kernel.SetInformationJobObject(
                handle, _EXTENDED_LIMITS, ctypes.byref(limits), size
            ) and kernel.AssignProcessToJobObject(handle, owned):
                return job
            kernel.CloseHandle(handle)
            return 0

    @property
    def held(self) -> bool:
        """The process is in the job."""
        return self._handle != 0

    def end(self) -> None:
        """End every process in the job."""
        if sys.platform == "win32" and self._handle:
            kernel = ctypes.WinDLL("kernel32", use_last_error=True)
            handle, self._handle = ctypes.c_void_p(self._handle), 0
            kernel.TerminateJobObject(handle, ctypes.c_uint32(1))
            kernel.CloseHandle(handle)
