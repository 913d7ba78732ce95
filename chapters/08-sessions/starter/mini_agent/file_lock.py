"""A lock on an open file, held by at most one process, and never by a dead one.

The system keeps it, not a file beside the file: when a process ends, however it ends, its locks
are gone. A lock file with a process number in it would outlive a SIGKILL.
"""

import os
import sys

if sys.platform == "win32":
    import msvcrt

    _FAR = 1 << 40  # Windows locks bytes against readers too: take one that no session reaches

    def try_lock(file: int) -> bool:
        """Lock the open file for writing. False if another open file holds the lock."""
        place = os.lseek(file, 0, os.SEEK_CUR)
        os.lseek(file, _FAR, os.SEEK_SET)
        try:
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        finally:
            os.lseek(file, place, os.SEEK_SET)
        return True

else:
    import fcntl

    def try_lock(file: int) -> bool:
        """Lock the open file for writing. False if another open file holds the lock."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
