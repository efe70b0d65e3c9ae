"""Expected Attention: what future queries would attend to, if they were distributed like the past ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from inertia.eviction import checks
from inertia.prefill.rotary import turn, turn_back
from inertia.prefill.selection import per_head, too_small

if TYPE_CHECKING:
    from torch import Tensor

    from inertia.prefill.compressor import PromptLayer


@dataclass(frozen=True)
class ExpectedAttention:
    """Softmax of the expected logits of Gaussian queries, mean over each KV head's queries, times the value norm.

    Queries before rotation have mean m and covariance C over the prompt; R is the mean rotation of the next `future`
    positions. A key then counts for exp(s (R m).k + s^2 k'(R C R')k / 2), s being the scaling of the logits.

    Attributes:
        future: positions after the prompt that R averages.
        sinks: first tokens; they always stay, and their queries do not count.
        covariance: whether the second term counts.
        value_norm: whether (score + epsilon) is multiplied by the norm of the value.
        epsilon: see `value_norm`; 1e-2 where AdaKV ranks over heads.

    Source: Expected Attention (arXiv 2510.00636) with the settings of kvpress 0.5.5, its authors' code.
    Deviations: s is the model's own scaling (kvpress: 1 / sqrt(D) for every model); all sums in fp32.
    """

    kind: ClassVar[str] = "expected_attention"
    replay: ClassVar[bool] = False
    removes: ClassVar[bool] = True
    future: int = 512
    sinks: int = 4
    covariance: bool = True
    value_norm: bool = True
    epsilon: float = 0.0

    def __post_init__(self) -> None:
        checks.integer("expected_attention.future", self.future, low=1)
        checks.integer("expected_attention.sinks", self.sinks, low=0)
        checks.choice("expected_attention.covariance", self.covariance, (True, False))
        checks.choice("expected_attention.value_norm", self.value_norm, (True, False))
        checks.number("expected_attention.epsilon", self.epsilon, low=0)

    def check(self, tokens: int, budget: int) -> None:
        """Refuse a prompt of sinks only, and a budget below the sinks.

        Raises:
            ValueError: naming both numbers.
        """
        if budget >= tokens:
            return
        if tokens <= self.sinks:
            raise ValueError(
                f"prefill=expected_attention needs more than expected_attention.sinks={self.sinks} tokens but has "
                f"{tokens} to compress; lower the sinks, or give a longer prompt."
            )
        if budget < self.sinks:
            raise ValueError(too_small(self.kind, self.sinks, budget, "lower expected_attention.sinks"))

    def score(self, layer: PromptLayer) -> Tensor:
        """Return [Hkv, T]; inf for sinks.

        Raises:
            ValueError: the model rotates a part of each head only.
        """
        import torch

        heads, tokens, head_dim = layer.keys.shape
        scores = layer.keys.new_full((heads, tokens), float("inf"), dtype=torch.float32)
        if tokens <= self.sinks:
            return scores
        past = [each.float() for each in layer.rotary(torch.arange(self.sinks, tokens, device=layer.keys.device))]
        if past[0].shape[-1] != head_dim:
            raise ValueError(
                f"the model rotates {past[0].shape[-1]} of {head_dim} dimensions of a head; expected_attention needs "
                "all of them. Use another backbone or compressor."
            )
        cos, sin = layer.rotary(torch.arange(tokens, tokens + self.future, device=layer.keys.device))
        future = cos.float().mean(dim=0), sin.float().mean(dim=0)
        groups = layer.query.view(heads, -1, tokens, head_dim)[:, :, self.sinks :]
        # One KV head at a time: fp32 copies of all queries would be the largest thing in memory.
        for head in range(heads):
            queries = turn_back(groups[head].float(), *past)
            logits = self._logits(queries, layer.keys[head, self.sinks :].float(), future, layer.scaling)
            scores[head, self.sinks :] = logits.softmax(dim=-1).mean(dim=0)
        if self.value_norm:
            norms = torch.linalg.vector_norm(layer.values[:, self.sinks :], dim=-1, dtype=torch.float32)
            scores[:, self.sinks :] = (scores[:, self.sinks :] + self.epsilon) * norms
        return scores

    def keep(self, scores: Sequence[Tensor], budget: int) -> list[Tensor]:
        """Return the best of each KV head."""
        return per_head(self.kind, scores, budget)

    def _logits(self, queries: Tensor, keys: Tensor, future: tuple[Tensor, Tensor], scaling: float) -> Tensor:
        """Return the logarithms of the expected attention before normalisation.

        Args:
            queries: of one KV head, before rotation, [G, N, D].
            keys: [N, D].
            future: mean rotary factors, [D] each.
            scaling: factor on q.k.

        Returns:
            [G, N].
        """
        mean = queries.mean(dim=1, keepdim=True)
        logits = (turn(mean, *future) @ keys.T).squeeze(1) * scaling
        if self.covariance:
            centred = queries - mean
            spread = centred.transpose(-1, -2) @ centred / queries.shape[1]
            # R C R': turn the rows, then, C being symmetric, the columns.
            spread = turn(turn(spread, *future).transpose(-1, -2), *future)
            logits = logits + ((keys @ spread) * keys).sum(dim=-1) * (scaling**2 / 2)
        return logits
