"""The cache folder: where it is, how a folder gets into it whole, and what a full disk says."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_root() -> Path:
    """Return the cache folder: $INERTIA_CACHE, else the platform's user cache folder. It need not exist."""
    import platformdirs

    chosen = os.environ.get("INERTIA_CACHE")
    return Path(chosen).expanduser() if chosen else platformdirs.user_cache_path("inertia")


@contextmanager
def scratch(target: Path) -> Iterator[Path]:
    """Yield an empty folder on the file system of `target`; it is gone on any exit.

    The caller holds the lock of `target`: what a killed predecessor left for the same target is removed
    first.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    for stale in target.parent.glob(f".{target.name}.*.tmp"):
        shutil.rmtree(stale, ignore_errors=True)
    # mkdir and not mkdtemp: the installed folder should have the user's usual permissions, not 0700.
    work = target.parent / f".{target.name}.{os.getpid()}.tmp"
    work.mkdir()
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def install(folder: Path, target: Path) -> None:
    """Rename a finished `folder` to `target`, its files on disk first; an unfinished `target` goes."""
    for file in folder.iterdir():
        with file.open("rb") as handle:
            os.fsync(handle.fileno())
    if target.exists():
        shutil.rmtree(target)
    os.rename(folder, target)


def require_space(folder: Path, needed: int, purpose: str) -> None:
    """Check that the disk of `folder` has room for `needed` bytes.

    Raises:
        OSError: ENOSPC, when it has not; the message says how much, where, and what to do.
    """
    existing = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if shutil.disk_usage(existing).free < needed:
        raise _full(folder, needed, purpose)


@contextmanager
def explain_full_disk(folder: Path, needed: int, purpose: str) -> Iterator[None]:
    """Turn any "disk full" inside the block into one OSError (ENOSPC) that says how much is needed where."""
    try:
        yield
    except Exception as error:
        if not _is_full(error):
            raise
        raise _full(folder, needed, purpose) from error


def _is_full(error: BaseException) -> bool:
    # safetensors and pip report a full disk by text only.
    codes = (errno.ENOSPC, errno.EDQUOT)
    return getattr(error, "errno", None) in codes or "no space left" in str(error).lower()


def _full(folder: Path, needed: int, purpose: str) -> OSError:
    return OSError(
        errno.ENOSPC,
        f"disk full: {purpose} needs about {needed / 1e9:.1f} GB in {folder}; "
        "free some space, or set INERTIA_CACHE to a folder on a larger disk",
    )
