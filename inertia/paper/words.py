"""What the paper's tables share: orders, names, quantities and notes."""

from __future__ import annotations

from inertia.paper.reference import RULER_TASKS
from inertia.reports.declaration import SCORE, Comparison, Quantity

LLAMA = "llama-3.1-8b-instruct"

LONGBENCH_TASKS = (
    "hotpotqa", "2wikimqa", "qasper", "musique", "gov_report", "multi_news", "qmsum", "passage_retrieval_en",
)  # fmt: skip
"""The eight tasks whose mean the paper reports."""

METHODS = (
    "full_cache", "inertiakv", "inertiakv_lazy", "score_free", "h2o", "tova", "snapkv", "adakv_expected_attention",
    "kvzip", "keydiff",
)  # fmt: skip
"""The methods of the paper's main table, in its order; others follow by name."""

ORDER = {
    "method": METHODS,
    "policy": METHODS,
    "task": (*RULER_TASKS, *LONGBENCH_TASKS),
    "benchmark": ("ruler", "longbench", "longbench_v2"),
    "question_visible": (False, True),
}
TITLES = {"benchmark": {"ruler": "RULER", "longbench": "LongBench", "longbench_v2": "LongBench-v2"}}

TOKENS_KEPT = Quantity(
    "retained_tokens", "tokens kept", "retained_tokens", shown="{:.0f}".format, interval=False, only_mean=True
)
CACHE = Quantity("cache_mib", "cache MiB", "cache_bytes", scale=2**-20, interval=False, only_mean=True)
CUT = Quantity(
    "truncated", "cut", "truncated", scale=100.0, shown="{:.0f}%".format, interval=False, in_header=True,
    absent="share of prompts whose middle was taken out to fit the window or the official limit",
)  # fmt: skip
MEASURED = (SCORE, TOKENS_KEPT, CACHE, CUT)

TO_FULL_CACHE = Comparison({"method": "full_cache"}, name="minus_full_cache", heading="minus full cache")

OURS = (
    "Ours: official score, 0 to 100, over n examples per cell, with its 95% interval over examples, within each task "
    "for the mean (how they are made: inertia/statistics/interval.py). The mean is over {averaged}; each task and "
    "length counts the same."
)
MEMORY = (
    "Tokens kept: after the last step, mean over heads and layers; cache: keys and values allocated per sequence. "
    "Context-only compression keeps the question on top."
)
PAIRED = (
    "Differences are paired by example; p two-sided, exact McNemar where all scores are 0 or 1, else by sign flips, "
    "Holm-corrected over all tests on tasks, and over all on means."
)


def not_official(task: str) -> bool:
    """Tell whether a task is an easier relative of RULER's, under a name of its own."""
    return task.startswith("niah_noise")
