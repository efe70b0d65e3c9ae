"""How long prompts and answers are, as well as can be known without reading any."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import islice
from statistics import mean

from inertia.experiments.cells import Cell
from inertia.experiments.config import RunConfig
from inertia.experiments.plan import history
from inertia.experiments.plan.history import Rows

SAMPLED = 8
# Tokens that a chat template puts around a turn; a guess where no tokenizer is at hand.
FRAME = 32


@dataclass(frozen=True)
class Lengths:
    """Tokens of the prompts of one task.

    Attributes:
        mean: of an example.
        longest: that an example can have.
        source: where the numbers come from.
    """

    mean: int
    longest: int
    source: str


def limits(cell: Cell) -> tuple[int, int]:
    """Return the most new tokens of an example's first call and of its second (0 without one)."""
    module = cell.benchmark.module
    kind = {**module.TASKS, **getattr(module, "COMPARISON", {})}[cell.task]
    stem = getattr(kind, "stem", "")
    # A forced choice feeds the stem and one letter.
    first = len(stem.split()) + 1 if stem else kind.max_new_tokens
    return first, getattr(kind, "answer_tokens", None) or 0


def lengths(cell: Cell, limit: int, past: Collection[Rows]) -> Lengths:
    """Return the prompt lengths of a cell: of the records, by its nominal length, sampled, or bounded by the window.

    Args:
        cell: the cell.
        limit: most new tokens.
        past: sealed rows of the same backbone.
    """
    window = cell.config.backbone.context_window
    seen = history.prompts(past, cell.benchmark.name, cell.task, cell.length)
    if cell.length is not None:
        # Prompts are sized so that prompt and answer fill the length; lm-eval's own count leaves out more.
        longest = cell.length if cell.task.startswith("lm_eval_") else max(cell.length - limit, 1)
        longest = max([longest, *seen])
        return Lengths(round(mean(seen)), longest, "recorded") if seen else Lengths(longest, longest, "nominal length")
    most = getattr(cell.benchmark.module, "limit", None)
    longest = window - limit if most is None else min(most(cell.task, window, FRAME) + FRAME, window - limit)
    if seen:
        return Lengths(round(mean(seen)), max(longest, *seen), "recorded")
    found = sample(cell)
    if found:
        return Lengths(round(mean(found)), max(longest, *found), f"mean of the first {len(found)}")
    return Lengths(longest, longest, "at most, by the window")


def sample(cell: Cell) -> list[int]:
    """Return the prompt lengths of the first examples, none where data or tokenizer are not at hand."""
    from inertia.benchmarks.render import Renderer

    if not tokenizer_at_hand(cell.config):
        return []
    try:
        from inertia import backbones

        tokenizer = backbones.load_tokenizer(cell.config.backbone)
        plain = Renderer(tokenizer, cell.config.backbone.chat_template)
        renderer = cell.benchmark.renderer(cell.task, plain, cell.config.backbone.context_window)
        count = min(SAMPLED, cell.config.benchmark.count(cell.task))
        examples = cell.benchmark.examples(cell.task, cell.length, count, renderer)
        return [len(renderer.render(example).ids) for example in islice(examples, count)]
    except (OSError, ValueError):
        return []


def tokenizer_at_hand(config: RunConfig) -> bool:
    """Tell whether a tokenizer can be loaded without fetching anything."""
    backbone = config.backbone
    if backbone.source == "embedded":
        from inertia.backbones.embedded import is_ready

        return is_ready(backbone.name)
    if backbone.source == "tiny" or backbone.path is not None:
        return True
    from huggingface_hub import try_to_load_from_cache

    return any(
        isinstance(try_to_load_from_cache(str(backbone.repo), name, revision=backbone.revision), str)
        for name in ("tokenizer.json", "tokenizer_config.json")
    )
