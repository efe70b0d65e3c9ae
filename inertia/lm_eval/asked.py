"""From a request's text to what the model reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inertia.benchmarks.example import Example
from inertia.benchmarks.render import Prompt, Renderer


@dataclass(frozen=True)
class Asked:
    """A prompt as the model reads it.

    Attributes:
        ids: token ids, BOS once where there is one.
        context_end: first token of the question; None where the document does not say.
        truncated: whether its start was cut off to fit the window.
        sha256: of the whole prompt's ids, before any cut.
    """

    ids: tuple[int, ...]
    context_end: int | None
    truncated: bool
    sha256: str


def ask(tokenizer: Any, text: str, context_chars: int | None, room: int) -> Asked:
    """Return the prompt of a text that is rendered already, cut from the left to `room` tokens; BOS stays.

    Args:
        tokenizer: of the model.
        text: template, few-shot examples and all.
        context_chars: characters before the question, or None.
        room: tokens allowed.

    Raises:
        ValueError: there is no room at all.

    Deviations: lm-eval's own HF model cuts BOS off too.
    """
    if room < 1:
        raise ValueError(
            "the new tokens leave no room for a prompt in the model's window; set --gen_kwargs max_gen_toks to less."
        )
    prompt = encode(tokenizer, text, context_chars or 0)
    ids, end = prompt.ids, None if context_chars is None else prompt.context_end
    cut = max(len(ids) - room, 0)
    if cut:
        kept = 1 if ids[0] == tokenizer.bos_token_id and room > 1 else 0
        ids = ids[:kept] + ids[cut + kept :]
        end = None if end is None or end - cut <= kept else end - cut
    return Asked(ids, end, cut > 0, prompt.sha256)


def encode(tokenizer: Any, text: str, context_chars: int = 0) -> Prompt:
    """Return the ids of a text as it stands, BOS once where the tokenizer adds it."""
    bare = Example("", "", None, text[:context_chars], text[context_chars:], "", (), 1)
    return Renderer(tokenizer, False).render(bare)


def context_chars(document: Any, text: str, field: str) -> int | None:
    """Return how many characters of a prompt end with the document's context; None where the prompt lacks it.

    Args:
        document: of a task.
        text: the prompt made from it.
        field: of the document, with the context's text.
    """
    value = document.get(field) if isinstance(document, Mapping) else None
    for known in (value, value.strip()) if isinstance(value, str) else ():
        if known and (at := text.rfind(known)) >= 0:
            return at + len(known)
    return None
