"""The experiment index: which cells make up one experiment at one profile, and what each was varied in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Cell:
    """One cell: ``planned`` counts its examples, ``axes`` names what was varied (method, alpha, ...)."""

    cell_id: str
    axes: Mapping[str, Any]
    task: str
    length: int | None
    planned: int


@dataclass(frozen=True)
class Index:
    """The cells of one experiment at one profile; reports print ``scale`` and ``backbone_label``."""

    experiment: str
    profile: str
    scale: str
    backbone: str
    backbone_label: str
    cells: tuple[Cell, ...]


def read_index(path: Path) -> Index:
    """Return the index stored in a JSON file.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is no index or lacks a field.
    """
    try:
        return parse_index(json.loads(path.read_text(encoding="utf-8")))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is no experiment index ({error!r}); run the experiment again") from error


def parse_index(stored: Mapping[str, Any]) -> Index:
    """Return the index that a decoded JSON object describes; a missing field raises KeyError."""
    cells = tuple(
        Cell(
            cell_id=cell["cell_id"],
            axes=dict(cell["axes"]),
            task=cell["task"],
            length=cell["length"],
            planned=int(cell["planned"]),
        )
        for cell in stored["cells"]
    )
    return Index(
        experiment=stored["experiment"],
        profile=stored["profile"],
        scale=stored["scale"],
        backbone=stored["backbone"],
        backbone_label=stored["backbone_label"],
        cells=cells,
    )
