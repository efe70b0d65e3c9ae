"""SnapKV: what the last tokens of the prompt attend to, smoothed over neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from inertia.eviction import checks
from inertia.prefill.attention import last_attention
from inertia.prefill.selection import per_head, too_small

if TYPE_CHECKING:
    from torch import Tensor

    from inertia.prefill.compressor import PromptLayer


@dataclass(frozen=True)
class SnapKV:
    """Mean attention of the last `window` tokens, average-pooled over positions, mean over each KV head's queries.

    The window itself always stays.

    Attributes:
        window: observing tokens at the end of the prompt.
        pool: width of the pooling, odd; it counts zeros beyond both ends, so tokens there score lower.

    Source: SnapKV (arXiv 2404.14469), settings of its published code and of kvpress 0.5.5: window 64, average pool 5.
    Deviations: as in kvpress, one ranking per KV head (the authors rank per query head, on repeated keys) and mean
    instead of sum over the window, which ranks alike. Weights stay fp32 whatever the model's dtype.
    """

    kind: ClassVar[str] = "snapkv"
    replay: ClassVar[bool] = False
    removes: ClassVar[bool] = True
    window: int = 64
    pool: int = 5

    def __post_init__(self) -> None:
        checks.integer("snapkv.window", self.window, low=1)
        checks.integer("snapkv.pool", self.pool, low=1)
        if self.pool % 2 == 0:
            raise ValueError(f"snapkv.pool={self.pool} is even, so it has no middle; give an odd integer.")

    def check(self, tokens: int, budget: int) -> None:
        """Refuse a prompt without tokens before the window, and a budget below the window.

        Raises:
            ValueError: naming both numbers.
        """
        if budget >= tokens:
            return
        if tokens <= self.window:
            raise ValueError(
                f"prefill=snapkv needs more than snapkv.window={self.window} tokens but has {tokens} to compress; "
                "lower the window, or give a longer prompt."
            )
        if budget < self.window:
            raise ValueError(too_small(self.kind, self.window, budget, "lower snapkv.window"))

    def score(self, layer: PromptLayer) -> Tensor:
        """Return [Hkv, T]; inf in the window."""
        import torch

        before = max(layer.keys.shape[1] - self.window, 0)
        weights = last_attention(layer.query[:, before:], layer.keys, layer.scaling, layer.softcap)
        scores = weights.new_full(layer.keys.shape[:2], float("inf"))
        if before:
            # Mean over queries and heads first: pooling is linear, so the order does not matter.
            seen = weights[..., :before].mean(dim=(1, 2))
            pooled = torch.nn.functional.avg_pool1d(seen, self.pool, stride=1, padding=self.pool // 2)
            scores[:, :before] = pooled
        return scores

    def keep(self, scores: Sequence[Tensor], budget: int) -> list[Tensor]:
        """Return the best of each KV head."""
        return per_head(self.kind, scores, budget)
