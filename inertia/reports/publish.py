"""Turn local runs into the records that the project carries, so that its tables and figures need no model."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from inertia.records import export
from inertia.records.atomic import write_json
from inertia.reports.source import load_source, published_index


def publish(results: Path, experiment: str, profile: str) -> list[Path]:
    """Export an experiment's cells and index to results/published and return the paths.

    The records go whole, with manifests and seals: a report made from them equals one made from the runs.

    Raises:
        FileNotFoundError: The experiment was not run at this profile.
        KeyError: A cell of it was never started.
        Unsealed: A cell of it is incomplete; only whole experiments are published.
    """
    index = load_source(results, experiment, profile, "runs").index
    path = published_index(results, experiment, profile)
    cells = path.with_suffix(".parquet")
    export(results / "runs", [cell.cell_id for cell in index.cells], cells)
    write_json(path, asdict(index))
    return [cells, path]
