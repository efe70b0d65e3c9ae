"""RULER with the embedded model's tokenizer: the lengths a laptop runs at."""

from __future__ import annotations

import pytest
from test_ruler_text_sources import real as real_text

from inertia.backbones import FetchError, load_tokenizer, read
from inertia.benchmarks.render import Renderer
from inertia.benchmarks.ruler import NEEDS_TEXT, examples, shortest
from inertia.benchmarks.ruler import TASKS as ALL_TASKS
from inertia.paths import config_dir

pytestmark = pytest.mark.slow

# The tasks that need outside text have tests of their own.
TASKS = [name for name in ALL_TASKS if name not in NEEDS_TEXT]


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    config = read(config_dir() / "backbone" / "smollm2-135m.yaml")
    try:
        return Renderer(load_tokenizer(config), config.chat_template)
    except FetchError as error:
        pytest.skip(f"the embedded model cannot be had: {error}")


@pytest.mark.parametrize(("task", "length"), [("vt", 626), ("cwe", 878), *((task, 1024) for task in TASKS)])
def test_examples_fit_at_laptop_lengths(renderer: Renderer, task: str, length: int) -> None:
    rows = list(examples(task, length, 20, 42, renderer))
    sizes = [len(renderer.render(row).ids) + row.max_new_tokens for row in rows]
    assert len(rows) == 20 and max(sizes) <= length
    # A unit is one noise sentence, needle, word: less than 100 tokens in every task.
    assert min(sizes) > length - 100


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("length", [4096, 8192])
def test_examples_fit_the_models_window(renderer: Renderer, task: str, length: int) -> None:
    for row in examples(task, length, 3, 42, renderer):
        assert length - 100 < len(renderer.render(row).ids) + row.max_new_tokens <= length


@pytest.mark.parametrize("task", NEEDS_TEXT)
def test_tasks_on_real_texts_come_near_their_nominal_length(renderer: Renderer, task: str) -> None:
    for length in (2048, 4096):
        rows = list(examples(task, length, 10, 42, renderer, source=real_text(NEEDS_TEXT[task])))
        sizes = [len(renderer.render(row).ids) + row.max_new_tokens for row in rows]
        # Essays go in word by word, questions document by document.
        assert length - (60 if task.startswith("qa") else 10) <= min(sizes) <= max(sizes) <= length


def test_the_shortest_lengths_are_those_known_for_this_tokenizer(renderer: Renderer) -> None:
    assert 600 <= shortest("vt", renderer) <= 626
    assert 860 <= shortest("cwe", renderer) <= 878


@pytest.mark.parametrize("task", TASKS)
def test_the_context_ends_where_the_question_starts(renderer: Renderer, task: str) -> None:
    for row in examples(task, 1024, 5, 0, renderer):
        prompt = renderer.render(row)
        decode = renderer.tokenizer.decode
        assert decode(prompt.ids) == prompt.text
        assert decode(prompt.ids[: prompt.context_end]).endswith(row.context[-200:])
        assert decode(prompt.ids[prompt.context_end :]).startswith(row.question)
        assert prompt.text.endswith("assistant\n" + row.answer_prefix)
