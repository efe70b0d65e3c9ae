"""A model's shape: what its weights and its cache take, counted from its configuration alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inertia.backbones.config import BackboneConfig

ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A decoder with grouped heads and gated MLPs. Parameters are those of its matrices; norms and biases are left out.

    Attributes:
        windows: per layer, its sliding window in tokens, or None for full attention.
        query_heads: Hq.
        kv_heads: Hkv.
        head_dim: D.
        hidden: width of the residual stream.
        intermediate: width of an MLP, or of one expert.
        vocabulary: tokens.
        tied: whether the embedding is the output matrix too.
        experts: experts per layer, 0 for none.
        experts_per_token: how many of them a token goes through.
    """

    windows: tuple[int | None, ...]
    query_heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    intermediate: int
    vocabulary: int
    tied: bool = False
    experts: int = 0
    experts_per_token: int = 0

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.windows)

    @property
    def full_layers(self) -> int:
        """Number of layers with full attention, whose cache a policy cuts."""
        return sum(window is None for window in self.windows)

    @property
    def embedding(self) -> int:
        """Parameters of the embedding, and of the output matrix."""
        return self.vocabulary * self.hidden

    def layer(self, experts: float) -> float:
        """Return the parameters of one layer with so many of its experts (ignored where there are none)."""
        attention = 2 * self.hidden * self.head_dim * (self.query_heads + self.kv_heads)
        mlp = 3 * self.hidden * self.intermediate
        return attention + (experts * mlp + self.experts * self.hidden if self.experts else mlp)

    @property
    def parameters(self) -> int:
        """All parameters."""
        return round(self.layers * self.layer(self.experts)) + self.embedding * (1 if self.tied else 2)

    @property
    def active(self) -> int:
        """Parameters that one token is multiplied with, the output matrix left out."""
        return round(self.layers * self.layer(self.experts_per_token))

    @property
    def slot(self) -> int:
        """Numbers in one cached token of one layer: K and V of all KV heads."""
        return 2 * self.kv_heads * self.head_dim


def shape_of(config: BackboneConfig) -> Shape:
    """Return the shape of a backbone without a network and without weights.

    A tiny model's follows from its settings. A Hub model's is read from its local folder or the Hub cache, else from
    the table beside this file, as that of the embedded models is.

    Raises:
        ValueError: nothing here knows the shape, or it is not the declared one.
    """
    found, declared = _found(config), (config.layers, config.query_heads, config.kv_heads)
    if (found.layers, found.query_heads, found.kv_heads) != declared:
        raise ValueError(
            f"backbone {config.name!r} declares {declared[0]} layers and {declared[1]}/{declared[2]} heads, but the "
            f"model has {found.layers} and {found.query_heads}/{found.kv_heads}; correct repo, revision or path, or "
            "the declared values."
        )
    return found


def read_config(folder: Path) -> Shape:
    """Return the shape that the config.json in a folder states.

    Raises:
        OSError: there is none.
        ValueError: it cannot be used for eviction.
    """
    from transformers import AutoConfig

    from inertia.backbones.checks import check_supported

    found = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    check_supported(found)
    return shape_from(found)


def shape_from(config: Any) -> Shape:
    """Return the shape that a transformers config states.

    Raises:
        ValueError: the core cannot decode it, or it is no decoder whose parameters and cache are counted here.
    """
    from inertia.backbones.checks import kv_heads
    from inertia.eviction.layers import layers_of

    text, layers = config.get_text_config(decoder=True), layers_of(config)
    experts = getattr(text, "num_experts", None) or getattr(text, "num_local_experts", None) or 0
    width = (getattr(text, "moe_intermediate_size", None) if experts else None) or getattr(
        text, "intermediate_size", None
    )
    refused = {
        "its config states no one intermediate_size of gated MLPs": not isinstance(width, int),
        "its keys and values are compressed (MLA)": getattr(text, "kv_lora_rank", None) is not None,
        "some of its layers keep a state beside attention, or nothing": layers.stateful or 0 in layers.windows,
    }
    for reason in (reason for reason, found in refused.items() if found):
        raise ValueError(
            f"model type {config.model_type!r} cannot be planned: {reason}, and a plan counts the weights and the "
            "cache of decoders with grouped heads and gated MLPs; run a few examples to see what it takes"
        )
    return Shape(
        windows=layers.windows,
        query_heads=text.num_attention_heads,
        kv_heads=kv_heads(text),
        head_dim=getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads,
        hidden=text.hidden_size,
        intermediate=width,
        vocabulary=text.vocab_size,
        tied=bool(text.tie_word_embeddings),
        experts=experts,
        experts_per_token=text.num_experts_per_tok if experts else 0,
    )


def table() -> dict[str, Shape]:
    """Return the shapes shipped with the package, by repository or name."""
    import yaml

    stated = yaml.safe_load((Path(__file__).parent / "shapes.yaml").read_text(encoding="utf-8"))
    full = {name: [None] * values.pop("layers") for name, values in stated.items()}
    return {
        name: Shape(windows=tuple(values.pop("windows", full[name])), **values) for name, values in stated.items()
    }


def _found(config: BackboneConfig) -> Shape:
    if config.source == "tiny":
        from inertia.backbones.tiny import config_of

        return shape_from(config_of(config))
    if config.path is not None and config.source == "hub":
        return read_config(Path(config.path).expanduser())
    name = config.name
    if config.source == "hub":
        from huggingface_hub import try_to_load_from_cache

        name = str(config.repo)
        cached = try_to_load_from_cache(name, "config.json", revision=config.revision)
        if isinstance(cached, str):
            return read_config(Path(cached).parent)
    known = table()
    if name not in known:
        raise ValueError(
            f"the shape of {name} is not known here: it is neither in the Hub cache nor among {', '.join(known)}; run "
            f"`hf download {name} config.json` once, or set backbone.path to a local folder of the model."
        )
    return known[name]
