"""Size of the key: small keys are said to draw attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from torch import Tensor

    from inertia.eviction.layer_view import LayerView


@dataclass(frozen=True)
class KeyNorm:
    """Minus the L2 norm of the key, per KV head, in fp32 (bf16 norms are mostly ties).

    Source: Knorm (arXiv 2406.11430), as the scorer ablation of InertiaKV (arXiv 2609.03515) uses it.
    Deviations: none known; rotary positions do not change a norm.
    """

    kind: ClassVar[str] = "key_norm"
    signed: ClassVar[bool] = True

    def score(self, view: LayerView) -> Tensor:
        """Return [R, Hkv, T]; empty slots get 0."""
        import torch

        score = -torch.linalg.vector_norm(view.keys, dim=-1, dtype=torch.float32)
        return score if view.valid is None else score.masked_fill(~view.valid, 0.0)
