"""Indices: which cells make up an experiment, for the reports."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from inertia import backbones
from inertia.experiments.cells import Cell
from inertia.experiments.config import RunConfig
from inertia.paths import results_dir
from inertia.records.canonical import canonical_json
from inertia.records.redact import redact_text

log = logging.getLogger(__name__)


def write_indices(cells: list[Cell]) -> None:
    """Write, for each experiment and profile among the cells, the index that reports are made from."""
    from filelock import FileLock

    from inertia.records.atomic import write_json

    named = [cell for cell in cells if cell.config.experiment_name is not None]
    keys = dict.fromkeys((cell.config.experiment_name, cell.config.profile_name or "custom") for cell in named)
    for experiment, profile in keys:
        members = [
            cell
            for cell in named
            if (cell.config.experiment_name, cell.config.profile_name or "custom") == (experiment, profile)
        ]
        config = members[0].config
        folder = results_dir() / "experiments"
        folder.mkdir(parents=True, exist_ok=True)
        listed = [index_entry(cell) for cell in members]
        # Several jobs may share the index: each reads and writes it alone.
        with FileLock(folder / f".{experiment}__{profile}.lock"):
            path = index_path(folder, experiment, profile, config.backbone.name)
            index = {
                "experiment": experiment,
                "profile": profile,
                "scale": config.scale or "custom",
                "backbone": config.backbone.name,
                "backbone_label": "; ".join(dict.fromkeys(backbones.label(cell.config.backbone) for cell in members)),
                "cells": [*kept_entries(path, listed), *listed],
            }
            if not says(path, index):
                write_json(path, index)


def says(path: Path, index: dict[str, Any]) -> bool:
    """Tell whether an index is there already, its cells in any order: a job with some of them changes nothing."""
    if not path.exists():
        return False
    old = json.loads(path.read_text(encoding="utf-8"))
    return all(
        sorted(map(canonical_json, value)) == sorted(map(canonical_json, old[key]))
        if key == "cells"
        else value == old[key]
        for key, value in index.items()
    )


def index_path(folder: Path, experiment: str, profile: str, backbone: str) -> Path:
    """Return where an index goes: beside one of the same name that is another backbone's, never over it."""
    path = folder / f"{experiment}__{profile}.json"
    if path.exists() and json.loads(path.read_text(encoding="utf-8"))["backbone"] != backbone:
        path = folder / f"{experiment}__{profile}-{backbone}.json"
        log.warning(
            "%s is another backbone's; this one's cells are listed as profile %s-%s", experiment, profile, backbone
        )
    return path


def index_entry(cell: Cell) -> dict[str, Any]:
    """Return what an index says of a cell."""
    return {
        "cell_id": cell.id,
        "axes": axes(cell.config),
        "task": cell.task,
        "length": cell.length,
        "planned": len(cell.planned),
    }


def kept_entries(path: Path, new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the entries of an index that is there already and that the new ones do not replace.

    Several jobs may share one experiment; an entry of equal place and axes is an older run of the same thing.
    """
    if not path.exists():
        return []
    replaced = [{key: entry[key] for key in ("axes", "task", "length")} for entry in new]
    ids = {entry["cell_id"] for entry in new}
    old = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [
        entry
        for entry in old
        if entry["cell_id"] not in ids and {key: entry[key] for key in ("axes", "task", "length")} not in replaced
    ]


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
