"""KVzip: what the model reads when it has to repeat the context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from inertia.eviction import checks
from inertia.prefill.attention import last_attention
from inertia.prefill.replay import Replay, ReplayLayer, Wording, frame, replays
from inertia.prefill.selection import overall, too_small

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

    from inertia.prefill.compressor import PromptLayer

REMOVED, MASKED = "removed", "masked"
# Queries of a replay that are attended at one time: whole replays would take gigabytes.
ROWS = 256


@dataclass(frozen=True)
class KVzip:
    """The highest attention that a token gets from any query of any head while its chunk is replayed.

    One ranking over all layers and KV heads; K * Hkv * B tokens stay, ragged. The softmax runs over a few sinks, the
    chunk and the replay itself, not over the rest of the prompt.

    Attributes:
        chunk: tokens per replay.
        sinks: first tokens; they always stay.
        keep_opening: whether the template's opening always stays and is attended as sinks, as in the authors' code;
            otherwise, as in kvpress, what of it is not a sink scores 0.
        mode: "removed", or "masked" as kvpress has it: the same tokens are seen, and no memory is freed.
        wording: how the model is asked to repeat.

    Source: KVzip (arXiv 2505.23416), settings of kvpress 0.5.5: 2048-token chunks (the authors' code: 2000), 4 sinks.
    Deviations: the requests are worded by us. The number kept is exact; kvpress rounds the number removed.
    """

    kind: ClassVar[str] = "kvzip"
    replay: ClassVar[bool] = True
    chunk: int = 2048
    sinks: int = 4
    keep_opening: bool = False
    mode: str = REMOVED
    wording: Wording = field(default_factory=Wording)

    def __post_init__(self) -> None:
        checks.integer("kvzip.chunk", self.chunk, low=1)
        checks.integer("kvzip.sinks", self.sinks, low=0)
        checks.choice("kvzip.keep_opening", self.keep_opening, (True, False))
        checks.choice("kvzip.mode", self.mode, (REMOVED, MASKED))

    @property
    def removes(self) -> bool:
        """Tell whether what does not stay frees its memory."""
        return self.mode == REMOVED

    def check(self, tokens: int, budget: int) -> None:
        """Refuse a budget below the sinks.

        Raises:
            ValueError: naming both numbers.
        """
        if budget < min(self.sinks, tokens):
            raise ValueError(too_small(self.kind, self.sinks, budget, "lower kvzip.sinks"))

    def replays(
        self,
        tokenizer: PreTrainedTokenizerBase | None,
        ids: Sequence[int],
        *,
        chat_template: bool,
        template_arguments: Mapping[str, Any] | None = None,
    ) -> list[Replay]:
        """Return what the model reads after the prompt, one forward each, every one after the prompt alone.

        Args:
            tokenizer: of the backbone.
            ids: the part of the prompt that is compressed, from its first token.
            chat_template: whether prompts are rendered with the tokenizer's chat template.
            template_arguments: variables that prompts are rendered with.

        Raises:
            ValueError: there is no tokenizer, or its template does not fit.
        """
        around = frame(tokenizer, chat_template, template_arguments)
        return replays(tokenizer, ids, around, self.chunk, self.wording)

    def score(self, layer: PromptLayer) -> Tensor:
        """Refuse: the prefill alone scores nothing.

        Raises:
            ValueError: always.
        """
        raise ValueError("prefill=kvzip scores by replay; run its replays and fold score_replay by the maximum.")

    def score_replay(self, layer: ReplayLayer) -> Tensor:
        """Return the scores that one replay gives, [Hkv, T] fp32: 0 outside its chunk, inf where always kept.

        The scores of a layer are the elementwise maximum over the replays.
        """
        import torch

        start, end, opening = layer.replay.start, layer.replay.end, layer.replay.opening
        heads, total, _ = layer.keys.shape
        read = layer.query.shape[1]
        sinks = opening if self.keep_opening else min(self.sinks, start)
        keys = torch.cat([layer.keys[:, :sinks], layer.keys[:, start:end], layer.keys[:, total - read :]], dim=1)
        best = torch.zeros(heads, end - start, device=keys.device)
        for first in range(0, read, ROWS):
            rows = layer.query[:, first : first + ROWS]
            seen = keys[:, : keys.shape[1] - read + first + rows.shape[1]]
            weights = last_attention(rows, seen, layer.scaling, layer.softcap)
            best = torch.maximum(best, weights[..., sinks : sinks + end - start].amax(dim=(1, 2)))
        scores = torch.zeros(heads, total - read, device=keys.device)
        scores[:, start:end] = best
        scores[:, : max(self.sinks, opening if self.keep_opening else 0)] = float("inf")
        return scores

    def keep(self, scores: Sequence[Tensor], budget: int) -> list[Tensor]:
        """Return the best of the whole cache; layers and heads keep different numbers."""
        return overall(self.kind, scores, budget)
