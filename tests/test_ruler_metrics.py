"""Scores against 6,500 published predictions and the official rules."""

from __future__ import annotations

import csv
import gzip
import json
import os
import re
from collections import defaultdict
from pathlib import Path

import pytest

from inertia.benchmarks.example import Example
from inertia.benchmarks.ruler.metrics import (
    diagnostics,
    postprocess,
    score,
    string_match_all,
    string_match_part,
)


def _array(cell: str) -> list[str]:
    """The strings of a printed NumPy array: no commas, so `literal_eval` would join them."""
    return [first or second for first, second in re.findall(r"'([^']*)'|\"([^\"]*)\"", cell)]


def test_the_thirteen_published_scores_come_out_exactly() -> None:
    data = os.environ.get("INERTIA_TEST_DATA")
    if data is None:
        pytest.skip("INERTIA_TEST_DATA is unset: no published predictions")
    folder = Path(data) / "ruler_preds" / "kvpress_centrality_llama3.1-8b_4096_0.50"
    published = json.loads(gzip.decompress((folder / "metrics.json.gz").read_bytes()))
    scores = defaultdict(list)
    with gzip.open(folder / "predictions.csv.gz", "rt", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            scores[row["task"]].append(score(row["task"], row["predicted_answer"], _array(row["answer"])))
    assert {len(values) for values in scores.values()} == {500}
    ours = {
        task: {"string_match": round(100 * sum(values) / len(values), 2)} for task, values in scores.items()
    }
    assert ours == published
    assert len(ours) == 13


def test_references_printed_as_arrays_are_read_apart() -> None:
    assert _array("['appliance' 'meter'\n \"king's\"]") == ["appliance", "meter", "king's"]


@pytest.mark.parametrize(
    ("prediction", "references", "every", "any_"),
    [
        ("12 and 34", ["12", "34"], 1.0, 1.0),
        ("12", ["12", "34"], 0.5, 1.0),
        ("PARIS", ["Paris"], 1.0, 1.0),
        ("112", ["12"], 1.0, 1.0),
        ("", ["12"], 0.0, 0.0),
        ("France", ["France", "France", "in France", "Paris"], 0.5, 1.0),
    ],
)
def test_matching(prediction: str, references: list[str], every: float, any_: float) -> None:
    assert string_match_all(prediction, references) == every
    assert string_match_part(prediction, references) == any_


def test_only_the_question_answering_tasks_take_any_reference() -> None:
    assert score("qa_1", "paris", ["Paris", "the capital"]) == 1.0
    assert score("qa_2", "paris", ["Paris", "the capital"]) == 1.0
    assert score("vt", "paris", ["Paris", "the capital"]) == 0.5
    assert score("niah_noise_3keys", "paris", ["Paris", "the capital"]) == 0.5


def test_an_example_is_scored_by_its_task() -> None:
    example = Example("vt/1/0", "vt", 1, "", "", "", ("AB", "CD"), 30)
    assert score(example.task, "AB", example.references) == 0.5


def test_control_characters_become_line_breaks_and_ends_are_stripped() -> None:
    assert postprocess(" \x00 a\tb\x1f\x7f \n") == "a\nb\n\x7f"
    assert score("cwe", "new\x07york", ["new\nyork"]) == 1.0
    assert score("cwe", "new york", ["new\nyork"]) == 0.0


def test_unknown_tasks_and_missing_references_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown RULER task 'niah_9'"):
        score("niah_9", "a", ["a"])
    with pytest.raises(ValueError, match="no references"):
        score("vt", "a", [])


def test_diagnostics_tell_a_dump_from_an_answer() -> None:
    answer = diagnostics("vt", " 1. 1234567", ["1234567"])
    dump = diagnostics("vt", " ".join(str(1234560 + i) for i in range(10)), ["1234567"])
    assert answer == {
        "answer_characters": 10.0,
        "answer_words": 2.0,
        "empty": 0.0,
        "references_found": 1.0,
        "precision": 1.0,
    }
    assert dump["references_found"] == 1.0
    assert dump["precision"] == pytest.approx(0.1)
    assert diagnostics("vt", " \n", ["a"])["empty"] == 1.0
