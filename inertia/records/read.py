"""Cells as a reader sees them: the union of all files of a results root, or of published parquet files.

`survey` looks at plans, seals and counts alone, in seconds for ten thousand cells; `rows` brings their rows too. A file
or row that is not what was written costs the cells that it is about, as a `Damage`, and the others are read.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inertia.records import parquet
from inertia.records.attempts import DuplicateRow
from inertia.records.progress import Damage, Progress, progress
from inertia.records.schema import NewerSchema
from inertia.records.store import CorruptRecord, files, refuse_old


class Unsealed(RuntimeError):
    """A cell is not complete where only complete ones are allowed."""


@dataclass(frozen=True)
class Cell:
    """One cell, read.

    Attributes:
        sources: the files that hold something of it.
        manifest: identity, plan, config and, where rows were read, sessions with their provenance.
        summary: the summary when sealed, else None.
        done: number of planned examples that are ok.
        rows: the last attempt of each example that was tried, failed ones included, by index; empty after a survey.
    """

    sources: tuple[Path, ...]
    manifest: Mapping[str, Any]
    summary: Mapping[str, Any] | None
    done: int
    rows: tuple[Mapping[str, Any], ...] = ()

    @property
    def id(self) -> str:
        """Cell id."""
        return self.manifest["cell_id"]

    @property
    def label(self) -> str:
        """Label for people, unique within its experiment."""
        return self.manifest["label"]

    @property
    def identity(self) -> Mapping[str, Any]:
        """Everything that can change an output, nested."""
        return self.manifest["identity"]

    @property
    def planned(self) -> tuple[str, ...]:
        """Ids of all planned examples."""
        return tuple(self.manifest["planned"])

    @property
    def sealed(self) -> bool:
        """Whether every planned example is ok and a seal says so."""
        return self.summary is not None

    @property
    def progress(self) -> str:
        """Return "complete 20/20" or, as long as the cell is not sealed, "incomplete 17/20"."""
        return f"{'complete' if self.sealed else 'incomplete'} {self.done}/{len(self.manifest['planned'])}"


def sources(source: Path) -> list[Path]:
    """Return the files that hold the records of `source`: itself, or those of a results root or a published folder.

    Raises:
        FileNotFoundError: nothing is there.
        OldRecords: it was written by an older version.
    """
    source = Path(source)
    if source.is_file():
        return [source]
    if not source.is_dir():
        raise FileNotFoundError(f"no records at {source}: the folder does not exist; run an experiment first")
    refuse_old(source.parent if source.name == "runs" else source)
    return files(source) or sorted(path for path in source.glob("*.parquet") if not path.name.startswith("."))


def survey(source: Path, ids: Collection[str] | None = None) -> tuple[list[Cell], list[Damage]]:
    """Return all cells without their rows, sorted by id, and what cannot be read.

    Args:
        source: results root, published file or folder of such files.
        ids: cells that are wanted; None for all.

    Raises:
        FileNotFoundError, OldRecords: as `sources`.
    """
    found = sources(source)
    if not any(path.suffix == ".parquet" for path in found):
        cells, damages = progress(found, ids, check=False)
        hurt = {name for damage in damages for name in damage.cells or ()}
        return [_stored(cell) for cell in cells.values() if cell.id not in hurt], damages
    published: dict[str, Cell] = {}
    damages = []
    for path in found:
        try:
            for cell in _published(path):
                if ids is None or cell.id in ids:
                    other = published.setdefault(cell.id, cell)
                    if other.summary != cell.summary:
                        raise DuplicateRow(f"{other.sources[0]} and {path} say different things of cell {cell.id}")
        except (CorruptRecord, DuplicateRow, NewerSchema) as error:
            damages.append(Damage(path, str(error), None))
    return [published[name] for name in sorted(published)], damages


def refuse(damages: Iterable[Damage], cells: Iterable[Cell], ids: Collection[str] | None = None) -> None:
    """Refuse damage that may be of a wanted cell; where all that are wanted are sealed elsewhere, it is not.

    Raises:
        CorruptRecord: with all reasons.
    """
    whole = {cell.id for cell in cells if cell.sealed}
    wanted = None if ids is None else set(ids) - whole
    reasons = [
        damage.reason
        for damage in damages
        if wanted is None or (wanted if damage.cells is None else wanted.intersection(damage.cells))
    ]
    if reasons:
        raise CorruptRecord("; ".join(reasons))


def require_sealed(cells: Iterable[Cell]) -> None:
    """Refuse cells that are not complete.

    Raises:
        Unsealed: with id, label and progress of each.
    """
    open_cells = [f"{cell.id} {cell.label} ({cell.progress})" for cell in cells if not cell.sealed]
    if open_cells:
        raise Unsealed(f"{len(open_cells)} cells are not complete: {'; '.join(open_cells)}; run the experiment again")


def _stored(cell: Progress) -> Cell:
    manifest = {**cell.manifest, "identity": json.loads(cell.identity), "planned": list(cell.planned)}
    return Cell(cell.sources, manifest, cell.summary, len(cell.good.intersection(cell.planned)))


def _published(path: Path) -> Iterator[Cell]:
    entries = parquet.read_entries(path)
    done: Counter[str] = Counter()
    if any(summary is None for _, summary in entries):
        rows = parquet.read_table(path, ["cell_id", "status"]).to_pylist()
        done.update(row["cell_id"] for row in rows if row["status"] == "ok")
    for manifest, summary in entries:
        ok = done[manifest["cell_id"]] if summary is None else len(manifest["planned"])
        yield Cell((path,), manifest, summary, ok)
