"""Scores of answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inertia.benchmarks.longbench.metrics import METRICS
from inertia.benchmarks.longbench.rouge import rouge_l
from inertia.benchmarks.longbench.tasks import find
from inertia.benchmarks.text_metrics import exact_match, rouge_l_f, shape


def scored_text(task: str, prediction: str) -> str:
    """Return the part of an answer that counts: all of it, or its first line after leading line breaks."""
    return prediction.lstrip("\n").split("\n")[0] if find(task).first_line else prediction


def score(task: str, prediction: str, references: Sequence[str], metadata: Mapping[str, Any] | None = None) -> float:
    """Return the official score of one answer, the best over its references, in [0, 1].

    Of the metadata the classification task needs `all_classes`.

    Raises:
        ValueError: If the task is unknown, there is no reference, or the class names are missing.

    Source: LongBench `eval.py` and `metrics.py`.

    Deviations: none.
    """
    kind = find(task)
    if not references:
        raise ValueError(f"LongBench task {task!r}: an answer cannot be scored against no references")
    classes = (metadata or {}).get("all_classes") or ()
    if kind.metric == "classification" and not classes:
        raise ValueError(f"LongBench task {task!r} is scored against metadata 'all_classes', which is missing")
    text, metric = scored_text(task, prediction), METRICS[kind.metric]
    return max(metric(text, reference, classes) for reference in references)


def diagnostics(
    task: str, prediction: str, references: Sequence[str], metadata: Mapping[str, Any] | None = None
) -> dict[str, float]:
    """Return numbers beside the score; `metadata` plays no part.

    Returns:
        What `text_metrics.shape` gives; `exact_match`; `rouge_score_l`, the best ROUGE-L of the package
        `rouge_score`, which does punish loops; and for the ROUGE tasks `rouge_empty` and `rouge_recursion`, 1
        where the official ROUGE gave up on every reference for that reason and its 0 says nothing.
    """
    text = scored_text(task, prediction)
    numbers = shape(text) | {
        "exact_match": exact_match(text, references),
        "rouge_score_l": max(rouge_l_f(text, reference) for reference in references),
    }
    if find(task).metric == "rouge_l":
        failures = {rouge_l(text, reference).failure for reference in references}
        numbers |= {f"rouge_{reason}": float(failures == {reason}) for reason in ("empty", "recursion")}
    return numbers
