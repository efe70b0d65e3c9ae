"""LongBench-v2 rows as examples, and what a row must hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from itertools import islice
from typing import Any

from inertia.benchmarks.example import Example
from inertia.benchmarks.longbench_v2.prompts import OURS, Prompts, fill
from inertia.benchmarks.longbench_v2.tasks import ANSWER_STEM, DATA, HUB, LETTERS, MAX_PROMPT_TOKENS, find
from inertia.benchmarks.render import Renderer
from inertia.benchmarks.rows import RowError, Schema, not_blank
from inertia.benchmarks.sources import Loads
from inertia.benchmarks.tasks import at_least, no_length

FACTS = ("domain", "sub_domain", "difficulty", "length")
TEXTS = ("_id", "question", *(f"choice_{letter}" for letter in LETTERS), "context")

_ALLOWED = {"answer": LETTERS, "difficulty": ("easy", "hard"), "length": ("short", "medium", "long")}
_texts = not_blank(*TEXTS)


def _check(row: Mapping[str, Any]) -> None:
    _texts(row)
    for name, allowed in _ALLOWED.items():
        if row[name] not in allowed:
            raise RowError(name, f"one of {', '.join(allowed)} wanted, got {row[name]!r}")


SCHEMA = Schema(dict.fromkeys((*TEXTS, "answer", *FACTS), str), unique="_id", check=_check)
"""The official fields."""


def examples(
    task: str,
    length: int | None,
    count: int,
    seed: int,
    renderer: Renderer,
    *,
    source: Loads = HUB,
    prompts: Prompts = OURS,
) -> Iterator[Example]:
    """Yield the first `count` questions that serve (all, if there are fewer) in the order of the file.

    The examples of a two-call task are its first call; `follow_up` makes the second. Seed and renderer play no part.
    Nothing is cut here: `limit` says where the renderer cuts. The questions have a class of length (in the metadata),
    no nominal one.

    Deviations: decoding is left to the harness; the official code samples at temperature 0.1 in 16 processes,
    which moves scores by one or two points from run to run.
    """
    return (_example(task, row, prompts) for row in _rows(task, length, count, source))


def ids(task: str, length: int | None, count: int, seed: int, *, source: Loads = HUB) -> list[str]:
    """Return the ids of the first `count` examples."""
    return [f"{task}/{row['_id']}" for row in _rows(task, length, count, source)]


def identity(
    task: str, length: int | None, seed: int, *, source: Loads = HUB, prompts: Prompts = OURS
) -> dict[str, Any]:
    """Return everything that can change an example or its score."""
    rows = source.load(DATA, SCHEMA)
    return {
        "name": "longbench_v2",
        "task": task,
        "length": length,
        "parameters": asdict(find(task)),
        "prompts": prompts.label,
        "prompts_sha256": prompts.sha256,
        "rows_sha256": rows.sha256,
        "rows_refused": len(rows.refused),
    }


def follow_up(example: Example, reasoning: str, prompts: Prompts = OURS) -> Example:
    """Return the second call of a two-call example, in the same wording: question and reasoning, no document, same id.

    Raises:
        ValueError: If the task has one call only.
    """
    answer_tokens = find(example.task).answer_tokens
    if answer_tokens is None:
        raise ValueError(f"LongBench-v2 task {example.task!r} has one call only, so no follow-up")
    values = {**example.metadata["fields"], "$COT$": reasoning}
    return replace(example, context="", question=fill(prompts.cot_answer, values), max_new_tokens=answer_tokens)


def reference_answer(example: Example) -> str:
    """Return the official answer sentence with the right letter: a letter alone is no answer that was asked for."""
    return f"{ANSWER_STEM}{example.references[0]})"


def limit(task: str, context_window: int, overhead: int) -> int:
    """Return the limit on prompt tokens: 120,000, or what a shorter window and the template's tokens leave.

    Raises:
        ValueError: If nothing is left.
    """
    kind = find(task)
    # A token has at least one character, so the stem takes no more tokens than that.
    room = context_window - kind.max_new_tokens - overhead - len(kind.stem)
    if room < 2:
        raise ValueError(f"a window of {context_window} tokens leaves no room for a prompt of task {task!r}")
    return min(MAX_PROMPT_TOKENS, room)


def protocol(task: str) -> str:
    """Return how a task is answered: "generate", "two_calls" or "forced_choice"."""
    kind = find(task)
    return "two_calls" if kind.answer_tokens is not None else "forced_choice" if kind.stem else "generate"


def _rows(task: str, length: int | None, count: int, source: Loads) -> Iterator[Mapping[str, Any]]:
    find(task)
    no_length("LongBench-v2", length)
    at_least(0, count=count)
    return islice(source.load(DATA, SCHEMA).data, count)


def _example(task: str, row: Mapping[str, Any], prompts: Prompts) -> Example:
    kind = find(task)
    fields = {"$Q$": row["question"]} | {f"$C_{letter}$": row[f"choice_{letter}"] for letter in LETTERS}
    before, document, after = getattr(prompts, kind.prompt).partition("$DOC$")
    return Example(
        id=f"{task}/{row['_id']}",
        task=task,
        length=None,
        context=fill(before + document, {**fields, "$DOC$": row["context"]}),
        question=fill(after, fields),
        answer_prefix="",
        references=(row["answer"],),
        max_new_tokens=kind.max_new_tokens,
        metadata={
            **{f"{fact}_class" if fact == "length" else fact: row[fact] for fact in FACTS},
            "stem": kind.stem,
            "options": list(LETTERS),
            "fields": fields,
            "sanitised": row["sanitised"],
        },
    )
