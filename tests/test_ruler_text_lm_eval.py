"""The comparison tasks against lm-eval's own code."""

from __future__ import annotations

import random
import re
from importlib import import_module
from pathlib import Path
from random import Random

import numpy
import pytest
from test_ruler_generate import renderer
from test_ruler_text_sources import real, write

from inertia.benchmarks.render import Renderer
from inertia.benchmarks.ruler import COMPARISON, OFFICIAL, diagnostics, examples, identity, need, score
from inertia.benchmarks.ruler.texts import HOTPOT, SQUAD, read


@pytest.fixture(autouse=True)
def seeded() -> None:
    """lm-eval draws from the process-wide generators."""
    random.seed(0)
    numpy.random.seed(0)


def theirs(name: str):
    return import_module(f"lm_eval.tasks.ruler.{name}")


def ours(task: str, length: int, count: int, **source):
    return list(examples(task, length, count, 0, renderer(False), **source))


def text(example) -> str:
    return example.context + example.question + example.answer_prefix


def test_their_names_and_identities_are_never_the_official_ones(tmp_path: Path) -> None:
    source = write(tmp_path)
    assert list(COMPARISON) == [f"lm_eval_{name}" for name in OFFICIAL]
    for name in OFFICIAL:
        comparison = identity(f"lm_eval_{name}", 4096, 42, source=source)
        official = identity(name, 4096, 42, source=source)
        # lm-eval ends a question's documents before the first that is too long.
        plain = {"skip_long": False} if need(name) in (SQUAD, HOTPOT) else {}
        assert comparison["parameters"] == {"task": {**official["parameters"], **plain}}
        assert comparison["task"] != official["task"]
        assert {key for key in official if official[key] != comparison.get(key)} == {"task", "parameters"}
    row = next(examples("lm_eval_vt", 1024, 1, 0, renderer(False)))
    assert row.task == "lm_eval_vt" and row.id.startswith("lm_eval_vt/")


@pytest.mark.parametrize("task", OFFICIAL)
def test_scores_are_lm_evals(task: str) -> None:
    common = theirs("common_utils")
    process = common.process_results_part if task.startswith("qa") else common.process_results
    draw = Random(0)
    for _ in range(200):
        references = tuple(draw.choice(["a", "B", "ab", "c\t", "x", "yes"]) for _ in range(draw.randint(1, 5)))
        prediction = "".join(draw.choices("abcxy \n\x07", k=6))
        expected = process({"max_length": 4096, "outputs": list(references)}, [prediction])["4096"]
        assert score(f"lm_eval_{task}", prediction, references) == pytest.approx(expected)
    assert diagnostics(f"lm_eval_{task}", "ab", ("a",))["references_found"] == 1


def test_common_words_have_no_example_and_far_too_few_words() -> None:
    rows = ours("lm_eval_cwe", 16_384, 3)
    cwe = theirs("cwe_utils")
    published = cwe.sys_word_pair_random(3, 16_384, tokenizer=renderer(False).tokenizer)
    counts = [max(map(int, re.findall(r"(\d+)\. ", row["input"]))) for row in published]
    for row, their in zip(rows, published, strict=True):
        assert text(row).count("Below is a numbered list") == 1
        assert _words_blanked(text(row)) == _words_blanked(f"{their['input']}\n\n{their['gen_prefix']}")
        # A step is ten words of three; their count may end on the next step.
        assert abs(max(map(int, re.findall(r"(\d+)\. ", row.context))) - counts[0]) <= 30
    orders = {tuple(row.references.index(w) for w in _listed(row) if w in row.references) for row in rows}
    assert len(orders) == 3


def _listed(row) -> list[str]:
    return re.split(r"(?:^| )\d+\. ", row.context.rpartition("most often.\n")[2].rstrip("\n"))[1:]


def _words_blanked(prompt: str) -> str:
    return re.sub(r"1\. .*", "LIST", prompt)


def test_variable_tracking_reads_as_lm_evals() -> None:
    vt, tokenizer = theirs("vt_utils"), renderer(False).tokenizer
    example = vt.sys_vartrack_w_noise_random(tokenizer, 1, 500, incremental=5)[0]
    published = vt.sys_vartrack_w_noise_random(tokenizer, 3, 4096, icl_example=example)
    rows = ours("lm_eval_vt", 4096, 3)
    noise = "The grass is green."
    for row, their in zip(rows, published, strict=True):
        whole = f"{their['input']} {their['gen_prefix']}"
        assert _folded(text(row)) == _folded(whole)
        assert len(row.references) == len(their["outputs"])
        # One step is ten sentences; the worked examples differ by two.
        assert abs(row.context.count(noise) - whole.count(noise)) <= 12
    values = {re.search(r"= (\d{5})", row.context)[1] for row in rows}
    assert len(values) == 1
    assert all(row.references == _solved(row) for row in rows)


def _folded(prompt: str) -> str:
    """Names and values blanked, noise and assignments of all places folded into one."""
    prompt = re.sub(r"\b[A-Z]{5}\b", "LONG", re.sub(r"\b(?!VAR\b)[A-Z]{3}\b", "SHORT", prompt))
    prompt = re.sub(r"\d{5}", "VALUE", prompt)
    line = r" ?(?:VAR \w+ = (?:VAR )?\w+ ?)* ?The grass is green\. .* back again\.\n"
    return re.sub(rf"(?:{line})+(?: ?(?:VAR \w+ = (?:VAR )?\w+ ?)+(?=\nQuestion))?", "LINES", prompt)


def _solved(row) -> tuple[str, ...]:
    turn = row.context.rpartition("Memorize")[2]
    value = re.search(r"assigned the value (\d{5})", row.question)[1]
    names: list[str] = []
    for name, held in re.findall(r"VAR ([A-Z]+) = (?:VAR )?([A-Z]+|\d+)", turn):
        if held == value or held in names:
            names.append(name)
    return tuple(names)


def test_coded_words_overflow_as_lm_evals_do() -> None:
    fwe, render = theirs("fwe_utils"), renderer(False)
    published = fwe.sys_kwext(render.tokenizer, 2048, num_samples=3)
    rows = ours("lm_eval_fwe", 2048, 3)
    for row, their in zip(rows, published, strict=True):
        assert _coded(text(row)) == _coded(f"{their['input']} {their['gen_prefix']}")
        assert row.metadata["vocabulary"] == 2048 // 50
        assert render.count(row) <= 2048
        # Steps of length / 32 from length / 6 words before rounding down; the first draw decides.
        assert (row.metadata["units"] - 2048 // 6) % 64 == 0
        assert abs(len(row.context.split()) - len(their["input"].split())) <= 2 * 64


def test_coded_words_leave_no_room_for_the_answer() -> None:
    left = [1024 - renderer(False).count(row) for row in ours("lm_eval_fwe", 1024, 20)]
    assert min(left) >= 0 and sum(tokens < 50 for tokens in left) >= 3


def _coded(prompt: str) -> str:
    return re.sub(r"(coded words\. ).*", r"\1TEXT", prompt)


@pytest.mark.parametrize(("task", "name"), [("qa_1", SQUAD), ("qa_2", HOTPOT)])
def test_questions_are_asked_over_lm_evals_number_of_documents(task: str, name: str) -> None:
    qa, source = theirs("qa_utils"), real(name)
    texts = read(name, source)
    questions = [
        {
            "query": each.text,
            "outputs": list(each.answers),
            "context": list(each.gold),
            **({"more_context": list(each.related)} if name == SQUAD else {}),
        }
        for each in texts.questions
    ]
    length = 16_384
    published = qa.generate_samples(renderer(False).tokenizer, list(texts.documents), questions, length, num_samples=3)
    rows = list(examples(f"lm_eval_{task}", length, 3, 0, renderer(False), source=source))
    for row, their in zip(rows, published, strict=True):
        documents = [len(re.findall(r"^Document \d+:$", each, re.M)) for each in (row.context, their["input"])]
        # Other distractors are drawn, and the first draw decides: one step more or less, and one for shrinking.
        assert abs(documents[0] - documents[1]) <= 20 and documents[0] % 10 == 0
        assert list(row.references) == their["outputs"]
        asked = f"{row.question}{row.answer_prefix}"
        assert f"{their['input']} {their['gen_prefix']}".endswith("\n\n" + asked)


@pytest.mark.parametrize("length", [2048, 4096])
@pytest.mark.parametrize("task", [task for task in OFFICIAL if task.startswith("niah")])
def test_haystacks_come_in_lm_evals_steps_and_leave_prefix_and_template_out(
    task: str, length: int, tmp_path: Path
) -> None:
    source, render = write(tmp_path), Renderer(renderer().tokenizer, True)
    step = 500 if need(task) else 25 if length >= 4096 else 5
    official = next(examples(task, length, 1, 0, render, source=source))
    for row in examples(f"lm_eval_{task}", length, 4, 0, render, source=source):
        units = row.metadata["units"]
        assert units % step == 0
        assert units <= official.metadata["units"] + step
        # What lm-eval counts fits; one step more would not, small differences between draws aside.
        counted = render.count_text(row.context + row.question)
        per_step = counted / units * step
        assert counted + 128 <= length < counted + 128 + 2.2 * per_step
        assert row.answer_prefix == " " + row.answer_prefix.strip()
