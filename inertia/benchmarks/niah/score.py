"""Scores of the needle grid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inertia.benchmarks.niah.tasks import find
from inertia.benchmarks.text_metrics import exact_match, rouge_l_f, shape


def score(task: str, prediction: str, references: Sequence[str], metadata: Mapping[str, Any] | None = None) -> float:
    """Return the ROUGE-L F of the answer against the needle sentence (the best of the references), in [0, 1].

    Raises:
        ValueError: If the task is unknown or there is no reference.

    Source: package `rouge_score`; the paper says ROUGE-L F and no more.

    Deviations: the paper's needle, haystack and question are not published; ours are ours.
    """
    find(task)
    if not references:
        raise ValueError(f"needle task {task!r}: an answer cannot be scored against no references")
    return max(rouge_l_f(prediction, reference) for reference in references)


def diagnostics(task: str, prediction: str, references: Sequence[str], metadata: Mapping[str, Any]) -> dict[str, float]:
    """Return numbers beside the score.

    Returns:
        `hit`, 1 if the answer holds the needle's two own words (any case); `exact_match` of the normalised
        sentence; and what `text_metrics.shape` gives.
    """
    return {
        "hit": float(metadata["answer"].lower() in prediction.lower()),
        "exact_match": exact_match(prediction, references),
        **shape(prediction),
    }
