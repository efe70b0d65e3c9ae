"""Every scorer against slow literal scores: on random views, and end to end on which positions survive."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import fields
from typing import NamedTuple

import oracle
import oracle_scores
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from models import prompt, tiny

from inertia.decoding.generation import generate
from inertia.decoding.request import TokensPrompt
from inertia.eviction.aggregation import CoupledEMA, Decoupled, TimeEMA
from inertia.eviction.budget import Tokens
from inertia.eviction.describe import describe
from inertia.eviction.layer_view import LayerView
from inertia.eviction.policy import Policy
from inertia.eviction.scorers.attention import Attention
from inertia.eviction.scorers.entropy import Entropy
from inertia.eviction.scorers.key_norm import KeyNorm
from inertia.eviction.scorers.keydiff import KeyDiff
from inertia.eviction.scorers.random import Random, mix
from inertia.eviction.scorers.recency import Recency
from inertia.eviction.scorers.vnorm import VNorm
from inertia.paths import config_dir

SCORERS = [
    Attention(),
    VNorm(),
    Entropy(),
    KeyDiff(),
    KeyNorm(),
    Recency(),
    Random(),
    Random(per_head=True),
]
NAMES = [f"{scorer.kind}{'_per_head' * getattr(scorer, 'per_head', False)}" for scorer in SCORERS]
every_scorer = pytest.mark.parametrize("scorer", SCORERS, ids=NAMES)


class Case(NamedTuple):
    """A view, and per row what it was made from: a `Seen` by true position, and what each head holds."""

    view: LayerView
    seen: list[oracle.Seen]
    held: list[dict[int, list[int]]]


def make(
    seed,
    *,
    rows=2,
    heads=2,
    groups=2,
    size=4,
    tokens=8,
    slots=10,
    per_head=False,
    dtype=torch.float32,
    zeros=0.0,
    garbage=1e38,
    layer=1,
):
    """A random view whose tokens stand in random slots; `slots` None fills every slot.

    Empty slots hold garbage, and finite garbage at that: the cache allocates zeros and overwrites.
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator)

    full = slots is None
    slots = tokens if full else slots
    positions = torch.full((rows, heads if per_head else 1, slots), -1)
    for table in positions.view(-1, slots):
        most = min(tokens, slots)
        count = most if full else int(torch.randint(1, most + 1, (), generator=generator))
        where = torch.randperm(slots, generator=generator)[:count]
        table[where] = torch.randperm(tokens, generator=generator)[:count]
    keep = torch.rand(rows, heads, tokens, 1, generator=generator) >= zeros
    keys = (3 * draw(rows, heads, tokens, size) * keep).to(dtype)
    values = (draw(rows, heads, tokens, size) * keep).to(dtype)
    query = draw(rows, heads, groups, size).to(dtype)
    filled = (positions >= 0).expand(rows, heads, slots)
    index = positions.clamp(min=0).expand(rows, heads, slots)
    grouped = index.unsqueeze(2).expand(-1, -1, groups, -1)
    logits = 2 * draw(rows, heads, groups, tokens)
    weights = logits.gather(-1, grouped).masked_fill(~filled.unsqueeze(2), float("-inf")).softmax(-1)
    by_position = torch.zeros(rows, heads, groups, tokens).scatter_add(-1, grouped, weights)

    def slotted(states):
        wide = index.unsqueeze(-1).expand(-1, -1, -1, size)
        return states.gather(2, wide).masked_fill(~filled.unsqueeze(-1), garbage)

    view = LayerView(
        weights=weights,
        query=query,
        keys=slotted(keys),
        values=slotted(values),
        positions=positions,
        valid=None if bool(filled.all()) else positions >= 0,
        layer=layer,
        seeds=torch.arange(rows) * 7919 + seed,
    )
    seen = [
        oracle.Seen(by_position[row].flatten(0, 1), query[row].flatten(0, 1), keys[row], values[row])
        for row in range(rows)
    ]
    tables = positions.expand(rows, heads, slots).tolist()
    held = [{head: sorted(p for p in table if p >= 0) for head, table in enumerate(row)} for row in tables]
    return Case(view, seen, held)


def slow(scorer, case, row):
    """The oracle's scores of one row, {kv head: {position: score}}."""
    if scorer.kind == "random":
        seed, heads = int(case.view.seeds[row]), len(case.held[row])
        return {
            head: {
                p: oracle_scores.draw(seed, p, case.view.layer * heads + head if scorer.per_head else None)
                for p in held
            }
            for head, held in case.held[row].items()
        }
    policy = Policy(scorer=scorer)
    return oracle_scores.scores()[scorer.kind](case.seen[row], policy, case.held[row])


def assert_agrees(scorer, case, tolerance=2e-5):
    view = case.view
    rows, heads, _, slots = view.weights.shape
    score = scorer.score(view)
    assert score.dtype == torch.float32
    assert score.shape in ((rows, heads, slots), (rows, 1, slots))
    assert bool(score.isfinite().all())
    positions = view.positions.expand(rows, heads, slots).tolist()
    score = score.expand(rows, heads, slots).tolist()
    for row in range(rows):
        expected = slow(scorer, case, row)
        for head in range(heads):
            for position, value in zip(positions[row][head], score[row][head], strict=True):
                if position >= 0:
                    assert value == pytest.approx(expected[head][position], rel=tolerance, abs=tolerance)


cases = st.builds(
    make,
    st.integers(0, 10**6),
    rows=st.integers(1, 3),
    heads=st.integers(1, 3),
    groups=st.integers(1, 3),
    size=st.sampled_from([1, 2, 8]),
    tokens=st.integers(1, 9),
    slots=st.one_of(st.none(), st.integers(1, 12)),
    per_head=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    zeros=st.sampled_from([0.0, 0.3]),
    garbage=st.sampled_from([0.0, 1e4, 3e38]),
    layer=st.integers(0, 3),
)


@every_scorer
@settings(max_examples=60, deadline=None)
@given(case=cases)
def test_scores_equal_the_slow_ones(scorer, case):
    # Where normalised keys nearly cancel, their mean has no direction to agree on.
    if scorer.kind == "keydiff" and smallest_anchor(case) < 0.05:
        return
    assert_agrees(scorer, case)


def smallest_anchor(case):
    """Length of the shortest mean of normalised keys."""
    return min(
        float(torch.nn.functional.normalize(seen.keys[head, held].float(), dim=-1).mean(0).norm())
        for seen, of_row in zip(case.seen, case.held, strict=True)
        for head, held in of_row.items()
    )


def reordered(view, order):
    """The same view with its slots in another order, -1 standing for a new empty slot of garbage."""
    index = order.clamp(min=0)
    empty = order < 0

    def states(tensor):
        return tensor[:, :, index].masked_fill(empty[:, None], 1e4)

    positions = view.positions[..., index].masked_fill(empty, -1)
    return view._replace(
        weights=view.weights[..., index].masked_fill(empty, 0.0),
        keys=states(view.keys),
        values=states(view.values),
        positions=positions,
        valid=None if bool((positions >= 0).all()) else positions >= 0,
    )


@every_scorer
@pytest.mark.parametrize("per_head", [False, True])
def test_the_order_of_slots_does_not_matter(scorer, per_head):
    view = make(3, tokens=9, slots=12, per_head=per_head).view
    order = torch.randperm(12, generator=torch.Generator().manual_seed(1))
    expected = scorer.score(view)[..., order].masked_fill(view.positions[..., order] < 0, 0.0)
    found = scorer.score(reordered(view, order))
    torch.testing.assert_close(found.masked_fill(view.positions[..., order] < 0, 0.0), expected)


@every_scorer
@pytest.mark.parametrize("per_head", [False, True])
def test_empty_slots_change_nothing(scorer, per_head):
    view = make(4, tokens=6, slots=None, per_head=per_head).view
    assert view.valid is None
    order = torch.tensor([-1, 0, 1, -1, 2, 3, 4, -1, -1, 5])
    padded = scorer.score(reordered(view, order))
    assert bool(padded.isfinite().all())
    torch.testing.assert_close(padded[..., order >= 0], scorer.score(view))


@every_scorer
def test_rows_do_not_see_each_other(scorer):
    view = make(5, rows=3, tokens=8, slots=9).view
    together = scorer.score(view)
    for row in range(3):
        alone = LayerView(*(part[row : row + 1] if isinstance(part, torch.Tensor) else part for part in view))
        torch.testing.assert_close(scorer.score(alone), together[row : row + 1])


@every_scorer
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "shape",
    [{"zeros": 1.0}, {"tokens": 1}, {"tokens": 1, "slots": 5}, {"tokens": 1, "slots": None, "size": 1}],
)
def test_degenerate_inputs_give_finite_scores(scorer, dtype, shape):
    assert_agrees(scorer, make(6, dtype=dtype, **shape))


@every_scorer
def test_low_precision_states_are_scored_in_fp32(scorer):
    view = make(7, size=64, tokens=300, slots=None, dtype=torch.bfloat16).view
    wide = view._replace(keys=view.keys.float(), values=view.values.float(), query=view.query.float())
    torch.testing.assert_close(scorer.score(view), scorer.score(wide), rtol=1e-5, atol=1e-6)


# ---------------------------------------------------------------------------------------- one scorer each


def test_vnorm_with_constant_value_norms_is_attention():
    view = make(8, slots=11).view
    sizes = torch.tensor([0.01, 300.0]).view(1, 2, 1, 1)
    values = torch.nn.functional.normalize(torch.nan_to_num(view.values), dim=-1) * sizes
    torch.testing.assert_close(VNorm().score(view._replace(values=values)), Attention().score(view))


def test_vnorm_averages_the_norms_of_cached_tokens_only():
    view = make(9, rows=1, heads=1, groups=1, tokens=3, slots=None).view
    order = torch.tensor([0, -1, 1, 2, -1])
    norms = view.values.norm(dim=-1)
    expected = view.weights[:, :, 0] * norms / norms.mean()
    torch.testing.assert_close(VNorm().score(reordered(view, order))[..., order >= 0], expected)


@settings(max_examples=50, deadline=None)
@given(case=cases)
def test_entropy_scales_a_layer_by_one_number_between_0_and_1(case):
    attention, score = Attention().score(case.view), Entropy().score(case.view)
    for row in range(attention.shape[0]):
        scale = float(score[row].sum() / attention[row].sum())
        assert -1e-6 <= scale <= 1 + 1e-5
        torch.testing.assert_close(score[row], attention[row] * scale, rtol=1e-5, atol=1e-7)
        if scale > 1e-3:
            order = attention[row].flatten().argsort(stable=True)
            assert score[row].flatten().argsort(stable=True).equal(order)


def test_entropy_is_1_for_even_attention_and_0_for_a_single_target():
    view = make(10, rows=1, tokens=8, slots=None).view
    even = view._replace(weights=torch.full_like(view.weights, 1 / 8))
    torch.testing.assert_close(Entropy().score(even), torch.full((1, 2, 8), 1 / 8))
    single = view._replace(weights=torch.zeros_like(view.weights).index_fill_(-1, torch.tensor(3), 1.0))
    assert not Entropy().score(single).any()


def test_entropy_pools_the_heads_before_it_measures():
    # Two heads with a single target each: pooled, the layer looks at two of four tokens.
    view = make(11, rows=1, heads=2, groups=1, tokens=4, slots=None).view
    weights = torch.zeros(1, 2, 1, 4)
    weights[0, 0, 0, 0] = weights[0, 1, 0, 3] = 1.0
    score = Entropy().score(view._replace(weights=weights))
    torch.testing.assert_close(score, weights[:, :, 0] * (math.log(2) / math.log(4)))


def test_entropy_knows_a_token_that_lies_in_different_slots_of_two_heads():
    view = make(12, rows=1, heads=2, tokens=6, slots=None).view
    turned = torch.tensor([5, 3, 0, 1, 4, 2])

    def moved(tensor):
        return torch.stack([tensor[:, 0], tensor[:, 1][..., turned]], dim=1)

    elsewhere = view._replace(weights=moved(view.weights), positions=moved(view.positions.expand(1, 2, 6)))
    torch.testing.assert_close(Entropy().score(elsewhere), moved(Entropy().score(view)))


def test_keydiff_prefers_the_odd_key_out():
    view = make(13, rows=1, heads=1, size=2, tokens=5, slots=None).view
    keys = torch.tensor([[1.0, 0.1], [2.0, 0.0], [9.0, -0.5], [0.0, 3.0], [5.0, 0.4]])[None, None]
    score = KeyDiff().score(view._replace(keys=keys))[0, 0]
    assert int(score.argmax()) == 3
    # Only directions count: no key's length changes anything.
    stretched = keys * torch.tensor([3.0, 1.0, 7.0, 2.0, 5.0])[:, None]
    torch.testing.assert_close(score, KeyDiff().score(view._replace(keys=stretched))[0, 0])


def test_keydiff_without_a_mean_direction_scores_0():
    view = make(14, rows=1, heads=1, size=2, tokens=2, slots=None).view
    keys = torch.tensor([[3.0, 4.0], [-3.0, -4.0]])[None, None]
    assert not KeyDiff().score(view._replace(keys=keys)).any()


def test_random_is_a_function_of_seed_and_position():
    first = make(15, rows=2, tokens=9, slots=12).view
    other = make(16, rows=2, tokens=9, slots=12, per_head=True).view._replace(seeds=first.seeds)
    for scorer in (Random(), Random(per_head=True)):
        for row in range(2):
            for head in range(2):
                one, two = numbers(scorer, first, row, head), numbers(scorer, other, row, head)
                both = one.keys() & two.keys()
                assert both
                assert {p: one[p] for p in both} == {p: two[p] for p in both}


def numbers(scorer, view, row, head):
    """Score of each position that one head of a row holds."""
    score = scorer.score(view).expand(-1, 2, -1)[row, head].tolist()
    held_here = view.positions.expand(-1, 2, -1)[row, head].tolist()
    return {p: value for p, value in zip(held_here, score, strict=True) if p >= 0}


def sequence(scorer, seed=0, layer=0, head=0, count=1 << 14):
    """The draws of positions 0 .. count - 1."""
    view = LayerView(
        weights=torch.zeros(1, 3, 1, 1),
        query=torch.zeros(1, 3, 1, 1),
        keys=torch.zeros(1, 3, 1, 1),
        values=torch.zeros(1, 3, 1, 1),
        positions=torch.arange(count).view(1, 1, -1),
        valid=None,
        layer=layer,
        seeds=torch.tensor([seed]),
    )
    return scorer.score(view).expand(1, 3, count)[0, head]


def correlation(first, second):
    return float(torch.corrcoef(torch.stack([first, second]))[0, 1])


def test_random_draws_look_uniform_and_independent():
    count = 1 << 14
    draws = sequence(Random())
    assert float(draws.min()) >= 0 and float(draws.max()) < 1
    expected = count / 64
    chi_square = float(((torch.histc(draws, 64, 0, 1) - expected) ** 2 / expected).sum())
    assert 30 < chi_square < 110  # 63 degrees of freedom: both tails beyond one in ten thousand
    limit = 4.5 / math.sqrt(count)
    assert abs(correlation(draws[:-1], draws[1:])) < limit
    for seed in (1, 2, -1, 1 << 32, 2**63 - 1):
        assert abs(correlation(draws, sequence(Random(), seed=seed))) < limit
    per_head = Random(per_head=True)
    units = [sequence(per_head, layer=layer, head=head) for layer in range(2) for head in range(3)] + [draws]
    for i, first in enumerate(units):
        for second in units[:i]:
            assert abs(correlation(first, second)) < limit


def test_the_shared_draw_is_one_for_all_heads_and_layers():
    scorer = Random()
    for layer in (0, 5):
        for head in range(3):
            assert sequence(scorer, layer=layer, head=head, count=50).equal(sequence(scorer, count=50))


def test_the_hash_stays_inside_63_bits():
    # Every device multiplies int64 alike only as long as nothing overflows.
    words = [0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]
    assert mix(torch.tensor(words)).tolist() == [oracle_scores.scrambled(word) for word in words]
    assert (0xFFFFFFFF * 0x45D9F3B) < 2**63


def test_random_refuses_a_setting_that_is_no_bool():
    with pytest.raises(ValueError, match="scorer.per_head='yes'"):
        Random(per_head="yes")


# ---------------------------------------------------------------------------------------- end to end

ARCHITECTURES = ["llama", "qwen2", "qwen3", "mistral", "gemma3", "qwen3_moe"]
SHAPES = {"llama": (9, 3), "qwen2": (8, 2)}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_same_positions_survive_as_under_the_oracle(architecture):
    query_heads, kv_heads = SHAPES.get(architecture, (4, 2))
    model = with_uneven_key_norms(tiny(architecture, layers=2, query_heads=query_heads, kv_heads=kv_heads))
    ids = prompt(15)
    forced = prompt(6, seed=5)[0].tolist()
    # One scope per scorer here; three architectures on, every scorer has been in every scope.
    turn = ARCHITECTURES.index(architecture)
    policies = [in_every_scope(scorer)[(turn + index) % 3] for index, scorer in enumerate(SCORERS)]
    # All in one call, so that rows of different budgets and scorers share their batches.
    results = generate(model, TokensPrompt(ids, seed=11, forced_tokens=forced), policies, 6, trace=True)
    for policy, result in zip(policies, results, strict=True):
        slow_scores = oracle_scores.scores(seed=11, layers=2)
        _, kept, _ = oracle.run(model, ids[0].tolist(), policy, 6, forced=forced, scores=slow_scores)
        assert result.kept == kept, (architecture, policy)


def with_uneven_key_norms(model):
    """Random scales where keys are normalised, else all norms are equal up to rounding."""
    generator = torch.Generator().manual_seed(2)
    for name, parameter in model.named_parameters():
        if "k_norm" in name:
            parameter.data = torch.randn(parameter.shape, generator=generator)
    return model


def in_every_scope(scorer):
    remembering = Decoupled(time=TimeEMA(0.5))
    return [
        Policy(scorer=scorer, aggregation=CoupledEMA(0.8), budget=Tokens(8)),
        Policy(scorer=scorer, aggregation=remembering, budget=Tokens(9), scope="per_layer"),
        Policy(scorer=scorer, aggregation=remembering, budget=Tokens(10), scope="per_head"),
    ]


# ---------------------------------------------------------------------------------------- configs, identity


def configured():
    paths = sorted(config_dir().glob("scorer/*.yaml"))
    return {path.stem: yaml.safe_load(path.read_text()) for path in paths}


def test_every_scorer_has_a_config_that_lists_its_settings():
    from hydra.utils import get_class

    configs = configured()
    assert sorted(configs) == sorted({scorer.kind for scorer in SCORERS} | {"learned"})
    for name, config in configs.items():
        cls = get_class(config.pop("_target_"))
        assert cls.kind == name
        assert config == {field.name: field.default for field in fields(cls) if field.init}


def test_scorers_are_values_with_names_of_their_own():
    described = [str(describe(scorer)) for scorer in SCORERS]
    assert len(set(described)) == len(set(SCORERS)) == len(SCORERS)
    assert describe(Random(per_head=True)) == {"kind": "random", "per_head": True}


def test_naming_a_scorer_does_not_load_torch():
    names = ", ".join(configured())
    code = f"import sys; from inertia.eviction.scorers import {names}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
