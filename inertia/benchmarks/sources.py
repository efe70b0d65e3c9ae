"""Benchmark data from the Hub or a local path, identified by what it contains and never by where it lies."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from inertia.benchmarks.render import sanitise
from inertia.network import online

ROW_SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".json.gz", ".parquet")
TEXT_SUFFIXES = (".txt", ".txt.gz")

_KINDS = ("hub", "path")
_REVISION = re.compile(r"[0-9a-f]{40}")


class DataError(ValueError):
    """The data are not what they should be: damaged, changed, incomplete or malformed."""


@dataclass(frozen=True)
class Manifest:
    """Names of items and the sha256 of each, in order; kept with the records to prove what was read.

    Attributes:
        entries: Pairs of name and sha256; rows of a file, or ids of examples with their prompts' hashes.

    Raises:
        DataError: If a name occurs twice.
    """

    entries: tuple[tuple[str, str], ...]

    def __post_init__(self) -> None:
        counts = Counter(name for name, _ in self.entries)
        if repeated := [name for name, times in counts.items() if times > 1]:
            raise DataError(f"manifest names must be unique; repeated: {', '.join(repeated[:5])}")

    @property
    def sha256(self) -> str:
        """Hash over all names and hashes in their order."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def to_json(self) -> str:
        """Return the manifest as one JSON object, name -> sha256, in order."""
        return json.dumps(dict(self.entries))

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """Return the manifest written by `to_json`."""
        return cls(tuple((name, digest) for name, digest in json.loads(text, object_pairs_hook=list)))

    def check(self, found: Manifest) -> None:
        """Accept `found` if it has every item of this manifest unchanged; further items do not matter.

        Raises:
            DataError: Naming the first item that is missing or differs, with both hashes.
        """
        actual = dict(found.entries)
        for name, expected in self.entries:
            if name not in actual:
                raise DataError(f"item {name!r} (sha256 {expected}) is missing from the data")
            if actual[name] != expected:
                raise DataError(
                    f"item {name!r} has changed: expected sha256 {expected}, found {actual[name]}"
                )


@dataclass(frozen=True)
class Rows:
    """The rows of one file, in order; `load` returns the value itself, so it serves wherever a source does.

    Attributes:
        name: What was asked for, mostly a task.
        rows: One mapping per row, lone surrogates replaced by U+FFFD.
        sanitised: Indexes of the rows that had lone surrogates.
        file_sha256: Of the bytes of the file (of the whole archive, for a member of one).
        manifest: sha256 of each row as it stood in the file, named by its index.
    """

    name: str
    rows: tuple[Mapping[str, Any], ...] = field(repr=False)
    sanitised: frozenset[int]
    file_sha256: str
    manifest: Manifest = field(repr=False)

    @cached_property
    def sha256(self) -> str:
        """Hash of the rows: the identity of the data, whatever the file format."""
        return self.manifest.sha256

    def load(self, name: str) -> Rows:
        """Return these rows.

        Raises:
            ValueError: If they were read for another name.
        """
        if name != self.name:
            raise ValueError(f"these rows were read for {self.name!r}, asked for {name!r}; load them again")
        return self


class Loads(Protocol):
    """Whatever gives rows by name: a `Source`, or `Rows` already read."""

    def load(self, name: str) -> Rows:
        """Return the rows called `name`."""


@dataclass(frozen=True)
class Source:
    """Where data come from; `load` reads them anew each time, so keep the `Rows` where they are needed twice.

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

    def load(self, name: str) -> Rows:
        """Return the rows of the file for `name`.

        Raises:
            FileNotFoundError: If there is no such file, or it cannot be fetched.
            DataError: If its bytes do not match the pin, or it cannot be parsed.
        """
        file_name, data, digest = _read(self, name, ROW_SUFFIXES)
        raw = _parse(file_name, data)
        rows = tuple(_sanitised(row) for row in raw)
        entries = tuple((f"{i:06d}", _row_sha256(file_name, i, row)) for i, row in enumerate(raw))
        changed = frozenset(i for i, (row, clean) in enumerate(zip(raw, rows, strict=True)) if row != clean)
        return Rows(name, rows, changed, digest, Manifest(entries))

    def load_text(self, name: str) -> Text:
        """Return the running text of the file for `name`: plain, or the `text` fields of its rows joined.

        Raises:
            FileNotFoundError: If there is no such file, or it cannot be fetched.
            DataError: If its bytes do not match the pin, it cannot be parsed, or a row has no `text`.
        """
        file_name, data, digest = _read(self, name, (*TEXT_SUFFIXES, *ROW_SUFFIXES))
        if file_name.endswith(".txt"):
            texts = [_decoded(file_name, data)]
        else:
            rows = _parse(file_name, data)
            if bad := [i for i, row in enumerate(rows) if not isinstance(row.get("text"), str)]:
                raise DataError(f"{file_name}: row {bad[0]} has no string field 'text'")
            texts = [row["text"] for row in rows]
        text = sanitise("\n".join(texts))
        return Text(name, text, digest)


@dataclass(frozen=True)
class Text:
    """A running text; `load_text` returns the value itself, so it serves wherever a source does.

    Attributes:
        name: What was asked for.
        text: The text, lone surrogates replaced by U+FFFD.
        file_sha256: Of the bytes of the file.
    """

    name: str
    text: str = field(repr=False)
    file_sha256: str

    @property
    def sha256(self) -> str:
        """Hash of the text: its identity, whatever the file format."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def load_text(self, name: str) -> Text:
        """Return this text.

        Raises:
            ValueError: If it was read for another name.
        """
        if name != self.name:
            raise ValueError(f"this text was read for {self.name!r}, asked for {name!r}; load it again")
        return self


def require(row: Mapping[str, Any], fields: Iterable[str], where: str) -> None:
    """Accept `row` if it has all `fields`.

    Raises:
        DataError: Naming the fields that are missing and those that are there.
    """
    if missing := [name for name in fields if name not in row]:
        raise DataError(f"{where}: field {', '.join(missing)} is missing; the row has: {', '.join(row)}")


def _read(source: Source, name: str, suffixes: tuple[str, ...]) -> tuple[str, bytes, str]:
    """The name (without .gz), the unpacked content and the sha256 of the file for `name`."""
    outer, inside, member = source.path.replace("{name}", name).partition(".zip/")
    file = _fetch(source, outer + ".zip") if inside else _locate(source, outer, name, suffixes)
    data = file.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    _check_pin(source, file.name, digest)
    try:
        if inside:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                data = archive.read(member)
        file_name = Path(member).name if inside else file.name
        if file_name.endswith(".gz"):
            return file_name.removesuffix(".gz"), gzip.decompress(data), digest
    except KeyError as error:
        raise FileNotFoundError(f"{file.name} has no member {member!r}") from error
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        raise DataError(f"{file.name} is damaged ({error}); fetch it again") from error
    return file_name, data, digest


def _check_pin(source: Source, file_name: str, digest: str) -> None:
    if not source.pins:
        return
    if file_name not in source.pins:
        raise DataError(
            f"{file_name} has no pin; pinned are: {', '.join(source.pins)}; its sha256 is {digest}"
        )
    if (expected := source.pins[file_name]) != digest:
        raise DataError(
            f"{file_name} has changed: expected sha256 {expected}, found {digest}; fetch it again"
        )


def _locate(source: Source, path: str, name: str, suffixes: tuple[str, ...]) -> Path:
    if source.kind == "hub" or not (folder := Path(path).expanduser()).is_dir():
        if not path.endswith(suffixes):
            raise ValueError(f"cannot read {path!r}; allowed endings: {', '.join(suffixes)}")
        return _fetch(source, path)
    found = [folder / (name + suffix) for suffix in suffixes if (folder / (name + suffix)).is_file()]
    if len(found) != 1:
        have = ", ".join(file.name for file in found) or "none"
        raise FileNotFoundError(
            f"{path} must hold exactly one of {name}{{{','.join(suffixes)}}}; found: {have}"
        )
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


def _parse(file_name: str, data: bytes) -> list[dict[str, Any]]:
    if file_name.endswith(".parquet"):
        rows = _parquet(file_name, data)
    elif file_name.endswith(".jsonl"):
        # Only "\n" ends a line: U+2028 and the like are legal inside a JSON string.
        lines = _decoded(file_name, data).split("\n")
        rows = [_json(f"{file_name}, line {i}", line) for i, line in enumerate(lines, 1) if line.strip()]
    elif file_name.endswith(".json"):
        content = _json(file_name, _decoded(file_name, data))
        rows = content if isinstance(content, list) else [content]
    else:
        raise ValueError(f"cannot read rows of {file_name!r}; allowed endings: {', '.join(ROW_SUFFIXES)}")
    if bad := [i for i, row in enumerate(rows) if not isinstance(row, dict)]:
        raise DataError(f"{file_name}: row {bad[0]} is {type(rows[bad[0]]).__name__}, not an object")
    return rows


def _parquet(file_name: str, data: bytes) -> list[dict[str, Any]]:
    import pyarrow
    import pyarrow.parquet

    try:
        return pyarrow.parquet.read_table(io.BytesIO(data)).to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{file_name} is damaged ({error}); fetch it again") from error


def _decoded(file_name: str, data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{file_name} is not UTF-8: {error}") from error


def _json(where: str, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(f"{where} is not JSON: {error}") from error


def _row_sha256(file_name: str, index: int, row: Mapping[str, Any]) -> str:
    # Escaped to ASCII, so that even a lone surrogate counts as what it was.
    try:
        text = json.dumps(row, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    except TypeError as error:
        raise DataError(f"{file_name}: row {index} holds a value that is not JSON ({error})") from error
    return hashlib.sha256(text.encode()).hexdigest()


def _sanitised(value: Any) -> Any:
    if isinstance(value, str):
        return sanitise(value)
    if isinstance(value, list):
        return [_sanitised(item) for item in value]
    if isinstance(value, dict):
        return {sanitise(key): _sanitised(item) for key, item in value.items()}
    return value
