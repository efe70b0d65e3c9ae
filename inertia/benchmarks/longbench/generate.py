"""LongBench rows as examples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from importlib.metadata import version
from itertools import islice
from typing import Any

from inertia.benchmarks.example import Example
from inertia.benchmarks.longbench.prompts import template
from inertia.benchmarks.longbench.schema import schema
from inertia.benchmarks.longbench.tasks import HUB, find
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
) -> Iterator[Example]:
    """Yield the first `count` rows of `task` that serve (all, if it has fewer) in the order of the file.

    Nothing is cut here: give the renderer `max_prompt_tokens` (see `prompt_limit`), which cuts in the middle
    as the official code does, and pass it through `task_renderer`, which knows the tasks without template.

    Args:
        task: A name in `TASKS`.
        length: None; LongBench has no nominal lengths.
        count: Number of examples.
        seed: Plays no part; the rows are fixed.
        renderer: Plays no part.
        source: The data; the official field `input` or the mirrors' `question` both serve.

    Raises:
        ValueError: If the task is unknown, a length is given or `count` is negative.
        DataError: If no row serves.
    """
    _check(task, length, count)
    rows = islice(source.load(task, schema(task)).data, count)
    return (_example(task, row) for row in rows)


def ids(task: str, length: int | None, count: int, seed: int, *, source: Loads = HUB) -> list[str]:
    """Return the ids of the examples that `examples` would yield for the same arguments."""
    _check(task, length, count)
    return [_id(task, row) for row in islice(source.load(task, schema(task)).data, count)]


def identity(task: str, length: int | None, seed: int, *, source: Loads = HUB) -> dict[str, Any]:
    """Return every field, besides the renderer's, that can change an example or its score; JSON-able.

    Where the data lie is no part of it, nor is the seed.

    Raises:
        ValueError: If the task is unknown.
    """
    kind, rows = find(task), source.load(task, schema(task))
    return {
        "name": "longbench",
        "task": task,
        "length": length,
        "parameters": asdict(kind),
        "rouge": version("rouge") if kind.metric == "rouge_l" else None,
        "prompt_sha256": template(task).sha256,
        "rows_sha256": rows.sha256,
        "rows_refused": len(rows.refused),
    }


def task_renderer(task: str, renderer: Renderer) -> Renderer:
    """Return `renderer` for `task`: without chat template for the tasks that the official code leaves bare.

    Source: LongBench `pred.py`: trec, triviaqa, samsum, lcc, repobench-p (and the Chinese lsht).
    """
    return renderer if find(task).chat_template else replace(renderer, chat_template=False)


def prompt_limit(context_window: int) -> int:
    """Return the official limit on prompt tokens for a model's window: 500 below its nominal thousands.

    For instance 3,500 for 4,096; 7,500 for 8,192; 31,500 for 32,768.

    Raises:
        ValueError: If the window is below 2,048 tokens.

    Source: LongBench `config/model2maxlen.json`; windows not listed there follow the same rule.
    """
    if context_window < 2048:
        raise ValueError(f"context window is {context_window}; LongBench's rule needs at least 2048")
    return context_window // 1024 * 1000 - 500


def limit(task: str, context_window: int, overhead: int) -> int:
    """Return the official limit on prompt tokens of any task; the template comes on top and plays no part."""
    return prompt_limit(context_window)


def _check(task: str, length: int | None, count: int) -> None:
    find(task)
    if length is not None:
        raise ValueError(f"LongBench has no nominal lengths, got {length}; set length to null")
    if count < 0:
        raise ValueError(f"count is {count}; allowed: at least 0")


def _id(task: str, row: Mapping[str, Any]) -> str:
    return f"{task}/{row['_id'] if row['_id'] is not None else format(row['row'], '04d')}"


def _example(task: str, row: Mapping[str, Any]) -> Example:
    kind, prompt = find(task), template(task)
    return Example(
        id=_id(task, row),
        task=task,
        length=None,
        context=prompt.before + row["context"],
        question=prompt.question(row["input"]),
        answer_prefix="",
        references=tuple(row["answers"]),
        max_new_tokens=kind.max_new_tokens,
        metadata={
            "words": row["length"],
            "all_classes": row["all_classes"],
            "chat_template": kind.chat_template,
            "stop": list(kind.stop),
            "min_new_tokens": kind.min_new_tokens,
            "sanitised": row["sanitised"],
        },
    )
