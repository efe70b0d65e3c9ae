"""A row of decoding, one prompt under one policy, while its answer grows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from inertia.decoding.request import Request, TokensPrompt, before_stop
from inertia.decoding.result import Generation, Kept
from inertia.eviction.policy import PER_HEAD, PER_LAYER, Policy

if TYPE_CHECKING:
    from inertia.eviction.cut import Cut


@dataclass
class GrowingRow:
    """A generation while it grows; see `Generation` for what has no word here.

    Attributes:
        request: the call that it belongs to.
        prompt: what was read.
        policy: what decides.
        numbers: indices, over all (prompt, policy, sample) of the call, of those that this row answers.
        sample: which of several answers.
        cut: what it keeps of its prompt, from its first cut until its batch is made; None for a row that has ended.
    """

    request: Request
    prompt: TokensPrompt
    policy: Policy
    numbers: tuple[int, ...]
    sample: int = 0
    cut: Cut | None = None
    tokens: list[int] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)
    prefill_budget: int | None = None
    prefill_retained: float | None = None
    prefill_seconds: float = 0.0
    retained: float = 0.0
    peak: int = 0
    cache_bytes: int = 0
    batch_rows: int = 1
    decode_seconds: float = 0.0
    near_ties: int = 0
    stop: str = "length"

    def take(self, logits: Tensor, chosen: int) -> bool:
        """Append the next token, the forced one or the chosen one, and return whether the row ends with it.

        Args:
            logits: what it is chosen from, [vocabulary].
            chosen: the likeliest or drawn one.
        """
        index, forced = len(self.tokens), self.prompt.forced_tokens
        self.tokens.append(chosen if forced is None else forced[index])
        observe = self.request.observe
        if observe.logits:
            self.logits.append(logits.float().cpu())
        if observe.on_logits is not None:
            for number in self.numbers:
                observe.on_logits(number, index, logits)
        return self._ended()

    def note(self, kept: Tensor, scope: str) -> None:
        """Trace the positions that the row holds after a step, [UK, UH, C], nested as the scope of its units asks."""
        if self.request.observe.trace:
            self.kept.append(as_lists(kept, scope))

    def _ended(self) -> bool:
        """Tell whether the row ends here, and note why."""
        stopping = self.request.stopping
        if self.prompt.forced_tokens is None:
            if self.tokens[-1] in stopping.eos:
                self.stop = "eos"
                return True
            if stopping.stop_strings:
                text = self.request.prompt_format.tokenizer.decode(self.tokens, skip_special_tokens=True)
                if before_stop(text, stopping.stop_strings) != text:
                    self.stop = "string"
                    return True
        return len(self.tokens) >= stopping.max_new_tokens

    def finished(self) -> Generation:
        """Return the generation that came of it."""
        steps, prompt_tokens = len(self.tokens) - 1, self.prompt.ids.shape[1]
        return Generation(
            tokens=self.tokens,
            stop=self.stop,
            prompt_tokens=prompt_tokens,
            budget_tokens=self.policy.budget.tokens(prompt_tokens, prompt_tokens + max(steps, 1)),
            prefill_budget_tokens=self.prefill_budget,
            prefill_retained_tokens=self.prefill_retained,
            retained_tokens=self.retained,
            peak_tokens=self.peak,
            evictions=prompt_tokens + steps - self.retained,
            cache_bytes=self.cache_bytes,
            batch_rows=self.batch_rows,
            prefill_seconds=self.prefill_seconds,
            decode_seconds=self.decode_seconds,
            near_ties=self.near_ties,
            kept=self.kept if self.request.observe.trace else None,
            logits=torch.stack(self.logits) if self.request.observe.logits else None,
        )


def mean_count(kept: Tensor) -> float:
    """Return how many slots of a row are filled, mean over units; positions are [UK, UH, C], -1 where free."""
    return float((kept >= 0).sum(-1).double().mean())


def as_lists(kept: Tensor, scope: str) -> Kept:
    """Return the positions of a row, [UK, UH, C] with -1 where free, as sorted lists nested as the scope asks."""
    lists = [[sorted(position for position in head if position >= 0) for head in layer] for layer in kept.tolist()]
    if scope == PER_HEAD:
        return lists
    return [layer[0] for layer in lists] if scope == PER_LAYER else lists[0][0]
