"""Turn local runs into the records that the project carries, so that its tables and figures need no model."""

from __future__ import annotations

from pathlib import Path

from inertia.records import export
from inertia.records.atomic import write_json
from inertia.reports.source import find_listing, the_profile


def publish(results: Path, experiment: str, profile: str | None = None) -> list[Path]:
    """Export an experiment's cells and listing to results/published and return the paths.

    The records go whole, with manifests and seals: a report made from them equals one made from the runs.

    Raises:
        FileNotFoundError: the experiment was not run at this profile.
        KeyError: a cell of it was never started.
        Unsealed: a cell of it is incomplete; only whole experiments are published.
    """
    profile = profile or the_profile(results, experiment)
    listing, root = find_listing(results, experiment, profile, "runs")
    path = results / "published" / f"{experiment}.{profile}.json"
    cells = path.with_suffix(".parquet")
    export(root, [entry["cell_id"] for entry in listing["cells"]], cells)
    write_json(path, listing)
    return [cells, path]
