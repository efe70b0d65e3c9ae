"""LongBench and LongBench-E: official prompts, official scores, diagnostics beside them."""

from inertia.benchmarks.longbench.generate import examples, identity, ids, limit, task_renderer
from inertia.benchmarks.longbench.prompts import template
from inertia.benchmarks.longbench.score import bucket, bucket_totals, diagnostics, score, total
from inertia.benchmarks.longbench.tasks import HUB, PAPER_TASKS, TASKS, find
