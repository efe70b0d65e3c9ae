"""lm-eval finds tasks as YAML files; these are written from the benchmarks themselves, so none can fall behind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from inertia.benchmarks import registry
from inertia.paths import config_dir

PREFIX = "kv_"
LENGTHS = (512, *(1024 * 2**power for power in range(8)))
# Raised whenever the same name and settings would give other prompts or scores.
VERSION = 1

_FUNCTIONS = {
    "custom_dataset": "inertia.lm_eval.tasks.docs.load",
    "doc_to_text": "inertia.lm_eval.tasks.docs.text",
    "doc_to_target": "inertia.lm_eval.tasks.docs.target",
    "process_results": "inertia.lm_eval.tasks.docs.score",
}


def write(folder: Path) -> list[str]:
    """Write every task and group into a folder, for lm-eval's include path, and return their names."""
    names = []
    for benchmark in registry.NAMES:
        shown = defaults(benchmark)
        for length in lengths(shown):
            for task in tasks(benchmark):
                names.append(name_of(benchmark, task, length))
                lines = [yaml.safe_dump(config(benchmark, task, length))]
                lines += [f"{field}: !function {function}\n" for field, function in _FUNCTIONS.items()]
                (folder / f"{names[-1]}.yaml").write_text("".join(lines), encoding="utf-8")
            members = [name_of(benchmark, task, length) for task in shown["tasks"] if task in tasks(benchmark)]
            names.append(name_of(benchmark, None, length))
            (folder / f"{names[-1]}.yaml").write_text(yaml.safe_dump(group(names[-1], members)), encoding="utf-8")
    return names


def tasks(benchmark: str) -> Mapping[str, Any]:
    """Return a benchmark's tasks that are answered in one free generation, as lm-eval's are."""
    package = registry.package(benchmark)
    protocol = getattr(package, "protocol", lambda task: registry.GENERATE)
    return {name: task for name, task in package.TASKS.items() if protocol(name) == registry.GENERATE}


def lengths(shown: Mapping[str, Any]) -> Iterator[int | None]:
    """Yield the lengths that a benchmark's tasks come in; a single None where it has none."""
    yield from (None,) if shown["lengths"] == [None] else LENGTHS


def name_of(benchmark: str, task: str | None, length: int | None) -> str:
    """Return the name of a task, or of the group of a benchmark's own choice where `task` is None."""
    size = None if length is None else str(length) if length % 1024 else f"{length // 1024}k"
    return PREFIX + "_".join(part for part in (benchmark, task, size) if part is not None)


def config(benchmark: str, task: str, length: int | None) -> dict[str, Any]:
    """Return one task as lm-eval states it, its functions left out."""
    kind = tasks(benchmark)[task]
    least = getattr(kind, "min_new_tokens", 0)
    return {
        "task": name_of(benchmark, task, length),
        "dataset_kwargs": {"kv_benchmark": benchmark, "kv_task": task, "kv_length": length},
        "test_split": "test",
        "output_type": "generate_until",
        "generation_kwargs": {
            "until": list(getattr(kind, "stop", ())),
            "do_sample": False,
            "max_gen_toks": kind.max_new_tokens,
            **({"min_new_tokens": least} if least else {}),
        },
        "gen_prefix": "answer_prefix",
        "target_delimiter": "",
        "num_fewshot": 0,
        # Without this, lm-eval would read every document to draw examples from.
        "fewshot_config": {"samples": []},
        "metric_list": [{"metric": "score", "aggregation": "mean", "higher_is_better": True}],
        "metadata": {"version": VERSION},
    }


def group(name: str, members: list[str]) -> dict[str, Any]:
    """Return the unweighted mean of tasks as lm-eval states it."""
    return {
        "group": name,
        "task": members,
        "aggregate_metric_list": [{"metric": "score", "aggregation": "mean", "weight_by_size": False}],
        "metadata": {"version": VERSION},
    }


def defaults(benchmark: str) -> dict[str, Any]:
    """Return the settings that `python -m inertia benchmark=...` starts from."""
    return yaml.safe_load((config_dir() / "benchmark" / f"{benchmark}.yaml").read_text(encoding="utf-8"))
