"""KeyDiff: keys that differ from the average key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from inertia.prefill.selection import per_head

if TYPE_CHECKING:
    from torch import Tensor

    from inertia.prefill.compressor import PromptLayer


@dataclass(frozen=True)
class KeyDiff:
    """Minus the cosine of the key and the mean of the normalised keys, per KV head.

    A zero key, and every key where the mean is zero, scores 0.

    Source: KeyDiff (arXiv 2504.15364).
    Deviations: the authors evict block by block during the prefill; here, as in kvpress 0.5.5, the prompt is cut once,
    at its end. Keys as cached, rotary positions applied; fp32 whatever the model's dtype.
    """

    kind: ClassVar[str] = "keydiff"
    replay: ClassVar[bool] = False
    removes: ClassVar[bool] = True

    def check(self, tokens: int, budget: int) -> None:
        """Accept every prompt and budget."""

    def score(self, layer: PromptLayer) -> Tensor:
        """Return [Hkv, T], in [-1, 1]."""
        from torch.nn.functional import normalize

        units = normalize(layer.keys.float(), dim=-1)
        anchor = normalize(units.mean(dim=1, keepdim=True), dim=-1)
        return -(units * anchor).sum(dim=-1)

    def keep(self, scores: Sequence[Tensor], budget: int) -> list[Tensor]:
        """Return the best of each KV head."""
        return per_head(self.kind, scores, budget)
