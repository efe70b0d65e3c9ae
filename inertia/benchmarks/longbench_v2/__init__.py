"""LongBench-v2 by generation: official protocol and extraction, tolerant extraction beside it."""

from inertia.benchmarks.longbench_v2.extract import Choice, lenient, strict
from inertia.benchmarks.longbench_v2.generate import (
    examples,
    follow_up,
    identity,
    ids,
    limit,
    protocol,
    reference_answer,
)
from inertia.benchmarks.longbench_v2.prompts import OURS, Prompts, read_prompts
from inertia.benchmarks.longbench_v2.score import choose, diagnostics, score
from inertia.benchmarks.longbench_v2.tasks import ANSWER_STEM, HUB, LETTERS, MAX_PROMPT_TOKENS, TASKS, find
