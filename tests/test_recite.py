"""The recital: lists long enough, prompts that fit, scores that count items in order."""

from __future__ import annotations

import json
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inertia.backbones.tiny_tokenizer import tiny_tokenizer
from inertia.benchmarks import recite
from inertia.benchmarks.recite.score import common
from inertia.benchmarks.recite.texts import PREFIX, listed
from inertia.benchmarks.render import Renderer

TASKS = list(recite.TASKS)
LIST = ("river", "Moon", "table", "t-shirt", "lamp")


@cache
def renderer() -> Renderer:
    return Renderer(tiny_tokenizer(), True)


def make(task="words", length=1024, count=3, seed=1):
    return list(recite.examples(task, length, count, seed, renderer()))


# ---------------------------------------------------------------------------------------- examples


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("extra", [0, 1, 700])
def test_prompts_fill_their_length_and_one_more_sentence_would_not_fit(task, extra):
    kind = recite.find(task)
    length = recite.shortest(task, renderer()) + 120 + extra
    for example in make(task, length):
        room = length - kind.max_new_tokens
        size = len(renderer().render(example).ids)
        assert room - 80 < size <= room
        assert size == renderer().count(example)


@pytest.mark.parametrize("task", TASKS)
def test_the_answer_takes_the_decode_steps_that_the_task_promises(task):
    kind = recite.find(task)
    assert kind.answer_tokens >= 200
    for example in make(task, 4096):
        tokens = renderer().count_text(listed(example.references))
        assert kind.answer_tokens <= tokens < kind.answer_tokens + 30
        # The right answer, and the EOS behind it, fit the decoding limit.
        assert renderer().count_text(right(example)) + 1 <= kind.max_new_tokens
        assert len(set(example.references)) == len(example.references) == example.metadata["items"]


def right(example):
    return ("The list:\n" + listed(example.references)).removeprefix(PREFIX)


@pytest.mark.parametrize("task", TASKS)
def test_the_list_stands_in_the_context_once_and_a_right_answer_scores_one(task):
    for example in make(task, 2048):
        assert example.context.count(listed(example.references)) == 1
        assert example.context.count("1. ") == 1 + sum(f"{tens}1. " in example.context for tens in range(1, 20))
        assert recite.score(task, right(example), example.references) == 1
        # What copies the question's text, or stops at once, scores nothing.
        assert recite.score(task, example.question, example.references) == 0
        assert recite.score(task, "", example.references) == 0
        json.dumps(example.metadata)


def test_examples_depend_on_seed_task_length_and_index_alone():
    assert make(count=3) == make(count=5)[:3]
    assert [each.id for each in make()] == recite.ids("words", 1024, 3, 1)
    lists = {each.references for seed in (1, 2) for length in (1024, 1100) for each in make("words", length, 3, seed)}
    assert len(lists) == 12
    assert len({round(each.metadata["depth"], 2) for each in make(count=6)}) > 3


def test_what_does_not_fit_is_refused_with_the_length_that_does():
    least = recite.shortest("words", renderer())
    with pytest.raises(ValueError, match="needs at least"):
        make(length=least - 60)
    assert make(length=least + 40)
    with pytest.raises(ValueError, match="unknown recite task"):
        make("verses")
    with pytest.raises(ValueError, match="count"):
        make(count=-1)
    with pytest.raises(ValueError, match="values"):
        recite.Recite("letters", 1)
    with pytest.raises(ValueError, match="parts"):
        recite.Recite("words", 0)
    with pytest.raises(ValueError, match="answer_tokens"):
        recite.Recite("words", 1, 300, 300)


def test_identity_holds_what_can_change_an_example():
    identities = [
        recite.identity("words", 1024, 1),
        recite.identity("numbers", 1024, 1),
        recite.identity("words", 2048, 1),
        recite.identity("words", 1024, 2),
    ]
    assert len({json.dumps(each, sort_keys=True) for each in identities}) == 4


# ---------------------------------------------------------------------------------------- scores


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        (" river\n2. Moon\n3. table\n4. t-shirt\n5. lamp", 1.0),
        (" river\n2. moon.\n**3.** Table\n- 4) T-SHIRT\n5:  lamp \n\nDone!", 1.0),
        (" river\n2. Moon\n3. table", 0.6),
        # One wrong, one skipped, one twice: each costs itself only.
        (" river\n2. sun\n3. table\n4. t-shirt\n5. lamp", 0.8),
        (" river\n2. Moon\n4. t-shirt\n5. lamp", 0.8),
        (" river\n1. river\n2. Moon\n3. table\n4. t-shirt\n5. lamp", 1.0),
        # Right values under wrong numbers are wrong, and so are right items in the wrong order.
        (" Moon\n2. river\n3. t-shirt\n4. table\n5. lamp", 0.2),
        (" lamp\n5. lamp\n4. t-shirt\n3. table\n2. Moon", 0.2),
        (" riverbank\n2. Moonlight", 0.0),
        (" river, Moon, table, t-shirt, lamp", 0.0),
    ],
)
def test_the_score_is_the_share_of_items_in_order(answer, wanted):
    assert recite.score("words", answer, LIST) == pytest.approx(wanted)


def test_loops_and_lists_without_end_win_nothing():
    everything = "\n".join(f"{number}. {value}" for number in range(1, 6) for value in LIST)
    once = recite.score("words", everything.removeprefix("1."), LIST)
    assert once == 1.0  # all that is asked for is there, in order; the diagnostics tell
    assert recite.diagnostics("words", everything.removeprefix("1."), LIST)["lines"] == 5
    loop = "\n".join(["1. river\n2. sun"] * 50).removeprefix("1.")
    assert recite.score("words", loop, LIST) == 0.2
    numbers = recite.diagnostics("words", loop, LIST)
    assert (numbers["before_error"], numbers["lines"], numbers["values_found"]) == (0.2, 20, 0.2)
    assert numbers["distinct_3"] < 0.05
    with pytest.raises(ValueError, match="empty list"):
        recite.score("words", "x", ())


@given(st.text("abc", max_size=7), st.text("abc", max_size=7))
def test_common_is_the_longest_common_subsequence(left, right):
    def slow(a, b):
        if not a or not b:
            return 0
        return max(slow(a[1:], b), slow(a, b[1:]), (a[0] == b[0]) + slow(a[1:], b[1:]) if a[0] == b[0] else 0)

    assert common(left, right) == slow(left, right) == common(right, left)


@pytest.mark.slow
def test_the_embedded_model_recites_with_its_full_cache_and_not_at_random(results):
    from hydra import compose, initialize_config_dir

    from inertia.experiments import run as harness
    from inertia.experiments.config import run_config
    from inertia.paths import config_dir
    from inertia.records import read_samples

    def job(*words):
        shared = ["benchmark=recite", "benchmark.examples=2", "logger=none", "progress=false", "threads=1"]
        with initialize_config_dir(str(config_dir()), version_base="1.3"):
            return run_config(compose("config", overrides=[*shared, *words]))

    harness.run([job("method=full_cache"), job("method=random", "budget.compression_ratio=0.9")])
    frame = read_samples(results / "runs")
    assert len(frame) == 4 and set(frame["status"]) == {"ok"}
    full = frame[frame["budget_tokens"].isna()]
    assert full["score"].mean() > 0.5
    assert (full["new_tokens"] > 200).all()
    assert frame[frame["budget_tokens"].notna()]["score"].mean() < 0.2
