"""What `generate` returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

Kept = list[int] | list[list[int]] | list[list[list[int]]]


@dataclass(frozen=True)
class Generation:
    """What one policy made of one prompt.

    Attributes:
        tokens: generated ids, EOS included.
        stop: "eos", "string" or "length".
        prompt_tokens: L0.
        budget_tokens: the decode budget after the last decode step, None for no limit.
        prefill_budget_tokens: what of the compressed part of the prompt could stay, per KV head; None without
            compression.
        prefill_retained_tokens: what of it did stay, mean over KV heads and eligible layers.
        retained_tokens: tokens cached after the last decode step, mean over the eligible units.
        peak_tokens: most tokens that a unit held between two steps after the first cut (the prompt's before any).
        evictions: tokens evicted, mean over the eligible units.
        cache_bytes: bytes of the keys and values of all layers that this row's slots take when it decodes alone; beside
            wider rows, a batch pads it to the widest.
        batch_rows: rows that decoded together with this one at the start.
        prefill_seconds: wall time of the prefill, shared by all policies.
        decode_seconds: wall time of step 1 and of the whole batch of this row.
        near_ties: choices of a token or a victim that were within rounding of another one while this row shared its
            batch; without any, its tokens are those of running alone.
        kept: with trace, per decode step the sorted true positions still cached after it: a list of positions
            (shared), [K] lists (per_layer) or [K][Hkv] lists (per_head, and every scope once a prompt was compressed).
        logits: where asked for, fp32 logits that chose each token, [tokens, vocabulary].
    """

    tokens: list[int]
    stop: str
    prompt_tokens: int
    budget_tokens: int | None
    prefill_budget_tokens: int | None
    prefill_retained_tokens: float | None
    retained_tokens: float
    peak_tokens: int
    evictions: float
    cache_bytes: int
    batch_rows: int
    prefill_seconds: float
    decode_seconds: float
    near_ties: int = 0
    kept: list[Kept] | None = None
    logits: Tensor | None = None
