"""What is listed of an experiment's cells, for the reports."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from inertia import backbones
from inertia.experiments.cells import Cell
from inertia.experiments.config import RunConfig
from inertia.records.canonical import canonical_json
from inertia.records.export import table_path, write_experiment
from inertia.records.listing import listed
from inertia.records.redact import redact_text
from inertia.records.store import CorruptRecord

Entries = Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]

log = logging.getLogger(__name__)


def listings(root: Path, cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Return what is to be recorded so that the experiments of the cells list them; nothing where they do already.

    Args:
        root: the folder of records.
        cells: of jobs; those of no experiment are left out.
    """
    named: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        if cell.config.experiment_name is not None:
            key = (cell.config.experiment_name, cell.config.profile_name or "custom")
            named.setdefault(key, []).append(cell)
    before = listed(root) if named and root.is_dir() else {}
    return [row for key, members in named.items() for row in rows_of(before, *key, members)]


def rows_of(before: Entries, experiment: str, profile: str, cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Return the rows that list the cells of one experiment and profile, none where all are listed.

    Cells of another backbone than those that are listed get a profile of their own beside it.
    """
    backbone = cells[0].config.backbone.name
    if any(entry["backbone"] != backbone for entry in before.get((experiment, profile), ())):
        log.warning(
            "%s %s is another backbone's; this one's cells are listed as profile %s-%s",
            experiment,
            profile,
            profile,
            backbone,
        )
        profile = f"{profile}-{backbone}"
    entries = [entry_of(cell, profile) for cell in cells]
    there = {canonical_json(entry) for entry in before.get((experiment, profile), ())}
    if there.issuperset(map(canonical_json, entries)):
        return []
    now = datetime.now(UTC).isoformat(timespec="microseconds")
    return [
        {
            "experiment": experiment,
            "profile": profile,
            "cell": entry["cell_id"],
            "entry": canonical_json(entry),
            "listed": now,
        }
        for entry in entries
    ]


def write_tables(results: Path, cells: Sequence[Cell], *, changed: bool) -> None:
    """Write what is recorded of the cells' experiments as one parquet file each; what stops that is only logged.

    Args:
        results: the folder of results.
        cells: of jobs.
        changed: whether to write files that are there already.
    """
    ids = {cell.id for cell in cells if cell.config.experiment_name is not None}
    for key, entries in listed(results / "runs").items() if ids and (results / "runs").is_dir() else ():
        if ids.isdisjoint(entry["cell_id"] for entry in entries):
            continue
        try:
            if changed or not table_path(results, *key).exists():
                write_experiment(results, *key)
        except (CorruptRecord, OSError, ValueError) as error:
            log.warning("%s %s is not written as parquet: %s", *key, error)


def entry_of(cell: Cell, profile: str) -> dict[str, Any]:
    """Return what is listed of a cell."""
    return {
        "cell_id": cell.id,
        "axes": axes(cell.config),
        "task": cell.task,
        "length": cell.length,
        "planned": len(cell.planned),
        "profile": profile,
        "scale": cell.config.scale or "custom",
        "backbone": cell.config.backbone.name,
        "backbone_label": backbones.label(cell.config.backbone),
    }


def axes(config: RunConfig) -> dict[str, Any]:
    """Return what a cell was varied in: the policy's label and every setting of its parts, by dotted name."""
    flat: dict[str, Any] = {"method": redact_text(config.label), "alpha": None, "backbone": config.backbone.name}

    def walk(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, item in value.items():
                walk(f"{prefix}.{key}" if prefix else key, item)
        else:
            flat[prefix] = value

    walk("", config.policy.describe())
    flat["alpha"] = flat.get("aggregation.alpha")
    return flat
