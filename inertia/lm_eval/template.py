"""Messages through a model's chat template, with two repairs: begun answers and missing system roles."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from inertia.benchmarks.render import Renderer

log = logging.getLogger(__name__)


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
    messages, begun = list(history), ""
    if not add_generation_prompt and messages[-1]["role"] == "assistant":
        begun = messages.pop()["content"]
    system = messages[0]["content"] if messages[0]["role"] == "system" else ""
    try:
        text = render(tokenizer, messages)
        if system.strip() in text:
            return text + begun
        reason = "drops system messages"
    except Exception as error:  # noqa: BLE001 - templates are programs, and raise what they like
        if not system:
            raise ValueError(f"the chat template refuses the messages: {error}") from error
        reason = f"refuses system messages ({error})"
    log.warning("the chat template %s; they go in front of the first user message", reason)
    first, *rest = messages[1:]
    folded = {**first, "content": f"{system}\n\n{first['content']}"}
    return render(tokenizer, [folded, *rest]) + begun


def render(tokenizer: Any, messages: list[Mapping[str, str]]) -> str:
    """Return messages in the template's words, with the generation prompt."""
    variables = Renderer(tokenizer, True).template_variables
    return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **variables)
