"""The one type every benchmark hands to the harness."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Example:
    """One question of one benchmark, before any tokenizer has seen it.

    The user turn is `context + question`, exactly concatenated.

    Attributes:
        id: Stable name, for instance `niah_single_1/1024/0007`.
        task: Task name within its benchmark.
        length: Nominal size in tokens, new tokens included; None where the benchmark has none.
        context: What a prefill compressor may compress before it sees the question.
        question: The rest of the user turn.
        answer_prefix: Start of the assistant's turn, appended after the generation prompt and kept to the
            letter.
        references: Accepted answers; the task's metric says how they combine.
        max_new_tokens: Decoding limit.
        metadata: JSON-able facts about the example (needle depths, language, ...); never part of the prompt.
    """

    id: str
    task: str
    length: int | None
    context: str
    question: str
    answer_prefix: str
    references: tuple[str, ...]
    max_new_tokens: int
    metadata: Mapping[str, Any] = field(default_factory=dict, hash=False)


def example_id(task: str, length: int, index: int) -> str:
    """Return the id of a generated example."""
    return f"{task}/{length}/{index:04d}"
