"""The published runs of gpt-4o-mini come out exactly: every judgement and the whole table."""

from __future__ import annotations

import gzip
from collections import Counter

import pytest
from outside_data import json_lines, real

from inertia.benchmarks import longbench_v2 as v2

AGENTS = ("oneshot", "cot", "quotes", "quotes_chunked")


def rows(name: str) -> list[dict]:
    return json_lines(real("longbench_v2", f"{name}.jsonl.gz"))


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
    outcomes = [
        v2.Outcome(
            v2.score("zero_shot", sentence(row, agent), [row["answer"]]), row["difficulty"], row["length"]
        )
        for row in answered(agent)
    ]
    table = v2.table(outcomes)
    shown = {
        group.capitalize(): "none" if share.percent is None else str(share.percent)
        for group, share in table.items()
    }
    assert shown == {name: published[name] for name in shown}
    assert 503 - table["overall"].count == int(published["Errors"])


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
    groups = v2.table(v2.Outcome(1.0, row["difficulty"], row["length"]) for row in rows("questions_all503"))
    counts = {"overall": 503, "easy": 192, "hard": 311, "short": 180, "medium": 215, "long": 108}
    assert {name: share.count for name, share in groups.items()} == counts
