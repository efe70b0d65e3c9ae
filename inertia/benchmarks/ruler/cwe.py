"""Common words: name the ten words that a numbered list repeats most."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from inertia.benchmarks.ruler.draw import Draw, Parts, Setting, Stream
from inertia.benchmarks.ruler.wording import split
from inertia.benchmarks.seeding import official_shuffle

_FULL_LENGTH = 4096


class _Repeats(NamedTuple):
    common: int
    uncommon: int


@dataclass(frozen=True)
class CommonWords:
    """Common-word extraction with a worked example in front, inside the user turn.

    Attributes:
        common: Number of common words, all asked for.
        repeats: Occurrences of a common and of another word, from 4096 tokens of nominal length on.
        short_repeats: The same below 4096 tokens.
        example: Words, and the two numbers of occurrences, of the worked example from 4096 tokens on.
        short_example: The same below.
        max_new_tokens: Decoding limit.

    Source: RULER `common_words_extraction.py`.

    Deviations: the list stops growing when the words of `wonderwords` run out (the official code then draws
    from a list of English words it ships): above some 128k tokens examples are shorter than their length
    says. The size is found for each example, not once per task.
    """

    common: int = 10
    repeats: tuple[int, int] = (30, 3)
    short_repeats: tuple[int, int] = (6, 1)
    example: tuple[int, int, int] = (40, 10, 3)
    short_example: tuple[int, int, int] = (20, 3, 1)
    max_new_tokens: int = 120

    def prepare(self, setting: Setting) -> Callable[[Stream], Draw]:
        """Return the function that draws one example; one unit is one distinct word."""
        short = setting.length < _FULL_LENGTH
        repeats = _Repeats(*(self.short_repeats if short else self.repeats))
        example_words, *example_repeats = self.short_example if short else self.example
        before, question = split(setting.wording.cwe)
        words = setting.words.all
        # Every unit costs more than one token, so no more words than that are ever asked for.
        most = min(len(words), max(setting.room, self.common))

        def draw(stream: Stream) -> Draw:
            shown = stream("example").sample(words, example_words)
            example = (
                f"{before}{self._numbered_list(shown, _Repeats(*example_repeats))}\n{question}"
                f"{setting.wording.cwe_prefix} {numbered(shown[: self.common])}\n"
            )
            drawn = stream("words").sample(words, most)

            def build(units: int) -> Parts:
                return Parts(
                    context=f"{example}{before}{self._numbered_list(drawn[:units], repeats)}\n",
                    question=question,
                    answer_prefix=setting.wording.cwe_prefix,
                    references=tuple(drawn[: self.common]),
                    metadata={"units": units, "example_units": example_words},
                )

            return Draw(build, self.common, most)

        return draw

    def _numbered_list(self, words: Sequence[str], repeats: _Repeats) -> str:
        common, others = list(words[: self.common]), list(words[self.common :])
        return numbered(official_shuffle(common * repeats.common + others * repeats.uncommon))


def numbered(words: Sequence[str]) -> str:
    """Return words as a numbered list in one line."""
    return " ".join(f"{number}. {word}" for number, word in enumerate(words, start=1))
