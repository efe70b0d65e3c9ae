"""The words of the recital, all our own."""

from __future__ import annotations

from collections.abc import Sequence

from inertia.benchmarks.niah.texts import NOISE
from inertia.benchmarks.seeding import digest

BEFORE = "Below is some text with a list in it. Remember every entry of the list.\n\n"
HEADING = "The list:\n"
QUESTION = "\n\nRepeat the list from the text above, word for word, one entry per line, in the same order."
# The answer begins as the list does: a small model then copies it, and does not make up one of its own.
PREFIX = HEADING + "1."


def entry(number: int, value: str) -> str:
    """Return one line of the list."""
    return f"{number}. {value}"


def listed(values: Sequence[str]) -> str:
    """Return the list as it stands in the text."""
    return "\n".join(entry(number, value) for number, value in enumerate(values, 1))


def wording_sha256() -> str:
    """Return the hash of all fixed texts."""
    return digest([BEFORE, HEADING, QUESTION, PREFIX, entry(1, "x"), NOISE])
