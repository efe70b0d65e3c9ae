"""What is known of a cell without reading its rows: enough to list, choose and compare thousands in seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from inertia.records.journal import CorruptRecord
from inertia.records.layout import JOURNAL, MANIFEST, SAMPLES, SUMMARY, DuplicateCell, cell_folders, read_manifest
from inertia.records.load import load_open_rows, load_seal
from inertia.records.published import described, published_files
from inertia.records.schema import NewerSchema
from inertia.records.settle import DuplicateRow, settle

DAMAGE = (CorruptRecord, DuplicateCell, DuplicateRow, NewerSchema, ValueError, OSError)
_TRIES = 5
_Read = TypeVar("_Read")


@dataclass(frozen=True)
class Facts:
    """One cell without its rows.

    Attributes:
        source: its folder, or the published file that holds it.
        manifest: identity, plan, config and sessions.
        summary: the summary when sealed, else None.
        done: examples that are recorded as ok.
    """

    source: Path
    manifest: Mapping[str, Any]
    summary: Mapping[str, Any] | None
    done: int

    @property
    def id(self) -> str:
        """Cell id."""
        return self.manifest["cell_id"]

    @property
    def label(self) -> str:
        """Label for people."""
        return self.manifest["label"]

    @property
    def sealed(self) -> bool:
        """Whether the cell is complete."""
        return self.summary is not None

    @property
    def progress(self) -> str:
        """Return "complete 20/20" or "incomplete 17/20"."""
        return f"{'complete' if self.sealed else 'incomplete'} {self.done}/{len(self.manifest['planned'])}"


@dataclass(frozen=True)
class Damage:
    """A cell that cannot be read: where it lies and why."""

    source: Path
    reason: str


@dataclass(frozen=True)
class Names:
    """What people call a cell's parts; "none" where a record does not say.

    Attributes:
        backbone: name of the model.
        benchmark: name of the benchmark.
        task: task of the benchmark.
        length: nominal length, None where the task has none.
        policy: label of the policy with its numbers, such as "inertiakv-0.8-1-0.9".
        method: the label alone, such as "inertiakv".
    """

    backbone: str
    benchmark: str
    task: str
    length: int | None
    policy: str
    method: str


def names(manifest: Mapping[str, Any]) -> Names:
    """Return the names in a manifest; labels are made as backbone__policy__place."""
    config, identity = manifest.get("config", {}), manifest["identity"]
    place = identity.get("benchmark")
    place = place if isinstance(place, Mapping) else {"name": place}
    words = manifest["label"].split("__")
    policy = "__".join(words[1:-1]) if len(words) > 2 else manifest["label"]
    length = place.get("length")
    return Names(
        backbone=_first(_name(config.get("backbone")), _name(identity.get("backbone"))),
        benchmark=_first(_name(place)),
        task=_first(place.get("task")),
        length=length if isinstance(length, int) else None,
        policy=policy,
        method=_first(config.get("label"), policy),
    )


def read_facts(source: Path) -> list[Facts]:
    """Return the facts of all cells of a folder of runs, a data set or a published file, sorted by id.

    Seals are held against their manifests and identities against their hashes; rows are not read, except the
    journals of incomplete cells, to count them. Checking rows is what `read_cells` and `verify` do.

    Raises:
        FileNotFoundError: when `source` does not exist.
        CorruptRecord, NewerSchema, DuplicateCell, DuplicateRow: naming the file.
    """
    found: dict[str, Facts] = {}
    for read in readers(source):
        for facts in read():
            if facts.id in found:
                raise DuplicateCell(f"{found[facts.id].source} and {facts.source} both hold cell {facts.id}")
            found[facts.id] = facts
    return [found[name] for name in sorted(found)]


def survey(source: Path) -> Iterator[Facts | Damage]:
    """Yield what `read_facts` returns, with a `Damage` in the place of what cannot be read.

    Raises:
        FileNotFoundError: when `source` does not exist.
        DuplicateCell: when two folders carry one id.
    """
    for read in readers(source):
        try:
            yield from read()
        except DAMAGE as error:
            yield Damage(read.source, str(error))


@dataclass(frozen=True)
class Reader:
    """Reads the facts of one folder or published file when called."""

    source: Path
    read: Callable[[Path], list[Facts]]

    def __call__(self) -> list[Facts]:
        """Return the facts, none for a folder in which nothing is recorded yet."""
        return self.read(self.source)


def readers(source: Path) -> list[Reader]:
    """Return one reader for each cell folder or published file of `source`.

    Raises:
        FileNotFoundError: when `source` does not exist.
        DuplicateCell: when two folders carry one id.
    """
    source = Path(source)
    files = published_files(source)
    if files:
        return [Reader(path, _of_file) for path in files]
    return [Reader(folder, _of_folder) for folder in cell_folders(source).values()]


def steady(read: Callable[[Path], _Read], folder: Path) -> _Read:
    """Return `read(folder)`, again where a writer changed the folder between two of the files that were read.

    Raises:
        Exception: what `read` raised on a folder that held still, or on the last of five tries.
    """
    for left in reversed(range(_TRIES)):
        before = _signature(folder)
        try:
            return read(folder)
        except DAMAGE:
            if left == 0 or _signature(folder) == before:
                raise
    raise AssertionError("unreachable: the last try returns or raises")


def _of_folder(folder: Path) -> list[Facts]:
    return steady(_facts, folder)


def _facts(folder: Path) -> list[Facts]:
    manifest = read_manifest(folder)
    if manifest is None:
        return []
    summary = load_seal(folder, manifest)
    if summary is not None:
        return [Facts(folder, manifest, summary, len(manifest["planned"]))]
    rows = settle(load_open_rows(folder, manifest["cell_id"]), folder / JOURNAL).values()
    return [Facts(folder, manifest, None, sum(row["status"] == "ok" for row in rows))]


def _of_file(path: Path) -> list[Facts]:
    return [
        Facts(path, entry["manifest"], entry["summary"], len(entry["manifest"]["planned"])) for entry in described(path)
    ]


def _signature(folder: Path) -> tuple[tuple[int, int, int] | None, ...]:
    found = []
    for name in (MANIFEST, JOURNAL, SAMPLES, SUMMARY):
        try:
            about = (folder / name).stat()
            found.append((about.st_ino, about.st_mtime_ns, about.st_size))
        except FileNotFoundError:
            found.append(None)
    return tuple(found)


def _name(value: Any) -> str | None:
    if isinstance(value, Mapping):
        value = value.get("name")
    return value if isinstance(value, str) else None


def _first(*candidates: Any) -> str:
    return next((str(value) for value in candidates if value is not None), "none")
