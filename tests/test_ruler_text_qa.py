"""Question answering: what is asked, which documents are shown, in which order; the published questions."""

from __future__ import annotations

import csv
import gzip
import json
import re
from pathlib import Path
from random import Random

import outside_data
import pytest
from test_ruler_text_sources import Words, hotpot_file, real, squad_file, write

from inertia.benchmarks.ruler import examples, ids, score, shortest
from inertia.benchmarks.ruler.texts import HOTPOT, SQUAD, read
from inertia.benchmarks.sources import Source

DOCUMENT = re.compile(r"Document (\d+):\n(.*?)\n\n(?=Document \d+:\n|\Z)", re.DOTALL)


def shown(example) -> list[str]:
    found = DOCUMENT.findall(example.context)
    assert [int(number) for number, _ in found] == list(range(1, len(found) + 1))
    return [text for _, text in found]


def unshuffled(items: list[str]) -> list[str]:
    order = list(range(len(items)))
    Random(42).shuffle(order)
    return [item for _, item in sorted(zip(order, items, strict=True))]


def test_answerable_questions_are_asked_once_each_in_the_order_of_the_file(tmp_path: Path) -> None:
    source = write(tmp_path)
    asked = [
        (item["question"], tuple(answer["text"] for answer in item["answers"]))
        for article in squad_file()["data"]
        for paragraph in article["paragraphs"]
        for item in paragraph["qas"]
        if not item["is_impossible"]
    ]
    rows = list(examples("qa_1", 600, 500, 0, Words(), source=source))
    assert [(row.question.rpartition("Question: ")[2], row.references) for row in rows] == asked
    assert [row.id for row in rows] == ids("qa_1", 600, 500, 0, source=source)
    assert len(rows) == 72 and [row.metadata["question"] for row in rows] == list(range(72))


def test_what_is_marked_impossible_is_not_asked_whatever_answers_stand_there(tmp_path: Path) -> None:
    data = squad_file()
    data["data"][0]["paragraphs"][0]["qas"][0]["is_impossible"] = True
    (tmp_path / "squad.json").write_text(json.dumps(data))
    assert len(read(SQUAD, Source("path", str(tmp_path))).questions) == 71


@pytest.mark.parametrize(("length", "articles"), [(200, 1), (900, 3)])
def test_the_paragraph_comes_first_its_article_next_and_others_only_then(
    length: int, articles: int, tmp_path: Path
) -> None:
    paragraphs = [[each["context"] for each in article["paragraphs"]] for article in squad_file()["data"]]
    for row in examples("qa_1", length, 20, 0, Words(), source=write(tmp_path)):
        documents = unshuffled(shown(row))
        own = paragraphs[int(re.search(r"(\d)(?:-\d+\?| called\?|\?$)", row.question)[1])]
        assert len(set(documents)) == len(documents) == row.metadata["units"]
        assert row.references[0] in documents[0] and documents[0] in own
        assert set(documents[:12]) <= set(own)
        assert {text for text in documents[12:]} & set(own) == set()
        assert (len(documents) > 12) == (articles > 1)
        place = shown(row).index(documents[0])
        assert row.metadata["depths"] == [place / len(documents)]


def test_all_documents_of_a_hotpot_question_are_shown(tmp_path: Path) -> None:
    for row in examples("qa_2", 700, 15, 0, Words(), source=write(tmp_path)):
        data = hotpot_file()[row.metadata["question"]]
        gold = [f"{title}\n{''.join(text)}" for title, text in data["context"]]
        documents = unshuffled(shown(row))
        assert documents[:10] == gold and not set(documents[10:]) & set(gold)
        # A distractor of 700 words would not fit.
        assert len(documents) > 10 or row.metadata["question"] == 7
        assert [shown(row)[round(depth * len(documents))] in gold for depth in row.metadata["depths"]] == [True] * 10


def test_a_longer_example_holds_all_documents_of_a_shorter_one(tmp_path: Path) -> None:
    from inertia.benchmarks.ruler import find
    from inertia.benchmarks.ruler.generate import _setting
    from inertia.benchmarks.seeding import rng

    texts = read(SQUAD, write(tmp_path))
    draw = find("qa_1").prepare(_setting("qa_1", 4096, 0, Words(), texts))
    drawn = draw(lambda *key: rng("example", *key), number=5)
    sets = [set(DOCUMENT.findall(drawn.build(units).context)) for units in range(1, drawn.largest + 1)]
    texts_of = [{text for _, text in found} for found in sets]
    assert all(small < large for small, large in zip(texts_of, texts_of[1:], strict=False))
    assert texts_of[-1] == set(texts.documents)
    assert drawn.build(drawn.largest).metadata["all_documents"]


def test_a_question_whose_documents_are_too_long_gives_way_to_the_next(tmp_path: Path) -> None:
    source = write(tmp_path)
    rows = list(examples("qa_2", 700, 6, 0, Words(), source=source))
    assert [row.metadata["question"] for row in rows] == [0, 1, 3, 4, 5, 6]
    long = list(examples("qa_2", 16_384, 4, 0, Words(), source=source))
    assert [row.metadata["question"] for row in long] == [0, 1, 2, 3]
    assert shortest("qa_2", Words(), source=source) < 300


def test_a_document_that_is_too_long_gives_way_to_the_next_ones(tmp_path: Path) -> None:
    data = squad_file()
    for article in data["data"]:
        article["paragraphs"][3]["context"] += " very" * 800
        article["paragraphs"][7]["context"] += " very" * 400
    (tmp_path / "squad.json").write_text(json.dumps(data))
    source = Source("path", str(tmp_path))
    documents = [paragraph["context"] for article in data["data"] for paragraph in article["paragraphs"]]
    found = list(examples("qa_1", 700, 30, 0, Words(), source=source))
    for row in found:
        left = 700 - 32 - Words().count(row)
        rest = [text for text in documents if text not in shown(row)]
        # Two words stand before each document.
        assert 0 <= left < min(len(text.split()) + 2 for text in rest)
        paragraphs = next(
            [each["context"] for each in article["paragraphs"]]
            for article in data["data"]
            if unshuffled(shown(row))[0] in [each["context"] for each in article["paragraphs"]]
        )
        # All short ones of its own article come before any other.
        assert set(unshuffled(shown(row))[:10]) <= set(paragraphs)
    assert len(found) > 20


def test_lm_evals_questions_end_before_the_first_document_that_is_too_long() -> None:
    from inertia.benchmarks.ruler import COMPARISON, find

    assert find("qa_1").skip_long and not COMPARISON["lm_eval_qa_1"].task.skip_long


def test_more_examples_than_fitting_questions_is_an_error_that_counts_them(tmp_path: Path) -> None:
    source = write(tmp_path)
    assert len(ids("qa_2", 700, 500, 0, source=source)) == 30
    rows = examples("qa_2", 700, 500, 0, Words(), source=source)
    assert len([next(rows) for _ in range(29)]) == 29
    with pytest.raises(ValueError, match="only 29 of 30 questions fit 700 tokens.*30 are wanted; ask for fewer"):
        next(rows)


def test_the_context_ends_before_the_question(tmp_path: Path) -> None:
    source = write(tmp_path)
    for task in ("qa_1", "qa_2"):
        row = next(examples(task, 700, 1, 0, Words(), source=source))
        assert row.context.startswith("Answer the question based on the given documents.")
        assert row.context.endswith("\n\n") and not row.context.endswith("\n\n\n")
        assert row.question.startswith("Answer the question based on the given documents.")
        assert row.answer_prefix == " Answer:" and row.max_new_tokens == 32


def test_the_best_reference_counts() -> None:
    assert score("qa_1", "It was in France.", ("in france", "Paris", "Lyon")) == 1.0
    assert score("qa_2", "no idea", ("yes",)) == 0.0
    assert score("lm_eval_qa_1", "It was in France.", ("in france", "Paris", "Lyon", "x")) == 0.25


# Published data


@pytest.mark.parametrize(("task", "name", "at_hand"), [("qa_1", SQUAD, 293), ("qa_2", HOTPOT, 100)])
def test_the_published_questions_are_the_first_of_the_file_with_all_their_answers(
    task: str, name: str, at_hand: int
) -> None:
    path = outside_data.real("ruler_preds", "kvpress_centrality_llama3.1-8b_4096_0.50", "predictions.csv.gz")
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["task"] == task][:at_hand]
    ours = list(examples(task, 8192, at_hand, 42, Words(), source=real(name)))
    assert len(rows) == len(ours) == at_hand
    for row, example in zip(rows, ours, strict=True):
        assert row["question"].strip() == " ".join(example.question.split(" ")).strip()
        assert row["answer_prefix"] == example.answer_prefix.strip()
        # The cells are NumPy reprs: quoted texts without commas.
        quoted = re.findall(r"""'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)\"""", row["answer"])
        assert tuple(a or b for a, b in quoted) == example.references


def test_every_real_gold_paragraph_holds_its_answers() -> None:
    texts = read(SQUAD, real(SQUAD))
    assert len(texts.questions) == 2910 and len(texts.documents) == 646
    assert list(texts.documents) == sorted(texts.documents)
    for question in texts.questions:
        assert all(answer in texts.documents[question.gold[0]] for answer in question.answers)
        assert question.gold[0] not in question.related and len(question.related) >= 22
