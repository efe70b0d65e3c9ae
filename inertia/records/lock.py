"""One writer per cell."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class CellLocked(RuntimeError):
    """Another process (or another writer of this one) is writing the cell."""


@contextmanager
def exclusive(path: Path, what: str) -> Iterator[None]:
    """Hold the lock file `path`, which carries our pid, until the block ends.

    The kernel drops the lock with the process that held it, so the file of a dead process is taken over;
    there is no guessing from pids, which are reused and differ between machines that share a file system.
    POSIX only.

    Raises:
        CellLocked: when someone else holds it; the message names `what` and the pid.
        OSError: when the directory cannot be written or its file system has no locks.
    """
    descriptor = _acquire(path, what)
    try:
        yield
    finally:
        # Removed while still held: a waiter that opened the old file sees that the path is another file now.
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _acquire(path: Path, what: str) -> int:
    import fcntl

    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _same_file(descriptor, path):
                os.ftruncate(descriptor, 0)
                os.write(descriptor, f"{os.getpid()}\n".encode())
                return descriptor
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
            os.close(descriptor)
            raise CellLocked(
                f"{what} is being written by process {holder if holder else '(unknown)'}: "
                f"wait for it or stop it, then run the same command again (lock: {path})"
            ) from None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False
