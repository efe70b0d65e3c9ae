"""How much of the list came back, in its order."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

from inertia.benchmarks.recite.tasks import find
from inertia.benchmarks.recite.texts import PREFIX
from inertia.benchmarks.text_metrics import shape

_LINE = re.compile(r"^\W*(\d+)\s*[.:)]\W*(.+?)\W*$")


def entries(prediction: str) -> list[tuple[int, str]]:
    """Return the numbered lines of an answer, whose prompt ended with the first number: number and value.

    Case, blanks and marks around a value do not matter; other lines are left out.
    """
    lines = [_LINE.match(line) for line in (PREFIX + prediction).split("\n")]
    return [(int(found[1]), plain(found[2])) for found in lines if found]


def numbered(references: Sequence[str]) -> list[tuple[int, str]]:
    """Return the list as its right answer would be read."""
    return [(number, plain(value)) for number, value in enumerate(references, 1)]


def plain(value: str) -> str:
    """Return a value in lower case, blanks collapsed."""
    return " ".join(value.lower().split())


def score(task: str, prediction: str, references: Sequence[str], metadata: Mapping[str, Any] | None = None) -> float:
    """Return the share of the list's items that the answer has right and in order, in [0, 1].

    It is the longest common subsequence of both lists: a skipped or wrong item costs itself only, an item repeated or
    moved counts at most once.

    Raises:
        ValueError: the task is unknown or the list is empty.
    """
    find(task)
    if not references:
        raise ValueError(f"recite task {task!r}: an answer cannot be scored against an empty list")
    return common(entries(prediction), numbered(references)) / len(references)


def diagnostics(
    task: str, prediction: str, references: Sequence[str], metadata: Mapping[str, Any] | None = None
) -> dict[str, float]:
    """Return numbers beside the score.

    Returns:
        `before_error`, the share of the list before the first item that is wrong or missing; `lines`, the answer's
        numbered lines per item of the list; `values_found`, the share of items whose value occurs under any number;
        and what `text_metrics.shape` gives.
    """
    found, wanted = entries(prediction), numbered(references)
    right = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(found, wanted, strict=False)))
    values = {value for _, value in found}
    return {
        "before_error": right / len(wanted),
        "lines": len(found) / len(wanted),
        "values_found": sum(value in values for _, value in wanted) / len(wanted),
        **shape(prediction),
    }


def common(left: Sequence[Any], right: Sequence[Any]) -> int:
    """Return the length of the longest common subsequence."""
    row = [0] * (len(right) + 1)
    for a in left:
        before = row
        row = [0]
        for place, b in enumerate(right):
            row.append(before[place] + 1 if a == b else max(before[place + 1], row[place]))
    return row[-1]
