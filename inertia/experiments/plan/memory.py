"""Bytes on one device while a call runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from math import ceil

from inertia.eviction.policy import Policy
from inertia.experiments.plan.calls import Call, batches, cached, families, plain_full
from inertia.experiments.plan.shape import Shape

SCORE_BYTES = 4  # scores, utilities and logits are fp32
# Most devices that a model is spread over when we look for enough of them.
MOST_DEVICES = 64


@dataclass(frozen=True)
class Memory:
    """Bytes on the fullest device.

    Attributes:
        weights: parameters.
        prompt: the prompt's keys and values, room for the full cache's answer and copies for compressors included.
        slots: keys and values of the rows that decode.
        working: activations of the prefill or of a decode step, scores and logits, whichever is more: an estimate.
    """

    weights: int
    prompt: int
    slots: int
    working: int

    @property
    def total(self) -> int:
        """All of it."""
        return sum(astuple(self))


def peak(shape: Shape, element: int, call: Call, devices: int = 1, *, eager: bool = False) -> Memory:
    """Return what a call takes on the fullest of several devices that the layers are spread over.

    Args:
        shape: of the model.
        element: bytes of a weight and of a cached number.
        call: the call.
        devices: over how many devices the layers are spread.
        eager: whether the prefill holds its attention matrix.
    """
    share = ceil(shape.layers / devices)
    matrices = shape.embedding * (1 if shape.tied or devices > 1 else 2)
    extra = call.steps if any(map(plain_full, call.policies)) else min(call.steps, 1)
    prompt = cache(shape, element, call.prompt + extra, devices)
    for policy in families(call).values():
        if policy.prefill.compressor is not None:
            prompt += cache(shape, element, cached(policy, call.prompt) + call.steps, devices)
    slots = sum(
        batch.rows * cache(shape, element, batch.capacity, devices) for batch in batches(call) if not batch.adopted
    )
    return Memory(
        weights=round(element * (share * shape.layer(shape.experts) + matrices)),
        prompt=prompt,
        slots=slots,
        working=max(prefill_working(shape, element, call, eager), decode_working(shape, element, call)),
    )


def cache(shape: Shape, element: int, tokens: int, devices: int = 1) -> int:
    """Return the bytes of the keys and values of one row with so many slots, on the fullest device.

    A sliding layer always has its whole window.
    """
    sliding = sorted((window for window in shape.windows if window is not None), reverse=True)
    mine = sliding[: ceil(len(sliding) / devices)]
    return element * shape.slot * (ceil(shape.full_layers / devices) * tokens + sum(mine))


def prefill_working(shape: Shape, element: int, call: Call, eager: bool) -> int:
    """Return about what the prefill holds beside the cache: the residual stream twice, one layer's widest tensors."""
    attention = shape.head_dim * 2 * (shape.query_heads + shape.kv_heads)
    mlp = 3 * shape.intermediate * max(shape.experts_per_token, 1)
    tokens = element * call.prompt * (2 * shape.hidden + max(attention, mlp))
    matrix = (element + SCORE_BYTES) * shape.query_heads * call.prompt**2 if eager else 0
    return tokens + matrix + first_scores(shape, call) + SCORE_BYTES * shape.vocabulary


def decode_working(shape: Shape, element: int, call: Call) -> int:
    """Return about what a step of the largest batch holds beside the slots: scores per layer, weights, logits."""
    return max(
        (
            batch.rows
            * (
                SCORE_BYTES * batch.capacity * (shape.full_layers * shape.kv_heads + 2 * shape.query_heads)
                + (SCORE_BYTES + element) * shape.vocabulary
            )
            for batch in batches(call)
        ),
        default=0,
    )


def first_scores(shape: Shape, call: Call) -> int:
    """Return the bytes of the first step's scores, per distinct scorer over the whole prompt."""
    scorers = {repr(policy.scorer) for policy in call.policies if policy.evicts}
    return SCORE_BYTES * len(scorers) * shape.full_layers * shape.kv_heads * (call.prompt + 1)


def split(policies: Sequence[Policy], fits: Callable[[Sequence[Policy]], bool]) -> list[list[Policy]]:
    """Return the policies in parts that fit, halved as the run halves them; a single one stays even if it does not."""
    if len(policies) == 1 or fits(policies):
        return [list(policies)]
    half = len(policies) // 2
    return [part for each in (policies[:half], policies[half:]) for part in split(each, fits)]


def enough_devices(limit: float, needed: Callable[[int], Memory]) -> int | None:
    """Return the least number of devices with which `needed(devices)` stays within the limit, None where none does."""
    return next((count for count in range(1, MOST_DEVICES + 1) if needed(count).total <= limit), None)
