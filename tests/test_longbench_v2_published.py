"""The published runs of gpt-4o-mini come out exactly: every judgement and the whole table."""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Iterable

import pytest
from outside_data import json_lines, real

from inertia.benchmarks import longbench_v2 as v2

AGENTS = ("oneshot", "cot", "quotes", "quotes_chunked")


def rows(name: str) -> list[dict]:
    return json_lines(real("longbench_v2", f"{name}.jsonl.gz"))


def groups(outcomes: Iterable[tuple[dict, float]]) -> dict[str, list[float]]:
    """Scores by the columns of the official table: all, by difficulty, by length of the document."""
    found: dict[str, list[float]] = {
        name: [] for name in ("overall", "easy", "hard", "short", "medium", "long")
    }
    for row, score in outcomes:
        for name in ("overall", row["difficulty"], row["length"]):
            found[name].append(score)
    return found


def answered(agent: str) -> list[dict]:
    return [row for row in rows("preds_gpt4o-mini") if not row[agent]["error"]]


def sentence(row: dict, agent: str) -> str:
    """The letter the file reports, in the official answer sentence."""
    return f"The correct answer is ({row[agent]['pred']})"


@pytest.mark.parametrize("agent", AGENTS)
def test_every_judgement_is_the_published_one(agent):
    found = answered(agent)
    scores = [v2.score("zero_shot", sentence(row, agent), [row["answer"]]) for row in found]
    assert scores == [float(row[agent]["judge"]) for row in found]
    assert len(found) == (502 if agent == "quotes_chunked" else 312)


@pytest.mark.parametrize("agent", AGENTS)
def test_the_table_is_the_published_one(agent):
    text = gzip.decompress(real("longbench_v2", "agentic_result.txt.gz").read_bytes()).decode()
    header, *lines = (line.split("\t") for line in text.splitlines())
    published = {line[0]: dict(zip(header, line, strict=True)) for line in lines}[agent]
    table = groups(
        (row, v2.score("zero_shot", sentence(row, agent), [row["answer"]])) for row in answered(agent)
    )
    shown = {
        group.capitalize(): str(round(100 * sum(scores) / len(scores), 1)) if scores else "none"
        for group, scores in table.items()
    }
    assert shown == {name: published[name] for name in shown}
    assert 503 - len(table["overall"]) == int(published["Errors"])


def test_the_letters_the_official_rule_does_not_know_count_as_unparsed():
    counts: Counter[str] = Counter()
    for agent in AGENTS:
        for row in answered(agent):
            numbers = v2.diagnostics("zero_shot", sentence(row, agent), [row["answer"]])
            assert numbers["unparsed"] == float(row[agent]["pred"] not in "ABCD")
            counts.update({name: int(numbers[name]) for name in ("unparsed", "unparsed_lenient", "lenient")})
            counts["judge"] += row[agent]["judge"]
    # 54 answers of "N" stay unparsed; of nine letters in lower case the tolerant rule reads all.
    assert (counts["unparsed"], counts["unparsed_lenient"]) == (63, 54)
    assert counts["lenient"] >= counts["judge"] == 444


def test_the_questions_split_as_the_paper_says():
    found = groups((row, 1.0) for row in rows("questions_all503"))
    counts = {"overall": 503, "easy": 192, "hard": 311, "short": 180, "medium": 215, "long": 108}
    assert {name: len(scores) for name, scores in found.items()} == counts
