"""LongBench-v2 rows as examples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from itertools import islice
from typing import Any

from inertia.benchmarks.example import Example
from inertia.benchmarks.longbench_v2.prompts import OURS, Prompts, fill
from inertia.benchmarks.longbench_v2.schema import FACTS, SCHEMA
from inertia.benchmarks.longbench_v2.tasks import DATA, HUB, LETTERS, MAX_PROMPT_TOKENS, find
from inertia.benchmarks.render import Renderer
from inertia.benchmarks.sources import Loads


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

    The examples of a two-call task are its first call; `follow_up` makes the second. Nothing is cut here:
    give the renderer `max_prompt_tokens` (see `prompt_limit`).

    Args:
        task: A name in `TASKS`.
        length: None; the questions have a class of length (in the metadata), no nominal one.
        count: Number of examples.
        seed: Plays no part; the rows are fixed.
        renderer: Plays no part.
        source: The data.
        prompts: The wording.

    Raises:
        ValueError: If the task is unknown, a length is given or `count` is negative.
        DataError: If no row serves.

    Deviations: decoding is left to the harness; the official code samples at temperature 0.1 in 16 processes,
    which moves scores by one or two points from run to run.
    """
    _check(task, length, count)
    return (_example(task, row, prompts) for row in islice(source.load(DATA, SCHEMA).data, count))


def ids(task: str, length: int | None, count: int, seed: int, *, source: Loads = HUB) -> list[str]:
    """Return the ids of the examples that `examples` would yield for the same arguments."""
    _check(task, length, count)
    return [f"{task}/{row['_id']}" for row in islice(source.load(DATA, SCHEMA).data, count)]


def identity(
    task: str, length: int | None, seed: int, *, source: Loads = HUB, prompts: Prompts = OURS
) -> dict[str, Any]:
    """Return every field, besides the renderer's, that can change an example or its score; JSON-able.

    Where the data lie is no part of it, nor is the seed.

    Raises:
        ValueError: If the task is unknown.
    """
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
    """Return the second call of a two-call example: question and reasoning, no document, same id.

    Args:
        example: The first call.
        reasoning: Its answer; stripped here.
        prompts: The wording of the first call.

    Raises:
        ValueError: If the task has one call only.
    """
    limit = find(example.task).answer_tokens
    if limit is None:
        raise ValueError(f"LongBench-v2 task {example.task!r} has one call only, so no follow-up")
    values = {**example.metadata["fields"], "$COT$": reasoning}
    return replace(example, context="", question=fill(prompts.cot_answer, values), max_new_tokens=limit)


def prompt_limit(task: str, context_window: int, overhead: int) -> int:
    """Return the limit on prompt tokens: 120,000, or what a shorter window leaves.

    Args:
        task: A name in `TASKS`.
        context_window: The model's, in tokens.
        overhead: Tokens of the chat template around an empty turn.

    Raises:
        ValueError: If nothing is left.
    """
    kind = find(task)
    # A token has at least one character, so the stem takes no more tokens than that.
    room = context_window - kind.max_new_tokens - overhead - len(kind.stem)
    if room < 2:
        raise ValueError(f"a window of {context_window} tokens leaves no room for a prompt of task {task!r}")
    return min(MAX_PROMPT_TOKENS, room)


limit = prompt_limit


def protocol(task: str) -> str:
    """Return how a task is answered: "generate", "two_calls" or "forced_choice"."""
    kind = find(task)
    return "two_calls" if kind.answer_tokens is not None else "forced_choice" if kind.stem else "generate"


def _check(task: str, length: int | None, count: int) -> None:
    find(task)
    if length is not None:
        raise ValueError(f"LongBench-v2 has no nominal lengths, got {length}; set length to null")
    if count < 0:
        raise ValueError(f"count is {count}; allowed: at least 0")


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
