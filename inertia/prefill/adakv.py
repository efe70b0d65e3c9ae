"""AdaKV: heads of a layer compete for its budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, ClassVar

from inertia.eviction import checks
from inertia.eviction.budget import floor_share
from inertia.prefill.selection import per_layer

if TYPE_CHECKING:
    from torch import Tensor

    from inertia.prefill.compressor import Compressor, PromptLayer


@dataclass(frozen=True)
class AdaKV:
    """The scores of another compressor, ranked over all KV heads of a layer: a layer keeps Hkv * B, a head any share.

    Attributes:
        base: whose scores are ranked.
        alpha: share of B that each head keeps of its own best, at least one token; 0 for none.

    Source: AdaKV (arXiv 2407.11550), alpha 0.2, as kvpress 0.5.5 has it.
    Deviations: what is not kept is removed; kvpress masks it. The authors' code mixes: a head gets 0.8 of what it wins
    in the joint ranking plus 0.2 of B; kvpress, and this, only guarantee floor(0.2 * B) before the joint ranking.
    """

    kind: ClassVar[str] = "adakv"
    replay: ClassVar[bool] = False
    removes: ClassVar[bool] = True
    base: Compressor
    alpha: float = 0.2

    def __post_init__(self) -> None:
        checks.number("adakv.alpha", self.alpha, low=0, high=1)
        if self.base.replay:
            raise ValueError(
                f"adakv.base={self.base.kind!r} scores by replay and ranks over all layers already; "
                "give a compressor that scores during the prefill, such as expected_attention or snapkv."
            )

    def check(self, tokens: int, budget: int) -> None:
        """Refuse what the base refuses."""
        self.base.check(tokens, budget)

    def score(self, layer: PromptLayer) -> Tensor:
        """Return the base's scores, [Hkv, T]."""
        return self.base.score(layer)

    def keep(self, scores: Sequence[Tensor], budget: int) -> list[Tensor]:
        """Return the best of each layer; its heads keep different numbers."""
        floor = floor_share(Decimal(str(self.alpha)), budget) if self.alpha else 0
        return per_layer(self.kind, scores, budget, floor)
