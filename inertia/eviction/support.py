"""What the core asks of a model and of a request beside its layer kinds, checked before anything is decoded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from inertia.eviction.layers import layers_of

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


def check_model(model: PreTrainedModel) -> None:
    """Refuse a model whose evicted cache cannot be right.

    Raises:
        ValueError: names the property that rules the model out.
    """
    layers_of(model.config)
    wrapped = any(getattr(module, "attends_by_session", False) for module in model.modules())
    if not wrapped and not attends_by_name(model):
        raise ValueError(
            f"model type {model.config.model_type!r} cannot be used: {OWN_ATTENTION}; load it by inertia.backbones, "
            "which adapts the attention of some such models, or choose another backbone"
        )


OWN_ATTENTION = "its attention does not go through transformers' attention interface, so that nothing can be evicted"


def attends_by_name(model: PreTrainedModel | type[PreTrainedModel]) -> bool:
    """Tell whether a model's attention, or that of its class, is looked up by its name in transformers' registry."""
    return bool(model._can_set_attn_implementation())


def check_ids(model: PreTrainedModel, ids: torch.Tensor) -> None:
    """Refuse ids that the model has no embedding for.

    Raises:
        ValueError: ids that are no integers, or outside the vocabulary.
    """
    import torch

    if ids.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"input ids are {ids.dtype}; give int64 or int32 integers, as a tokenizer does.")
    rows = model.get_input_embeddings().weight.shape[0]
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= rows:
        raise ValueError(
            f"input ids go from {low} to {high}, but the model embeds 0 to {rows - 1}; model and tokenizer do not "
            "belong together, or the ids are damaged."
        )


def context_window(config: Any) -> int | None:
    """Return the positions that a model has, None where its config states no number."""
    text = config.get_text_config(decoder=True)
    return getattr(text, "max_position_embeddings", None) or getattr(text, "max_seq_len", None)


def rotary_changes(config: Any) -> list[tuple[str, int]]:
    """Return the kinds of rotary positions whose frequencies change with length, each with the length where they do."""
    text = config.get_text_config(decoder=True)
    window = context_window(config)
    parameters: dict[str, Any] = getattr(text, "rope_parameters", None) or {}
    # Hybrid models keep one set of parameters per layer type.
    sets = [parameters, *(value for value in parameters.values() if isinstance(value, dict))]
    found = []
    for each in sets:
        kind = str(each.get("rope_type", ""))
        if kind == "longrope":
            original = each.get("original_max_position_embeddings")
            found.append((kind, original or getattr(text, "original_max_position_embeddings", None) or window))
        elif "dynamic" in kind:
            found.append((kind, window))
    return found


def check_length(config: Any, prompt: int, new_tokens: int, first_piece: int) -> None:
    """Refuse lengths over which the rotary frequencies change: cached keys cannot be rotated again.

    LongRoPE has one set of frequencies up to a length and another beyond it; a prompt with its answer must lie on one
    side of it, and is then exact. Dynamic NTK has one up to the window and, beyond it, another at every length.

    Args:
        config: of the model.
        prompt: tokens of the prompt.
        new_tokens: most tokens of the answer, of which the last is never read.
        first_piece: tokens of the prompt that are read first, all of them where it is read at once.

    Raises:
        ValueError: the lengths do not lie on one side.
    """
    last = prompt + new_tokens - 1
    for kind, change in rotary_changes(config):
        short = last <= change and (kind == "longrope" or prompt < change)
        long = kind == "longrope" and first_piece > change
        if not short and not long:
            raise ValueError(
                f"rotary positions of kind {kind!r} change their frequencies beyond {change} tokens, and a prompt of "
                f"{prompt} with {new_tokens} new tokens"
                f"{'' if first_piece == prompt else f' read in pieces of {first_piece}'} crosses that: cached keys "
                "cannot be rotated again. Shorten the prompt or max_new_tokens, or take a backbone with fixed ones."
            )


def rotary_side(config: Any, prompt: int) -> tuple[bool, ...]:
    """Return on which side of each change of the frequencies a prompt lies: a batch has one set for all its rows."""
    return tuple(prompt > change for _, change in rotary_changes(config))


def check_observed(config: Any, *, whole: bool, again: bool) -> None:
    """Refuse to compress, or to read in pieces, a prompt of a model that does not allow it.

    Args:
        config: of the model.
        whole: whether all of the prompt is compressed, not its context alone.
        again: whether the model reads text behind the prompt to do so.

    Raises:
        ValueError: names the property that rules it out.
    """
    for kind, _ in rotary_changes(config):
        raise ValueError(
            f"rotary positions of kind {kind!r} depend on the longest input seen; prompts cannot be compressed, and no "
            "policy can start from what they show; take another backbone, or a policy that acts while decoding."
        )
    if layers_of(config).stateful and (again or not whole):
        raise ValueError(
            f"model type {config.model_type!r} has layers with a state, which cannot be taken back to the end of the "
            "context; compress the whole prompt (question_visible: true), not by replay, or take another backbone."
        )


def check_pieces(config: Any, chunk: int) -> None:
    """Refuse to read a prompt in pieces where layers keep a state: most of them read several tokens only from none.

    Raises:
        ValueError: the model has such layers.
    """
    if layers_of(config).stateful:
        raise ValueError(
            f"execution.prefill_chunk={chunk} reads the prompt in pieces, but model type {config.model_type!r} has "
            "layers with a state, which must read it at once; set execution.prefill_chunk=null."
        )
