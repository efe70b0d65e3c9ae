"""Published predictions score exactly: totals to two decimals, every example, every LongBench-E bucket."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from outside_data import json_lines, real

from inertia.benchmarks import longbench

SLOW = ("gov_report", "multi_news")
QUICK = tuple(task for task in longbench.PAPER_TASKS if task not in SLOW)


def published(file: Path) -> Any:
    return json.loads(gzip.decompress(file.read_bytes()))


def check(task: str, first: int | None = None) -> None:
    data = real("longbench_preds", "adakv_mistral7b/full")
    rows = json_lines(data / f"{task}.jsonl.gz")
    assert len(rows) == 200
    scores = [longbench.score(task, row["pred"], row["answers"], row) for row in rows[:first]]
    assert scores == published(data / "list_result.json.gz")[task][:first]
    if first is None:
        assert longbench.total(scores) == published(data / "result.json.gz")[task]


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
    assert {task: longbench.total(scores[task]) for task in totals} == totals
    assert set(totals) == {task for task in longbench.TASKS if not task.endswith("_e")}


@pytest.mark.parametrize("task", ["2wikimqa", "hotpotqa", "passage_retrieval_en", "qasper"])
def test_longbench_e_buckets_are_exact(task):
    data = real("longbench_preds", "kotmul_llama3-8b_E")
    rows = json_lines(data / f"{task}.jsonl.gz")
    scores = [longbench.score(f"{task}_e", row["pred"], row["answers"], row) for row in rows]
    buckets = longbench.bucket_totals(scores, [row["length"] for row in rows])
    assert buckets == published(data / "result.json.gz")[task]
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
