"""The records behind a report, from local runs or from what is published with the project."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from inertia.records import read_cell, read_cells, samples
from inertia.records.layout import find_cell, read_manifest
from inertia.reports.index import Index, read_index
from inertia.reports.provenance import Provenance, of_manifests
from inertia.reports.write import REFERENCE_PROFILE

if TYPE_CHECKING:
    from pandas import DataFrame

    from inertia.records import Cell

Origin = Literal["runs", "published", "auto"]


class Source(NamedTuple):
    """All that a report depends on: an experiment's index, its samples in long form, their provenance."""

    index: Index
    samples: DataFrame
    provenance: Provenance


def load_source(results: Path, experiment: str, profile: str, origin: Origin = "auto") -> Source:
    """Return the records of an experiment at a profile.

    Args:
        results: The folder of results (`inertia.paths.results_dir`).
        experiment: Its name, such as "table05".
        profile: Its profile, such as "laptop".
        origin: "runs" (local), "published" (carried by the project), or "auto" (published where there are any).

    Raises:
        FileNotFoundError: There are no such records; the message says how to make them.
    """
    places = {"published": published_index, "runs": local_index}
    tried = [places[origin]] if origin in places else list(places.values())
    for place in tried:
        path = place(results, experiment, profile)
        if path.is_file():
            index = read_index(path)
            cells = (
                _from_runs(results / "runs", index) if place is local_index else _from_published(path, index)
            )
            return Source(index, samples(cells), of_manifests(cell.manifest for cell in cells))
    missing = " and ".join(str(place(results, experiment, profile)) for place in tried)
    there = sorted(path.stem for path in (results / "experiments").glob("*__*.json"))
    hint = f"local runs there are: {', '.join(there)} (experiment__profile); " if there else ""
    raise FileNotFoundError(
        f"no records of {experiment} at profile {profile}: {missing} missing; {hint}"
        f"run `python -m inertia -m experiment={experiment} profile={profile}` first, or your own sweep with "
        f"experiment_name={experiment} profile_name={profile}"
    )


def the_profile(results: Path, experiment: str) -> str:
    """Return the profile that an experiment is looked up under when none is named: the reference, or its only one."""
    found = {path.stem.split("__", 1)[1] for path in (results / "experiments").glob(f"{experiment}__*.json")}
    found |= {path.name.split(".")[1] for path in (results / "published").glob(f"{experiment}.*.json")}
    return next(iter(found)) if len(found) == 1 else REFERENCE_PROFILE


def local_index(results: Path, experiment: str, profile: str) -> Path:
    """Return where a run of an experiment leaves its index."""
    return results / "experiments" / f"{experiment}__{profile}.json"


def published_index(results: Path, experiment: str, profile: str) -> Path:
    """Return where the index of a published experiment lies; its cells lie beside it, as .parquet."""
    return results / "published" / f"{experiment}.{profile}.json"


def _from_runs(runs: Path, index: Index) -> list[Cell]:
    folders = [find_cell(runs, cell_id) for cell_id in dict.fromkeys(cell.cell_id for cell in index.cells)]
    # A cell that was never started, or killed before its manifest, has nothing to read: incomplete 0/n.
    return [read_cell(f) for f in folders if f is not None and read_manifest(f) is not None]


def _from_published(path: Path, index: Index) -> list[Cell]:
    wanted = {cell.cell_id for cell in index.cells}
    return [cell for cell in read_cells(path.with_suffix(".parquet")) if cell.id in wanted]
