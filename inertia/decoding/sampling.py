"""Which token follows: the likeliest one, or a draw that depends on (seed, sample, step) alone."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from inertia.eviction import checks

if TYPE_CHECKING:
    from transformers import LogitsProcessorList

    from inertia.decoding.row import GrowingRow

# Two best logits closer than this may change places in another batch: what fp32 rounding does to batched products.
LOGIT_ROUNDING = 1e-4
# A draw closer than this to the border between two tokens may fall on its other side in another batch.
DRAW_ROUNDING = 1e-5


@dataclass(frozen=True)
class Sampling:
    """Draw tokens instead of taking the likeliest; transformers' logits processors do the warping, in its order.

    Attributes:
        temperature: divides the logits, above 0.
        top_k: only so many of the likeliest tokens; None for all.
        top_p: only the likeliest tokens that make up this probability.
        min_p: only tokens at least this probable, relative to the likeliest.
        samples: answers per prompt and policy; they share its prefill.

    Deviations: from transformers: `generate`'s models often bring defaults of their own (top_k 50); here nothing is
    warped that is not stated. The probabilities are fp64, and the draw is by the inverse of their running sum.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    samples: int = 1

    def __post_init__(self) -> None:
        checks.number("temperature", self.temperature, low=0)
        if not self.temperature:
            raise ValueError("temperature=0 draws nothing; leave sampling out for greedy decoding.")
        if self.top_k is not None:
            checks.integer("top_k", self.top_k, low=1)
        checks.number("top_p", self.top_p, low=0, high=1)
        checks.number("min_p", self.min_p, low=0, high=1)
        checks.integer("samples", self.samples, low=1)

    def describe(self) -> dict[str, Any]:
        """Return what can change an answer, JSON-able."""
        named = {"temperature": self.temperature, "top_k": self.top_k, "top_p": self.top_p, "min_p": self.min_p}
        return {"kind": "sampling", **named}

    def warpers(self) -> LogitsProcessorList:
        """Return transformers' processors for what is stated."""
        from transformers import generation

        found = generation.LogitsProcessorList()
        if self.temperature != 1.0:
            found.append(generation.TemperatureLogitsWarper(float(self.temperature)))
        if self.top_k is not None:
            found.append(generation.TopKLogitsWarper(self.top_k))
        if self.top_p < 1:
            found.append(generation.TopPLogitsWarper(self.top_p))
        if self.min_p > 0:
            found.append(generation.MinPLogitsWarper(self.min_p))
        return found


def uniform(seed: int, sample: int, step: int) -> float:
    """Return a number in [0, 1) that depends on nothing else than its arguments."""
    digest = hashlib.sha256(f"{seed}/{sample}/{step}".encode()).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) / 2**53


def choose(rows: Sequence[GrowingRow], logits: Tensor) -> tuple[list[int], Tensor]:
    """Return the next token of each row, and per row 1 where rounding could have made it another one, else 0, [R].

    EOS is out of the question below the least number of tokens.

    Args:
        rows: rows of one call at one step; what comes out for rows that have ended means nothing.
        logits: [R, vocabulary].
    """
    request, step = rows[0].request, max(len(row.tokens) for row in rows)
    near = near_choices(logits)
    if step < request.stopping.min_new_tokens and request.stopping.eos:
        eos = torch.tensor(sorted(request.stopping.eos), device=logits.device)
        logits = logits.index_fill(-1, eos, float("-inf"))
    if request.sampling is None:
        return logits.argmax(dim=-1).tolist(), near
    warped = request.sampling.warpers()(None, logits.double())
    numbers = [uniform(row.prompt.seed, row.sample, step) for row in rows]
    return drawn(warped.softmax(-1), torch.tensor(numbers, dtype=torch.float64, device=logits.device))


def drawn(probabilities: Tensor, numbers: Tensor) -> tuple[list[int], Tensor]:
    """Return the token that each number falls on, and per row 1 where it is within rounding of a border, else 0, [R].

    Args:
        probabilities: [R, vocabulary], fp64.
        numbers: in [0, 1), [R].
    """
    sums = probabilities.cumsum(-1)
    # Up to a number just below 1, so that what rounding leaves out of the sum is never drawn.
    levels = torch.stack([numbers, numbers - DRAW_ROUNDING, numbers + DRAW_ROUNDING], -1).clamp(0, 1 - 1e-12)
    found = torch.searchsorted(sums, levels * sums[:, -1:], right=True).clamp(max=probabilities.shape[-1] - 1)
    return found[:, 0].tolist(), (found[:, 1] != found[:, 2]).long()


def near_choices(logits: Tensor) -> Tensor:
    """Return per row 1 where a second token was within rounding of the best, else 0; logits are [R, vocabulary]."""
    logits = logits.float()
    within = logits >= logits.amax(dim=-1, keepdim=True) - LOGIT_ROUNDING
    return (within.sum(-1) > 1).long()
