"""What a model must be for eviction to be right, read off its configuration before its weights are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from inertia.backbones.config import BackboneConfig
from inertia.eviction import layers

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

REFUSED_ROTARY = {
    "longrope": "LongRoPE changes its factors at a length, and an evicted cache cannot be rotated again",
    "dynamic": "dynamic RoPE remembers the longest input, so an answer depends on what ran before",
}


def check_supported(config: PretrainedConfig) -> None:
    """Refuse a model whose evicted cache cannot be right.

    Raises:
        ValueError: names the property that rules the model out.
    """
    text = config.get_text_config(decoder=True)
    for reason in _objections(config, text):
        raise ValueError(
            f"model type {config.model_type!r} cannot be used: {reason}; choose another backbone"
        )


def check_shape(config: BackboneConfig, loaded: PretrainedConfig) -> None:
    """Compare the declared shape and window with the model's own configuration.

    Raises:
        ValueError: names each declared and found value that differ.
    """
    text = loaded.get_text_config(decoder=True)
    shape = {
        "layers": (config.layers, text.num_hidden_layers),
        "query_heads": (config.query_heads, text.num_attention_heads),
        "kv_heads": (config.kv_heads, text.num_key_value_heads),
    }
    wrong = [f"{name}: declared {want}, found {got}" for name, (want, got) in shape.items() if want != got]
    if wrong:
        raise ValueError(
            f"backbone {config.name!r} is not the model it declares ({'; '.join(wrong)}); "
            "correct repo, revision or path, or the declared values if the model is meant"
        )
    window = getattr(text, "max_position_embeddings", None)
    if window is not None and config.context_window > window:
        raise ValueError(
            f"backbone.context_window is {config.context_window}, but {config.name!r} has {window} "
            f"positions; set it to at most {window}"
        )


def check_template(config: BackboneConfig, tokenizer: PreTrainedTokenizerBase) -> None:
    """Refuse a base model declared as chat model, and the reverse.

    Raises:
        ValueError: `chat_template` and the tokenizer disagree.
    """
    present = bool(tokenizer.chat_template)
    if config.chat_template and not present:
        raise ValueError(
            f"backbone {config.name!r} declares chat_template: true, but its tokenizer has none: this looks "
            "like a base model; take the instruct model, or set backbone.chat_template=false"
        )
    if present and not config.chat_template and not config.allow_unused_template:
        raise ValueError(
            f"backbone {config.name!r} declares chat_template: false, but its tokenizer has one: this looks "
            "like an instruct model; set backbone.chat_template=true, or, if plain prompts are meant, "
            "backbone.allow_unused_template=true"
        )


def _objections(config: PretrainedConfig, text: PretrainedConfig) -> list[str]:
    found = [REFUSED_ROTARY[kind] for kind in _rotary_types(text) if kind in REFUSED_ROTARY]
    if config.is_encoder_decoder:
        found.append("it is an encoder-decoder; a prompt is not in the decoder's cache")
    if (
        getattr(text, "num_key_value_heads", None) is None
        or getattr(text, "num_attention_heads", None) is None
    ):
        found.append("its configuration does not say how many key-value heads it caches")
        return found
    if getattr(text, "use_bidirectional_attention", None):
        found.append("its attention is bidirectional")
    if config.model_type == "gpt_oss":
        found.append("its attention has learned sinks")
    return found + layers.objections(config)


def _rotary_types(text: PretrainedConfig) -> list[str]:
    parameters: dict[str, Any] = getattr(text, "rope_parameters", None) or {}
    # Hybrid models keep one set of parameters per layer type.
    sets = [parameters, *(value for value in parameters.values() if isinstance(value, dict))]
    return [str(each["rope_type"]) for each in sets if "rope_type" in each]
