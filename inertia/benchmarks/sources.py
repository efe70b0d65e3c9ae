"""Benchmark data from the Hub or a local path, identified by what it contains and never by where it lies."""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from inertia.benchmarks.render import sanitise
from inertia.benchmarks.rows import ROW_SUFFIXES, DataError, Rows, Schema, rows_of
from inertia.network import online

TEXT_SUFFIX = ".txt"

_KINDS = ("hub", "path")
_REVISION = re.compile(r"[0-9a-f]{40}")
_TEXT = Schema({"text": str})


@dataclass(frozen=True)
class Text:
    """A running text.

    Attributes:
        text: The text, lone surrogates replaced by U+FFFD.
    """

    text: str = field(repr=False)

    @property
    def sha256(self) -> str:
        """Hash of the text: its identity, whatever the file format."""
        return hashlib.sha256(self.text.encode()).hexdigest()


class Loads(Protocol):
    """Whatever gives rows and running texts by name: a `Source`, several of them, or one that reads only once."""

    def load(self, name: str, schema: Schema) -> Rows:
        """Return the rows called `name`."""

    def load_text(self, name: str) -> Text:
        """Return the running text called `name`."""


@dataclass(frozen=True)
class Source:
    """Where data come from; each call reads them anew (`registry.Kept` keeps them).

    The Hub's files come through its own client, as those of `datasets` do, and not through `load_dataset`: only so can
    their bytes be checked against a pin and read without a network.

    `{name}` in `path` stands for the name asked for, and `archive.zip/inner/file` reaches into a zip file. A
    local `path` may be a folder: it must then hold exactly one file called the name plus a known ending.

    Attributes:
        kind: `hub` (a data set repository) or `path` (this machine).
        path: A file or folder here, or a file inside the repository.
        repo: Repository, `owner/name`; hub only.
        revision: Full commit hash; hub only, and required there.
        pins: File name -> sha256 of its bytes; once given, a file without a pin is refused too.

    Raises:
        ValueError: If the kind is unknown, or repository and revision do not go with it.
    """

    kind: str
    path: str
    repo: str | None = None
    revision: str | None = None
    pins: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise ValueError(f"source is {self.kind!r}; allowed: {', '.join(_KINDS)}")
        if self.kind == "path" and (self.repo is not None or self.revision is not None):
            raise ValueError("source path takes no repo and no revision; remove them, or use source hub")
        if self.kind == "hub":
            if not self.repo:
                raise ValueError("source hub needs repo, for instance owner/name")
            if not _REVISION.fullmatch(self.revision or ""):
                raise ValueError(
                    f"source hub needs revision, got {self.revision!r}; a branch can move: give the 40 "
                    "hexadecimal digits of a commit"
                )

    def load(self, name: str, schema: Schema) -> Rows:
        """Return the rows of the file for `name` that the schema takes; what is refused is logged and counted.

        Raises:
            FileNotFoundError: If there is no such file, or it cannot be fetched.
            DataError: If its bytes do not match the pin, it cannot be read, or no row of it serves.
        """
        return rows_of(name, *_read(self, name, ROW_SUFFIXES), schema)

    def load_text(self, name: str) -> Text:
        """Return the running text of the file for `name`: plain, or the `text` fields of its rows joined.

        Raises:
            FileNotFoundError: If there is no such file, or it cannot be fetched.
            DataError: If its bytes do not match the pin, it cannot be read, or a row has no `text`: a text with a hole
                is another text.
        """
        file_name, data = _read(self, name, (TEXT_SUFFIX, *ROW_SUFFIXES))
        if not file_name.endswith(TEXT_SUFFIX):
            rows = rows_of(name, file_name, data, _TEXT)
            if rows.refused:
                raise DataError(rows.refused[0])
            return Text("\n".join(rows.data["text"]))
        try:
            return Text(sanitise(data.decode("utf-8-sig")))
        except UnicodeDecodeError as error:
            raise DataError(f"{file_name} is not UTF-8: {error}") from error


def _read(source: Source, name: str, suffixes: tuple[str, ...]) -> tuple[str, bytes]:
    """The name (without .gz) and the unpacked content of the file for `name`."""
    outer, inside, member = source.path.replace("{name}", name).partition(".zip/")
    if inside:
        _check_ending(member, suffixes)
    file = _fetch(source, outer + ".zip") if inside else _locate(source, outer, name, suffixes)
    data = file.read_bytes()
    _check_pin(source, file.name, hashlib.sha256(data).hexdigest())
    try:
        if inside:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                data = archive.read(member)
        file_name = Path(member).name if inside else file.name
        if file_name.endswith(".gz"):
            return file_name.removesuffix(".gz"), gzip.decompress(data)
    except KeyError as error:
        raise FileNotFoundError(f"{file.name} has no member {member!r}") from error
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        raise DataError(f"{file.name} is damaged ({error}); fetch it again") from error
    return file_name, data


def _check_ending(path: str, suffixes: tuple[str, ...]) -> None:
    if not path.removesuffix(".gz").endswith(suffixes):
        raise ValueError(f"cannot read {path!r}; allowed endings: {', '.join(suffixes)}, each also with .gz")


def _check_pin(source: Source, file_name: str, digest: str) -> None:
    if not source.pins:
        return
    if file_name not in source.pins:
        raise DataError(f"{file_name} has no pin; pinned are: {', '.join(source.pins)}; its sha256 is {digest}")
    if (expected := source.pins[file_name]) != digest:
        raise DataError(f"{file_name} has changed: expected sha256 {expected}, found {digest}; fetch it again")


def _locate(source: Source, path: str, name: str, suffixes: tuple[str, ...]) -> Path:
    if source.kind == "hub" or not (folder := Path(path).expanduser()).is_dir():
        _check_ending(path, suffixes)
        return _fetch(source, path)
    endings = [suffix + packed for suffix in suffixes for packed in ("", ".gz")]
    found = [folder / (name + ending) for ending in endings if (folder / (name + ending)).is_file()]
    if len(found) != 1:
        have = ", ".join(file.name for file in found) or "none"
        raise FileNotFoundError(f"{path} must hold exactly one of {name}{{{','.join(endings)}}}; found: {have}")
    return found[0]


def _fetch(source: Source, path: str) -> Path:
    if source.kind == "path":
        file = Path(path).expanduser()
        if not file.is_file():
            raise FileNotFoundError(f"no data file {path}")
        return file
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        cached = {"revision": source.revision, "local_files_only": not online()}
        return Path(hf_hub_download(source.repo, path, repo_type="dataset", **cached))
    except (OSError, HfHubHTTPError, LocalEntryNotFoundError) as error:
        raise FileNotFoundError(
            f"cannot get {path} of {source.repo} at {source.revision}: {type(error).__name__}; without a "
            "network it must already be in the Hub cache; else use source path with a copy of the file"
        ) from error
