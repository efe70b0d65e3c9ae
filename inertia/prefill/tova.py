"""TOVA: what the last token of the prompt attends to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from inertia.eviction import checks
from inertia.prefill.attention import last_attention
from inertia.prefill.selection import per_head

if TYPE_CHECKING:
    from torch import Tensor

    from inertia.prefill.compressor import PromptLayer


@dataclass(frozen=True)
class TOVA:
    """Attention of the last token, mean over all query heads: one set for all heads of a layer.

    Attributes:
        keep_last: whether the last token always stays, as kvpress has it.

    Source: TOVA (arXiv 2401.06104), whose authors leave the last token a candidate like any other.
    Deviations: acts once, at the end of the prompt, as kvpress 0.5.5 runs it; `tova_decode` acts at every step.
    """

    kind: ClassVar[str] = "tova"
    replay: ClassVar[bool] = False
    removes: ClassVar[bool] = True
    keep_last: bool = False

    def __post_init__(self) -> None:
        checks.choice("tova.keep_last", self.keep_last, (True, False))

    def check(self, tokens: int, budget: int) -> None:
        """Accept every prompt and budget."""

    def score(self, layer: PromptLayer) -> Tensor:
        """Return [Hkv, T], the same row for every head."""
        weights = last_attention(layer.query[:, -1:], layer.keys, layer.scaling, layer.softcap)
        score = weights.mean(dim=(0, 1, 2))
        if self.keep_last:
            score[-1] = float("inf")
        return score.expand(layer.keys.shape[0], -1)

    def keep(self, scores: Sequence[Tensor], budget: int) -> list[Tensor]:
        """Return the best of each layer, the same for its KV heads."""
        return per_head(self.kind, scores, budget)
