"""What a scorer sees of one layer at one decode step."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class LayerView(NamedTuple):
    """One eligible layer, one decode step, R rows; T slots of which some may be empty.

    Attributes:
        weights: softmax attention of the step's query, [R, Hkv, G, T], fp32; head h of group g of KV head k is query
            head k * G + g. Empty slots have weight 0.
        query: [R, Hkv, G, D], rotated.
        keys: [R, Hkv, T, D], rotated.
        values: [R, Hkv, T, D].
        positions: true positions, [R, Hkv or 1, T]; -1 for an empty slot.
        valid: bool like positions, or None when every slot is filled.
        layer: index among the eligible layers, 0-based.
        seeds: seed of each row's example, [R], for scorers that draw.
    """

    weights: Tensor
    query: Tensor
    keys: Tensor
    values: Tensor
    positions: Tensor
    valid: Tensor | None
    layer: int
    seeds: Tensor


class Scorer(Protocol):
    """Scores cached tokens; higher means keep.

    `signed` tells that scores may be negative, so that a prior of zero would not be neutral.
    """

    signed: bool

    def score(self, view: LayerView) -> Tensor:
        """Return fp32 scores [R, Hkv, T], or [R, 1, T] where all KV heads agree; anything finite in empty slots."""
