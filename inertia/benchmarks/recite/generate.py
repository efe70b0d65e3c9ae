"""Examples of the recital: a list somewhere in plain sentences, as many as fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from random import Random
from typing import Any

from inertia.benchmarks.example import Example, example_id
from inertia.benchmarks.niah.texts import noise
from inertia.benchmarks.recite.tasks import Recite, find
from inertia.benchmarks.recite.texts import BEFORE, HEADING, PREFIX, QUESTION, entry, listed, wording_sha256
from inertia.benchmarks.render import Renderer
from inertia.benchmarks.seeding import rng
from inertia.benchmarks.sizing import filled, tokens
from inertia.benchmarks.tasks import at_least
from inertia.benchmarks.words import word_lists

GENERATOR_VERSION = 1
"""Raise it whenever the same arguments would give another example."""

_PROBES = 8


def examples(task: str, length: int, count: int, seed: int, renderer: Renderer) -> Iterator[Example]:
    """Yield examples 0 to `count - 1`; each depends on (seed, task, length, index) and the renderer alone.

    The list takes at least the task's `answer_tokens`; sentences fill the prompt before and after it, in a share
    drawn anew for each example. Prompt and new tokens are at most `length` tokens, and one more sentence would not
    fit.

    Raises:
        ValueError: at the example concerned, if `length` has no room for it.
    """
    find(task)
    at_least(0, count=count)
    return (_example(task, length, index, seed, renderer) for index in range(count))


def ids(task: str, length: int, count: int, seed: int) -> list[str]:
    """Return the ids of the first `count` examples, without making them."""
    find(task)
    return [example_id(task, length, index) for index in range(count)]


def identity(task: str, length: int, seed: int) -> dict[str, Any]:
    """Return everything that can change an example or its score."""
    return {
        "name": "recite",
        "task": task,
        "length": length,
        "seed": seed,
        "parameters": asdict(find(task)),
        "generator_version": GENERATOR_VERSION,
        "wording_sha256": wording_sha256(),
        "wonderwords": version("wonderwords"),
    }


def shortest(task: str, renderer: Renderer) -> int:
    """Return a length, new tokens included, that has room for each of 8 fixed draws without a sentence."""
    kind = find(task)
    draws = (_values(rng("recite", "probe", task, probe), kind, renderer) for probe in range(_PROBES))
    return max(tokens(_build(task, 0, 0, values, [], 0), renderer) for values in draws)


def reference_answer(example: Example) -> str:
    """Return the list, one entry per line, without its first number: the prompt ends in that."""
    return listed(example.references).removeprefix("1. ")


def _example(task: str, length: int, index: int, seed: int, renderer: Renderer) -> Example:
    kind, stream = find(task), partial(rng, "recite", seed, task, length, index)
    values = _values(stream("values"), kind, renderer)
    # A sentence is more than one token, so `length` of them never fit. None looks like an entry of the list.
    hay = noise(stream("hay"), word_lists(), length, entry(1, values[0]))
    depth = stream("depth").random()

    def build(units: int) -> Example:
        return _build(task, length, index, values, hay[:units], depth)

    return filled("recite", build, renderer, 0, len(hay))


def _values(draw: Random, kind: Recite, renderer: Renderer) -> list[str]:
    """Return different values, as few as make a list of the wanted tokens."""
    nouns = word_lists().nouns
    values: list[str] = []
    while not values or renderer.count_text(listed(values)) < kind.answer_tokens:
        parts = [
            str(draw.randrange(10_000, 100_000)) if kind.values == "numbers" else draw.choice(nouns)
            for _ in range(kind.parts)
        ]
        value = " ".join(parts)
        if value not in values:
            values.append(value)
    return values


def _build(task: str, length: int, index: int, values: list[str], hay: list[str], depth: float) -> Example:
    at = round(depth * len(hay))
    parts = [" ".join(hay[:at]), HEADING + listed(values), " ".join(hay[at:])]
    return Example(
        id=example_id(task, length, index),
        task=task,
        length=length,
        context=BEFORE + "\n\n".join(part for part in parts if part),
        question=QUESTION,
        answer_prefix=PREFIX,
        references=tuple(values),
        max_new_tokens=find(task).max_new_tokens,
        metadata={"items": len(values), "sentences": len(hay), "depth": at / len(hay) if hay else 0.0},
    )
