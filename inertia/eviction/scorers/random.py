"""Chance: the control that a score has to beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from inertia.eviction import checks

if TYPE_CHECKING:
    from torch import Tensor

    from inertia.eviction.layer_view import LayerView

MASK = 0xFFFFFFFF


@dataclass(frozen=True)
class Random:
    """A uniform number per token, a function of the example's seed and the token's position alone.

    A token keeps its number for life, whatever its slot, its batch, the step or the device.

    Attributes:
        per_head: draw independently for every KV head of every layer; otherwise one draw serves all of them.

    Source: InertiaKV (arXiv 2609.03515), scorer ablation.
    Deviations: the paper does not say whether it draws anew at every step; here it does not.
    """

    kind: ClassVar[str] = "random"
    signed: ClassVar[bool] = False
    per_head: bool = False

    def __post_init__(self) -> None:
        checks.choice("scorer.per_head", self.per_head, (True, False))

    def score(self, view: LayerView) -> Tensor:
        """Return [R, Hkv, T] in [0, 1), or [R, 1, T] where all KV heads agree."""
        seeds = view.seeds.view(-1, 1, 1)
        words = [seeds & MASK, (seeds >> 32) & MASK]
        if self.per_head:
            import torch

            heads = view.weights.shape[1]
            unit = view.layer * heads + torch.arange(heads, device=view.seeds.device)
            words.append(unit.view(1, -1, 1) + 1)
        return uniform(*words, view.positions & MASK)


def uniform(*words: Tensor) -> Tensor:
    """Return a number in [0, 1) with 24 random bits, fp32, for the hash of the words, which broadcast.

    Args:
        *words: int64 tensors with values in [0, 2^32).
    """
    state = words[0] ^ 0
    for word in words[1:]:
        state = mix(state) ^ word
    return (mix(mix(state)) >> 8).float() * 2.0**-24


def mix(word: Tensor) -> Tensor:
    """Return a bijective scrambling of 32-bit words held in int64.

    No product exceeds 63 bits, so all devices agree.
    """
    word = (word + 0x9E3779B9) & MASK
    for _ in range(2):
        word = ((word ^ (word >> 16)) * 0x45D9F3B) & MASK
    return word ^ (word >> 16)
