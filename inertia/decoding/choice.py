"""The next token of each row: the likeliest, or one that is drawn."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from inertia.decoding.row import GrowingRow

# Two best logits closer than this may change places in another batch: what fp32 rounding does to batched products.
LOGIT_ROUNDING = 1e-4
# A draw closer than this to the border between two tokens may fall on its other side in another batch.
DRAW_ROUNDING = 1e-5


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
    if step < request.stopping.min_new_tokens and request.stopping.eos:
        eos = [each for each in request.stopping.eos if each < logits.shape[-1]]
        logits = logits.index_fill(-1, torch.tensor(eos, dtype=torch.long, device=logits.device), float("-inf"))
    if request.sampling is None:
        return logits.argmax(dim=-1).tolist(), near_choices(logits)
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
