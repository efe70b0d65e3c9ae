"""Cells as a reader sees them, from a folder of runs or from one published file."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inertia.records.atomic import write_atomic
from inertia.records.canonical import canonical_json
from inertia.records.journal import CorruptRecord
from inertia.records.layout import JOURNAL, MANIFEST, DuplicateCell, cell_folders, read_manifest
from inertia.records.load import check_rows, load_open_rows, load_seal, load_sealed_rows
from inertia.records.published import describe, entries_of, published_files
from inertia.records.settle import rows_sha256, settle
from inertia.records.table import from_parquet, to_parquet

_log = logging.getLogger(__name__)


class Unsealed(RuntimeError):
    """A cell is not complete where only complete ones are allowed."""


@dataclass(frozen=True)
class Cell:
    """One cell, read.

    Attributes:
        source: its folder, or the published file it came from.
        manifest: identity, plan, config and sessions with their provenance.
        rows: the last attempt of each example that was tried, failed ones included, by index.
        summary: the summary when sealed, else None.
    """

    source: Path
    manifest: Mapping[str, Any]
    rows: tuple[Mapping[str, Any], ...]
    summary: Mapping[str, Any] | None

    @property
    def id(self) -> str:
        """Cell id."""
        return self.manifest["cell_id"]

    @property
    def label(self) -> str:
        """Label for people."""
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
        """Whether every planned example is ok and the summary is written."""
        return self.summary is not None

    @property
    def progress(self) -> str:
        """Return "complete 20/20" or, as long as the cell is not sealed, "incomplete 17/20"."""
        done = sum(row["status"] == "ok" for row in self.rows)
        return f"{'complete' if self.sealed else 'incomplete'} {done}/{len(self.planned)}"


def read_cell(folder: Path) -> Cell:
    """Read one cell's folder; nothing is written, repaired or locked.

    Raises:
        FileNotFoundError: when no manifest is there.
        CorruptRecord, NewerSchema, DuplicateRow: as the file deserves; the message names it.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    if manifest is None:
        raise FileNotFoundError(f"no cell at {folder}: {MANIFEST} is missing")
    summary = load_seal(folder, manifest)
    if summary is not None:
        settled = load_sealed_rows(folder, summary)
    else:
        settled = settle(load_open_rows(folder, manifest["cell_id"]), folder / JOURNAL)
    return Cell(folder, manifest, tuple(settled.values()), summary)


def read_cells(source: Path) -> list[Cell]:
    """Read all cells of a folder of runs, a published .parquet file or a data set of them, sorted by id.

    A folder without a manifest (killed before it was written) holds nothing yet and is left out.

    Raises:
        FileNotFoundError: when `source` does not exist.
        CorruptRecord, NewerSchema, DuplicateCell, DuplicateRow: naming the file.
    """
    source = Path(source)
    files = published_files(source)
    if files:
        return _unique(cell for path in files for cell in read_published(path))
    cells = []
    for folder in cell_folders(source).values():
        if read_manifest(folder) is None:
            _log.warning("%s: no manifest yet, left out", folder)
        else:
            cells.append(read_cell(folder))
    return cells


def export(root: Path, cell_ids: Iterable[str], parquet_path: Path) -> None:
    """Publish sealed cells as one parquet file that stands alone: rows, manifests and summaries.

    The bytes depend on the cells only, not on the order of `cell_ids` or the time.

    Raises:
        KeyError: for an id that is not below `root`.
        Unsealed: naming every cell that is not complete; nothing is written then.
        ValueError: for more cells than one file can describe (tens of megabytes of manifests).
    """
    folders = cell_folders(Path(root))
    wanted = sorted(set(cell_ids))
    unknown = [name for name in wanted if name not in folders]
    if unknown:
        raise KeyError(f"no such cells below {root}: {unknown}")
    cells = [read_cell(folders[name]) for name in wanted]
    require_sealed(cells)
    rows = [row for cell in cells for row in cell.rows]
    data = to_parquet(rows, describe(cells))
    _check_footer(data, parquet_path, len(cells))
    parquet_path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(parquet_path, data)


def _check_footer(data: bytes, path: Path, cells: int) -> None:
    import io

    import pyarrow.parquet as pq

    try:
        pq.read_schema(io.BytesIO(data))
    except OSError as error:
        raise ValueError(
            f"{path}: the manifests of {cells} cells are more than readers of parquet take in one file ({error}); "
            "export fewer, or make a data set: python -m inertia.records compact"
        ) from None


def require_sealed(cells: Iterable[Cell]) -> None:
    """Refuse cells that are not complete.

    Raises:
        Unsealed: with id, label and progress of each.
    """
    open_cells = [f"{cell.id} {cell.label} ({cell.progress})" for cell in cells if not cell.sealed]
    if open_cells:
        raise Unsealed(f"{len(open_cells)} cells are not complete: {'; '.join(open_cells)}; run the experiment again")


def canonical_hash(source: Path) -> str:
    """Return one sha256 for all records of a folder or published file: ids, plans, seals, rows, no timings.

    Equal for two runs exactly when their records say the same.
    """
    lines = [
        canonical_json([cell.id, cell.manifest["identity_sha256"], sorted(cell.planned), cell.sealed])
        + rows_sha256(cell.rows)
        for cell in read_cells(source)
    ]
    return hashlib.sha256("\n".join(lines).encode("ascii")).hexdigest()


def read_published(path: Path) -> list[Cell]:
    """Read the cells of one published .parquet file, sorted by id.

    Raises:
        CorruptRecord, NewerSchema, DuplicateRow: naming the file.
    """
    rows, metadata = from_parquet(path)
    by_cell: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_cell.setdefault(row["cell_id"], []).append(row)
    cells = []
    for entry in entries_of(metadata, path):
        manifest, summary = entry["manifest"], entry["summary"]
        own = by_cell.pop(manifest["cell_id"], [])
        check_rows(own, summary, f"{path}, cell {manifest['cell_id']}")
        cells.append(Cell(path, manifest, tuple(settle(own, path).values()), summary))
    if by_cell:
        raise CorruptRecord(f"{path}: rows of cells it does not describe: {sorted(by_cell)}")
    return sorted(cells, key=lambda cell: cell.id)


def _unique(cells: Iterable[Cell]) -> list[Cell]:
    found: dict[str, Cell] = {}
    for cell in cells:
        if cell.id in found:
            raise DuplicateCell(f"{found[cell.id].source} and {cell.source} both hold cell {cell.id}: move one away")
        found[cell.id] = cell
    return [found[name] for name in sorted(found)]
