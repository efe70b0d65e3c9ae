"""Which records have a W&B run already: one small file a run, written when the run was finished.

W&B's own files do not say whether a run was finished, and of which records it is a copy.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path

from inertia.records.atomic import write_json
from inertia.records.journal import CorruptRecord
from inertia.records.layout import read_json
from inertia.records.schema import SCHEMA_VERSION

_FOLDER = "mirrored"


@dataclass(frozen=True)
class Mirrored:
    """One finished run.

    Attributes:
        run: its id.
        cell: the cell it is a copy of.
        attempt: 1 for the cell's first run, counted up for each later one.
        rows_sha256: the records that it is a copy of.
        mode: "offline" or "online".
        project: its project.
    """

    run: str
    cell: str
    attempt: int
    rows_sha256: str
    mode: str
    project: str


def run_id(cell: str, attempt: int) -> str:
    """Return the id of a run: the cell's, and "-a2" and so on from the second attempt."""
    return cell if attempt == 1 else f"{cell}-a{attempt}"


def note(directory: Path, cell: str, attempt: int, rows_sha256: str, *, mode: str, project: str) -> None:
    """Remember that a run was finished."""
    entry = Mirrored(run_id(cell, attempt), cell, attempt, rows_sha256, mode, project)
    folder = directory / _FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / f"{entry.run}.{mode}.{project}.json", {"schema_version": SCHEMA_VERSION, **asdict(entry)})


def mirrored(directory: Path, cell: str = "", rows_sha256: str | None = None) -> list[Mirrored]:
    """Return the finished runs of a cell (of all without one) by attempt, those of some records by their hash.

    Raises:
        CorruptRecord: naming a file that is damaged.
    """
    found = [_read(path) for path in (directory / _FOLDER).glob(f"{cell}*.json")]
    kept = [entry for entry in found if rows_sha256 is None or entry.rows_sha256 == rows_sha256]
    return sorted(kept, key=lambda entry: (entry.cell, entry.attempt, entry.mode, entry.project))


def _read(path: Path) -> Mirrored:
    fields = read_json(path)
    try:
        return Mirrored(**{name: fields[name] for name in Mirrored.__dataclass_fields__})
    except KeyError as error:
        raise CorruptRecord(f"{path}: {error} is missing; remove the file, and the cell is mirrored anew") from None


def free_attempt(directory: Path, cell: str) -> int:
    """Return the first attempt of which there is no run in `directory`, finished or not."""
    return next(number for number in count(1) if not _taken(directory, run_id(cell, number)))


def _taken(directory: Path, run: str) -> bool:
    places = (f"wandb/*run-*-{run}", f"{_FOLDER}/{run}.*.json")
    return any(True for pattern in places for _ in directory.glob(pattern))
