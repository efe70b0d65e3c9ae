"""From an example to token ids: chat template, BOS once, answer prefix, truncation in the middle."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from inertia.benchmarks.example import Example

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# Stands for the user turn when the template's own text is measured: no blanks, so no template trims it.
_PLACEHOLDER = "USER-TURN-PLACEHOLDER"

# Llama 3.2's template prints today's date unless told one; a prompt must not depend on the day.
_TEMPLATE_DATE = "26 Jul 2024"


@dataclass(frozen=True)
class Prompt:
    """What the model reads.

    Attributes:
        ids: Token ids, BOS included where there is one.
        text: The rendered text `ids` were made from (a BOS the tokenizer adds is not spelled out).
        context_end: Index of the first token not wholly inside the context: `ids[:context_end]` is the
            template's opening and the context, cut on a token boundary of the joint rendering.
        truncated: Whether the middle of the user turn was cut out.
        sanitised: Whether lone surrogates were replaced by U+FFFD.
        sha256: Of the ids.
    """

    ids: tuple[int, ...]
    text: str
    context_end: int
    truncated: bool
    sanitised: bool
    sha256: str


class _Turn(NamedTuple):
    """A text and the number of its characters that belong to the context (or come before it)."""

    text: str
    context_chars: int


@dataclass(frozen=True)
class Renderer:
    """Renders examples for one tokenizer; a value without state of its own.

    The answer prefix is joined to the rendered text rather than sent as an assistant message: templates trim
    the blanks of such a message, and some refuse it. Only a user message is sent, so templates without a
    system role and templates that insist on alternating roles serve as they are. BOS stands exactly once when
    either the template or the tokenizer supplies it.

    Attributes:
        tokenizer: A fast tokenizer (character offsets are needed).
        chat_template: Whether to wrap the user turn in the tokenizer's chat template; base models take the
            plain text.
        max_prompt_tokens: Longest user turn, in tokens of the turn tokenised by itself with special tokens;
            None means no limit. A longer turn keeps its first and last `max_prompt_tokens // 2` tokens. The
            template and the answer prefix come on top: compare the window with `len(prompt.ids)`.
        template_arguments: Extra variables of the chat template, for instance `{"enable_thinking": False}`.

    Raises:
        ValueError: If the tokenizer is not a fast one, has no chat template where one is asked for, or
            `max_prompt_tokens` is below 2.

    Source: LongBench `pred.py` for the truncation (limit on the bare prompt, halves decoded without special
    tokens, then wrapped in the template and tokenised again).

    Deviations: none from that rule. The context of a truncated turn ends where the question starts, counted
    from the end of the cut text; where the question itself was cut, nothing after the head counts as context.
    """

    tokenizer: PreTrainedTokenizerFast
    chat_template: bool
    max_prompt_tokens: int | None = None
    template_arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if not self.tokenizer.is_fast:
            raise ValueError(f"{type(self.tokenizer).__name__} gives no character offsets; load the fast tokenizer")
        if self.chat_template and not self.tokenizer.chat_template:
            raise ValueError(
                "chat_template is true but the tokenizer has no chat template; set chat_template to false "
                "(base model) or load a tokenizer that has one"
            )
        if self.max_prompt_tokens is not None and self.max_prompt_tokens < 2:
            raise ValueError(
                f"max_prompt_tokens is {self.max_prompt_tokens}; allowed: at least 2, or None for no limit"
            )

    def render(self, example: Example) -> Prompt:
        """Return the prompt of `example`.

        Raises:
            ValueError: If the chat template rewrites the user turn (other than trimming its ends).
        """
        given = (example.context, example.question, example.answer_prefix)
        context, question, prefix = clean = tuple(map(sanitise, given))
        turn, truncated = self._truncate(context, question)
        text, context_chars = self._wrap(turn)
        text += prefix
        encoding = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        leading = self._leading(encoding["input_ids"])
        ids = (*leading, *encoding["input_ids"])
        ends = (end for _, end in encoding["offset_mapping"])
        context_end = next((i for i, end in enumerate(ends) if end > context_chars), len(ids) - len(leading))
        return Prompt(
            ids=ids,
            text=text,
            context_end=len(leading) + context_end,
            truncated=truncated,
            sanitised=clean != given,
            sha256=hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest(),
        )

    def count(self, example: Example) -> int:
        """Return the number of tokens of the whole prompt of `example`, before any truncation."""
        turn = _Turn(sanitise(example.context + example.question), 0)
        ids = self._encode(self._wrap(turn).text + sanitise(example.answer_prefix))
        return len(self._leading(ids)) + len(ids)

    def count_text(self, text: str) -> int:
        """Return the number of tokens of a bare text: no template, no special tokens."""
        return len(self._encode(text))

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]

    def _leading(self, ids: list[int]) -> tuple[int, ...]:
        """The BOS to put in front of `ids`, if one is due and missing."""
        bos = self.tokenizer.bos_token_id
        return (bos,) if self._adds_bos and ids[:1] != [bos] else ()

    @cached_property
    def _adds_bos(self) -> bool:
        bos = self.tokenizer.bos_token_id
        return bos is not None and bos in self.tokenizer("")["input_ids"]

    def _apply(self, content: str) -> str:
        return self.tokenizer.apply_chat_template(
            [{"role": "user", "content": content}],
            tokenize=False,
            add_generation_prompt=True,
            **self.template_variables,
        )

    @property
    def template_variables(self) -> dict[str, Any]:
        """Everything the chat template is given beside the messages."""
        return {"date_string": _TEMPLATE_DATE, **self.template_arguments}

    @cached_property
    def _frame(self) -> tuple[str, str]:
        """The template's text before and after the user turn."""
        before, _, after = self._apply(_PLACEHOLDER).partition(_PLACEHOLDER)
        return before, after

    def _wrap(self, turn: _Turn) -> _Turn:
        if not self.chat_template:
            return turn
        before, after = self._frame
        text = self._apply(turn.text)
        inner = text[len(before) : len(text) - len(after)]
        kept_start = inner in (turn.text, turn.text.rstrip())
        copied = kept_start or inner in (turn.text.lstrip(), turn.text.strip())
        if before + inner + after != text or not copied:
            raise ValueError(
                "the chat template rewrites the user turn, so the end of the context cannot be located; "
                "use a template that copies the message, or set chat_template to false"
            )
        lost = 0 if kept_start else len(turn.text) - len(turn.text.lstrip())
        return _Turn(text, len(before) + min(max(turn.context_chars - lost, 0), len(inner)))

    def _truncate(self, context: str, question: str) -> tuple[_Turn, bool]:
        text = context + question
        if self.max_prompt_tokens is None:
            return _Turn(text, len(context)), False
        ids = self.tokenizer(text, verbose=False)["input_ids"]
        if len(ids) <= self.max_prompt_tokens:
            return _Turn(text, len(context)), False
        half = self.max_prompt_tokens // 2
        head = self.tokenizer.decode(ids[:half], skip_special_tokens=True)
        text = head + self.tokenizer.decode(ids[-half:], skip_special_tokens=True)
        return _Turn(text, max(min(len(head), len(context)), len(text) - len(question))), True


def sanitise(text: str) -> str:
    """Return `text` with lone surrogates replaced by U+FFFD: no tokenizer or parquet file takes them."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
