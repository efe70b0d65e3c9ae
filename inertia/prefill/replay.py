"""Replays: the prompt's context, asked for again chunk by chunk, so that the model shows what it reads where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

    from inertia.eviction.prefill_session import Observed

NO_TOKENIZER = "prefill=kvzip words its own requests and needs a tokenizer; give one, or another compressor."
MARK = "REPLAYED-CONTEXT-PLACEHOLDER"


class Replay(NamedTuple):
    """One reading of a chunk of the prompt, after the whole prompt.

    Attributes:
        ids: what the model reads after the prompt, at positions T, T + 1, ..: the request, the template's closing, and
            the chunk itself.
        start: position of the chunk's first token in the prompt.
        end: position after its last one.
        opening: tokens of the template before the context.
    """

    ids: tuple[int, ...]
    start: int
    end: int
    opening: int


class ReplayLayer(NamedTuple):
    """One eligible layer of a prompt of T tokens and a replay of N.

    Attributes:
        query: of the replay, [Hq, N, D], rotated.
        keys: of prompt and replay, [Hkv, T + N, D], rotated.
        scaling: factor on q.k.
        replay: what is read.
        layer: index among the eligible layers, 0-based.
        layers: number of eligible layers.
        softcap: tanh cap of the logits, where the model has one.
    """

    query: Tensor
    keys: Tensor
    scaling: float
    replay: Replay
    layer: int
    layers: int
    softcap: float | None = None


def replay_layer(seen: Observed, replay: Replay, layers: int) -> ReplayLayer:
    """Return what one of `layers` eligible layers was given while a replay was read."""
    return ReplayLayer(seen.query, seen.keys, seen.scaling, replay, seen.index, layers, seen.softcap)


@dataclass(frozen=True)
class Wording:
    """How the model is asked for a chunk.

    Attributes:
        first: asks for the context; used for the first chunk.
        later: asks for what follows; the last tokens of the chunk before are put after it.
        lead_in: how many of them.
    """

    kind: ClassVar[str] = "wording"
    first: str = "\n\nWrite out the whole text above once more, word for word."
    later: str = "\n\nWrite out the rest of the text above, word for word, going on from here:"
    lead_in: int = 8


class Frame(NamedTuple):
    """What a chat template puts around the user's words, as ids."""

    opening: tuple[int, ...]
    closing: tuple[int, ...]


def frame(
    tokenizer: PreTrainedTokenizerBase | None, chat_template: bool, template_arguments: Mapping[str, Any] | None = None
) -> Frame:
    """Return what stands before and after the user's words; without a template nothing and a line break.

    Args:
        tokenizer: of the backbone.
        chat_template: whether prompts are rendered with the tokenizer's chat template.
        template_arguments: variables that prompts are rendered with.

    Raises:
        ValueError: there is no tokenizer, it has no template, or its template does not keep the user's words together.
    """
    if tokenizer is None:
        raise ValueError(NO_TOKENIZER)
    if not chat_template:
        return Frame((), encode(tokenizer, "\n"))
    if getattr(tokenizer, "chat_template", None) is None:
        raise ValueError("the tokenizer has no chat template; set chat_template=False, or take an instruct model.")
    turns = [{"role": "user", "content": MARK}]
    text = tokenizer.apply_chat_template(
        turns, tokenize=False, add_generation_prompt=True, **(template_arguments or {})
    )
    parts = text.split(MARK)
    if len(parts) != 2:
        raise ValueError(
            f"the chat template holds the user's words {len(parts) - 1} times, but kvzip needs them once; "
            "set chat_template=False, or take another backbone."
        )
    return Frame(encode(tokenizer, parts[0]), encode(tokenizer, parts[1]))


def replays(
    tokenizer: PreTrainedTokenizerBase | None, ids: Sequence[int], around: Frame, chunk: int, wording: Wording
) -> list[Replay]:
    """Return one replay per chunk of the prompt, its template's opening left out.

    Args:
        tokenizer: of the backbone.
        ids: the part of the prompt that is compressed.
        around: what the template puts around the user's words.
        chunk: tokens per chunk.
        wording: how to ask.

    Raises:
        ValueError: there is no tokenizer.
    """
    if tokenizer is None:
        raise ValueError(NO_TOKENIZER)
    # Where the last token of the opening merges with the context, only the ones before it are the opening's.
    opening = common_prefix(ids, around.opening)
    found = []
    for start in range(opening, len(ids), chunk):
        end = min(start + chunk, len(ids))
        request = encode(tokenizer, wording.first)
        if start > opening:
            request = encode(tokenizer, wording.later) + tuple(ids[max(start - wording.lead_in, opening) : start])
        found.append(Replay((*request, *around.closing, *ids[start:end]), start, end, opening))
    return found


def encode(tokenizer: PreTrainedTokenizerBase, text: str) -> tuple[int, ...]:
    """Return the ids of a piece of text, without special tokens of the tokenizer's own."""
    return tuple(tokenizer.encode(text, add_special_tokens=False)) if text else ()


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """Return how many items two sequences share from their start."""
    count = 0
    for a, b in zip(first, second, strict=False):
        if a != b:
            break
        count += 1
    return count
