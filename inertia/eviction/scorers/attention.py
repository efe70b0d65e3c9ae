"""Attention: what the step's query attends to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from torch import Tensor

    from inertia.eviction.layer_view import LayerView


@dataclass(frozen=True)
class Attention:
    """Mean attention weight over the query heads of each KV head.

    The mean over KV heads that shared and per_layer scope take next gives the mean over all query heads.

    Source: InertiaKV (arXiv 2609.03515), per-layer score. Deviations: none known.
    """

    kind: ClassVar[str] = "attention"
    signed: ClassVar[bool] = False

    def score(self, view: LayerView) -> Tensor:
        """Return [R, Hkv, T]."""
        return view.weights.mean(dim=2)
