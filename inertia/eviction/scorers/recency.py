"""Age: later tokens are worth more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from torch import Tensor

    from inertia.eviction.layer_view import LayerView


@dataclass(frozen=True)
class Recency:
    """The true position of the token; fp32 holds it exactly up to 16.7 million.

    Source: InertiaKV (arXiv 2609.03515), scorer ablation. Deviations: none known.
    """

    kind: ClassVar[str] = "recency"
    signed: ClassVar[bool] = False

    def score(self, view: LayerView) -> Tensor:
        """Return [R, 1, T], or [R, Hkv, T] where the KV heads hold different tokens; empty slots get -1."""
        return view.positions.float()
