"""One utility for several units that hold different tokens.

After a prompt was compressed head by head, a shared or per-layer policy still ranks tokens once: scores are summed per
true position, a head that no longer holds a token adding nothing, and every head then gives up the lowest-ranked of
the tokens that it holds.
"""

from __future__ import annotations

import torch
from torch import Tensor

from inertia.eviction.policy import SHARED


def pooled_gain(scores: Tensor, positions: Tensor, weights: Tensor, scope: str, size: int) -> Tensor:
    """Return the weighted scores of the policy's group at each unit's tokens.

    Args:
        scores: [R, K, Hkv, C]; anything finite in empty slots.
        positions: like `scores`, -1 in empty slots, all below `size`.
        weights: layer weights [R, K] (shared), or the scale [R, 1] (per_layer).
        scope: "shared" pools all layers and heads, "per_layer" the heads of each layer.
        size: bound of the positions.

    Returns:
        [R, K, Hkv, C], equal for equal positions of one group.
    """
    rows, layers, heads, _ = scores.shape
    weighted = (scores * (weights / heads)[:, :, None, None]).masked_fill(positions < 0, 0.0)
    groups = rows if scope == SHARED else rows * layers
    index = positions.clamp(min=0).reshape(groups, -1)
    dense = torch.zeros(groups, size, device=scores.device).scatter_add_(1, index, weighted.reshape(groups, -1))
    return dense.gather(1, index).view_as(scores)


def pooled_mean(means: Tensor, scope: str) -> Tensor:
    """Return the units' mean utilities [R, K, Hkv] averaged over the policy's group, same shape."""
    over = (1, 2) if scope == SHARED else (2,)
    return means.mean(dim=over, keepdim=True).expand_as(means)
