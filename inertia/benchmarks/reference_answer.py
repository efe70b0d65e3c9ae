"""The reference answer of an example as a text that a model could have written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from inertia.benchmarks.example import Example
from inertia.benchmarks.longbench_v2.tasks import ANSWER_STEM


def first(example: Example) -> str:
    """Return the first reference: any of them would do, and the first is the one that data sets list as theirs."""
    return example.references[0] if example.references else ""


def ruler(example: Example) -> str:
    """Return all references in their order, written as the task's worked example writes them; in QA the first.

    RULER wants every reference. Word lists are numbered, variables stand apart by blanks; needles and coded words have
    no worked example, and commas.
    """
    if example.task.startswith("qa_"):
        return first(example)
    if example.task.startswith("cwe"):
        return " ".join(f"{number}. {word}" for number, word in enumerate(example.references, start=1))
    return (" " if example.task.startswith("vt") else ", ").join(example.references)


def longbench_v2(example: Example) -> str:
    """Return the official answer sentence with the right letter: a letter alone is no answer that was asked for."""
    return f"{ANSWER_STEM}{first(example)})"


def recite(example: Example) -> str:
    """Return the list, one entry per line, without its first number: the prompt ends in that."""
    return "\n".join([first(example), *(f"{number}. {item}" for number, item in enumerate(example.references[1:], 2))])


RULES: Mapping[str, Callable[[Example], str]] = MappingProxyType(
    {"ruler": ruler, "longbench_v2": longbench_v2, "recite": recite}
)
"""By benchmark; those without a rule of their own take `first`."""


def reference_answer(benchmark: str, example: Example) -> str:
    """Return the reference answer of an example, "" where it has none.

    Args:
        benchmark: its benchmark's name.
        example: the example.
    """
    return RULES.get(benchmark, first)(example)
