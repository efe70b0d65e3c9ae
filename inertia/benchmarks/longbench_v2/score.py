"""Scores of single answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from inertia.benchmarks.longbench_v2.extract import Choice, lenient, strict
from inertia.benchmarks.longbench_v2.tasks import LETTERS, find


def score(task: str, prediction: str, references: Sequence[str], metadata: Mapping[str, Any] | None = None) -> float:
    """Return 1 if the official extraction finds the right letter in the answer (of the second of two calls), else 0.

    The predictions of `forced_choice` are the letter itself.

    Raises:
        ValueError: If the task is unknown or the reference is not one of the letters.

    Source: LongBench-v2 `pred.py`.

    Deviations: an empty answer is wrong; the official code drops the question from the run.
    """
    return float(_letter(task, prediction, strict) == _right(references))


def diagnostics(
    task: str, prediction: str, references: Sequence[str], metadata: Mapping[str, Any] | None = None
) -> dict[str, float]:
    """Return numbers beside the score; `metadata` plays no part.

    Returns:
        `lenient`, the score under the tolerant extraction; `unparsed` and `unparsed_lenient`, 1 where no
        letter is found; `compensated`, the score with 0.25 for an unparsed answer; `answer_characters`; and
        `letter_offset`, the index of the official letter in the answer, where there is one.
    """
    official, tolerant = _letter(task, prediction, strict), _letter(task, prediction, lenient)
    right = _right(references)
    numbers = {
        "lenient": float(tolerant == right),
        "unparsed": float(official is None),
        "unparsed_lenient": float(tolerant is None),
        "compensated": 0.25 if official is None else float(official == right),
        "answer_characters": float(len(prediction)),
    }
    if not find(task).stem and (choice := strict(prediction)) is not None:
        numbers["letter_offset"] = float(choice.offset)
    return numbers


def choose(logits: Mapping[str, float]) -> str:
    """Return the letter with the greatest logit; of equals, the first in the alphabet.

    Raises:
        ValueError: If the letters are not A to D, or a logit is not a number.
    """
    if set(logits) != set(LETTERS) or any(value != value for value in logits.values()):
        raise ValueError(f"logits are {dict(logits)}; needed: a number for each of {', '.join(LETTERS)}")
    return max(LETTERS, key=lambda letter: (logits[letter], -LETTERS.index(letter)))


def _letter(task: str, prediction: str, extract: Callable[[str], Choice | None]) -> str | None:
    if find(task).stem:
        return prediction if prediction in LETTERS else None
    choice = extract(prediction)
    return None if choice is None else choice.letter


def _right(references: Sequence[str]) -> str:
    if len(references) != 1 or references[0] not in LETTERS:
        raise ValueError(f"references are {list(references)}; allowed: one of {', '.join(LETTERS)}")
    return references[0]
