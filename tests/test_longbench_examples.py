"""Prompts and rows: the user turn is the official one to the letter, and cut as the official code cuts."""

from __future__ import annotations

import hashlib
import json
from importlib.util import find_spec
from pathlib import Path

import jinja2
import pytest
import yaml
from outside_data import here, real, rows_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from inertia.benchmarks import longbench
from inertia.benchmarks.longbench.generate import schema
from inertia.benchmarks.longbench.prompts import REPAIRS, _ending, _two_breaks
from inertia.benchmarks.render import Renderer
from inertia.benchmarks.sources import Source

CHAT = (
    "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)

# sha256 (16 digits) of the official config/dataset2prompt.json entries, the question's field called {input}.
OFFICIAL = {
    "narrativeqa": "aada7ed24b06abac",
    "qasper": "0fbdd123fe7f83d6",
    "multifieldqa_en": "20b4666a2de8a1f7",
    "hotpotqa": "9ec4ae308865bd0c",
    "2wikimqa": "9ec4ae308865bd0c",
    "musique": "9ec4ae308865bd0c",
    "gov_report": "91c25d585b189ced",
    "qmsum": "dca23b678fe0183b",
    "multi_news": "2af3f28c40b902e6",
    "trec": "0eff8bebdba99d91",
    "triviaqa": "00a802e6377e72fc",
    "samsum": "a68d884234907eef",
    "passage_count": "986550b6c61009c6",
    "passage_retrieval_en": "39b96b7fa52bdd2a",
    "lcc": "6a1f24cf0bb83cd9",
    "repobench-p": "ee9ec182ea5ffeb7",
}
MAX_NEW_TOKENS = {32: 6, 64: 4, 128: 3, 512: 3}  # of the sixteen tasks


def tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE that adds a BOS."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=["<s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(["the passages are about a question and its answer in the text " * 5], trainer)
    core.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 0)])
    fast = PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>")
    fast.chat_template = "{{ bos_token }}" + CHAT
    return fast


RENDERER = Renderer(tokenizer(), chat_template=True)
ROW = {"input": "Who?", "context": "Passage {{question}} $x {context}", "answers": ["me"], "length": 5}


def examples(tmp_path: Path, task: str, rows: list[dict], count: int = 10):
    return list(longbench.examples(task, None, count, 0, RENDERER, source=rows_file(tmp_path, rows)))


def turn(task: str, context: str, question: str) -> str:
    prompt = longbench.template(task)
    return prompt.before + context + prompt.question(question)


@pytest.mark.parametrize("task", list(longbench.TASKS))
def test_every_prompt_is_the_official_one(task):
    text = turn(task, "{context}", "{input}")
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == OFFICIAL[task.removesuffix("_e")]


@pytest.mark.parametrize("task", list(OFFICIAL))
def test_prompts_equal_lm_evals_own_rendering_but_for_the_repairs(task):
    folder = Path(find_spec("lm_eval").submodule_search_locations[0]) / "tasks" / "longbench"
    lines = (folder / f"{task}.yaml").read_text().splitlines()
    raw = yaml.safe_load(next(line for line in lines if line.startswith("doc_to_text:")))["doc_to_text"]
    rendered = jinja2.Template(raw).render(context="C\nC", question="Q")
    ours = turn(task, "C\nC", "Q")
    assert (ours == rendered) is (task not in REPAIRS)
    assert ours.split() == rendered.split()


def test_repairs_leave_a_right_prompt_alone():
    assert _ending(" ")("answer is: ") == _ending(" ")("answer is:") == "answer is: "
    assert _ending("\n")("of code:\n") == "of code:\n"
    right = "{{context}}\n\n{{question}}"
    assert _two_breaks(right) == _two_breaks("{{context}}\n{{question}}") == right


def test_the_table_of_tasks_is_the_official_one():
    plain = [task for name, task in longbench.TASKS.items() if not name.endswith("_e")]
    assert len(plain) == 16
    assert len(longbench.TASKS) == 29
    counts = {limit: sum(task.max_new_tokens == limit for task in plain) for limit in MAX_NEW_TOKENS}
    assert counts == MAX_NEW_TOKENS
    bare = {name for name, task in longbench.TASKS.items() if not task.chat_template}
    exceptions = {"trec", "triviaqa", "samsum", "lcc", "repobench-p"}
    assert bare == exceptions | {f"{name}_e" for name in exceptions}
    for name, task in longbench.TASKS.items():
        assert task.by_length is name.endswith("_e")


def test_limits_are_those_of_the_official_models():
    windows = (4096, 8192, 16384, 32768, 131072)
    assert [longbench.limit("qasper", window, 40) for window in windows] == [3500, 7500, 15500, 31500, 127500]
    with pytest.raises(ValueError, match="at least 2048"):
        longbench.limit("qasper", 1024, 40)


def test_context_and_question_are_the_user_turn_and_fields_in_the_text_stay(tmp_path):
    (example,) = examples(tmp_path, "hotpotqa", [ROW])
    assert example.context.endswith(ROW["context"])
    assert example.question.endswith("Question: Who?\nAnswer:")
    assert example.context + example.question == turn("hotpotqa", ROW["context"], "Who?")
    assert (example.references, example.max_new_tokens, example.length) == (("me",), 32, None)
    assert example.metadata["words"] == 5


@pytest.mark.parametrize("task", ["gov_report", "lcc"])
def test_tasks_without_a_question_end_in_their_instruction(tmp_path, task):
    (example,) = examples(tmp_path, task, [{**ROW, "input": ""}])
    assert example.question == longbench.template(task).after
    assert example.question.strip()


def test_the_mirrors_spelling_of_the_question_serves_too(tmp_path):
    mirror = {("question" if key == "input" else key): value for key, value in ROW.items()}
    assert examples(tmp_path, "qasper", [mirror]) == examples(tmp_path, "qasper", [ROW])


def test_ids_are_those_of_the_rows_and_match_the_examples(tmp_path):
    rows = [{**ROW, "_id": "0012"}, {**ROW, "_id": "12"}, ROW]
    found = examples(tmp_path, "musique", rows)
    assert [example.id for example in found] == ["musique/0012", "musique/12", "musique/0002"]
    data = rows_file(tmp_path, rows)
    assert longbench.ids("musique", None, 2, 7, source=data) == ["musique/0012", "musique/12"]
    assert examples(tmp_path, "musique", rows, count=2) == found[:2]


def test_arguments_are_checked_before_any_row(tmp_path):
    missing = Source(kind="path", path=str(tmp_path / "none.jsonl"))
    for task, length, count, message in (
        ("hotpot", None, 1, "unknown LongBench task 'hotpot'"),
        ("hotpotqa", 4096, 1, "no nominal lengths, got 4096"),
        ("hotpotqa", None, -1, "count is -1"),
    ):
        with pytest.raises(ValueError, match=message):
            longbench.examples(task, length, count, 0, RENDERER, source=missing)
        with pytest.raises(ValueError, match=message):
            longbench.ids(task, length, count, 0, source=missing)


def test_identity_follows_content_task_and_prompt_only(tmp_path):
    base = longbench.identity("hotpotqa", None, 0, source=rows_file(tmp_path, [ROW]))
    assert json.loads(json.dumps(base)) == {**base, "parameters": {**base["parameters"], "stop": []}}
    assert longbench.identity("hotpotqa", None, 1, source=rows_file(tmp_path, [ROW])) == base
    changed = longbench.identity("hotpotqa", None, 0, source=rows_file(tmp_path, [{**ROW, "length": 6}]))
    assert {key for key in base if base[key] != changed[key]} == {"rows_sha256"}
    other = longbench.identity("hotpotqa_e", None, 0, source=rows_file(tmp_path, [ROW]))
    assert {key for key in base if base[key] != other[key]} == {"task", "parameters"}
    assert base["rouge"] is None
    assert longbench.identity("qmsum", None, 0, source=rows_file(tmp_path, [ROW]))["rouge"]


def test_sanitised_rows_are_flagged(tmp_path):
    rows = [{**ROW, "context": "cut \ud83d"}, ROW]
    assert [e.metadata["sanitised"] for e in examples(tmp_path, "qasper", rows)] == [True, False]


def test_the_exceptions_lose_the_chat_template(tmp_path):
    for task, templated in (("hotpotqa", True), ("trec", False), ("lcc_e", False)):
        (example,) = examples(tmp_path, task, [{**ROW, "all_classes": ["me"]}])
        text = longbench.task_renderer(task, RENDERER).render(example).text
        assert ("<|user|>" in text) is templated
        assert example.metadata["chat_template"] is templated


def test_real_rows_are_cut_as_the_official_code_cuts():
    """The official steps written out: format, tokenise, halves, decode, template, tokenise."""
    limit, fast = 2001, RENDERER.tokenizer
    data = here(real("longbench/hotpotqa_first25.jsonl.gz"))
    renderer = longbench.task_renderer("hotpotqa", Renderer(fast, True, max_prompt_tokens=limit))
    prompt = longbench.template("hotpotqa")
    official = (prompt.before + "{context}" + prompt.question("{input}")).format
    found = list(longbench.examples("hotpotqa", None, 3, 0, renderer, source=data))
    assert len(found) == 3
    for example, row in zip(found, data.load("hotpotqa", schema("hotpotqa")).data, strict=False):
        text = official(**row)
        assert example.context + example.question == text
        ids = fast(text)["input_ids"]
        assert len(ids) > limit
        half = int(limit / 2)
        text = fast.decode(ids[:half], skip_special_tokens=True) + fast.decode(
            ids[-half:], skip_special_tokens=True
        )
        text = f"<s><|user|>\n{text}<|end|>\n<|assistant|>\n"
        rendered = renderer.render(example)
        assert rendered.text == text
        assert list(rendered.ids) == fast(text, add_special_tokens=False)["input_ids"]
        assert rendered.truncated
        assert row["input"] in rendered.text


REAL = {
    "longbench/hotpotqa_first25": ("hotpotqa", 25),
    "longbench/gov_report_first25": ("gov_report", 25),
    "longbench/multi_news_first50": ("multi_news", 50),
    "longbench/qmsum_first25": ("qmsum", 25),
    "longbench/qasper_first13": ("qasper", 13),
    "longbench/2wikimqa_mini": ("2wikimqa", 13),
    "longbench/musique_mini": ("musique", 7),
    "longbench/passage_retrieval_en_mini": ("passage_retrieval_en", 15),
    "longbench_e/2wikimqa_e": ("2wikimqa_e", 50),
    "longbench_e/qasper_e": ("qasper_e", 24),
    "longbench_e/hotpotqa_e": ("hotpotqa_e", 10),
    "longbench_e/passage_retrieval_en_e": ("passage_retrieval_en_e", 10),
}


@pytest.mark.parametrize("name", list(REAL))
def test_every_real_row_becomes_an_example_that_its_reference_answers(name):
    task, rows = REAL[name]
    found = list(longbench.examples(task, None, 1000, 0, RENDERER, source=here(real(f"{name}.jsonl.gz"))))
    assert len(found) == rows
    assert all(longbench.score(task, e.references[0], e.references, e.metadata) > 0.999 for e in found[:5])
