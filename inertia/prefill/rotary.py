"""Rotary positions: turning states, turning them back, and the factors of any position of a model."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from transformers import PreTrainedModel

# Their factors depend on the longest position asked for so far: asking would change the model.
STATEFUL = ("dynamic", "longrope")


def half_turn(states: Tensor) -> Tensor:
    """Return states turned by a right angle in each plane (i, i + D / 2), [.., D]."""
    import torch

    first, second = states.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def turn(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return states turned by the given factors, [.., D]."""
    return states * cos + half_turn(states) * sin


def turn_back(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return what `turn` was given; factors may carry a length, as YaRN's do."""
    return (states * cos - half_turn(states) * sin) / (cos.square() + sin.square())


def rotary_of(model: PreTrainedModel, layer: int) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """Return a function from positions [N] to the rotary factors (cos, sin) of one layer, [N, D] each, fp32.

    Args:
        model: a causal language model of transformers with rotary positions.
        layer: index among all layers; in hybrid models the factors differ between kinds of layers.

    The function raises ValueError where there are none, where they depend on what was asked before, and where the
    model turns other planes than `turn` does.
    """
    import torch

    decoder = model.get_decoder()
    embedding = getattr(decoder, "rotary_emb", None)
    if embedding is None:
        return _without
    halves = turns_halves(decoder)
    arguments = {}
    if "layer_type" in inspect.signature(embedding.forward).parameters:
        arguments["layer_type"] = model.config.get_text_config().layer_types[layer]

    def factors(positions: Tensor) -> tuple[Tensor, Tensor]:
        kinds = getattr(embedding, "rope_type", "default")
        kind = kinds.get(arguments.get("layer_type")) if isinstance(kinds, dict) else kinds
        if kind in STATEFUL:
            raise ValueError(
                f"rotary positions of kind {kind!r} depend on the longest input seen, so future positions cannot be "
                "asked for; use another backbone, or a compressor that needs none."
            )
        if not halves:
            raise ValueError(
                "this model turns other planes of its heads than (i, i + D / 2), so that its queries cannot be turned "
                "back; use another backbone, or a compressor that needs no rotary positions."
            )
        like = torch.empty(0, dtype=torch.float32, device=positions.device)
        cos, sin = embedding(like, positions[None], **arguments)
        return cos[0], sin[0]

    return factors


def turns_halves(decoder: torch.nn.Module) -> bool:
    """Tell whether a model turns the planes (i, i + D / 2) of its heads, as `turn` does, by turning some with its own.

    Others turn neighbours, (2i, 2i + 1); a model without a function of the usual name is taken for one of them.
    """
    import torch

    rotate = getattr(sys.modules[type(decoder).__module__], "apply_rotary_pos_emb", None)
    if rotate is None:
        return False
    states, angles = torch.arange(8.0).view(1, 1, 1, 8), torch.arange(4.0).repeat(2).view(1, 1, 8)
    turned = rotate(states, states, angles.cos(), angles.sin())[0]
    return torch.allclose(turned, turn(states, angles.cos(), angles.sin()), atol=1e-5)


def _without(positions: Tensor) -> tuple[Tensor, Tensor]:
    raise ValueError("this model has no rotary positions; use another backbone, or a compressor that needs none.")
