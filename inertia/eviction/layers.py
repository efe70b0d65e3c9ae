"""What each layer of a model caches, as transformers' own caches see it, and which layers may be cut."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

FULL, SLIDING = "full_attention", "sliding_attention"
# "hybrid" layers hold a state beside attention; "dummy" layers (an MLP alone) hold nothing.
FULL_KINDS = (FULL, "hybrid")
WINDOW_KINDS = (SLIDING, "hybrid_sliding")
STATE_KINDS = ("linear_attention", "conv", "hybrid", "hybrid_sliding")
KINDS = (*FULL_KINDS, *WINDOW_KINDS, "linear_attention", "conv", "dummy")


@dataclass(frozen=True)
class Layers:
    """What each layer of a decoder caches.

    Attributes:
        windows: per layer, its sliding window, None for full attention, 0 for a layer that caches no tokens.
        states: per layer, how many pairs of a convolution and a recurrent state it keeps, of a size that does not
            depend on the tokens read; 0 for a layer of attention alone.
    """

    windows: tuple[int | None, ...]
    states: tuple[int, ...]

    @property
    def eligible(self) -> tuple[int, ...]:
        """Indices of the full-attention layers."""
        return tuple(index for index, window in enumerate(self.windows) if window is None)

    @property
    def stateful(self) -> bool:
        """Tell whether a layer keeps a state: what it has read cannot be taken back, nor read in pieces."""
        return any(self.states)


def layers_of(config: Any) -> Layers:
    """Read the layer kinds from a transformers config.

    Raises:
        ValueError: a layer kind that the core cannot decode, shared keys and values, or no full-attention layer.
    """
    for reason in objections(config):
        raise ValueError(f"model type {config.model_type!r} cannot be used: {reason}; choose another backbone")
    kinds, settings = layer_kinds(config)
    windows = {**dict.fromkeys(KINDS, 0), **dict.fromkeys(FULL_KINDS)}
    return Layers(
        windows=tuple(each.get("sliding_window", windows[kind]) for kind, each in zip(kinds, settings, strict=True)),
        states=tuple(each.get("number_of_states", 0) for each in settings),
    )


def objections(config: Any) -> list[str]:
    """Return what about a model's layers rules it out, an empty list where nothing does."""
    text = config.get_text_config(decoder=True)
    kinds, found = layer_kinds(config)[0], []
    shared = getattr(text, "num_kv_shared_layers", None) or sum(
        mode == "reuse" for mode in getattr(text, "kv_sharing_modes", None) or ()
    )
    if shared:
        found.append(f"{shared} of its layers read the cache of another layer")
    foreign = sorted(set(kinds) - set(KINDS))
    if foreign:
        found.append(f"it has layers of type {', '.join(foreign)}; known are {', '.join(KINDS)}")
    elif set(kinds) <= set(WINDOW_KINDS):
        found.append("all its layers have a sliding window, so no layer's cache is the policy's to cut")
    elif not set(kinds) & set(FULL_KINDS):
        found.append("none of its layers has full attention, so no layer's cache is the policy's to cut")
    return found


def layer_kinds(config: Any) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the kind of each layer, and what transformers gives its cache to know (window, number of states)."""
    from transformers.cache_utils import get_layer_types_and_kwargs

    text = config.get_text_config(decoder=True)
    kinds, settings = get_layer_types_and_kwargs(text)
    # A window that is declared and switched off.
    if getattr(text, "layer_types", None) is None and getattr(text, "use_sliding_window", True) is False:
        return [FULL] * len(kinds), [{} for _ in kinds]
    return list(kinds), list(settings)
