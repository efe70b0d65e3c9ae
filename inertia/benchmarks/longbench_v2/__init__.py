"""LongBench-v2 by generation: official protocol and extraction, tolerant extraction beside it."""

from inertia.benchmarks.longbench_v2.extract import Choice, lenient, step_of, strict
from inertia.benchmarks.longbench_v2.generate import examples, follow_up, identity, ids, limit, prompt_limit, protocol
from inertia.benchmarks.longbench_v2.prompts import OURS, Prompts, read_prompts
from inertia.benchmarks.longbench_v2.score import Outcome, Share, choose, diagnostics, score, table
from inertia.benchmarks.longbench_v2.tasks import ANSWER_STEM, HUB, LETTERS, MAX_PROMPT_TOKENS, TASKS, find

__all__ = [
    "ANSWER_STEM",
    "HUB",
    "LETTERS",
    "MAX_PROMPT_TOKENS",
    "OURS",
    "TASKS",
    "Choice",
    "Outcome",
    "Prompts",
    "Share",
    "choose",
    "diagnostics",
    "examples",
    "find",
    "follow_up",
    "identity",
    "ids",
    "lenient",
    "limit",
    "prompt_limit",
    "protocol",
    "read_prompts",
    "score",
    "step_of",
    "strict",
    "table",
]
