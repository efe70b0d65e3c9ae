"""The parts of the generator one by one: sizing, haystacks, seeding, wording."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inertia.benchmarks.ruler import data_version
from inertia.benchmarks.ruler.draw import Setting
from inertia.benchmarks.ruler.fwe import occurrences
from inertia.benchmarks.ruler.haystacks import DEPTHS, anywhere, prose, repeated, spread
from inertia.benchmarks.ruler.niah import Niah, draw, random_item
from inertia.benchmarks.ruler.tasks import TASKS
from inertia.benchmarks.ruler.vt import VariableTracking
from inertia.benchmarks.ruler.wording import wording
from inertia.benchmarks.seeding import official_shuffle, rng
from inertia.benchmarks.sizing import largest_fitting
from inertia.benchmarks.words import word_lists


@given(
    steps=st.lists(st.integers(0, 9), min_size=1, max_size=60),
    base=st.integers(0, 50),
    limit=st.integers(0, 400),
    smallest=st.integers(0, 10),
)
def test_the_search_agrees_with_trying_every_size(
    steps: list[int], base: int, limit: int, smallest: int
) -> None:
    sizes = [base]
    for step in steps:
        sizes.append(sizes[-1] + step)
    largest = smallest + len(steps)
    fitting = [smallest + i for i, size in enumerate(sizes) if size <= limit]
    found = largest_fitting(lambda n: sizes[n - smallest], limit, smallest, largest)
    assert found == (fitting[-1] if fitting else None)


@given(sizes=st.lists(st.integers(0, 99), min_size=2, max_size=60), limit=st.integers(0, 99))
def test_the_search_ends_at_a_border_even_where_sizes_jump(sizes: list[int], limit: int) -> None:
    found = largest_fitting(sizes.__getitem__, limit, 0, len(sizes) - 1)
    if found is None:
        assert sizes[0] > limit
    else:
        assert sizes[found] <= limit
        assert found == len(sizes) - 1 or sizes[found + 1] > limit


@given(slope=st.floats(1, 80), base=st.integers(0, 900), jitter=st.integers(0, 3))
def test_a_near_linear_size_takes_few_calls(slope: float, base: int, jitter: int) -> None:
    calls = []

    def size(n: int) -> int:
        calls.append(n)
        return base + int(slope * n) + (n * 7919) % (jitter + 1)

    largest_fitting(size, 16_384, 1, 16_384)
    assert len(calls) <= 8


def test_streams_depend_on_the_key_alone() -> None:
    assert rng(1, "vt", 1024, 0).random() == rng(1, "vt", 1024, 0).random()
    keys = [
        (1, "vt", 1024, 0),
        (2, "vt", 1024, 0),
        (1, "vt", 1024, 1),
        (1, "vt", 10240, 1),
        ("1", "vt", 1024, 0),
    ]
    assert len({rng(*key).random() for key in keys}) == len(keys)
    assert rng(42, "pinned").getrandbits(64) == 0xEE782872242D99CA


def test_the_official_shuffle_is_the_seed_42_permutation() -> None:
    expected = list("abcdefgh")
    Random(42).shuffle(expected)
    assert official_shuffle(list("abcdefgh")) == expected


def test_depths_are_the_forty_official_percentages() -> None:
    numpy = pytest.importorskip("numpy")
    assert list(DEPTHS) == list(numpy.round(numpy.linspace(0, 100, num=40, endpoint=True)).astype(int))


def test_prose_takes_depths_without_replacement_and_noise_any_place() -> None:
    sentences = 1000
    allowed = {10 * depth for depth in DEPTHS}
    seen: Counter[int] = Counter()
    for index in range(400):
        places = spread(rng("prose", index), sentences, 4)
        assert len(set(places)) == 4 and set(places) <= allowed
        seen.update(places)
    assert set(seen) == allowed
    noise = [anywhere(rng("noise", index), sentences, 4) for index in range(400)]
    assert all(len(set(places)) == 4 for places in noise)
    flat = [place for places in noise for place in places]
    assert set(flat) - allowed
    # Uniform over ten bins of 160 expected hits: chi-square, 9 degrees of freedom, p = 1e-4 at 33.7.
    bins = Counter(place // 100 for place in flat)
    assert sum((bins[i] - 160) ** 2 / 160 for i in range(10)) < 33.7


def _setting() -> Setting:
    return Setting(
        wording(), word_lists(), 1000, 900, lambda text: len(text.split()), lambda *key: rng("shared", *key)
    )


def test_a_haystack_is_a_value_any_text_can_fill() -> None:
    text = [f"Sentence number {i}." for i in range(200)]
    task = Niah(keys=4, value="uuids")
    drawn = draw(task, _setting(), prose(lambda units: text[:units]), lambda *key: rng("example", *key))
    parts = drawn.build(100)
    for sentence in text[:100]:
        assert sentence in parts.context
    assert text[100] not in parts.context
    assert parts.context.count("One of the special magic uuids for") == 4
    assert {round(100 * depth) for depth in parts.metadata["depths"]} <= set(DEPTHS)


@pytest.mark.parametrize("depth", [0, 0.25, 0.5, 1])
def test_a_given_depth_places_the_queried_needle(depth: float) -> None:
    task = Niah(keys=3, depth=depth)
    drawn = draw(task, _setting(), repeated("Noise."), lambda *key: rng("example", *key))
    parts = drawn.build(40)
    lines = parts.context.splitlines()[1:]
    key = re.search(r"for (\S+) mentioned", parts.question)[1]
    (position,) = [i for i, line in enumerate(lines) if f" {key} " in line]
    assert parts.references[0] in lines[position]
    assert parts.metadata["depths"] == [depth]
    # The two other needles may stand before it.
    assert 40 * depth <= position <= 40 * depth + 2


def test_random_items_have_their_form() -> None:
    random, words = rng("items"), word_lists()
    for _ in range(200):
        assert re.fullmatch(r"[1-9]\d{6}", random_item(random, "numbers", words))
        assert re.fullmatch(
            r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}",
            random_item(random, "uuids", words),
        )
        word = random_item(random, "words", words)
        # Some adjectives and nouns carry hyphens of their own: any split into two listed words will do.
        splits = [(word[:i], word[i + 1 :]) for i, letter in enumerate(word) if letter == "-"]
        assert any(left in words.adjectives and right in words.nouns for left, right in splits)


def test_occurrences_follow_the_zeta_law() -> None:
    scipy = pytest.importorskip("scipy.special")
    for units in (53, 442, 8014, 65_000):
        expected = [int(units * k**-2.0 / scipy.zeta(2.0)) for k in range(1, 81)]
        assert occurrences(units, 80) == expected


def test_bad_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match="niah key is 'letters'; allowed: words, numbers, uuids"):
        Niah(key="letters")
    with pytest.raises(ValueError, match="niah queries is 0"):
        Niah(queries=0)
    with pytest.raises(ValueError, match="niah depth is 1.5"):
        Niah(depth=1.5)
    with pytest.raises(ValueError, match="niah haystack is 'essay'; available: noise, needle"):
        Niah(haystack="essay").prepare(_setting())
    with pytest.raises(ValueError, match="vt hops is 0"):
        VariableTracking(hops=0)


def test_the_wording_is_the_one_the_numbers_were_made_with() -> None:
    assert data_version()["wording_sha256"] == "fc3564e21b4093cd387e0cf55435f96c043753972a26bc7411e9a910341d3ee5"
    assert "assigned the value" in wording().vt_prefix
    assert len(word_lists().all) == 8166


def test_new_tokens_are_those_of_the_installed_task_files() -> None:
    folder = Path(find_spec("lm_eval").submodule_search_locations[0]) / "tasks" / "ruler"
    base = int(re.search(r"max_gen_toks: (\d+)", (folder / "niah_single_1.yaml").read_text())[1])
    for name in ("niah_single_1", "niah_multikey_2", "niah_multikey_3", "vt", "cwe", "fwe"):
        own = re.search(r"max_gen_toks: (\d+)", (folder / f"{name}.yaml").read_text())
        assert TASKS[name].max_new_tokens == (int(own[1]) if own else base)


def test_reading_the_wording_imports_neither_lm_eval_nor_nltk() -> None:
    program = (
        "import sys; from inertia.benchmarks.ruler import data_version; data_version();"
        "print([m for m in ('lm_eval', 'nltk', 'datasets', 'transformers', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
