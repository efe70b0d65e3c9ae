"""LongBench's English tasks by name; a new task is one entry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from inertia.benchmarks.sources import Source
from inertia.benchmarks.tasks import finder


@dataclass(frozen=True)
class Task:
    """How one task is asked and scored.

    Attributes:
        metric: A name in `inertia.benchmarks.longbench.metrics.METRICS`.
        max_new_tokens: Decoding limit.
        prompt: Name of the prompt; LongBench-E shares LongBench's.
        chat_template: Whether the prompt is wrapped in the model's chat template, where it has one.
        first_line: Whether only the first line of the answer (after leading line breaks) is scored.
        stop: Texts that end the answer.
        min_new_tokens: Tokens before an end may count.
        by_length: Whether results are reported by length in words (LongBench-E).

    Source: LongBench `pred.py`, `eval.py` and `config/` at commit 2e00731.
    """

    metric: str
    max_new_tokens: int
    prompt: str = ""
    chat_template: bool = True
    first_line: bool = False
    stop: tuple[str, ...] = ()
    min_new_tokens: int = 0
    by_length: bool = False


_TASKS = {
    "narrativeqa": Task("qa_f1", 128),
    "qasper": Task("qa_f1", 128),
    "multifieldqa_en": Task("qa_f1", 64),
    "hotpotqa": Task("qa_f1", 32),
    "2wikimqa": Task("qa_f1", 32),
    "musique": Task("qa_f1", 32),
    "gov_report": Task("rouge_l", 512),
    "qmsum": Task("rouge_l", 512),
    "multi_news": Task("rouge_l", 512),
    "trec": Task("classification", 64, chat_template=False, first_line=True),
    "triviaqa": Task("qa_f1", 32, chat_template=False, first_line=True),
    # The official code ends samsum at the first line break but never before one token.
    "samsum": Task("rouge_l", 128, chat_template=False, first_line=True, stop=("\n",), min_new_tokens=1),
    "passage_count": Task("count", 32),
    "passage_retrieval_en": Task("retrieval", 32),
    "lcc": Task("code_similarity", 64, chat_template=False),
    "repobench-p": Task("code_similarity", 64, chat_template=False),
}

_IN_E = (
    "qasper multifieldqa_en hotpotqa 2wikimqa gov_report multi_news trec triviaqa samsum passage_count "
    "passage_retrieval_en lcc repobench-p"
).split()

TASKS: Mapping[str, Task] = {
    **{name: replace(task, prompt=name) for name, task in _TASKS.items()},
    **{f"{name}_e": replace(_TASKS[name], prompt=name, by_length=True) for name in _IN_E},
}
"""LongBench's 16 English and code tasks, and LongBench-E's 13 under names ending in `_e`."""

HUB = Source(
    kind="hub",
    repo="zai-org/LongBench",
    revision="5e628be450b7e67fb7ae6e201bd6d8f7056f7672",
    path="data.zip/data/{name}.jsonl",
    pins={"data.zip": "cb45b11a4133c6bc1d6a44b0f8e701335ff1e543195db1103472e575857f7f64"},
)
"""The official data of every task."""

find = finder("LongBench", TASKS)
