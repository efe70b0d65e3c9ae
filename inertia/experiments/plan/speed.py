"""Seconds of a call: by a roofline, by stated throughput, or as recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from inertia.experiments.plan.calls import Call, batches, families
from inertia.experiments.plan.hardware import DECODE_SHARE, LAYER_SECONDS, PREFILL_SHARE, Hardware
from inertia.experiments.plan.memory import cache
from inertia.experiments.plan.shape import Shape


@dataclass(frozen=True)
class Roofline:
    """An estimate: work over the assumed share of the device's peak, never less than launching the kernels takes.

    Layers on several devices work one after another, so more devices give room and no speed.
    """

    hardware: Hardware
    shape: Shape
    dtype: str
    element: int

    def forward(self, flops: float, moved: float, share: float) -> float:
        """Return the seconds of one forward.

        Args:
            flops: floating-point operations.
            moved: bytes read.
            share: of the peak FLOPs.
        """
        compute = flops / (share * self.hardware.tflops[self.dtype] * 1e12)
        memory = moved / (DECODE_SHARE * self.hardware.bandwidth * 1e9)
        return max(compute, memory, self.shape.layers * LAYER_SECONDS)

    def prefill(self, call: Call) -> float:
        """Return the seconds of a call's prefill, replays included."""
        shape, tokens = self.shape, call.prompt
        # Causal attention is half of a square; q.k and weights.v are two multiply-adds each.
        pairs = sum(
            tokens * tokens / 2 if window is None or window >= tokens else tokens * window for window in shape.windows
        )
        flops = 2 * (shape.active * tokens + shape.embedding) + 4 * shape.query_heads * shape.head_dim * pairs
        once = self.forward(flops, self.element * shape.parameters, PREFILL_SHARE)
        return once * call.prefill / tokens

    def step(self, rows: int, slots: int) -> float:
        """Return the seconds of one decode step of a batch."""
        shape = self.shape
        used = min(shape.experts, rows * shape.experts_per_token)
        weights = self.element * (shape.layers * shape.layer(used) + shape.embedding)
        flops = 2 * rows * (shape.active + shape.embedding)
        return self.forward(flops, weights + rows * cache(shape, self.element, slots), PREFILL_SHARE)

    def decode(self, call: Call) -> float:
        """Return the seconds of a call's decode steps."""
        if call.made < 2:
            return max(call.made - 1, 0) * len(families(call)) * self.step(1, call.prompt)
        first = len(families(call)) * self.step(1, call.prompt)
        return first + (call.made - 2) * sum(self.step(batch.rows, batch.capacity) for batch in batches(call))


@dataclass(frozen=True)
class Stated:
    """Throughput that the user states, in tokens per second; decode counts the tokens of all rows of a batch."""

    prefill_tps: float
    decode_tps: float

    def prefill(self, call: Call) -> float:
        """Return the seconds of a call's prefill."""
        return call.prefill / self.prefill_tps

    def decode(self, call: Call) -> float:
        """Return the seconds of a call's decode steps."""
        return call.decoded / self.decode_tps


@dataclass(frozen=True)
class Measured:
    """Throughput of sealed records of the same backbone.

    Attributes:
        prefill_tps: prompt tokens per second.
        step_seconds: seconds of one decode step, by the rows of the batch.
        examples: how many examples it was measured on.
    """

    prefill_tps: float
    step_seconds: Mapping[int, float]
    examples: int

    def prefill(self, call: Call) -> float:
        """Return the seconds of a call's prefill, as if its length did not matter."""
        return call.prefill / self.prefill_tps

    def step(self, rows: int) -> float:
        """Return the seconds of a step of the recorded batch of the nearest size."""
        return self.step_seconds[min(self.step_seconds, key=lambda known: (abs(known - rows), known))]

    def decode(self, call: Call) -> float:
        """Return the seconds of a call's decode steps."""
        first = min(call.made - 1, 1) * len(families(call)) * self.step(1)
        return first + max(call.made - 2, 0) * sum(self.step(batch.rows) for batch in batches(call))


Speed = Roofline | Stated | Measured
