"""What a LongBench-v2 row must hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inertia.benchmarks.longbench_v2.tasks import LETTERS
from inertia.benchmarks.rows import RowError, Schema, not_blank

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
