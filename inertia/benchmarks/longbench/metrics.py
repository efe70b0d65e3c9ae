"""LongBench's metrics for one prediction and one reference, oddities included."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from difflib import SequenceMatcher

from inertia.benchmarks.longbench.rouge import rouge_l
from inertia.benchmarks.text_metrics import normalise

_NUMBER = re.compile(r"\d+")
PARAGRAPH = re.compile(r"Paragraph (\d+)")
_NOT_CODE = ("`", "#", "//")


def qa_f1(prediction: str, reference: str) -> float:
    """Return the F1 of the words of two normalised texts (punctuation goes first: "3.14" equals "314")."""
    said, wanted = normalise(prediction).split(), normalise(reference).split()
    common = sum((Counter(said) & Counter(wanted)).values())
    if common == 0:
        return 0.0
    precision, recall = common / len(said), common / len(wanted)
    return 2 * precision * recall / (precision + recall)


def count(prediction: str, reference: str) -> float:
    """Return the share of right ones among all numbers said; 0 where none is."""
    numbers = _NUMBER.findall(prediction)
    return numbers.count(reference) / len(numbers) if numbers else 0.0


def retrieval(prediction: str, reference: str) -> float:
    """Return the share of the right paragraph number among all numbers said; 0 where none is.

    Raises:
        ValueError: If the reference names no paragraph.
    """
    wanted = PARAGRAPH.search(reference)
    if wanted is None:
        raise ValueError(f"reference {reference!r} names no paragraph; expected for instance 'Paragraph 7'")
    return count(prediction, wanted.group(1))


def classification(prediction: str, reference: str, classes: Sequence[str]) -> float:
    """Return 1 over the number of classes named, if the right one is among them; else 0.

    Classes whose name is part of the right one's do not count. The official code takes them out of the list
    it is walking through, which skips the class after each; that is kept.
    """
    named = [name for name in classes if name in prediction]
    position = 0
    while position < len(named):
        name = named[position]
        if name in reference and name != reference:
            named.remove(name)
        position += 1
    return 1 / len(named) if reference in named else 0.0


def code_similarity(prediction: str, reference: str) -> float:
    """Return the similarity, in hundredths, of the first line that looks like code to the reference.

    A line with a backquote, `#` or `//` does not; without any other line the answer is empty.

    Deviations: the official code calls `fuzzywuzzy`, whose ratio without its optional C extension (not among
    LongBench's requirements) is that of `difflib`, rounded; it is computed directly here.
    """
    lines = prediction.lstrip("\n").split("\n")
    code = next((line for line in lines if not any(mark in line for mark in _NOT_CODE)), "")
    return round(100 * SequenceMatcher(None, code, reference).ratio()) / 100


METRICS: Mapping[str, Callable[[str, str, Sequence[str]], float]] = {
    "qa_f1": lambda prediction, reference, _: qa_f1(prediction, reference),
    "rouge_l": lambda prediction, reference, _: rouge_l(prediction, reference).f,
    "count": lambda prediction, reference, _: count(prediction, reference),
    "retrieval": lambda prediction, reference, _: retrieval(prediction, reference),
    "classification": classification,
    "code_similarity": lambda prediction, reference, _: code_similarity(prediction, reference),
}
"""Metric of (prediction, reference, all class names), by name."""
