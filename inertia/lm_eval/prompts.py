"""From lm-eval's messages and texts to what the model reads."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from inertia.benchmarks.example import Example
from inertia.benchmarks.render import Prompt, Renderer

log = logging.getLogger(__name__)


class FittedPrompt(NamedTuple):
    """A prompt as the model reads it, cut to fit its window.

    Attributes:
        ids: token ids, BOS once where there is one.
        context_end: first token of the question; None where the document does not say.
        truncated: whether its start was cut off.
        sha256: of the whole prompt's ids, before any cut.
    """

    ids: tuple[int, ...]
    context_end: int | None
    truncated: bool
    sha256: str


def fitted(tokenizer: Any, text: str, context_chars: int | None, room: int) -> FittedPrompt:
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
    return FittedPrompt(ids, end, cut > 0, prompt.sha256)


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


def templated(tokenizer: Any, history: Sequence[Mapping[str, str]], add_generation_prompt: bool) -> str:
    """Return messages as the chat template renders them, up to where the model goes on.

    Args:
        tokenizer: with a chat template.
        history: messages with role and content.
        add_generation_prompt: False where the last message is the start of the assistant's turn, to be continued.

    Raises:
        ValueError: the template refuses the messages.

    Deviations: from lm-eval's own HF model: the start of an assistant's turn is appended to the letter after the
    generation prompt, where many templates trim its blanks; a system message that the template refuses or drops goes
    in front of the first user message, and is not lost.
    """

    def rendered(messages: list[Mapping[str, str]]) -> str:
        variables = Renderer(tokenizer, True).template_variables
        return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **variables)

    messages, begun = list(history), ""
    if not add_generation_prompt and messages[-1]["role"] == "assistant":
        begun = messages.pop()["content"]
    system = messages[0]["content"] if messages[0]["role"] == "system" else ""
    try:
        text = rendered(messages)
        if system.strip() in text:
            return text + begun
        reason = "drops system messages"
    except Exception as error:  # noqa: BLE001 - templates are programs, and raise what they like
        if not system:
            raise ValueError(f"the chat template refuses the messages: {error}") from error
        reason = f"refuses system messages ({error})"
    log.warning("the chat template %s; they go in front of the first user message", reason)
    first, *rest = messages[1:]
    return rendered([{**first, "content": f"{system}\n\n{first['content']}"}, *rest]) + begun
