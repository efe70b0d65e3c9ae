"""LongBench rows as examples, and what a row must hold."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from importlib.metadata import version
from itertools import islice
from typing import Any

from inertia.benchmarks.example import Example
from inertia.benchmarks.longbench.metrics import PARAGRAPH
from inertia.benchmarks.longbench.prompts import template
from inertia.benchmarks.longbench.tasks import HUB, find
from inertia.benchmarks.render import Renderer
from inertia.benchmarks.rows import Part, RowError, Schema, not_blank
from inertia.benchmarks.sources import Loads
from inertia.benchmarks.tasks import at_least, no_length

FIELDS = {"_id": str, "input": str, "context": str, "answers": [str], "length": int, "all_classes": [str]}
"""The official fields that are used; `length` counts words."""

# What the metric looks for in every reference: one without it scores 0 whatever is said, or cannot be scored.
_GOLD = {"retrieval": PARAGRAPH, "count": re.compile(r"\d+")}


def schema(task: str) -> Schema:
    """Return what a row of `task` must hold; the mirrors' `question` serves as the official `input`."""
    kind, asks = find(task), template(task).asks
    texts = not_blank("context", "answers", *(["input"] if asks else []))

    def check(row: Mapping[str, Any]) -> None:
        texts(row)
        if row["length"] < 0:
            raise RowError("length", f"at least 0 wanted, got {row['length']}")
        if kind.metric == "classification" and not row["all_classes"]:
            raise RowError("all_classes", "the names of the classes wanted, got none")
        if (gold := _GOLD.get(kind.metric)) and not all(map(gold.search, row["answers"])):
            raise RowError("answers", f"each must hold {gold.pattern!r}, got {row['answers']!r}")

    return Schema(FIELDS, frozenset({"_id", "all_classes"}), "_id", _spelled, check)


def _spelled(row: Mapping[str, Any]) -> Iterable[Part]:
    return (("", row if "input" in row or "question" not in row else {**row, "input": row["question"]}),)


def examples(
    task: str, length: int | None, count: int, seed: int, renderer: Renderer, *, source: Loads = HUB
) -> Iterator[Example]:
    """Yield the first `count` rows of `task` that serve (all, if it has fewer) in the order of the file.

    Seed and renderer play no part. Nothing is cut here: `limit` says where the renderer cuts in the middle as the
    official code does, and `task_renderer` knows the tasks without template.
    """
    return (_example(task, row) for row in _rows(task, length, count, source))


def ids(task: str, length: int | None, count: int, seed: int, *, source: Loads = HUB) -> list[str]:
    """Return the ids of the first `count` examples."""
    return [_id(task, row) for row in _rows(task, length, count, source)]


def identity(task: str, length: int | None, seed: int, *, source: Loads = HUB) -> dict[str, Any]:
    """Return everything that can change an example or its score."""
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


def limit(task: str, context_window: int, overhead: int) -> int:
    """Return the official limit on prompt tokens of any task: 500 below the window's nominal thousands.

    For instance 3,500 for 4,096; 7,500 for 8,192; 31,500 for 32,768. The template comes on top and plays no part.

    Raises:
        ValueError: If the window is below 2,048 tokens.

    Source: LongBench `config/model2maxlen.json`; windows not listed there follow the same rule.
    """
    if context_window < 2048:
        raise ValueError(f"context window is {context_window}; LongBench's rule needs at least 2048")
    return context_window // 1024 * 1000 - 500


def _rows(task: str, length: int | None, count: int, source: Loads) -> Iterator[Mapping[str, Any]]:
    find(task)
    no_length("LongBench", length)
    at_least(0, count=count)
    return islice(source.load(task, schema(task)).data, count)


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
