"""The core against a decoder without cache: same tokens, same survivors at every step, same logits."""

from __future__ import annotations

from functools import cache

import models
import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inertia import Observation, Policy, generate, preset
from inertia.eviction.aggregation import (
    CoupledEMA,
    Cumulative,
    Decoupled,
    Geometric,
    Last,
    NoMemory,
    Single,
    TimeCumulative,
    TimeEMA,
    Uniform,
)
from inertia.eviction.budget import KeepRatio, Ratio, SeenRatio, Tokens
from inertia.eviction.new_token import NewToken
from inertia.eviction.protect import Protect
from inertia.eviction.refresh import Every, Once

STEPS = 9
TOLERANCE = 1e-4

POLICIES = {
    "full_cache": preset("full_cache"),
    "inertiakv": preset("inertiakv", tokens=6),
    "alpha_0": preset("inertiakv", alpha=0, tokens=6),
    "lazy": preset("inertiakv_lazy", tokens=6, interval=3),
    "score_free": preset("score_free", tokens=5),
    "single_step": preset("single_step", compression_ratio=0.7),
    "h2o": preset("h2o", tokens=7),
    "keep_ratio": Policy(budget=KeepRatio(0.3)),
    "seen_ratio": Policy(budget=SeenRatio(0.6)),
    "sinks_recent": Policy(budget=Tokens(7), protect=Protect(sinks=2, recent=3)),
    "newest": Policy(budget=Tokens(4), protect=Protect(newest=True)),
    "frozen_protect": Policy(budget=Tokens(5), refresh=Every(4), new_token=NewToken("mean", "protect")),
    "decoupled": Policy(aggregation=Decoupled(Geometric(0.5), TimeEMA(0.7)), budget=Tokens(6)),
    "last_cumulative": Policy(aggregation=Decoupled(Last(), TimeCumulative()), budget=Tokens(6)),
    "one_layer": Policy(aggregation=Decoupled(Single(1), NoMemory()), budget=Tokens(6)),
    "per_layer": Policy(aggregation=Decoupled(time=TimeEMA(0.5)), scope="per_layer", budget=Tokens(6)),
    "per_head": Policy(aggregation=Decoupled(), scope="per_head", budget=Tokens(6)),
    "per_head_cumulative": Policy(aggregation=Cumulative(), scope="per_head", budget=Tokens(5), refresh=Every(2)),
    "budget_1": preset("inertiakv", tokens=1),
    "never_full": preset("inertiakv", tokens=500),
    "reached_late": preset("inertiakv", tokens=27),
}


@cache
def model(architecture, **shape):
    return models.tiny(architecture, **shape)


def compare(network, ids, policy, steps=STEPS):
    (ours,) = generate(network, ids, [policy], steps, observe=Observation(trace=True, logits=True))
    tokens, kept, logits = oracle.run(network, ids[0].tolist(), policy, steps)
    assert ours.tokens == tokens
    assert ours.kept == kept
    torch.testing.assert_close(ours.logits, logits, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "mistral", "gemma3", "qwen3_moe"])
@pytest.mark.parametrize("name", POLICIES)
def test_equals_the_masked_full_cache(name, architecture):
    compare(model(architecture), models.prompt(24, seed=len(name)), POLICIES[name])


@pytest.mark.parametrize("name", ["inertiakv", "per_head", "per_layer", "h2o"])
def test_grouped_heads_8_to_2(name):
    compare(model("llama", query_heads=8, kv_heads=2, seed=3), models.prompt(20), POLICIES[name])


@pytest.mark.parametrize("length", [1, 2, 5, 6, 7, 12])
@pytest.mark.parametrize("name", ["inertiakv", "per_head", "score_free"])
def test_prompts_around_the_budget(name, length):
    compare(model("llama"), models.prompt(length), POLICIES[name])


@pytest.mark.parametrize("length", [6, 7, 8, 9, 10, 16])
def test_prompts_around_the_sliding_window(length):
    compare(model("gemma3"), models.prompt(length), preset("inertiakv", tokens=4))


aggregations = st.one_of(
    st.builds(CoupledEMA, st.sampled_from([0, 0.3, 0.8, 0.95, 1])),
    st.just(Cumulative()),
    st.builds(
        Decoupled,
        st.one_of(st.just(Uniform()), st.builds(Geometric, st.sampled_from([0.0, 0.5, 1.0])), st.just(Last())),
        st.one_of(st.just(NoMemory()), st.builds(TimeEMA, st.sampled_from([0.0, 0.6])), st.just(TimeCumulative())),
    ),
)


@settings(max_examples=25)
@given(
    aggregation=aggregations,
    refresh=st.one_of(st.builds(Every, st.integers(1, 5)), st.just(Once())),
    budget=st.one_of(st.builds(Tokens, st.integers(4, 30)), st.builds(Ratio, st.sampled_from([0.5, 0.75, 0.9]))),
    sinks=st.integers(0, 1),
    prior=st.sampled_from(["zero", "mean"]),
    frozen=st.sampled_from(["mean", "protect"]),
    length=st.integers(12, 30),
    seed=st.integers(0, 5),
)
def test_any_composition(aggregation, refresh, budget, sinks, prior, frozen, length, seed):
    policy = Policy(
        aggregation=aggregation,
        refresh=refresh,
        budget=budget,
        protect=Protect(sinks=sinks) if budget.tokens(length, length) > 1 else Protect(),
        new_token=NewToken(prior, frozen),
    )
    if frozen == "protect" and budget.tokens(length, length) < 3:
        return
    compare(model("llama", layers=2, query_heads=4, kv_heads=2), models.prompt(length, seed), policy, 6)
