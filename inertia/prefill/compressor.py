"""What a compressor sees of one layer of a prompt, and what it decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from inertia.eviction.prefill_session import Observed

    Rotary = Callable[[Tensor], tuple[Tensor, Tensor]]


class PromptLayer(NamedTuple):
    """One eligible layer of the part of a prompt that is compressed: T tokens at positions 0 .. T - 1.

    Attributes:
        query: [Hq, T, D], rotated; query head h * G + g reads KV head h.
        keys: [Hkv, T, D], rotated.
        values: [Hkv, T, D].
        scaling: factor on q.k.
        rotary: returns the rotary factors (cos, sin), [N, D] each, of any positions, LongTensor [N]; raises ValueError
            where the model has none that can be asked for.
        layer: index among the eligible layers, 0-based.
        layers: number of eligible layers.
        softcap: tanh cap of the logits, where the model has one.
    """

    query: Tensor
    keys: Tensor
    values: Tensor
    scaling: float
    rotary: Rotary
    layer: int
    layers: int
    softcap: float | None = None


def prompt_layer(seen: Observed, part: int, rotary: Rotary, layers: int) -> PromptLayer:
    """Return the first `part` tokens of what a layer was given while the prompt was read.

    Args:
        seen: of one eligible layer.
        part: T.
        rotary: the layer's rotary factors.
        layers: number of eligible layers.
    """
    return PromptLayer(
        seen.query[:, :part],
        seen.keys[:, :part],
        seen.values[:, :part],
        seen.scaling,
        rotary,
        seen.index,
        layers,
        seen.softcap,
    )


class Compressor(Protocol):
    """Scores the tokens of a prompt layer by layer while it is prefilled, then cuts all layers at once.

    A compressor is a frozen dataclass; `inertia.eviction.describe` gives its identity. The prompt's own attention is
    never touched: what goes, goes before the next forward.

    Attributes:
        kind: its name.
        replay: False: `score` is called once per eligible layer during the prefill. True (KVzip): the prefilled
            prompt is read again, and `replays` and `score_replay` take the place of `score`.
        removes: False: what does not stay is masked, and its memory is not freed.
    """

    kind: ClassVar[str]
    replay: ClassVar[bool]

    @property
    def removes(self) -> bool:
        """Tell whether what does not stay frees its memory."""

    def check(self, tokens: int, budget: int) -> None:
        """Refuse, before the model runs, what cannot be carried out; a budget of all tokens removes nothing.

        Args:
            tokens: T.
            budget: B, tokens per KV head on average.

        Raises:
            ValueError: too few tokens, or a budget smaller than what is always kept.
        """

    def score(self, layer: PromptLayer) -> Tensor:
        """Return what each token is worth to each KV head, [Hkv, T] fp32; higher = keep, inf = always kept."""

    def keep(self, scores: Sequence[Tensor], budget: int) -> list[Tensor]:
        """Return what stays, per eligible layer a bool [Hkv, T].

        Of equal scores the smaller position stays, then the earlier layer and head.

        Args:
            scores: of all eligible layers, [Hkv, T] each.
            budget: B, tokens per KV head on average.

        Raises:
            FloatingPointError: the scores hold NaN.
            ValueError: more tokens are always kept than the budget has.
        """
