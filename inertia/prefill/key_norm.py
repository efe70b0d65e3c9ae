"""Knorm: small keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from inertia.prefill.selection import per_head

if TYPE_CHECKING:
    from torch import Tensor

    from inertia.prefill.compressor import PromptLayer


@dataclass(frozen=True)
class KeyNorm:
    """Minus the L2 norm of the key, per KV head, in fp32 (bf16 norms are mostly ties).

    Source: Knorm (arXiv 2406.11430).
    Deviations: every layer is cut; the authors leave the first ones whole on some models, kvpress 0.5.5 none.
    """

    kind: ClassVar[str] = "key_norm"
    replay: ClassVar[bool] = False
    removes: ClassVar[bool] = True

    def check(self, tokens: int, budget: int) -> None:
        """Accept every prompt and budget."""

    def score(self, layer: PromptLayer) -> Tensor:
        """Return [Hkv, T]."""
        import torch

        return -torch.linalg.vector_norm(layer.keys, dim=-1, dtype=torch.float32)

    def keep(self, scores: Sequence[Tensor], budget: int) -> list[Tensor]:
        """Return the best of each KV head."""
        return per_head(self.kind, scores, budget)
