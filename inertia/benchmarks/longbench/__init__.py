"""LongBench and LongBench-E: official prompts, official scores, diagnostics beside them."""

from inertia.benchmarks.longbench.generate import examples, identity, ids, limit, task_renderer
from inertia.benchmarks.longbench.prompts import template
from inertia.benchmarks.longbench.score import diagnostics, score
from inertia.benchmarks.longbench.tasks import HUB, TASKS, find
