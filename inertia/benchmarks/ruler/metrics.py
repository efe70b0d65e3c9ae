"""RULER's scores, and cheap numbers that show how an answer earned its score."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from inertia.benchmarks.ruler.tasks import find

_PART_TASKS = frozenset({"qa_1", "qa_2"})


def postprocess(prediction: str) -> str:
    """Return the answer as it is scored: stripped, control characters U+0000 to U+001F as line breaks."""
    return re.sub(r"[\x00-\x1f]", "\n", prediction.strip()).strip()


def string_match_all(prediction: str, references: Sequence[str]) -> float:
    """Return the share of `references` found in `prediction`, case-insensitively, anywhere."""
    return sum(_hits(prediction, references)) / len(references)


def string_match_part(prediction: str, references: Sequence[str]) -> float:
    """Return 1 if any of `references` is found in `prediction`, case-insensitively, anywhere; else 0."""
    return float(max(_hits(prediction, references)))


def score(task: str, prediction: str, references: Sequence[str], metadata: Mapping[str, Any] | None = None) -> float:
    """Return the official score of one answer, in [0, 1]; the published number is the mean times 100.

    All references are wanted, except in the QA tasks, where any will do (in the comparison tasks all there too, as
    lm-eval has it).

    Raises:
        ValueError: If the task is unknown or there is no reference.

    Source: RULER `eval/synthetic/constants.py` and `eval/evaluate.py`.

    Deviations: none.
    """
    find(task)
    if not references:
        raise ValueError(f"RULER task {task!r}: an answer cannot be scored against no references")
    match = string_match_part if task in _PART_TASKS else string_match_all
    return match(postprocess(prediction), references)


def diagnostics(
    task: str, prediction: str, references: Sequence[str], metadata: Mapping[str, Any] | None = None
) -> dict[str, float]:
    """Return numbers beside the score, which is recall only: a model that prints everything wins it.

    Task and metadata play no part.

    Returns:
        `answer_characters` and `answer_words` of the post-processed answer; `empty`, 1 if nothing is left of
        it; `references_found`, their number; `precision`, the share of the answer's distinct words that
        belong to a found reference (0 for an empty answer); list numbers of one or two digits are not counted
        as words.
    """
    answer = postprocess(prediction)
    words = {word for word in re.findall(r"[\w-]+", answer.lower()) if not re.fullmatch(r"\d{1,2}", word)}
    found = [reference for reference, hit in zip(references, _hits(answer, references), strict=True) if hit]
    wanted = {word for reference in found for word in re.findall(r"[\w-]+", reference.lower())}
    return {
        "answer_characters": float(len(answer)),
        "answer_words": float(len(answer.split())),
        "empty": float(not answer),
        "references_found": float(len(found)),
        "precision": len(words & wanted) / len(words) if words else 0.0,
    }


def _hits(prediction: str, references: Sequence[str]) -> list[bool]:
    return [reference.lower() in prediction.lower() for reference in references]
