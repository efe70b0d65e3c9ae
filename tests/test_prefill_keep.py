"""Which tokens a compressor keeps: against a sort in Python, on random and tied scores, and at the edges."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inertia.eviction.describe import describe
from inertia.prefill.adakv import AdaKV
from inertia.prefill.expected_attention import ExpectedAttention
from inertia.prefill.kvzip import KVzip
from inertia.prefill.methods import COMPRESSORS, named
from inertia.prefill.snapkv import SnapKV
from inertia.prefill.streaming_llm import StreamingLLM
from inertia.prefill.tova import TOVA

INF = float("inf")
PER_HEAD = [name for name in COMPRESSORS if name not in ("kvzip", "adakv_expected_attention", "adakv_snapkv")]


def tables(layers, heads, tokens, values):
    """Scores as nested lists, layer by head by token."""
    return st.lists(
        st.lists(st.lists(values, min_size=tokens, max_size=tokens), min_size=heads, max_size=heads),
        min_size=layers,
        max_size=layers,
    )


shapes = st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 9))
values = st.one_of(st.integers(-2, 2).map(float), st.floats(-1, 1, width=32))
scores = shapes.flatmap(lambda shape: tables(*shape, values))


def ranked(table, entries):
    """Entries (layer, head, position), best first: score, then position, then layer and head."""
    return sorted(entries, key=lambda e: (-table[e[0]][e[1]][e[2]], e[2], e[0], e[1]))


def entries(table, layers=None, heads=None):
    return [
        (layer, head, p)
        for layer in (range(len(table)) if layers is None else layers)
        for head in (range(len(table[0])) if heads is None else heads)
        for p in range(len(table[0][0]))
    ]


def slow_per_head(table, budget):
    kept = set()
    for layer in range(len(table)):
        for head in range(len(table[0])):
            kept |= set(ranked(table, entries(table, [layer], [head]))[:budget])
    return kept


def slow_adakv(table, budget, floor):
    kept = set()
    for layer in range(len(table)):
        safe = set()
        for head in range(len(table[0])):
            safe |= set(ranked(table, entries(table, [layer], [head]))[:floor])
        rest = [e for e in ranked(table, entries(table, [layer])) if e not in safe]
        kept |= safe | set(rest[: len(table[0]) * budget - len(safe)])
    return kept


def slow_overall(table, budget):
    return set(ranked(table, entries(table))[: len(table) * len(table[0]) * budget])


def kept_by(compressor, table, budget):
    masks = compressor.keep([torch.tensor(layer) for layer in table], budget)
    assert [mask.dtype for mask in masks] == [torch.bool] * len(table)
    assert [tuple(mask.shape) for mask in masks] == [(len(table[0]), len(table[0][0]))] * len(table)
    return {(layer, *index) for layer, mask in enumerate(masks) for index in map(tuple, mask.nonzero().tolist())}


@settings(max_examples=150)
@given(scores, st.integers(1, 11), st.sampled_from(PER_HEAD))
def test_each_head_keeps_its_best(table, budget, name):
    assert kept_by(named(name), table, budget) == slow_per_head(table, budget)


@settings(max_examples=150)
@given(scores, st.integers(1, 11), st.sampled_from([0, 0.2, 0.5, 1]))
def test_heads_of_a_layer_compete_above_a_floor(table, budget, alpha):
    tokens = len(table[0][0])
    floor = 0 if alpha == 0 else max(1, int(alpha * budget))
    found = kept_by(AdaKV(TOVA(), alpha), table, budget)
    assert found == slow_adakv(table, min(budget, tokens), min(floor, tokens))


@settings(max_examples=150)
@given(scores, st.integers(1, 11))
def test_all_layers_compete(table, budget):
    assert kept_by(KVzip(), table, budget) == slow_overall(table, budget)


@settings(max_examples=60)
@given(scores, st.integers(1, 11), st.sampled_from(sorted(COMPRESSORS)))
def test_counts_are_exact_and_a_budget_of_all_tokens_keeps_all(table, budget, name):
    layers, heads, tokens = len(table), len(table[0]), len(table[0][0])
    compressor = named(name)
    found = kept_by(compressor, table, budget)
    assert len(found) == layers * heads * min(budget, tokens)
    counts = [[sum(e[:2] == (layer, head) for e in found) for head in range(heads)] for layer in range(layers)]
    if name != "kvzip":
        assert {sum(layer) for layer in counts} == {heads * min(budget, tokens)}
    if name in PER_HEAD:
        assert {count for layer in counts for count in layer} == {min(budget, tokens)}


def test_alpha_one_leaves_nothing_to_compete_for():
    table = torch.randn(2, 3, 10, generator=torch.Generator().manual_seed(0)).tolist()
    assert kept_by(AdaKV(TOVA(), 1), table, 4) == slow_per_head(table, 4)


def test_a_poor_head_keeps_its_floor_and_a_rich_one_wins_the_rest():
    table = [[[9.0] * 20, [0.0] * 20]]
    found = kept_by(AdaKV(TOVA(), 0.2), table, 10)
    assert found == {(0, 0, p) for p in range(18)} | {(0, 1, p) for p in range(2)}


@pytest.mark.parametrize("name", sorted(COMPRESSORS))
def test_what_is_always_kept_stays(name):
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(2, 3, 20, generator=generator)
    table[:, :, [0, 7, 19]] = INF
    for budget in (3, 5):
        masks = named(name).keep(list(table), budget)
        assert all(bool(mask[:, [0, 7, 19]].all()) for mask in masks)


@pytest.mark.parametrize("name", sorted(COMPRESSORS))
def test_more_always_kept_than_budget_is_refused(name):
    table = torch.zeros(1, 2, 9)
    table[0, 1, :4] = INF
    with pytest.raises(ValueError, match=r"always keeps 4 tokens but the budget is 3"):
        named(name).keep(list(table), 3)
    with pytest.raises(ValueError, match="budget=0"):
        named(name).keep(list(table), 0)


@pytest.mark.parametrize("name", sorted(COMPRESSORS))
def test_nan_scores_stop_the_run(name):
    table = torch.zeros(2, 2, 9)
    table[1, 0, 3] = float("nan")
    with pytest.raises(FloatingPointError, match="eligible layer 1"):
        named(name).keep(list(table), 3)


def test_scores_are_left_as_they_were():
    table = torch.randn(2, 2, 9, generator=torch.Generator().manual_seed(0))
    before = table.clone()
    for name in COMPRESSORS:
        named(name).keep(list(table), 4)
    assert torch.equal(table, before)


@pytest.mark.parametrize(
    ("compressor", "tokens", "budget", "message"),
    [
        (SnapKV(), 64, 10, r"more than snapkv.window=64 tokens but has 64.*lower the window"),
        (SnapKV(), 200, 63, r"always keeps 64 tokens but the budget is 63.*lower snapkv.window"),
        (AdaKV(SnapKV()), 200, 63, r"always keeps 64"),
        (ExpectedAttention(), 4, 3, r"more than expected_attention.sinks=4 tokens but has 4"),
        (ExpectedAttention(), 9, 3, r"always keeps 4 tokens but the budget is 3"),
        (StreamingLLM(), 9, 3, r"lower streaming_llm.sinks"),
        (KVzip(), 9, 3, r"lower kvzip.sinks"),
    ],
)
def test_what_cannot_be_carried_out_is_refused_beforehand(compressor, tokens, budget, message):
    with pytest.raises(ValueError, match=message):
        compressor.check(tokens, budget)


@pytest.mark.parametrize("name", sorted(COMPRESSORS))
@pytest.mark.parametrize(("tokens", "budget"), [(1, 1), (3, 3), (3, 9), (64, 64), (65, 64), (500, 64)])
def test_what_can_be_carried_out_passes(name, tokens, budget):
    named(name).check(tokens, budget)


@pytest.mark.parametrize(
    ("name", "setting", "message"),
    [
        ("snapkv", {"window": 0}, "snapkv.window=0"),
        ("snapkv", {"pool": 4}, "snapkv.pool=4 is even"),
        ("adakv_snapkv", {"alpha": 1.1}, r"adakv.alpha=1.1.*\[0, 1\]"),
        ("adakv_expected_attention", {"epsilon": -1}, "expected_attention.epsilon=-1"),
        ("expected_attention", {"future": 0}, "expected_attention.future=0"),
        ("streaming_llm", {"sinks": -1}, "streaming_llm.sinks=-1"),
        ("kvzip", {"mode": "hidden"}, "kvzip.mode='hidden'.*'removed', 'masked'"),
        ("kvzip", {"chunk": 0}, "kvzip.chunk=0"),
        ("tova", {"keep_last": 2}, "tova.keep_last=2"),
        ("tova", {"window": 3}, "no setting 'window'; it has keep_last"),
        ("keydiff", {"window": 3}, "it has none"),
        ("snapvk", {}, "'snapvk' is unknown; give one of 'adakv_expected_attention'"),
    ],
)
def test_bad_settings_are_named(name, setting, message):
    with pytest.raises(ValueError, match=message):
        named(name, **setting)


def test_adakv_over_kvzip_is_refused():
    with pytest.raises(ValueError, match="scores by replay"):
        AdaKV(KVzip())


def test_naming_a_compressor_loads_no_torch():
    code = "import sys; from inertia.prefill.methods import named; named('kvzip'); print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


def test_identities_tell_settings_apart():
    variants = [named(name) for name in COMPRESSORS]
    variants += [SnapKV(window=32), AdaKV(ExpectedAttention()), TOVA(keep_last=True), KVzip(mode="masked")]
    assert len({repr(describe(variant)) for variant in variants}) == len(variants)
    assert describe(named("adakv_expected_attention"))["base"]["epsilon"] == 0.01
    assert [name for name in COMPRESSORS if not named(name).removes] == []
    assert not KVzip(mode="masked").removes
