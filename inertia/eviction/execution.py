"""How decoding is carried out: settings that change speed and memory, and answers by no more than rounding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from inertia.eviction import checks

FUSED, RECOMPUTE, KERNEL = "fused", "recompute", "kernel"
SCORINGS = (FUSED, RECOMPUTE, KERNEL)
GIB = 2**30
# Rows share a batch while the largest block is at most this many times the smallest: padded slots cost real time.
CAPACITY_SPREAD = 1.25


@dataclass(frozen=True)
class Execution:
    """How, not what.

    Attributes:
        scoring: where scores come from. "fused": the attention's own weights. "recompute": a second pass beside the
            library's attention, as the paper's hook does. "kernel": our GPU kernel (extra `gpu`).
        compiled: take a decode step through `torch.compile`; the first steps of each new shape are then slow.
        prefill_chunk: read the prompt in pieces of so many tokens; None reads it at once.
        batch_gib: most GiB of slots and tables that decode together; more prompts and policies are split into several
            batches. None for half of what the device has free. A single policy is never refused.
    """

    scoring: str = FUSED
    compiled: bool = False
    prefill_chunk: int | None = None
    batch_gib: float | None = None

    def __post_init__(self) -> None:
        checks.choice("execution.scoring", self.scoring, SCORINGS)
        checks.boolean("execution.compiled", self.compiled)
        if self.prefill_chunk is not None:
            checks.integer("execution.prefill_chunk", self.prefill_chunk, low=1)
        if self.batch_gib is not None:
            checks.number("execution.batch_gib", self.batch_gib, low=0.0)

    def describe(self) -> dict[str, Any]:
        """Return what may change the last bits of an answer, without what is at its default; {} by default.

        How policies are split into batches is not named: a row says how many shared its batch (`batch_rows`), and
        counts what that could have changed (`near_ties`).
        """
        values = {"scoring": self.scoring, "compiled": self.compiled, "prefill_chunk": self.prefill_chunk}
        default = Execution()
        return {key: value for key, value in values.items() if value != getattr(default, key)}
