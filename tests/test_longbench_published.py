"""Published predictions score exactly: totals to two decimals, every example, every LongBench-E bucket."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from outside_data import json_lines, real

from inertia.benchmarks import longbench

SLOW = ("gov_report", "multi_news")
QUICK = ("hotpotqa", "2wikimqa", "qasper", "musique", "qmsum", "passage_retrieval_en")


def total(scores: Sequence[float]) -> float | None:
    """A task's official number: the mean times 100, to two decimals."""
    return round(100 * sum(scores) / len(scores), 2) if scores else None


def bucket(words: int) -> str:
    """The official lengths of LongBench-E, in words."""
    return "0-4k" if words < 4000 else "4-8k" if words < 8000 else "8k+"


def published(file: Path) -> Any:
    return json.loads(gzip.decompress(file.read_bytes()))


def check(task: str, first: int | None = None) -> None:
    data = real("longbench_preds", "adakv_mistral7b/full")
    rows = json_lines(data / f"{task}.jsonl.gz")
    assert len(rows) == 200
    scores = [longbench.score(task, row["pred"], row["answers"], row) for row in rows[:first]]
    assert scores == published(data / "list_result.json.gz")[task][:first]
    if first is None:
        assert total(scores) == published(data / "result.json.gz")[task]


@pytest.mark.parametrize("task", QUICK)
def test_longbench_is_exact(task):
    check(task)


@pytest.mark.parametrize("task", SLOW)
def test_long_summaries_are_exact_at_the_start(task):
    check(task, first=6)


@pytest.mark.slow
@pytest.mark.parametrize("task", SLOW)
def test_long_summaries_are_exact(task):
    check(task)


def test_per_example_list_gives_every_published_total():
    """The rounding rule on all sixteen tasks, those without predictions at hand included."""
    data = real("longbench_preds", "adakv_mistral7b/full")
    totals, scores = published(data / "result.json.gz"), published(data / "list_result.json.gz")
    assert {task: total(scores[task]) for task in totals} == totals
    assert set(totals) == {task for task in longbench.TASKS if not task.endswith("_e")}


@pytest.mark.parametrize("task", ["2wikimqa", "hotpotqa", "passage_retrieval_en", "qasper"])
def test_longbench_e_buckets_are_exact(task):
    data = real("longbench_preds", "kotmul_llama3-8b_E")
    rows = json_lines(data / f"{task}.jsonl.gz")
    scores = [longbench.score(f"{task}_e", row["pred"], row["answers"], row) for row in rows]
    groups: dict[str, list[float]] = {"0-4k": [], "4-8k": [], "8k+": []}
    for row, score in zip(rows, scores, strict=True):
        groups[bucket(row["length"])].append(score)
    assert {name: total(group) for name, group in groups.items()} == published(data / "result.json.gz")[task]
    assert len(rows) == (224 if task == "qasper" else 300)


@pytest.mark.slow
def test_how_often_official_rouge_gives_up_on_published_summaries():
    data = real("longbench_preds", "adakv_mistral7b/full")
    counts: Counter[str] = Counter()
    for task in (*SLOW, "qmsum"):
        for row in json_lines(data / f"{task}.jsonl.gz"):
            numbers = longbench.diagnostics(task, row["pred"], row["answers"])
            counts.update({name: int(numbers[name]) for name in ("rouge_empty", "rouge_recursion")})
            counts["summaries"] += 1
    assert counts == {"summaries": 600, "rouge_empty": 0, "rouge_recursion": 0}
