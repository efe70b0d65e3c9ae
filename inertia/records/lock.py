"""Locks that the kernel drops with the process that held them: on a file, and on cells while they are decoded."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from math import gcd
from pathlib import Path
from typing import Any

Part = tuple[int, int]
WHOLE: Part = (1, 1)


class CellLocked(RuntimeError):
    """Another process (or another writer of this one) is writing the cell; `holds` is what it noted in the lock."""

    def __init__(self, what: str, path: Path, holds: Mapping[str, Any]) -> None:
        super().__init__(
            f"{what} is being written by process {holds.get('pid', '(unknown)')}: wait for it or stop it, then run the "
            f"same command again (lock: {path})"
        )
        self.holds = holds


@contextmanager
def exclusive(path: Path, what: str, *, wait: bool = False, holds: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Hold the lock file `path`, which carries our pid, until the block ends.

    The kernel drops the lock with the process that held it, so the file of a dead process is taken over;
    there is no guessing from pids, which are reused and differ between machines that share a file system.
    POSIX only.

    Args:
        path: the lock file; its folder exists.
        what: what it stands for, in words.
        wait: until it is free, for what is held for moments only.
        holds: noted in the file beside the pid.

    Raises:
        CellLocked: when someone else holds it; the message names `what` and the pid.
        OSError: when the directory cannot be written or its file system has no locks.
    """
    descriptor = _acquire(path, what, wait, {"pid": os.getpid(), **(holds or {})})
    try:
        yield
    finally:
        # Removed while still held: a waiter that opened the old file sees that the path is another file now.
        path.unlink(missing_ok=True)
        os.close(descriptor)


@contextmanager
def claimed(folder: Path, cells: Iterable[str], part: Part, what: str) -> Iterator[dict[str, CellLocked]]:
    """Claim those of `cells` that nobody else has, and give the others with who has them.

    All are claimed at one moment, so that of two runs with the same cells one gets them all. Parts of a cell that have
    no example in common can be claimed side by side.

    Args:
        folder: of the lock files, made if missing.
        cells: ids.
        part: which examples of them: number k of n parts, every n-th example from the k-th.
        what: the cells in words.

    Raises:
        OSError: as `exclusive`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    taken: dict[str, CellLocked] = {}
    with exclusive(folder / "claims.lock", "the list of claims", wait=True):
        for path in folder.glob("*.claim"):
            try:
                # That of a dead process is removed by this.
                with exclusive(path, what if part == WHOLE else f"a part of {what}"):
                    pass
            except CellLocked as error:
                if _overlap(part, error.holds["part"]):
                    taken.update(dict.fromkeys(error.holds["cells"], error))
        mine = [cell for cell in cells if cell not in taken]
        claim = exclusive(folder / f"{secrets.token_hex(6)}.claim", what, holds={"cells": mine, "part": part})
        claim.__enter__()
    try:
        yield {cell: taken[cell] for cell in cells if cell in taken}
    finally:
        claim.__exit__(None, None, None)


def _overlap(one: Part, other: Part) -> bool:
    """Tell whether two parts of a plan have a place in common: k of n holds the places p with p % n == k - 1."""
    return (one[0] - other[0]) % gcd(one[1], other[1]) == 0


def _acquire(path: Path, what: str, wait: bool, holds: Mapping[str, Any]) -> int:
    import fcntl

    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            if _same_file(descriptor, path):
                os.ftruncate(descriptor, 0)
                os.write(descriptor, json.dumps(holds).encode("ascii"))
                return descriptor
        except BlockingIOError:
            text = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
            os.close(descriptor)
            # Empty for a moment, while its holder begins.
            raise CellLocked(what, path, json.loads(text) if text else {}) from None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False
