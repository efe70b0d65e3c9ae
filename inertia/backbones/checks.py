"""What a model must be for eviction to be right, read off its configuration before its weights are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from inertia.backbones.config import BackboneConfig
from inertia.eviction import layers
from inertia.eviction.support import OWN_ATTENTION, attends_by_name, context_window

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase


def check_supported(config: PretrainedConfig) -> None:
    """Refuse a model whose evicted cache cannot be right.

    Raises:
        ValueError: names the property that rules the model out.
    """
    text = config.get_text_config(decoder=True)
    for reason in _objections(config, text):
        raise ValueError(f"model type {config.model_type!r} cannot be used: {reason}; choose another backbone")


def check_shape(config: BackboneConfig, loaded: PretrainedConfig) -> None:
    """Compare the declared shape and window with the model's own configuration.

    Raises:
        ValueError: names each declared and found value that differ.
    """
    text = loaded.get_text_config(decoder=True)
    shape = {
        "layers": (config.layers, text.num_hidden_layers),
        "query_heads": (config.query_heads, text.num_attention_heads),
        "kv_heads": (config.kv_heads, kv_heads(text)),
    }
    wrong = [f"{name}: declared {want}, found {got}" for name, (want, got) in shape.items() if want != got]
    if wrong:
        raise ValueError(
            f"backbone {config.name!r} is not the model it declares ({'; '.join(wrong)}); "
            "correct repo, revision or path, or the declared values if the model is meant"
        )
    window = context_window(loaded)
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


def check_vocabulary(loaded: PretrainedConfig, tokenizer: PreTrainedTokenizerBase) -> None:
    """Refuse a tokenizer that gives ids which the model has no embedding for.

    Raises:
        ValueError: names the largest id and the embedding's rows.
    """
    rows = loaded.get_text_config(decoder=True).vocab_size
    token, largest = max(tokenizer.get_vocab().items(), key=lambda item: item[1])
    if largest >= rows:
        raise ValueError(
            f"the tokenizer gives {token!r} the id {largest}, but the model embeds ids 0 to {rows - 1} only: model and "
            "tokenizer do not belong together; take both from one place"
        )


def check_weights(config: BackboneConfig, absent: Iterable[str], unexpected: Iterable[str]) -> None:
    """Refuse files whose weights are not the model's.

    transformers fills what is missing with random numbers and leaves out what it has no place for, and only warns.

    Args:
        config: the backbone.
        absent: weights that the files lack, or hold in another shape.
        unexpected: weights that the model has no place for.

    Raises:
        RuntimeError: there are some; of the unexpected ones, where `allow_unexpected_weights` is not set.
    """
    if lacking := sorted(map(str, absent)):
        raise RuntimeError(
            f"the files of backbone {config.name!r} lack {len(lacking)} of its weights ({_some(lacking)}); they are "
            "damaged or of another model"
        )
    if (extra := sorted(map(str, unexpected))) and not config.allow_unexpected_weights:
        raise RuntimeError(
            f"the files of backbone {config.name!r} hold {len(extra)} weights that the model has no place for "
            f"({_some(extra)}), so that it would not be the model that was trained; correct its config.json, or, if it "
            "is meant to do without them, set backbone.allow_unexpected_weights=true"
        )


def kv_heads(text: PretrainedConfig) -> int:
    """Return the KV heads per layer that a decoder's config states; as many as query heads where it says nothing."""
    return getattr(text, "num_key_value_heads", None) or text.num_attention_heads


def _some(names: list[str], most: int = 5) -> str:
    """Return the first few names, and how many are left out."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _objections(config: PretrainedConfig, text: PretrainedConfig) -> list[str]:
    from transformers import AutoModelForCausalLM

    from inertia.backbones.attention_adapters import adapts

    if config.is_encoder_decoder:
        return ["it is an encoder-decoder; a prompt is not in the decoder's cache"]
    found = layers.objections(config)
    if getattr(text, "use_bidirectional_attention", None):
        found.append("its attention is bidirectional")
    model_class = AutoModelForCausalLM._model_mapping.get(type(config), None)
    if model_class is not None and not attends_by_name(model_class) and not adapts(model_class):
        found.append(OWN_ATTENTION)
    return found
