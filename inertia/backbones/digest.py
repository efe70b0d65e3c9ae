"""SHA-256 of files: always by content, remembered while the file is provably untouched."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path

from inertia.backbones.cache import cache_root


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, in hex."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def remembered_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, read again only if the file may have changed since it was last read.

    Untouched means: same real path, device, inode, size, modification time and change time. The change time
    is what makes this sound, for a restored modification time changes it. A memory that cannot be written is
    done without.
    """
    stat = path.stat()
    stamp = [stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]
    key = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()
    memory = cache_root() / "digests" / f"{key}.json"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        known = json.loads(memory.read_text(encoding="utf-8"))
        if known["stamp"] == stamp:
            return str(known["sha256"])
    digest = file_sha256(path)
    with contextlib.suppress(OSError):
        memory.parent.mkdir(parents=True, exist_ok=True)
        draft = memory.with_suffix(f".{os.getpid()}.tmp")
        draft.write_text(json.dumps({"stamp": stamp, "sha256": digest}), encoding="utf-8")
        os.replace(draft, memory)
    return digest
