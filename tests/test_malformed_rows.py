"""Outside rows that are not what they should be, ten kinds and more per benchmark: refused by file, line and field.

The rows around them are used, what is refused is counted in the identity, and all of it is known before any model.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from outside_data import here, real, rows_file
from test_ruler_text_sources import Words, hotpot_file, hotpot_rows, squad_file, squad_rows

from inertia.benchmarks import longbench, longbench_v2, niah, ruler
from inertia.benchmarks.registry import Benchmark
from inertia.benchmarks.rows import DataError

LONGBENCH = {"_id": "a", "input": "Who?", "context": "A text.", "answers": ["me"], "length": 2, "all_classes": None}
V2 = {
    **{"_id": "a", "domain": "Code", "sub_domain": "Repo", "difficulty": "hard", "length": "short"},
    **{"question": "Which?", "choice_A": "one", "choice_B": "two", "choice_C": "three", "choice_D": "four"},
    **{"answer": "B", "context": "A text."},
}
GONE = object()

# Task of the benchmark, the row's change and the place that the refusal names.
LONGBENCH_KINDS = [
    ("qasper", {"answers": [""]}, "answers"),
    ("qasper", {"answers": ["me", "  "]}, "answers"),
    ("qasper", {"answers": "me"}, "answers"),
    ("qasper", {"answers": []}, "answers"),
    ("qasper", {"answers": [1800]}, "answers[0]"),
    ("qasper", {"answers": None}, "answers"),
    ("qasper", {"context": GONE}, "context"),
    ("qasper", {"context": ["A", "text."]}, "context"),
    ("qasper", {"context": " \n"}, "context"),
    ("qasper", {"input": GONE}, "input"),
    ("qasper", {"input": ""}, "input"),
    ("qasper", {"length": "2"}, "length"),
    ("qasper", {"length": -2}, "length"),
    ("qasper", {"length": 10**30}, "length"),
    ("qasper", {"_id": 7}, "_id"),
    ("qasper", {"_id": "a"}, "_id"),
    ("trec", {"all_classes": "Person, me"}, "all_classes"),
    ("trec", {"all_classes": None}, "all_classes"),
    ("trec", {"all_classes": [["me"]]}, "all_classes[0]"),
    ("passage_retrieval_en", {"answers": ["7"]}, "answers"),
    ("passage_count", {"answers": ["seven"]}, "answers"),
]
GOOD_LONGBENCH = {
    "trec": {"all_classes": ["me", "you"]},
    "passage_retrieval_en": {"answers": ["Paragraph 7"]},
    "passage_count": {"answers": ["7"]},
}
V2_KINDS = [
    ({"answer": ""}, "answer"),
    ({"answer": "E"}, "answer"),
    ({"answer": ["B"]}, "answer"),
    ({"answer": "b"}, "answer"),
    ({"choice_C": GONE}, "choice_C"),
    ({"choice_C": None}, "choice_C"),
    ({"choice_D": " "}, "choice_D"),
    ({"choice_A": 1}, "choice_A"),
    ({"context": ""}, "context"),
    ({"context": {"text": "A text."}}, "context"),
    ({"question": ""}, "question"),
    ({"difficulty": "Hard"}, "difficulty"),
    ({"length": 120}, "length"),
    ({"_id": "a"}, "_id"),
    ({"domain": GONE}, "domain"),
]
SQUAD_KINDS = [
    ({"answers": {"text": [""]}}, "answers.text"),
    ({"answers": {"text": ["Lane", " "]}}, "answers.text"),
    ({"answers": {"text": "1800"}}, "answers.text"),
    ({"answers": "1800"}, "answers"),
    ({"answers": ["1800"]}, "answers"),
    ({"answers": [{"answer": "1800"}]}, "answers"),
    ({"answers": {"texts": ["1800"]}}, "answers.text"),
    ({"answers": {"text": [1800]}}, "answers.text[0]"),
    ({"answers": None}, "answers"),
    ({"answers": GONE}, "answers"),
    ({"answers": {"text": []}, "is_impossible": False}, "answers.text"),
    ({"is_impossible": "false"}, "is_impossible"),
    ({"context": ""}, "context"),
    ({"question": " "}, "question"),
    ({"title": GONE}, "title"),
]
OFFICIAL_SQUAD_KINDS = [
    (lambda qa: qa.update(answers=[{"text": "", "answer_start": 0}]), "qas[0].answers.text"),
    (lambda qa: qa.update(answers="1800"), "qas[0].answers"),
    (lambda qa: qa.update(answers={"text": "1800"}), "qas[0].answers.text"),
    (lambda qa: qa.update(answers=[{"answer_start": 0}]), "qas[0].answers"),
    (lambda qa: qa.update(answers=[{"text": 1800}]), "qas[0].answers.text[0]"),
    (lambda qa: qa.update(answers=[]), "qas[0].answers.text"),
    (lambda qa: qa.pop("answers"), "qas[0].answers"),
    (lambda qa: qa.pop("question"), "qas[0].question"),
    (lambda qa: qa.update(question=["What?"]), "qas[0].question"),
    (lambda qa: qa.update(is_impossible=0), "qas[0].is_impossible"),
]
HOTPOT_KINDS = [
    ({"answer": ""}, "answer"),
    ({"answer": ["Lake"]}, "answer"),
    ({"answer": None}, "answer"),
    ({"answer": True}, "answer"),
    ({"answer": GONE}, "answer"),
    ({"question": ""}, "question"),
    ({"context": "Topic"}, "context"),
    ({"context": []}, "context"),
    ({"context": [["Topic"]]}, "context"),
    ({"context": [["Topic", "A text."]]}, "context.sentences[0]"),
    ({"context": [["Topic", ["A text.", 1]]]}, "context.sentences[0][1]"),
    ({"context": {"title": ["Topic", "Other"], "sentences": [["A text."]]}}, "context"),
    ({"context": {"title": "Topic", "sentences": [["A text."]]}}, "context.title"),
    ({"context": {"titles": ["Topic"], "sentences": [["A text."]]}}, "context.title"),
]
ESSAY_KINDS = [
    *({"text": value} for value in (None, 1, ["A text."], {"a": "b"}, True, 1.5)),
    *({"txt": "A text."}, {}, [], "{", "1", '{"text": "a", "text": "b"}'),
]


def changed(row: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in {**row, **change}.items() if value is not GONE}


def expect(refused: tuple[str, ...], place: str, field: str) -> None:
    assert len(refused) == 1, refused
    assert refused[0].startswith(f"{place}, field {field}: "), refused


def warned(caplog: pytest.LogCaptureFixture) -> tuple[str, ...]:
    """What the log says was refused: the first of it."""
    (said,) = {record.getMessage() for record in caplog.records if "refused" in record.getMessage()}
    return tuple(said.split(" rows refused: ", 1)[1].split("; "))


@pytest.mark.parametrize(("task", "change", "field"), LONGBENCH_KINDS)
def test_longbench(tmp_path: Path, caplog: pytest.LogCaptureFixture, task: str, change: dict, field: str) -> None:
    good = {**LONGBENCH, **GOOD_LONGBENCH.get(task, {})}
    bad, last = changed({**good, "_id": "b"}, change), {**good, "_id": "c"}
    source = rows_file(tmp_path, [good, bad, last])
    assert longbench.ids(task, None, 3, 0, source=source) == [f"{task}/a", f"{task}/c"]
    expect(warned(caplog), "rows.jsonl, line 2", field)
    found = list(longbench.examples(task, None, 2, 0, Words(), source=source))
    assert [example.id for example in found] == [f"{task}/a", f"{task}/c"]
    assert longbench.identity(task, None, 0, source=source)["rows_refused"] == 1
    assert longbench.identity(task, None, 0, source=rows_file(tmp_path, [good, last]))["rows_refused"] == 0


@pytest.mark.parametrize(("change", "field"), V2_KINDS)
def test_longbench_v2(tmp_path: Path, caplog: pytest.LogCaptureFixture, change: dict, field: str) -> None:
    source = rows_file(tmp_path, [V2, changed({**V2, "_id": "b"}, change), {**V2, "_id": "c"}])
    assert longbench_v2.ids("cot", None, 2, 0, source=source) == ["cot/a", "cot/c"]
    expect(warned(caplog), "rows.jsonl, line 2", field)
    assert len(list(longbench_v2.examples("cot", None, 3, 0, Words(), source=source))) == 2
    assert longbench_v2.identity("cot", None, 0, source=source)["rows_refused"] == 1


def ruler_task(task: str, source: Any, count: int, caplog: pytest.LogCaptureFixture) -> tuple[str, ...]:
    """Check that so many questions are asked and one is counted as refused; return what was said of it."""
    assert len(ruler.ids(task, 700, 10**6, 0, source=source)) == count
    assert ruler.identity(task, 700, 0, source=source)["rows_refused"] == 1
    return warned(caplog)


@pytest.mark.parametrize(("change", "field"), SQUAD_KINDS)
def test_squad_rows_of_the_hub(tmp_path: Path, caplog: pytest.LogCaptureFixture, change: dict, field: str) -> None:
    rows = squad_rows()
    rows[3] = changed(rows[3], change)
    said = ruler_task("qa_1", rows_file(tmp_path, rows), 71, caplog)
    expect(said, "rows.jsonl, line 4", field)


@pytest.mark.parametrize(("change", "field"), OFFICIAL_SQUAD_KINDS)
def test_squad_file(tmp_path: Path, caplog: pytest.LogCaptureFixture, change: Callable, field: str) -> None:
    data = squad_file()
    change(data["data"][1]["paragraphs"][2]["qas"][0])
    (tmp_path / "squad.json").write_text(json.dumps(data))
    said = ruler_task("qa_1", here(tmp_path), 71, caplog)
    expect(said, "squad.json, line 1, row 0", f"data[1].paragraphs[2].{field}")


@pytest.mark.parametrize(
    ("change", "field", "left"),
    [
        (lambda data: data.__setitem__(1, "Town"), "data[1].paragraphs", 48),
        (lambda data: data[1].pop("paragraphs"), "data[1].paragraphs", 48),
        (lambda data: data[1].update(paragraphs={"a": 1}), "data[1].paragraphs", 48),
        (lambda data: data[1]["paragraphs"].__setitem__(2, None), "data[1].paragraphs[2].qas", 70),
        (lambda data: data[1]["paragraphs"][2].pop("qas"), "data[1].paragraphs[2].qas", 70),
        (lambda data: data[1]["paragraphs"][2]["qas"].__setitem__(0, []), "data[1].paragraphs[2].qas[0]", 71),
    ],
)
def test_squad_file_with_a_broken_frame(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, change: Callable, field: str, left: int
) -> None:
    data = squad_file()
    change(data["data"])
    (tmp_path / "squad.json").write_text(json.dumps(data))
    expect(ruler_task("qa_1", here(tmp_path), left, caplog), "squad.json, line 1, row 0", field)


@pytest.mark.parametrize("rows", [hotpot_file, hotpot_rows])
@pytest.mark.parametrize(("change", "field"), HOTPOT_KINDS)
def test_hotpot(tmp_path: Path, caplog: pytest.LogCaptureFixture, rows: Callable, change: dict, field: str) -> None:
    data = rows()
    data[3] = changed(data[3], change)
    source = rows_file(tmp_path, data)
    expect(ruler_task("qa_2", source, 29, caplog), "rows.jsonl, line 4", field)
    asked = [example.question for example in ruler.examples("qa_2", 700, 5, 0, Words(), source=source)]
    assert "river 2 and" not in "".join(asked) and "river 3 and" not in "".join(asked)


@pytest.mark.parametrize("row", ESSAY_KINDS)
def test_essays_are_refused_as_a_whole(tmp_path: Path, row: Any) -> None:
    source = rows_file(tmp_path, [{"text": "One. Two."}, row])
    for call in (
        lambda: ruler.identity("niah_single_2", 4096, 0, source=source),
        lambda: niah.identity("needle_essay", 4096, 0, source=source),
    ):
        with pytest.raises(DataError, match="rows.jsonl, line 2"):
            call()


@pytest.mark.parametrize(
    ("name", "task", "row"),
    [
        ("longbench", "qasper", {**LONGBENCH, "answers": [""]}),
        ("longbench_v2", "zero_shot", {**V2, "answer": ""}),
        ("ruler", "qa_1", {"title": "T", "context": "A", "question": "Q?", "answers": {"text": [""]}}),
        ("ruler", "qa_2", {"question": "Q?", "answer": "", "context": [["T", ["A"]]]}),
    ],
)
def test_nothing_but_an_empty_gold_stops_the_run_when_its_cells_are_made(
    tmp_path: Path, name: str, task: str, row: dict
) -> None:
    bench = Benchmark(name, 0, rows_file(tmp_path, [row]))
    length = 4096 if name == "ruler" else None
    complaint = "rows.jsonl has no row that serves as .*: rows.jsonl, line 1, field answer"
    for call in (lambda: bench.identity(task, length), lambda: bench.ids(task, length, 1)):
        with pytest.raises(DataError, match=complaint):
            call()


@pytest.mark.parametrize(
    ("name", "task", "length", "window", "complaint"),
    [
        ("ruler", "vt", 10, 8192, "shortest feasible length"),
        ("ruler", "niah_single_1", 10, 8192, "shortest feasible length"),
        ("niah", "needle_noise", 10, 8192, "does not fit 10 tokens"),
        ("recite", "numbers", 10, 8192, "does not fit 10 tokens"),
        ("longbench", "qasper", None, 1024, "at least 2048"),
        ("longbench_v2", "cot", None, 1024, "leaves no room"),
    ],
)
def test_a_length_or_window_too_short_is_known_from_the_tokenizer_alone(
    tmp_path: Path, name: str, task: str, length: int | None, window: int, complaint: str
) -> None:
    from test_longbench_examples import RENDERER

    row = {"longbench": LONGBENCH, "longbench_v2": V2}.get(name)
    bench = Benchmark(name, 0, None if row is None else rows_file(tmp_path, [row]))
    with pytest.raises(ValueError, match=complaint):
        bench.check(task, length, RENDERER, window)
    bench.check(task, None if length is None else 4096, RENDERER, 8192)


REAL = {
    **{f"longbench/{name}": "longbench" for name in ("hotpotqa_first25", "gov_report_first25", "multi_news_first50")},
    **{f"longbench/{name}": "longbench" for name in ("qmsum_first25", "qasper_first13", "2wikimqa_mini")},
    **{f"longbench/{name}": "longbench" for name in ("musique_mini", "passage_retrieval_en_mini", "qasper_mini")},
    **{f"longbench_e/{name}_e": "longbench" for name in ("2wikimqa", "qasper", "hotpotqa", "passage_retrieval_en")},
    "longbench_v2/subset20": "longbench_v2",
    "ruler_inputs/squad_cs224n/dev-v2.0": "qa_1",
    "ruler_inputs/hotpot_dev_distractor_first100": "qa_2",
}


@pytest.mark.parametrize("name", REAL)
def test_no_real_row_is_refused(name: str) -> None:
    kind = REAL[name]
    source = here(real(f"{name}.{'json' if kind.startswith('qa') else 'jsonl'}.gz"))
    if kind == "longbench":
        task = name.split("/")[1].removesuffix("_mini").split("_first")[0]
        assert longbench.identity(task, None, 0, source=source)["rows_refused"] == 0
    elif kind == "longbench_v2":
        assert longbench_v2.identity("cot", None, 0, source=source)["rows_refused"] == 0
    else:
        assert ruler.identity(kind, 4096, 0, source=source)["rows_refused"] == 0
