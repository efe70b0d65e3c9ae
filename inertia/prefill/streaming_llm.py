"""StreamingLLM: the first tokens and the last ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from inertia.eviction import checks
from inertia.prefill.selection import per_head, too_small

if TYPE_CHECKING:
    from torch import Tensor

    from inertia.prefill.compressor import PromptLayer


@dataclass(frozen=True)
class StreamingLLM:
    """Sinks and the most recent tokens, by true position.

    Attributes:
        sinks: first tokens that always stay.

    Source: StreamingLLM (arXiv 2309.17453), 4 sinks.
    Deviations: kept tokens keep their rotary positions; the authors number them by their place in the cache. kvpress
    0.5.5 keeps positions too.
    """

    kind: ClassVar[str] = "streaming_llm"
    replay: ClassVar[bool] = False
    removes: ClassVar[bool] = True
    sinks: int = 4

    def __post_init__(self) -> None:
        checks.integer("streaming_llm.sinks", self.sinks, low=0)

    def check(self, tokens: int, budget: int) -> None:
        """Refuse a budget below the sinks.

        Raises:
            ValueError: naming both numbers.
        """
        if budget < min(self.sinks, tokens):
            raise ValueError(too_small(self.kind, self.sinks, budget, "lower streaming_llm.sinks"))

    def score(self, layer: PromptLayer) -> Tensor:
        """Return [Hkv, T]: the position, inf for sinks; fp32 holds positions up to 16.7 million."""
        import torch

        heads, tokens = layer.keys.shape[:2]
        score = torch.arange(tokens, dtype=torch.float32, device=layer.keys.device)
        score[: self.sinks] = float("inf")
        return score.expand(heads, -1)

    def keep(self, scores: Sequence[Tensor], budget: int) -> list[Tensor]:
        """Return the sinks and the last tokens."""
        return per_head(self.kind, scores, budget)
