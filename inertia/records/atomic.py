"""Whole files that are either the old ones or the new ones, never a part of either."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
from pathlib import Path
from typing import Any

_NO_DIRECTORY_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF)


def write_atomic(path: Path, data: bytes) -> None:
    """Replace `path` by `data`: temporary file beside it, fsync, rename, fsync of the directory.

    A symbolic link is followed, so that the rename stays on the file system of the real file. Whatever fails
    (no space, no permission, an interrupt), the old file is intact and no temporary file is left; only a
    SIGKILL leaves one.

    Raises:
        OSError: as the file system gave it.
    """
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in _NO_DIRECTORY_SYNC:  # a file system that does not know how
            raise
    finally:
        os.close(folder)


def write_json(path: Path, value: Any) -> None:
    """Write `value` atomically as indented, strict JSON (no NaN) with a closing newline."""
    write_atomic(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode("ascii"))
