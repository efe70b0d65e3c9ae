"""Which layers of a model may be cut: those with full attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True)
class Layers:
    """Attention kind of each layer.

    Attributes:
        windows: per layer, its sliding window, or None for full attention.
    """

    windows: tuple[int | None, ...]

    @property
    def eligible(self) -> tuple[int, ...]:
        """Indices of the full-attention layers."""
        return tuple(index for index, window in enumerate(self.windows) if window is None)


def layers_of(config: Any) -> Layers:
    """Read the layer kinds from a transformers config.

    A model without `layer_types` has full attention everywhere, unless it has a sliding window: then nowhere.

    Raises:
        ValueError: a layer kind that the core cannot decode, shared keys and values, or no full-attention layer.
    """
    for reason in objections(config):
        raise ValueError(f"model type {config.model_type!r} cannot be used: {reason}; choose another backbone")
    text = config.get_text_config(decoder=True)
    return Layers(tuple(None if kind == FULL else text.sliding_window for kind in kinds_of(text)))


def objections(config: Any) -> list[str]:
    """Return what about a model's layers rules it out, an empty list where nothing does."""
    text = config.get_text_config(decoder=True)
    kinds, found = kinds_of(text), []
    if getattr(text, "num_kv_shared_layers", None):
        found.append(f"{text.num_kv_shared_layers} of its layers read the cache of another layer")
    foreign = sorted(set(kinds) - {FULL, SLIDING})
    if foreign:
        found.append(f"it has layers of type {', '.join(foreign)}; known are {FULL}, {SLIDING}")
    elif FULL not in kinds:
        found.append("all its layers have a sliding window, so no layer's cache is the policy's to cut")
    return found


def kinds_of(text: Any) -> list[str]:
    """Return the attention kind of each layer that a decoder's config states."""
    declared = getattr(text, "layer_types", None)
    if declared is not None:
        return list(declared)
    # Configs that switch their window off keep it as None, or say so beside it.
    off = getattr(text, "sliding_window", None) is None or getattr(text, "use_sliding_window", True) is False
    return [FULL if off else SLIDING] * text.num_hidden_layers
