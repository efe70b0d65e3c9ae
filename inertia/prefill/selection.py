"""Which tokens stay, given scores: the best of each head, of each layer, or of the whole cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def top(scores: Tensor, count: int) -> Tensor:
    """Return which `count` entries of the last axis are the highest, bool like `scores`; of equal ones the first."""
    import torch

    # A stable sort keeps equal scores in order; topk promises nothing about them.
    best = scores.sort(dim=-1, descending=True, stable=True).indices[..., :count]
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, best, True)


def top_jointly(scores: Tensor, count: int) -> Tensor:
    """Return which `count` entries of [.., T] are the highest of all; of equal ones that of the smaller position."""
    by_position = scores.movedim(-1, 0)
    return top(by_position.flatten(), count).view(by_position.shape).movedim(0, -1)


def per_head(name: str, scores: Sequence[Tensor], budget: int) -> list[Tensor]:
    """Return the `budget` best tokens of each KV head, per layer a bool [Hkv, T].

    Args:
        name: whose scores they are, for messages.
        scores: [Hkv, T] per layer.
        budget: tokens per KV head.
    """
    check_scores(name, scores, budget)
    return [top(score, budget) for score in scores]


def per_layer(name: str, scores: Sequence[Tensor], budget: int, floor: int) -> list[Tensor]:
    """Return the `Hkv * budget` best tokens of each layer, ragged over its heads, per layer a bool [Hkv, T].

    Args:
        name: whose scores they are, for messages.
        scores: [Hkv, T] per layer.
        budget: tokens per KV head on average.
        floor: tokens that each head keeps whatever the others ask for.
    """
    check_scores(name, scores, budget)
    kept = []
    for score in scores:
        floored = score.masked_fill(top(score, floor), float("inf"))
        kept.append(top_jointly(floored, score.shape[0] * budget))
    return kept


def overall(name: str, scores: Sequence[Tensor], budget: int) -> list[Tensor]:
    """Return the `K * Hkv * budget` best tokens of the cache, ragged over layers and heads, per layer a bool [Hkv, T].

    Args:
        name: whose scores they are, for messages.
        scores: [Hkv, T] per layer, on any devices.
        budget: tokens per KV head on average.
    """
    import torch

    check_scores(name, scores, budget)
    joined = torch.stack([score.to(scores[0].device) for score in scores])
    kept = top_jointly(joined, joined.shape[0] * joined.shape[1] * budget)
    return [mask.to(score.device) for mask, score in zip(kept, scores, strict=True)]


def check_scores(name: str, scores: Sequence[Tensor], budget: int) -> None:
    """Refuse scores that rank nothing, and budgets below what is always kept.

    Raises:
        FloatingPointError: a score is NaN.
        ValueError: the budget is below 1, or some head always keeps more tokens than the budget has.
    """
    if budget < 1:
        raise ValueError(f"budget={budget} keeps nothing; give at least 1 token per KV head.")
    for layer, score in enumerate(scores):
        if bool(score.isnan().any()):
            raise FloatingPointError(
                f"prefill={name} gave NaN scores in eligible layer {layer}; nothing can be ranked by them. "
                "Check the model's weights and dtype."
            )
        forced = int((score == float("inf")).sum(-1).max())
        if forced > budget and budget < score.shape[-1]:
            raise ValueError(too_small(name, forced, budget))


def too_small(name: str, forced: int, budget: int, fix: str = "keep fewer of them") -> str:
    """Return the message for a budget below what is always kept."""
    return (
        f"prefill={name} always keeps {forced} tokens but the budget is {budget} per KV head; "
        f"{fix}, or raise the budget."
    )
