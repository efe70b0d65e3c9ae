"""Frequent coded words: name the three most frequent of a zeta-distributed text, its dots aside."""

from __future__ import annotations

import math
import string
from collections.abc import Callable
from dataclasses import dataclass

from inertia.benchmarks.ruler.draw import Draw, Parts, Setting, Stream
from inertia.benchmarks.ruler.wording import split
from inertia.benchmarks.seeding import official_shuffle

_ZETA_OF_2 = math.pi**2 / 6
_NOISE = "..."


@dataclass(frozen=True)
class FrequentWords:
    """Frequent-word extraction.

    The word of rank k occurs `units * k^-2 / zeta(2)` times, rounded down; rank 1 is written as dots, ranks 2
    to 4 are the answer.

    Attributes:
        letters: Letters of a coded word.
        tokens_per_word: The vocabulary has `(length - new tokens) // tokens_per_word` words, at least 5.
        max_new_tokens: Decoding limit.

    Source: RULER `freq_words_extraction.py`, alpha 2.0.

    Deviations: the text is never so short that rank 4 ties with rank 5 (the official code has no such floor).
    The size is found for each example, not once per task.
    """

    letters: int = 6
    tokens_per_word: int = 50
    max_new_tokens: int = 50

    def prepare(self, setting: Setting) -> Callable[[Stream], Draw]:
        """Return the function that draws one example; one unit is one word before rounding down."""
        size = max((setting.length - self.max_new_tokens) // self.tokens_per_word, 5)
        before, question = split(setting.wording.fwe)

        def draw(stream: Stream) -> Draw:
            rng = stream("vocabulary")
            words: set[str] = set()
            while len(words) < size:
                words.add("".join(rng.choices(string.ascii_lowercase, k=self.letters)))
            vocabulary = [_NOISE, *official_shuffle(sorted(words))[1:]]

            def build(units: int) -> Parts:
                text = [word for word, n in zip(vocabulary, occurrences(units, size), strict=True) for _ in range(n)]
                return Parts(
                    context=f"{before}{' '.join(official_shuffle(text))}\n",
                    question=question,
                    answer_prefix=setting.wording.fwe_prefix,
                    references=tuple(vocabulary[1:4]),
                    metadata={"units": units, "vocabulary": size},
                )

            smallest = _smallest_clear()
            return Draw(build, smallest, max(2 * setting.room, smallest))

        return draw


def occurrences(units: int, vocabulary: int) -> list[int]:
    """Return how often each rank occurs, rank 1 first."""
    return [int(units * rank**-2.0 / _ZETA_OF_2) for rank in range(1, vocabulary + 1)]


def _smallest_clear() -> int:
    """The least number of units from which on rank 4 always occurs more often than rank 5."""
    # From 100 units on the two differ by more than one before rounding down.
    return 1 + max(units for units in range(100) if occurrences(units, 5)[3] == occurrences(units, 5)[4])
