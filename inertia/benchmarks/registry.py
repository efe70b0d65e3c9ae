"""Benchmarks by name, all behind one interface: examples in, scores out.

A benchmark is a module-like object with

    TASKS                                       names of its tasks
    ids(task, length, count, seed)              ids of the first `count` examples, without making them
    examples(task, length, count, seed, renderer)
    score(task, prediction, references)         the official metric, in [0, 1]
    diagnostics(prediction, references)         further numbers by name
    identity(task, length, seed)                everything that can change an example
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

NAMES = {"ruler": "inertia.benchmarks.ruler"}


def benchmark(name: str) -> Any:
    """Return the benchmark `name`."""
    return import_module(NAMES[name])


def task_names(name: str) -> tuple[str, ...]:
    """Return the tasks of the benchmark `name`."""
    return tuple(benchmark(name).TASKS)
