"""The parts of a policy by themselves: aggregation, budget, selection, protection, refresh, descriptions."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from inertia import Policy, preset
from inertia.eviction.adaptive import AdaptiveRefresh, ReactiveEMA, SelectedEMA, total_variation
from inertia.eviction.aggregation import (
    CoupledEMA,
    Cumulative,
    Decoupled,
    Geometric,
    Single,
    TimeEMA,
    Weights,
)
from inertia.eviction.budget import KeepRatio, Ratio, SeenRatio, Tokens
from inertia.eviction.new_token import NewToken
from inertia.eviction.protect import Protect, protected_mask, spread
from inertia.eviction.refresh import Every, Once
from inertia.eviction.selection import TopK
from inertia.methods import METHODS


@given(alpha=st.floats(0, 1), scores=st.lists(st.lists(st.floats(0, 1), min_size=5, max_size=5), max_size=4))
def test_coupled_ema_is_the_loop_over_layers_and_steps(alpha, scores):
    lam, weights = CoupledEMA(alpha).linear(5)
    looped = product = 0.0
    for step in scores:
        for s in step:
            looped = alpha * looped + (1 - alpha) * s
        product = lam * product + sum(w * s for w, s in zip(weights, step, strict=True))
    assert math.isclose(looped, product, rel_tol=1e-9, abs_tol=1e-12)


def test_end_points_of_the_coupled_ema():
    assert CoupledEMA(0).linear(4) == (0.0, (0.0, 0.0, 0.0, 1.0))
    assert CoupledEMA(1).linear(4) == (1.0, (0.0, 0.0, 0.0, 0.0))


@given(alpha=st.floats(0.01, 0.99), layers=st.integers(1, 40))
def test_coupled_ema_is_nested_in_the_decoupled_family(alpha, layers):
    coupled = CoupledEMA(alpha).linear(layers)
    nested = Decoupled(Geometric(alpha), TimeEMA(alpha**layers)).linear(layers)
    assert math.isclose(coupled.lam, nested.lam, rel_tol=1e-9)
    for a, b in zip(coupled.weights, nested.weights, strict=True):
        assert math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-12)


def test_layer_order_matters_and_the_last_layer_weighs_most():
    weights = CoupledEMA(0.8).linear(6).weights
    assert list(weights) == sorted(weights) and weights[0] < weights[-1]


@pytest.mark.parametrize(
    "ratio, tokens, kept",
    [(0.9, 100, 10), (0.9, 64029, 6402), (0.75, 10, 2), (0.95, 10, 1), (0, 7, 7), (0.7, 10, 3)],
)
def test_ratios_are_decimal(ratio, tokens, kept):
    assert Ratio(ratio).tokens(tokens, tokens) == kept


@given(tokens=st.integers(1, 10_000), percent=st.integers(0, 99))
def test_ratio_removed_and_kept_agree_with_exact_arithmetic(tokens, percent):
    exact = max(1, tokens * (100 - percent) // 100)
    assert Ratio(percent / 100).tokens(tokens, tokens) == exact
    assert SeenRatio(percent / 100).tokens(3, tokens) == exact
    if percent > 0:
        assert KeepRatio((100 - percent) / 100).tokens(tokens, tokens) == exact


@given(data=st.data(), count=st.integers(2, 12))
def test_selection_keeps_the_best_and_of_equals_the_earliest(data, count):
    """Integer utilities, so that ties are real; the oracle is a sort of (utility, -position) pairs."""
    utility = data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    keep = data.draw(st.integers(1, count))
    protected = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    if sum(protected) > keep:
        protected = [False] * count
    ranked = sorted(range(count), key=lambda p: (not protected[p], -utility[p], p))
    mask = torch.tensor(protected) if any(protected) else None
    kept = TopK().keep(torch.tensor(utility, dtype=torch.float), torch.arange(count), mask, keep)
    assert kept.tolist() == sorted(ranked[:keep])


@given(data=st.data(), count=st.integers(2, 12))
def test_the_victim_is_the_worst_and_of_equals_the_latest_whatever_the_slot_order(data, count):
    utility = data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    positions = data.draw(st.permutations(range(100, 100 + count)))
    empty = data.draw(st.integers(0, count - 1))
    slots = [-1 if slot < empty else position for slot, position in enumerate(positions)]
    protected = [p == max(slots) and count - empty > 1 for p in slots]
    wanted = min(
        (slot for slot in range(count) if slots[slot] >= 0 and not protected[slot]),
        key=lambda slot: (utility[slot], -slots[slot]),
    )
    victim = TopK().victim(torch.tensor(utility, dtype=torch.float), torch.tensor(slots), torch.tensor(protected))
    assert int(victim) == wanted


def mask(protect, positions, newest, budget=6, prompt=6):
    guard = protect.resolve(prompt, budget, 4)
    fixed = torch.zeros(1, newest + 1, dtype=torch.bool)
    fixed[0, list(guard.fixed)] = True
    one = torch.ones(1, 1, 1, 1, dtype=torch.long)
    table = torch.tensor(positions).view(1, 1, 1, -1)
    return protected_mask(table, one * newest, fixed, one * guard.recent, guard.newest).flatten().tolist()


def test_protection_counts_positions_not_slots():
    positions = [9, 0, -1, 4, 1, 8]
    assert mask(Protect(sinks=1, recent=2), positions, 9) == [True, True, False, False, False, True]
    assert mask(Protect(newest=True), positions, 9) == [True, False, False, False, False, False]
    assert mask(Protect(question=True), positions, 9) == [False, False, False, True, False, False]
    assert mask(Protect(recent_share=0.5), positions, 9) == [True, False, False, False, False, True]
    assert mask(Protect(reserve=0.34), positions, 9) == [False, True, False, False, False, False]


def test_the_reserve_is_spread_over_the_prompt():
    assert spread(5, 101) == [0, 25, 50, 75, 100]
    assert spread(1, 9) == [0] and spread(0, 9) == []
    assert spread(8, 5) == [0, 1, 2, 3, 4]
    assert len(Protect(reserve=0.29).resolve(1000, 100, None).fixed) == 29
    assert Protect(recent_share=0.57).resolve(1000, 100, None).recent == 57
    assert Protect(reserve=0.5).resolve(1000, 10, None).fixed == (0, 249, 499, 749, 999)


def test_question_needs_to_know_where_it_starts():
    for end in (None, -5, 99):
        with pytest.raises(ValueError, match="needs context_end"):
            Protect(question=True).resolve(10, 5, end)
    assert Protect(question=True).resolve(10, 5, 7).fixed == (7, 8, 9)
    assert Protect(question=True).resolve(10, 5, 4).fixed == (5, 6, 7, 8, 9)
    assert Protect(question=True, sinks=1, recent=2).resolve(10, 5, 4).fixed == (0, 8, 9)


def test_refresh_rules():
    assert [step for step in range(1, 10) if Every(4).due(step)] == [1, 5, 9]
    assert [step for step in range(1, 10) if Every().due(step)] == list(range(1, 10))
    assert [step for step in range(1, 10) if Once().due(step)] == [1]


BAD = [
    (lambda: CoupledEMA(1.5), r"alpha=1.5.*\[0, 1\]"),
    (lambda: CoupledEMA(-0.1), r"alpha=-0.1"),
    (lambda: CoupledEMA("a"), "not a number"),
    (lambda: CoupledEMA(True), "not a number"),
    (lambda: CoupledEMA(float("nan")), "out of range"),
    (lambda: Ratio(1), r"\[0, 1\)"),
    (lambda: Ratio(-0.5), "compression_ratio=-0.5"),
    (lambda: KeepRatio(0), "keeps nothing"),
    (lambda: Tokens(0), "budget.count=0.*>= 1"),
    (lambda: Tokens(5.0), "not an integer"),
    (lambda: Every(0), "refresh.interval=0"),
    (lambda: Protect(sinks=-1), "protect.sinks=-1"),
    (lambda: NewToken("max"), "new_token.on_refresh='max'.*'zero'"),
    (lambda: Policy(scope="global"), "scope='global'.*'shared'"),
    (lambda: Policy(scope="per_head"), "aggregation=decoupled"),
    (lambda: Policy(scope="per_layer", aggregation=Decoupled(Geometric(0.5))), "shared only"),
    (lambda: Policy(budget=Tokens(3), protect=Protect(sinks=2, recent=2)), "up to 4 slots.*3 tokens"),
    (lambda: preset("inertia"), "'inertia' is unknown.*inertiakv"),
    (lambda: preset("h2o", alpha=0.5), "no setting 'alpha'.*compression_ratio"),
    (lambda: preset("inertiakv", tokens=5, compression_ratio=0.5), "both given"),
    (lambda: Single(3).weights(3), "index=3 does not exist.*3 eligible"),
    (lambda: Weights((1, 2)).weights(3), "has 2 weights.*3 eligible"),
    (lambda: Weights((0, 0)), "sum to 0"),
    (lambda: Weights((-1, 2)), "layers.values=-1"),
]


@pytest.mark.parametrize("make, message", BAD)
def test_bad_settings_name_value_and_allowed(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_zero_is_a_value():
    assert preset("inertiakv", alpha=0).aggregation.alpha == 0
    assert preset("inertiakv", compression_ratio=0).budget.tokens(7, 7) == 7


def test_descriptions_tell_policies_apart_and_nothing_else():
    described = [repr(preset(name).describe()) for name in METHODS if name != "no_momentum"]
    assert len(set(described)) == len(described)
    assert preset("no_momentum") == preset("inertiakv", alpha=0.0)
    assert preset("inertiakv", alpha=0.8) == preset("inertiakv")
    full = preset("full_cache")
    assert full.describe() == Policy(aggregation=Cumulative(), budget=full.budget).describe()


def test_a_part_from_outside_is_named_by_its_path():
    from dataclasses import dataclass

    @dataclass(frozen=True)
    class Mine:
        signed = False
        strength: float = 2.0

        def score(self, view):
            return view.weights.sum(2)

    described = Policy(scorer=Mine()).describe()["scorer"]
    assert described["kind"].endswith(":test_a_part_from_outside_is_named_by_its_path.<locals>.Mine")
    assert described["strength"] == 2.0


def test_the_prior_is_chosen_by_the_scorer_and_recorded():
    assert Policy().describe()["new_token"]["on_refresh"] == "zero"
    assert Policy(new_token=NewToken("mean")).describe()["new_token"]["on_refresh"] == "mean"


def feed(watcher, steps, budget=2):
    """Let a watcher see steps of (layer scores, utility); slots hold positions 10, 11, .. unless a step says else."""
    pairs = []
    for scores, utility, *positions in steps:
        at = torch.tensor(positions[0] if positions else range(10, 10 + len(utility)))
        pairs.append(watcher.update(torch.tensor(scores), torch.tensor(utility), at, budget))
    return pairs


def test_the_reactive_rule_turns_down_alpha_only_while_rankings_disagree():
    rule = ReactiveEMA(alpha=0.8, low=0.3, threshold=0.5)
    agree = ([[3.0, 2.0, 1.0, 0.0]], [3.0, 2.0, 1.0, 0.0])
    differ = ([[0.0, 1.0, 2.0, 3.0]], [3.0, 2.0, 1.0, 0.0])
    calm, stirred, calm_again = feed(rule.watcher(), [agree, differ, agree])
    assert calm == calm_again == CoupledEMA(0.8).linear(1)
    assert stirred == CoupledEMA(0.3).linear(1)


def test_the_selected_rule_measures_noise_between_layers_and_drift_between_steps_by_token():
    rule = SelectedEMA(start=0.8, grid=(0.3, 0.95), window=3)
    two_layers = [[9.0, 8.0, 0.0, 0.0], [0.0, 0.0, 9.0, 8.0]]
    utility = [1.0, 1.0, 1.0, 1.0]
    watcher = rule.watcher()
    # The same tokens in other slots at each step: no drift, whatever the slots say.
    feed(watcher, [(two_layers, utility), ([row[::-1] for row in two_layers], utility, [13, 12, 11, 10])])
    assert watcher.noise == [1.0, 1.0] and watcher.alpha == 0.8
    (pair,) = feed(watcher, [(two_layers, utility)])
    assert watcher.drift == [0.0, 0.0]
    assert watcher.alpha == 0.95 and pair == CoupledEMA(0.95).linear(2)


def test_without_noise_the_selected_rule_follows_the_drift():
    rule = SelectedEMA(start=0.8, grid=(0.3, 0.95), window=2)
    watcher = rule.watcher()
    feed(watcher, [([[9.0, 8.0, 0.0, 0.0]] * 2, [1.0] * 4), ([[0.0, 0.0, 9.0, 8.0]] * 2, [1.0] * 4)])
    assert watcher.noise == [0.0, 0.0] and watcher.drift == [1.0] and watcher.alpha == 0.3
    assert [rule.choose(eta) for eta in (0.1, 50, 600, float("inf"))] == [0.3, 0.95, 0.95, 0.95]
    assert [SelectedEMA().choose(eta) for eta in (50, 600)] == [0.8, 0.95]


def test_the_adaptive_refresh_waits_longer_while_little_changes():
    rule = AdaptiveRefresh(low=0.02, high=0.1, longest=16)
    assert [rule.interval(0.0, n) for n in (1, 2, 8, 16)] == [2, 4, 16, 16]
    assert rule.interval(0.05, 4) == 4 and rule.interval(0.2, 8) == 1
    assert total_variation(torch.tensor([1.0, 1.0]), torch.tensor([2.0, 2.0])) == 0.0
    assert total_variation(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 3.0])) == 1.0
    assert total_variation(torch.tensor([-1.0, 0.0]), torch.tensor([0.0, -2.0])) == 1.0


@pytest.mark.parametrize(
    "make",
    [
        lambda: Policy(budget=512),
        lambda: Policy(aggregation="ema"),
        lambda: Policy(prefill="tova"),
        lambda: Policy(scorer=Ratio),
        lambda: Decoupled(layers="uniform"),
        lambda: Decoupled(time="none"),
    ],
)
def test_parts_that_do_not_fit_are_refused(make):
    with pytest.raises(ValueError, match="does not fit: it needs"):
        make()


def test_every_method_states_source_settings_and_cost():
    from inertia.methods import about, cost, settings_of

    for name in METHODS:
        policy = preset(name)
        assert "Source:" in about(name) or name == "full_cache", name
        assert settings_of(name) or name == "full_cache"
        words = cost(policy)
        assert ("B + 1 slots" in words) == policy.evicts, name
    assert cost(preset("inertiakv_lazy", interval=8)).startswith("scored every 8th step")
    assert "values" in cost(preset("inertiakv_vnorm")) and "step 1 only" in cost(preset("score_free"))
    assert "again" in cost(preset("kvzip")) and "again" not in cost(preset("snapkv"))
