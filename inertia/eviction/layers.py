"""Which layers of a model may be cut: those with full attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


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

    Raises:
        ValueError: a layer kind that the core cannot decode, shared keys and values, or no full-attention layer.
    """
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    count = config.num_hidden_layers
    window = getattr(config, "sliding_window", None)
    if getattr(config, "use_sliding_window", True) is False:
        window = None
    kinds = (
        getattr(config, "layer_types", None) or ["full_attention" if window is None else "sliding_attention"] * count
    )
    unknown = sorted(set(kinds) - {"full_attention", "sliding_attention"})
    if unknown:
        raise ValueError(
            f"{config.model_type} has layers of kind {', '.join(unknown)}; only full_attention and sliding_attention "
            "layers can be decoded here. Use another backbone."
        )
    if getattr(config, "num_kv_shared_layers", 0):
        raise ValueError(
            f"{config.model_type} has {config.num_kv_shared_layers} layers that share another layer's keys and values; "
            "evicting from them is not supported. Use another backbone."
        )
    layers = Layers(tuple(None if kind == "full_attention" else window for kind in kinds))
    if not layers.eligible:
        raise ValueError(
            f"{config.model_type} has no full-attention layer (sliding_window={window}), so there is nothing to evict. "
            "Use another backbone."
        )
    return layers
