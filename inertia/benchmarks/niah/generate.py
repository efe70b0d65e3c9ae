"""Examples of the needle grid, as long as they may be and not a sentence longer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from itertools import accumulate
from random import Random
from typing import Any

from inertia.benchmarks.example import Example, example_id
from inertia.benchmarks.niah.tasks import find
from inertia.benchmarks.niah.texts import INTRODUCTION, NeedleText, needle, noise, sentences, wording_sha256
from inertia.benchmarks.render import Renderer
from inertia.benchmarks.rows import DataError
from inertia.benchmarks.seeding import rng
from inertia.benchmarks.sizing import filled
from inertia.benchmarks.sources import Loads
from inertia.benchmarks.tasks import at_least
from inertia.benchmarks.words import word_lists

GENERATOR_VERSION = 1
"""Raise it whenever the same arguments would give another example."""

ESSAYS = "PaulGrahamEssays"
"""The name under which the essay tasks ask a source for their text."""


def examples(
    task: str, length: int, count: int, seed: int, renderer: Renderer, *, source: Loads | None = None
) -> Iterator[Example]:
    """Yield examples 0 to `count - 1`; number i stands at depth i modulo the number of depths.

    One pass over all depths shares needle and sentences, so that depths differ in little else: a `count` that is a
    multiple of their number fills the grid evenly. Each example depends on (seed, task, length, index), the renderer
    and the essays alone, which begin anew where they run out. Prompt and new tokens are at most `length` tokens, and
    one more sentence would not fit.

    Raises:
        ValueError: At the example concerned, if `length` has no room for it.
        DataError: If the essays hold no sentence.
    """
    find(task)
    at_least(0, count=count)
    essay = _essay(task, source)
    return (_example(task, length, index, seed, renderer, essay) for index in range(count))


def ids(task: str, length: int, count: int, seed: int, *, source: Loads | None = None) -> list[str]:
    """Return the ids of the first `count` examples."""
    find(task)
    return [example_id(task, length, index) for index in range(count)]


def identity(task: str, length: int, seed: int, *, source: Loads | None = None) -> dict[str, Any]:
    """Return everything that can change an example or its score."""
    _check_source(task, source)
    return {
        "name": "niah",
        "task": task,
        "length": length,
        "seed": seed,
        "parameters": asdict(find(task)),
        "generator_version": GENERATOR_VERSION,
        "wording_sha256": wording_sha256(),
        "wonderwords": version("wonderwords"),
        "rouge_score": version("rouge_score"),
        "essays_sha256": None if source is None else source.load_text(ESSAYS).sha256,
    }


def place(hay: Sequence[str], depth: float) -> int:
    """Return the sentence boundary whose share of the haystack's characters is nearest to `depth`.

    Of two equally near ones, the earlier.
    """
    ends = [0, *accumulate(len(sentence) + 1 for sentence in hay)]
    return min(range(len(ends)), key=lambda i: abs(ends[i] - depth * ends[-1]))


def _example(
    task: str, length: int, index: int, seed: int, renderer: Renderer, essay: tuple[str, ...] | None
) -> Example:
    kind = find(task)
    turn, row = divmod(index, len(kind.depths))
    stream = partial(rng, "needle", seed, task, length, turn)
    drawn = needle(stream("needle"), word_lists())
    # A sentence is at least one token, so more than `length` of them never fit.
    hay = _haystack(stream("haystack"), max(length, 1), drawn, essay)

    def build(units: int) -> Example:
        lines = hay[:units]
        at = place(lines, kind.depths[row])
        reached = sum(len(line) + 1 for line in lines[:at]) / sum(len(line) + 1 for line in lines)
        lines.insert(at, drawn.sentence)
        return Example(
            id=example_id(task, length, index),
            task=task,
            length=length,
            context=INTRODUCTION + " ".join(lines),
            question=drawn.question,
            answer_prefix="",
            references=(drawn.sentence,),
            max_new_tokens=kind.max_new_tokens,
            metadata={"depth": kind.depths[row], "depth_reached": reached, "answer": drawn.answer, "units": units},
        )

    return filled("needle", build, renderer, 1, len(hay))


def _haystack(rng: Random, count: int, drawn: NeedleText, essay: tuple[str, ...] | None) -> list[str]:
    if essay is None:
        return noise(rng, word_lists(), count, drawn.answer)
    start = rng.randrange(len(essay))
    return [essay[(start + i) % len(essay)] for i in range(count)]


def _check_source(task: str, source: Loads | None) -> None:
    wants = find(task).haystack == "essay"
    if wants and source is None:
        raise ValueError(f"needle task {task!r} needs essays: give a source, or use the task needle_noise")
    if not wants and source is not None:
        raise ValueError(f"needle task {task!r} makes its own haystack and takes no source")


def _essay(task: str, source: Loads | None) -> tuple[str, ...] | None:
    _check_source(task, source)
    if source is None:
        return None
    found = tuple(sentences(source.load_text(ESSAYS).text))
    if not found:
        raise DataError("the essays hold no sentence")
    return found
