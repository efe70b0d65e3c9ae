"""Attention weighted by value norms: what a token would add to the output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from torch import Tensor

    from inertia.eviction.layer_view import LayerView


@dataclass(frozen=True)
class VNorm:
    """Attention times the token's value norm relative to the mean value norm of its KV head.

    Where the mean norm is zero all norms are equal, and the score is the attention itself.

    Source: InertiaKV (arXiv 2609.03515), scorer ablation.
    Deviations: the paper leaves the set of the mean open; here it is the cached tokens, the newest included.
    """

    kind: ClassVar[str] = "vnorm"
    signed: ClassVar[bool] = False

    def score(self, view: LayerView) -> Tensor:
        """Return [R, Hkv, T]; empty slots get 0."""
        import torch

        norms = torch.linalg.vector_norm(view.values, dim=-1, dtype=torch.float32)
        if view.valid is None:
            mean = norms.mean(dim=-1, keepdim=True)
        else:
            norms = norms.masked_fill(~view.valid, 0.0)
            mean = norms.sum(dim=-1, keepdim=True) / view.valid.sum(dim=-1, keepdim=True)
        # All heads of a group share the value, so the mean over heads can come first.
        return view.weights.mean(dim=2) * torch.where(mean > 0, norms / mean, 1.0)
