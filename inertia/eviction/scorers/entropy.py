"""Attention of a layer, scaled by how spread out that layer's attention is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from torch import Tensor

    from inertia.eviction.layer_view import LayerView


@dataclass(frozen=True)
class Entropy:
    """Attention times one scalar per layer: the normalised entropy of the layer's attention over its tokens.

    The distribution is the mean over all query heads; its entropy is divided by ln(number of cached tokens),
    and is 1 for a single token. The order of tokens within a layer is that of attention.

    Source: InertiaKV (arXiv 2609.03515), scorer ablation.
    Deviations: the paper leaves pooling and normaliser open. Where the KV heads hold different tokens
    (per_head), the distribution runs over the tokens that any of them holds.
    """

    kind: ClassVar[str] = "entropy"
    signed: ClassVar[bool] = False

    def score(self, view: LayerView) -> Tensor:
        """Return [R, Hkv, T]."""
        import torch

        attention = view.weights.mean(dim=2)
        if view.positions.shape[1] > 1:
            distribution, tokens = by_token(attention, view.positions)
        else:
            distribution = attention.mean(dim=1)
            tokens = (view.positions >= 0).sum(dim=-1)
        entropy = torch.special.entr(distribution).sum(dim=-1)
        scale = torch.where(tokens.squeeze(-1) > 1, entropy / tokens.squeeze(-1).log(), 1.0)
        return attention * scale.view(-1, 1, 1)


def by_token(attention: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean over KV heads of attention per token, when a slot is not the same token in every head.

    Args:
        attention: [R, Hkv, T] fp32, 0 in empty slots.
        positions: [R, Hkv, T], -1 in empty slots.

    Returns:
        Attention per distinct token, [R, Hkv * T] padded with zeros, and the number of those tokens, [R, 1].
    """
    import torch

    ordered, order = positions.flatten(1).sort(dim=-1)
    starts = torch.ones_like(ordered, dtype=torch.bool)
    starts[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    shares = (attention / attention.shape[1]).flatten(1).gather(-1, order)
    distribution = torch.zeros_like(shares).scatter_add_(-1, starts.cumsum(dim=-1) - 1, shares)
    return distribution, (starts & (ordered >= 0)).sum(dim=-1, keepdim=True)
