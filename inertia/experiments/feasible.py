"""What a tokenizer and the data alone show to be impossible, before any weights are read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from inertia import backbones
from inertia.backbones.config import BackboneConfig
from inertia.benchmarks.render import Renderer
from inertia.experiments.cells import Cell, groups_of


def infeasible(cells: Iterable[Cell]) -> dict[str, Exception]:
    """Return group key -> why its first example cannot be made: a length too short for its task, data that are none.

    The tokenizer of each backbone is loaded once. Where that fails nothing is said: loading the model says it better.
    """
    renderers: dict[BackboneConfig, Renderer | None] = {}
    found = {}
    for group in groups_of(cells):
        config = group[0].config
        if config.backbone not in renderers:
            renderers[config.backbone] = renderer_of(config.backbone)
        renderer = renderers[config.backbone]
        if renderer is not None and (error := refusal(group[0], renderer)) is not None:
            found[group[0].group_key] = error
    return found


def renderer_of(config: BackboneConfig) -> Renderer | None:
    """Return what renders prompts for a backbone, None where its tokenizer cannot be loaded."""
    try:
        return Renderer(backbones.load_tokenizer(config), config.chat_template)
    except (ValueError, OSError):
        return None


def refusal(cell: Cell, renderer: Renderer) -> Exception | None:
    """Return what making a cell's first example raises."""
    window: Any = cell.config.backbone.context_window
    try:
        fitted = cell.benchmark.renderer(cell.task, renderer, window)
        next(iter(cell.benchmark.examples(cell.task, cell.length, 1, fitted)), None)
    except (ValueError, OSError) as error:
        return error
    return None
