"""Prompts, the two calls, forced choice, and the table."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from outside_data import here, real

from inertia.benchmarks import longbench_v2 as v2
from inertia.benchmarks.longbench_v2.generate import SCHEMA
from inertia.benchmarks.longbench_v2.prompts import fill
from inertia.benchmarks.sources import Source

ROW = {
    "_id": "66",
    "domain": "Code",
    "sub_domain": "Repo",
    "difficulty": "hard",
    "length": "short",
    "question": " Which? ",
    "choice_A": "one",
    "choice_B": "$C_A$\n",
    "choice_C": "three",
    "choice_D": "four",
    "answer": "B",
    "context": "\n The text spells $Q$ and $C_D$ and \\1. \n",
}
OFFICIAL_FORMAT = {
    "0shot.txt": "D $DOC$ Q $Q$ $C_A$ $C_B$ $C_C$ $C_D$ End",
    "0shot_cot.txt": "D $DOC$ Q $Q$ $C_A$ $C_B$ $C_C$ $C_D$ Think",
    "0shot_cot_ans.txt": "Q $Q$ $C_A$ $C_B$ $C_C$ $C_D$ So $COT$ End",
}
RENDERER = None  # plays no part


def source(tmp_path: Path, rows: list[dict]) -> Source:
    file = tmp_path / "rows.json"
    file.write_text(json.dumps(rows))
    return Source(kind="path", path=str(file))


def one(tmp_path: Path, task: str, row: dict = ROW, **settings):
    (example,) = v2.examples(task, None, 5, 0, RENDERER, source=source(tmp_path, [row]), **settings)
    return example


def prompt_files(tmp_path: Path, **changes: str) -> Path:
    for name, text in (OFFICIAL_FORMAT | changes).items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_document_that_spells_a_field_stays_as_it_is(tmp_path):
    prompts = v2.read_prompts(prompt_files(tmp_path))
    example = one(tmp_path, "zero_shot", prompts=prompts)
    assert example.context == "D The text spells $Q$ and $C_D$ and \\1."
    assert example.question == " Q Which? one $C_A$ three four End"


def test_our_wording_has_the_official_parts_in_their_order(tmp_path):
    example = one(tmp_path, "zero_shot")
    text = example.context + example.question
    parts = [ROW["context"].strip(), "Which?", "(A) one", "(B) $C_A$", "(C) three", "(D) four"]
    places = [text.index(part) for part in [*parts, "The correct answer is ("]]
    assert places == sorted(places)
    assert (v2.OURS.label, example.max_new_tokens, example.references) == ("inertia", 128, ("B",))
    # The instruction itself must not read as a choice.
    assert v2.strict(example.question) is None


def test_two_calls(tmp_path):
    first = one(tmp_path, "cot")
    assert first.max_new_tokens == 1024
    second = v2.follow_up(first, "  Since $Q$ and $COT$. \n")
    assert (second.id, second.max_new_tokens, second.references) == (first.id, 128, first.references)
    text = second.context + second.question
    assert "Since $Q$ and $COT$.\n" in text
    assert "The text spells" not in text
    assert text.count("Which?") == 1
    with pytest.raises(ValueError, match="one call only"):
        v2.follow_up(one(tmp_path, "zero_shot"), "x")


def test_the_second_call_uses_the_first_calls_wording(tmp_path):
    prompts = v2.read_prompts(prompt_files(tmp_path))
    second = v2.follow_up(one(tmp_path, "cot", prompts=prompts), "R", prompts)
    assert second.context + second.question == "Q Which? one $C_A$ three four So R End"


@given(st.text(), st.text())
def test_filling_is_one_pass(one, two):
    assert fill("[$Q$|$COT$|$X$]", {"$Q$": one, "$COT$": two}) == f"[{one.strip()}|{two.strip()}|$X$]"


def test_prompt_files_must_hold_every_field_once(tmp_path):
    with pytest.raises(FileNotFoundError, match="lacks 0shot.txt, 0shot_cot.txt"):
        v2.read_prompts(tmp_path)
    for bad in ("$DOC$ $Q$ $C_A$ $C_B$ $C_C$", "$DOC$ $Q$ $C_A$ $C_B$ $C_C$ $C_D$ $Q$"):
        with pytest.raises(ValueError, match="zero_shot must hold once each"):
            v2.read_prompts(prompt_files(tmp_path, **{"0shot.txt": bad}))


def test_identity_tells_the_wording(tmp_path):
    data = source(tmp_path, [ROW])
    ours = v2.identity("cot", None, 0, source=data)
    read = v2.read_prompts(prompt_files(tmp_path))
    theirs = v2.identity("cot", None, 0, source=data, prompts=read)
    assert {key for key in ours if ours[key] != theirs[key]} == {"prompts", "prompts_sha256"}
    assert theirs["prompts"] == "file"
    changed = v2.read_prompts(prompt_files(tmp_path, **{"0shot.txt": OFFICIAL_FORMAT["0shot.txt"] + " "}))
    assert changed.sha256 != read.sha256


def test_metadata_and_ids(tmp_path):
    example = one(tmp_path, "forced_choice")
    assert example.id == "forced_choice/66"
    assert example.metadata["length_class"] == "short"
    assert example.metadata["stem"] == "The correct answer is ("
    assert example.length is None
    json.dumps(example.metadata)
    rows = [ROW, {**ROW, "_id": "67"}]
    assert v2.ids("cot", None, 1, 0, source=source(tmp_path, rows)) == ["cot/66"]


def test_arguments_are_checked_before_any_row(tmp_path):
    missing = Source(kind="path", path=str(tmp_path / "none.jsonl"))
    for task, length, count, message in (
        ("0shot", None, 1, "unknown LongBench-v2 task '0shot'; available: zero_shot, cot, forced_choice"),
        ("cot", 4096, 1, "no nominal lengths, got 4096"),
        ("cot", None, -1, "count is -1"),
    ):
        with pytest.raises(ValueError, match=message):
            v2.examples(task, length, count, 0, RENDERER, source=missing)


def test_scores_and_diagnostics():
    assert v2.score("zero_shot", "The correct answer is (B)", ["B"]) == 1.0
    assert v2.score("zero_shot", "The correct answer is: (B)", ["B"]) == 0.0
    numbers = v2.diagnostics("zero_shot", "The correct answer is: (B)", ["B"])
    assert (numbers["lenient"], numbers["unparsed"], numbers["compensated"]) == (1.0, 1.0, 0.25)
    assert "letter_offset" not in numbers
    assert v2.diagnostics("cot", "The correct answer is (B)", ["C"])["letter_offset"] == 23.0
    assert v2.score("forced_choice", "B", ["B"]) == 1.0
    assert v2.score("forced_choice", "The correct answer is (B)", ["B"]) == 0.0
    with pytest.raises(ValueError, match="allowed: one of A, B, C, D"):
        v2.score("cot", "x", ["E"])


def test_forced_choice_takes_the_greatest_logit_and_the_first_of_equals():
    assert v2.choose({"A": 0.0, "B": 2.0, "C": -1.0, "D": 2.0}) == "B"
    for bad in ({"A": 1.0}, {"A": math.nan, "B": 0.0, "C": 0.0, "D": 0.0}):
        with pytest.raises(ValueError, match="a number for each of A, B, C, D"):
            v2.choose(bad)


def test_limits():
    assert v2.limit("zero_shot", 131_072, 40) == 120_000
    assert v2.limit("zero_shot", 8192, 40) == 8192 - 128 - 40
    assert v2.limit("cot", 8192, 40) == 8192 - 1024 - 40
    with pytest.raises(ValueError, match="window of 128 tokens leaves no room"):
        v2.limit("zero_shot", 128, 0)


def test_real_rows():
    data = here(real("longbench_v2", "subset20.jsonl.gz"))
    for task in v2.TASKS:
        found = list(v2.examples(task, None, 503, 0, RENDERER, source=data))
        assert len(found) == 20
        rows = data.load("x", SCHEMA).data
        assert all(row["context"].strip() in example.context for example, row in zip(found, rows, strict=True))
