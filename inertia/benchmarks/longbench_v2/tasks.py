"""LongBench-v2's ways of asking its 503 questions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from inertia.benchmarks.sources import Source
from inertia.benchmarks.tasks import finder

LETTERS = ("A", "B", "C", "D")

ANSWER_STEM = "The correct answer is ("
"""The start of the official answer sentence, up to the letter."""

MAX_PROMPT_TOKENS = 120_000
"""Official limit on prompt tokens, cut in the middle; models with a shorter window take less."""


@dataclass(frozen=True)
class Task:
    """One way of asking.

    Attributes:
        prompt: Name of the prompt in `Prompts`.
        max_new_tokens: Decoding limit of the (first) call.
        answer_tokens: Decoding limit of the second call, which gets the first call's reasoning but not the
            document; None where there is one call only.
        stem: Text to feed token by token through the decode path before the letters are compared; empty where
            the answer is decoded freely.

    Source: LongBench-v2 `pred.py` at LongBench commit 2e00731 for the first two; the third is ours.
    """

    prompt: str
    max_new_tokens: int
    answer_tokens: int | None = None
    stem: str = ""


TASKS: Mapping[str, Task] = {
    "zero_shot": Task("zero_shot", 128),
    "cot": Task("cot", 1024, answer_tokens=128),
    # Not official: no stray wording can hide the choice, and eviction acts while the stem is fed.
    "forced_choice": Task("zero_shot", 1, stem=ANSWER_STEM),
}

HUB = Source(
    kind="hub",
    repo="zai-org/LongBench-v2",
    revision="2b48e494f2c7a2f0af81aae178e05c7e1dde0fe9",
    path="data.json",
    pins={"data.json": "15d61c22d92c96900b3c4948b6aeea218d3214b676a65df48e7b8555604c7fe2"},
)
"""The official data, one file for every task."""

DATA = "longbench_v2"
"""The name under which every task asks a source for its rows."""

find = finder("LongBench-v2", TASKS)
