"""Generated examples: their structure, their size to the token, their independence, the published data."""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
import os
import random
import re
import subprocess
import sys
from collections import Counter
from functools import cache, partial
from pathlib import Path
from random import Random

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from inertia.benchmarks.example import Example
from inertia.benchmarks.render import Renderer
from inertia.benchmarks.ruler import NEEDS_TEXT, data_version, examples, find, identity, ids, shortest
from inertia.benchmarks.ruler import TASKS as ALL_TASKS
from inertia.benchmarks.ruler.fwe import occurrences
from inertia.benchmarks.ruler.generate import _example, _setting
from inertia.benchmarks.ruler.niah import Niah
from inertia.benchmarks.ruler.wording import wording
from inertia.benchmarks.seeding import rng
from inertia.benchmarks.words import word_lists

# The tasks that need outside text have tests of their own.
TASKS = {name: task for name, task in ALL_TASKS.items() if name not in NEEDS_TEXT}
OFFICIAL = ("niah_single_1", "niah_multikey_2", "niah_multikey_3", "vt", "cwe", "fwe")
UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
CHAT = (
    "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


@cache
def renderer(chat: bool = True) -> Renderer:
    """A byte-level BPE trained on the wording and some of the words, in a chat template or bare."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=2000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    texts = [getattr(wording(), name) for name in wording().__dataclass_fields__]
    core.train_from_iterator([*texts * 20, " ".join(word_lists().all[::7])], trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=core)
    fast.chat_template = CHAT
    return Renderer(fast, chat)


class Words:
    """Counts words instead of tokens: all the generator asks of a renderer."""

    def count_text(self, text: str) -> int:
        return len(text.split())

    def count(self, example: Example) -> int:
        return self.count_text(example.context + example.question + example.answer_prefix)


def one(task: str, length: int = 2048, seed: int = 7) -> Example:
    return next(examples(task, length, 1, seed, renderer()))


# Sizes


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize("task", TASKS)
def test_examples_fit_and_one_more_unit_would_not(task: str, chat: bool) -> None:
    render = renderer(chat)
    least = shortest(task, render)
    for length in (least, least + 1, 1500, 2048, 4095, 4096):
        if length < least:
            continue
        for example in examples(task, length, 2, 3, render):
            room = length - example.max_new_tokens
            assert len(render.render(example).ids) <= room
            assert len(render.render(_larger(example, 3, render)).ids) > room


def _larger(example: Example, seed: int, render: Renderer) -> Example:
    """The same draw with one more unit of haystack, by the generator's own parts but not by its search."""
    index = int(example.id.rsplit("/", 1)[1])
    draw = find(example.task).prepare(_setting(example.task, example.length, seed, render))
    units = example.metadata["units"]
    for attempt in range(100):
        drawn = draw(partial(rng, seed, example.task, example.length, index, attempt))
        if drawn.build(units).context == example.context:
            return _example(example.task, example.length, index, drawn.build(units + 1))
    raise AssertionError(f"{example.id} is no draw of its own stream")


@pytest.mark.parametrize("task", TASKS)
def test_every_length_from_the_shortest_on_can_be_generated(task: str) -> None:
    least = shortest(task, renderer())
    for length in range(least, least + 400, 37):
        assert len(list(examples(task, length, 3, 11, renderer()))) == 3


@pytest.mark.parametrize("task", TASKS)
def test_a_length_below_the_shortest_is_refused_before_any_example(task: str) -> None:
    least = shortest(task, renderer())
    with pytest.raises(ValueError, match=rf"{task}.*does not fit {least - 1} tokens.*{least}"):
        examples(task, least - 1, 1, 0, renderer())


def test_a_length_only_its_own_form_is_too_long_for_is_refused_and_ends() -> None:
    # From 4096 on cwe repeats words five times as often; words that cost 5 tokens each no longer fit.
    class Dear(Words):
        def count_text(self, text: str) -> int:
            return 5 * len(text.split())

    assert shortest("cwe", Dear()) < 4096
    with pytest.raises(ValueError, match="at this length its smallest form takes up to"):
        next(examples("cwe", 4096, 1, 0, Dear()))


def test_the_renderers_truncation_plays_no_part() -> None:
    short = Renderer(renderer().tokenizer, True, max_prompt_tokens=100)
    rows = [list(examples("niah_single_1", 1024, 2, 0, render)) for render in (short, renderer())]
    assert rows[0] == rows[1]


def test_the_list_of_common_words_ends_with_the_words() -> None:
    example = next(examples("cwe", 200_000, 1, 0, Words()))
    assert example.metadata["units"] == len(word_lists().all)


@pytest.mark.parametrize("task", TASKS)
def test_few_tokenizer_calls_size_an_example(task: str) -> None:
    calls = []

    class Counting(Words):
        def count(self, example: Example) -> int:
            calls.append(example.id)
            return renderer().count(example)

        def count_text(self, text: str) -> int:
            return renderer().count_text(text)

    for length in (2048, 16_384):
        calls.clear()
        rows = examples(task, length, 2, 0, Counting())
        assert max(Counter(calls).values()) <= 24  # the probes of the shortest length, small prompts all
        next(rows)
        calls.clear()
        next(rows)
        assert len(calls) <= 10


# Independence


def test_an_example_depends_on_seed_task_length_and_index_alone() -> None:
    for task in TASKS:
        five = list(examples(task, 1700, 5, 1, renderer()))
        assert list(examples(task, 1700, 3, 1, renderer())) == five[:3]
        assert len({example.context for example in five}) == 5
        assert one(task, 1700, seed=2).context != five[0].context
        assert one(task, 1701, seed=1).references != five[0].references
        assert [example.id for example in five] == [f"{task}/1700/{index:04d}" for index in range(5)]
        assert [example.id for example in five] == ids(task, 1700, 5, seed=1)


def test_the_process_wide_generators_are_neither_read_nor_moved() -> None:
    numpy = pytest.importorskip("numpy")
    random.seed(0)
    numpy.random.seed(0)
    before = (random.getstate(), numpy.random.get_state()[1].tolist())
    first = [one(task) for task in TASKS]
    assert (random.getstate(), numpy.random.get_state()[1].tolist()) == before
    random.seed(1)
    numpy.random.seed(1)
    assert [one(task) for task in reversed(TASKS)][::-1] == first


_PROGRAM = """
import hashlib
from inertia.benchmarks.ruler import NEEDS_TEXT, TASKS, examples

class Words:
    def count_text(self, text):
        return len(text.split())
    def count(self, example):
        return self.count_text(example.context + example.question + example.answer_prefix)

rows = [repr(e) for task in TASKS if task not in NEEDS_TEXT for e in examples(task, 900, 2, 5, Words())]
print(hashlib.sha256("".join(rows).encode()).hexdigest())
"""


def test_every_process_generates_the_same_examples() -> None:
    rows = [repr(example) for task in TASKS for example in examples(task, 900, 2, 5, Words())]
    here = hashlib.sha256("".join(rows).encode()).hexdigest()
    for hash_seed in ("0", "1", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, env=environment
        )
        assert done.stdout.strip() == here, done.stderr


_PINNED = "dfc0ed5ddb0f0dfc86d368c7a3a35844c9e8543c01e5bf2c4c73e7f15e9e909f"


def test_the_examples_of_this_generator_version_are_pinned() -> None:
    """A change here needs a new GENERATOR_VERSION, or old and new records share a name."""
    rows = [repr(example) for task in OFFICIAL for example in examples(task, 900, 2, 5, Words())]
    assert data_version()["generator_version"] == 1
    assert hashlib.sha256("".join(rows).encode()).hexdigest() == _PINNED


# Structure


@pytest.mark.parametrize("task", TASKS)
def test_references_stand_in_the_context_and_the_question_apart_from_it(task: str) -> None:
    for example in examples(task, 2048, 3, 1, renderer()):
        assert example.context.endswith("\n")
        assert example.question.startswith(("What", "Question:")) and example.question.endswith(("?", "."))
        assert example.answer_prefix.startswith(" ")
        for reference in example.references:
            assert reference in example.context
            assert reference not in example.question + example.answer_prefix
        assert len(set(example.references)) == len(example.references)
        assert json.loads(json.dumps(dict(example.metadata))) == dict(example.metadata)


@pytest.mark.parametrize("task", [name for name, task in TASKS.items() if isinstance(task, Niah)])
def test_needles_are_all_there_and_answer_the_question(task: str) -> None:
    kind = TASKS[task]
    example = one(task)
    needle = re.compile(r"One of the special magic (\w+) for (.+) is: (\S+)\.")
    lines = example.context.splitlines()[1:]
    found = [needle.fullmatch(line).groups() for line in lines if line.startswith("One of")]
    keys = max(kind.keys, kind.queries)
    units = example.metadata["units"]
    assert len(lines) == units + keys * kind.values
    assert len(found) == keys * kind.values + (units if kind.haystack == "needle" else 0)
    assert {line for line in lines if not line.startswith("One of")} <= {wording().noise}
    assert {name for name, _, _ in found} == {kind.value}
    pattern = {"words": r"[A-Za-z'. ]+(-[A-Za-z'. ]+)+", "numbers": r"\d{7}", "uuids": UUID}
    for _, key, value in found:
        assert re.fullmatch(pattern[kind.key], key) and re.fullmatch(pattern[kind.value], value)
    assert len({key for _, key, _ in found}) == keys + (units if kind.haystack == "needle" else 0)
    asked = re.search(r"for (.+) mentioned", example.question)[1]
    queries = re.split(r", and |, ", asked)
    assert len(queries) == kind.queries and asked in example.answer_prefix
    answers = {key: {value for _, k, value in found if k == key} for key in queries}
    assert set(example.references) == set().union(*answers.values())
    assert len(example.references) == kind.queries * kind.values


def test_one_answer_is_asked_for_in_the_singular_and_several_in_the_plural() -> None:
    single, several = one("niah_single_1"), one("niah_noise_multivalue")
    assert single.context.startswith("A special magic number is hidden within")
    assert single.question.startswith("What is the special magic number for ")
    assert single.answer_prefix.endswith(" mentioned in the provided text is")
    assert several.context.startswith("Some special magic numbers are hidden within")
    assert several.question.startswith("What are all the special magic numbers for ")
    assert several.answer_prefix.endswith(" mentioned in the provided text are")
    assert one("niah_noise_3keys").question.startswith("What is the")


def test_needles_stand_in_the_order_of_the_official_shuffle() -> None:
    # The first needle of the shuffled list goes to the last place.
    for example in examples("niah_noise_multivalue", 1024, 5, 0, Words()):
        standing = re.findall(r" is: (\d{7})\.", example.context)
        expected = list(example.references)
        Random(42).shuffle(expected)
        assert standing[::-1] == expected


def test_needle_depths_are_uniform() -> None:
    depths = [e.metadata["depths"][0] for e in examples("niah_single_1", 1200, 600, 0, Words())]
    assert len(set(depths)) > 40
    # Ten bins of 60 expected hits: chi-square, 9 degrees of freedom, p = 1e-4 at 33.7.
    bins = Counter(int(10 * depth) for depth in depths)
    assert sum((bins[i] - 60) ** 2 / 60 for i in range(10)) < 33.7


@pytest.mark.parametrize(("task", "variables"), [("vt", 5), ("vt_1hop", 2)])
def test_variable_tracking_is_one_shot_and_solvable(task: str, variables: int) -> None:
    example = one(task)
    shown, turn = _vt_turns(example.context)
    answers = re.search(rf" {variables} variables are assigned the value (\d{{5}}), they are:  (.+)$", shown)
    assert _solve(shown, answers[1]) == answers[2].split()
    assert all(re.fullmatch("[A-Z]{3}", name) for name in answers[2].split())
    value = re.search(r"assigned the value (\d{5}) in the text above\.$", example.question)[1]
    assert _solve(turn, value) == list(example.references)
    assert len(example.references) == variables
    assert all(re.fullmatch("[A-Z]{5}", name) for name in example.references)
    assert turn.count(wording().noise) == example.metadata["units"]
    assert shown.count(wording().noise) == example.metadata["example_units"]
    assert example.answer_prefix.endswith(
        f" {variables} variables are assigned the value {value}, they are: "
    )
    assert re.search(r"VAR [A-Z]{5} = VAR [A-Z]{5} \n", example.context)
    lines = turn.split("\n\n")[1].splitlines()
    standing = [i - before for before, i in enumerate(i for i, line in enumerate(lines) if "VAR" in line)]
    assert [place / example.metadata["units"] for place in standing] == example.metadata["depths"]
    assert len(set(standing)) == variables


def _vt_turns(context: str) -> tuple[str, str]:
    shown, turn = context.split("\n\nMemorize")
    return shown, "Memorize" + turn


def _solve(text: str, value: str) -> list[str]:
    names: list[str] = []
    for name, held in re.findall(r"VAR ([A-Z]+) = (?:VAR )?([A-Z]+|\d+)", text):
        if held == value or held in names:
            names.append(name)
    return names


def test_the_worked_chain_has_at_most_500_tokens_its_places_fixed_and_its_names_drawn() -> None:
    rows = list(examples("vt", 4096, 4, 0, renderer()))
    shown = [_vt_turns(row.context)[0] for row in rows]
    skeletons = {re.sub(r"\b[A-Z]{3}\b|\d{5}", "_", text.replace("VAR", "var")) for text in shown}
    assert len(skeletons) == 1 and len(set(shown)) == 4
    bare = [renderer().count_text(text[: text.rindex("are: ") + 5]) for text in shown]
    noise = renderer().count_text(wording().noise + "\n")
    # Measured on one draw of names; another may cost some tokens more.
    assert all(500 - noise - 20 <= size <= 520 for size in bare)


@pytest.mark.parametrize(
    ("length", "example_repeats", "repeats", "example_words"),
    [(2048, (3, 1), (6, 1), 20), (4095, (3, 1), (6, 1), 20), (8192, (10, 3), (30, 3), 40)],
)
def test_common_words_are_one_shot_and_counted(
    length: int, example_repeats: tuple[int, int], repeats: tuple[int, int], example_words: int
) -> None:
    example = next(examples("cwe", length, 1, 0, Words()))
    shown, turn = example.context.split("\nBelow")
    *lists, answers = re.findall(r"1\. .+", shown)
    common = re.split(r"\s*\d+\. ", answers)[1:]
    _check_list(lists[0], common, example_repeats, example_words)
    _check_list(turn, list(example.references), repeats, example.metadata["units"])
    assert len(example.references) == 10


def _check_list(text: str, common: list[str], repeats: tuple[int, int], words: int) -> None:
    listed = re.split(r"\s*\b\d+\. ", text[text.index("1. ") :].rstrip("\n"))[1:]
    counts = Counter(listed)
    assert counts == {word: repeats[0] if word in common else repeats[1] for word in counts}
    assert set(common) <= set(counts) and len(counts) == words
    assert re.findall(r"(\d+)\. ", text[text.index("1. ") :]) == [str(i + 1) for i in range(len(listed))]


def test_common_words_stand_in_the_places_of_the_official_shuffle() -> None:
    example = next(examples("cwe", 2048, 1, 0, Words()))
    text = example.context.rpartition("most often.\n")[2].rstrip("\n")
    listed = re.split(r"\s*\b\d+\. ", text)[1:]
    order = list(range(len(listed)))
    Random(42).shuffle(order)
    unshuffled = [word for _, word in sorted(zip(order, listed, strict=True))]
    assert unshuffled[:60] == list(example.references) * 6


@pytest.mark.parametrize("length", [512, 2048, 4096])
def test_frequent_words_are_the_ranks_after_the_dots(length: int) -> None:
    example = next(examples("fwe", length, 1, 0, Words()))
    text = example.context.partition("coded words. ")[2].split()
    counts = Counter(text).most_common()
    vocabulary = (length - 50) // 50
    assert example.metadata["vocabulary"] == vocabulary
    assert counts[0][0] == "..."
    assert set(example.references) == {word for word, _ in counts[1:4]}
    assert counts[3][1] > counts[4][1]
    assert all(re.fullmatch("[a-z]{6}", word) for word, _ in counts[1:])
    expected = [n for n in occurrences(example.metadata["units"], vocabulary) if n]
    assert [n for _, n in counts] == expected


# Names and identity


@pytest.mark.parametrize("task", NEEDS_TEXT)
def test_tasks_that_need_outside_text_are_known_and_say_so(task: str) -> None:
    for call in (lambda: examples(task, 4096, 1, 0, renderer()), lambda: shortest(task, renderer())):
        with pytest.raises(ValueError, match=rf"{task}.*needs outside text: .* Set benchmark.source to"):
            call()


def test_the_thirteen_official_tasks_have_names_and_no_other_task_has_one_of_them() -> None:
    assert set(OFFICIAL) | set(NEEDS_TEXT) == set(OFFICIAL) ^ set(NEEDS_TEXT)
    assert len(OFFICIAL) + len(NEEDS_TEXT) == 13
    assert {*OFFICIAL, *NEEDS_TEXT} <= set(ALL_TASKS)


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown RULER task 'niah'; available: niah_single_1"):
        examples("niah", 4096, 1, 0, renderer())
    with pytest.raises(ValueError, match="count is -1"):
        examples("vt", 4096, -1, 0, renderer())
    assert list(examples("vt", 4096, 0, 0, renderer())) == []


def test_identity_names_all_that_can_change_an_example() -> None:
    base = identity("niah_single_1", 4096, 42)
    assert json.loads(json.dumps(base)) == base
    assert base != identity("niah_single_1", 4097, 42)
    assert base != identity("niah_single_1", 4096, 43)
    assert base["parameters"]["haystack"] == "noise"
    assert {"generator_version", "wording_sha256", "wonderwords"} <= set(base)


# Published data


def _published(*path: str) -> Path:
    data = os.environ.get("INERTIA_TEST_DATA")
    if data is None:
        pytest.skip("INERTIA_TEST_DATA is unset: no published examples")
    return Path(data).joinpath(*path)


def _rows(path: Path) -> list[dict]:
    text = gzip.decompress(path.read_bytes()).decode()
    return [json.loads(line) for line in text.split("\n") if line]


def test_needles_read_as_in_the_published_examples() -> None:
    rows = _rows(_published("ruler_generated", "kvcf_4096_niah_multikey_3.jsonl.gz"))
    ours = one("niah_multikey_3", 4096)
    expected = _skeleton(ours.context + ours.question + ours.answer_prefix)
    for row in rows:
        assert _skeleton(row["input"]) == expected
        assert len(row["outputs"]) == len(ours.references) == 1
    assert len(rows) == 50


def _skeleton(text: str) -> list[str]:
    """Lines with ids blanked and repeats folded."""
    lines = re.sub(UUID, "ID", text).split("\n")
    return [line for i, line in enumerate(lines) if i == 0 or line != lines[i - 1]]


def test_the_published_coded_text_is_rebuilt_from_its_vocabulary() -> None:
    (row,) = _rows(_published("ruler_generated", "retrievalattention_128k_fwe.jsonl.gz"))
    head, text, tail = re.fullmatch(r"(.*coded words\. )(.*)(\nQuestion.*)", row["input"], re.DOTALL).groups()
    published = text.split(" ")
    order = list(range(len(published)))
    Random(42).shuffle(order)
    by_rank = [word for _, word in sorted(zip(order, published, strict=True))]
    ranked = list(dict.fromkeys(by_rank))
    counts = Counter(published)
    assert by_rank == [word for word in ranked for _ in range(counts[word])]
    assert ranked[0] == "..." and ranked[1:4] == row["outputs"]
    units = next(n for n in range(len(published), 2 * len(published)) if occurrences(n, 1) == [counts["..."]])
    candidates = (
        n for n in range(units, units + 10) if len([c for c in occurrences(n, 2621) if c]) == len(ranked)
    )
    assert any(
        [c for c in occurrences(n, 2621) if c] == [counts[word] for word in ranked] for n in candidates
    )
    ours = one("fwe", 4096)
    assert (
        head
        == "[INST] " + wording().fwe.partition("{context}")[0]
        == "[INST] " + ours.context[: len(head) - 7]
    )
    assert tail == "\n" + ours.question + " [/INST]" + ours.answer_prefix


def test_variable_tracking_reads_as_in_the_published_examples_blanks_aside() -> None:
    path = _published("sparse_attention_hub", "ruler32k_vt10", "raw_results.csv.gz")
    csv.field_size_limit(10**9)
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    ours = one("vt", 4096)
    expected = _vt_skeleton(ours.context + ours.question + ours.answer_prefix)
    for row in rows:
        # These rows hold their line breaks escaped and the spelling before the official correction.
        text = row["context"].replace("\\n", "\n") + row["question"] + row["answer_prefix"]
        assert _vt_skeleton(text.replace("assgined", "assigned")) == expected
    assert len(rows) == 10


def _vt_skeleton(text: str) -> str:
    text = re.sub(
        r"\b[A-Z]{5}\b", "LONG", re.sub(r"\b(?!VAR)[A-Z]{3}\b", "SHORT", text.replace(wording().noise, ""))
    )
    return " ".join(re.sub(r"\d{5}", "VALUE", text).split())
