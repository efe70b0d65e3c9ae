"""Numbers that show how an answer earned its score: overlap that punishes loops, variety, length."""

from __future__ import annotations

import re
import string
from collections.abc import Sequence


def rouge_l_f(prediction: str, reference: str) -> float:
    """Return the ROUGE-L F measure of the package `rouge_score`, in [0, 1]; 0 where a text has no words.

    The longest common subsequence counts every word, so a repetition loop costs precision. Words are runs of
    ASCII letters and digits, lower-cased, not stemmed.
    """
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(["rougeL"], use_stemmer=False).score(reference, prediction)["rougeL"].fmeasure


def distinct_n(text: str, n: int) -> float:
    """Return the share of different word n-grams among all of `text`, in (0, 1]; 1 where there are none.

    Words are split at white space and lower-cased. A loop drives the share towards 0.

    Raises:
        ValueError: If `n` is below 1.
    """
    if n < 1:
        raise ValueError(f"n is {n}; allowed: at least 1")
    words = text.lower().split()
    grams = list(zip(*(words[i:] for i in range(n)), strict=False))
    return len(set(grams)) / len(grams) if grams else 1.0


def normalise(text: str) -> str:
    """Return `text` lower-cased, without ASCII punctuation and the articles a, an, the, blanks collapsed.

    Source: the answer normalisation of SQuAD, which LongBench uses too.
    """
    bare = "".join(char for char in text.lower() if char not in _PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def exact_match(prediction: str, references: Sequence[str]) -> float:
    """Return 1 if the normalised prediction equals a normalised reference, else 0."""
    return float(normalise(prediction) in {normalise(reference) for reference in references})


def shape(text: str) -> dict[str, float]:
    """Return length and variety of an answer.

    Returns:
        `answer_characters`, `answer_words` (split at white space), `empty` (1 if nothing but white space),
        `distinct_1` and `distinct_3`.
    """
    return {
        "answer_characters": float(len(text)),
        "answer_words": float(len(text.split())),
        "empty": float(not text.strip()),
        "distinct_1": distinct_n(text, 1),
        "distinct_3": distinct_n(text, 3),
    }


_PUNCTUATION = frozenset(string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
