"""What a LongBench row must hold."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from inertia.benchmarks.longbench.metrics import PARAGRAPH
from inertia.benchmarks.longbench.prompts import template
from inertia.benchmarks.longbench.tasks import find
from inertia.benchmarks.rows import Part, RowError, Schema, not_blank

FIELDS = {"_id": str, "input": str, "context": str, "answers": [str], "length": int, "all_classes": [str]}
"""The official fields that are used; `length` counts words."""

# What the metric looks for in every reference: one without it scores 0 whatever is said, or cannot be scored.
_GOLD = {"retrieval": PARAGRAPH, "count": re.compile(r"\d+")}


def schema(task: str) -> Schema:
    """Return what a row of `task` must hold; the mirrors' `question` serves as the official `input`.

    Raises:
        ValueError: If the task is unknown.
    """
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
