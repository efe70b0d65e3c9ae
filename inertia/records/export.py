"""Records as parquet files that stand alone: what is published, and what people read after a run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from inertia.records import parquet
from inertia.records.frame import with_cell_columns
from inertia.records.listing import listed
from inertia.records.read import refuse, require_sealed
from inertia.records.rows import load


def export(root: Path, cell_ids: Iterable[str], path: Path) -> None:
    """Publish sealed cells as one parquet file that stands alone: rows, manifests and summaries.

    The bytes depend on the cells only, not on the order of `cell_ids` or the time.

    Args:
        root: results root, or published files.
        cell_ids: ids of the cells.
        path: the file.

    Raises:
        KeyError: for an id that is not below `root`.
        Unsealed: naming every cell that is not complete; nothing is written then.
        CorruptRecord: one of the cells is damaged.
        ValueError: for more cells than one file can describe.
    """
    _write(root, cell_ids, path, unsealed=False)


def write_experiment(results: Path, experiment: str, profile: str) -> Path:
    """Write what is recorded of an experiment, incomplete cells included, to results/local and return the path.

    Raises:
        FileNotFoundError: it was never run at this profile.
        CorruptRecord: one of its cells is damaged.
        ValueError: for more cells than one file can describe.
    """
    entries = listed(results / "runs").get((experiment, profile))
    if entries is None:
        raise FileNotFoundError(f"no records of {experiment} at profile {profile} in {results / 'runs'}")
    path = table_path(results, experiment, profile)
    _write(results / "runs", [entry["cell_id"] for entry in entries], path, unsealed=True)
    return path


def table_path(results: Path, experiment: str, profile: str) -> Path:
    """Return where the end of a run leaves an experiment for people to read."""
    return results / "local" / f"{experiment}.{profile}.parquet"


def _write(root: Path, cell_ids: Iterable[str], path: Path, *, unsealed: bool) -> None:
    wanted = set(cell_ids)
    rows = load(root, ids=wanted)
    refuse(rows.damages, rows.cells, wanted)
    unknown = sorted(wanted - {cell.id for cell in rows.cells})
    if not unsealed and unknown:
        raise KeyError(f"no such cells below {root}: {unknown}")
    if not unsealed:
        require_sealed(rows.cells)
    parquet.write_table(path, with_cell_columns(rows), [(cell.manifest, cell.summary) for cell in rows.cells])
