"""The reference: a full cache, in the order of time, in which what was evicted is masked out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bench.plain import sdpa
from bench.prompt import CachedPrompt
from inertia.eviction.attention import attending

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Positions that one step's token sees: for all layers, per layer, or per layer and KV head.
Seen = Sequence[int] | Sequence[Sequence[int]] | Sequence[Sequence[Sequence[int]]]


def nested(sets: Seen) -> bool:
    """Tell whether sets are given per layer or per head."""
    return len(sets) > 0 and isinstance(sets[0], Sequence)


def allow(mask: Tensor, seen: Seen) -> None:
    """Set the seen positions of one step in its mask, bool [K, Hkv, T]; a smaller scope holds for all of the next."""
    if not nested(seen):
        mask[..., list(seen)] = True
        return
    for of_unit, positions in zip(mask, seen, strict=True):
        allow(of_unit, positions)


def with_newcomer(kept: Seen, position: int) -> Seen:
    """Return positions, however nested, with one more in each set."""
    return [with_newcomer(part, position) for part in kept] if nested(kept) else [*kept, position]


def sizes(kept: Seen) -> tuple[int, int]:
    """Return the fewest and the most positions in any of some nested sets."""
    if not nested(kept):
        return len(kept), len(kept)
    fewest, most = zip(*map(sizes, kept), strict=True)
    return min(fewest), max(most)


def reference(model: PreTrainedModel, prompt: CachedPrompt, fed: Sequence[int], steps: Sequence[Seen]) -> Tensor:
    """Return the logits after each fed token, fp32 [n, vocabulary], in one forward over the whole sequence.

    Args:
        model: the model.
        prompt: what is cached.
        fed: tokens, the first at position `prompt.length`.
        steps: per fed token, the positions that it sees, itself included.
    """
    from transformers import DynamicCache

    length, config = prompt.length, model.config
    units = (config.num_hidden_layers, config.num_key_value_heads)
    seen = torch.zeros(*units, len(fed), length + len(fed), dtype=torch.bool)
    for step, positions in enumerate(steps):
        allow(seen[:, :, step], positions)
    with attending(model, "bench_masked", sdpa):
        output = model(
            input_ids=torch.tensor([list(fed)], device=model.device),
            position_ids=torch.arange(length, length + len(fed), device=model.device)[None],
            cache=prompt.fill(DynamicCache()),
            use_cache=True,
            seen=seen.to(model.device),
        )
    return output.logits[0].float()


def gap(logits: Tensor, chosen: Sequence[int]) -> float:
    """Return how far below the best logit the chosen token's was, at worst; 0 where every choice is the best one."""
    index = torch.tensor(list(chosen), device=logits.device)[:, None]
    return float((logits.amax(-1) - logits.gather(-1, index)[:, 0]).max())
