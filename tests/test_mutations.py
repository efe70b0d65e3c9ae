"""The oracle notices: each deliberate mistake in the core makes the comparison fail that passes without it."""

from __future__ import annotations

import models
import pytest
from test_core_oracle import compare

from inertia import Policy, preset
from inertia.decoding import batches
from inertia.eviction import attention, keep_sets, protect, session
from inertia.eviction.aggregation import CoupledEMA, Linear
from inertia.eviction.budget import Tokens
from inertia.eviction.new_token import NewToken
from inertia.eviction.protect import Protect
from inertia.eviction.refresh import Every

EMA = preset("inertiakv", alpha=0.7, tokens=6)
LAZY = Policy(refresh=Every(4), budget=Tokens(6))
REFRESHED = Policy(aggregation=CoupledEMA(0.98), budget=Tokens(6), new_token=NewToken("mean"))
SINKS = Policy(budget=Tokens(6), protect=Protect(sinks=3))


def reversed_layers(monkeypatch):
    right = CoupledEMA.linear

    def wrong(self, layers):
        pair = right(self, layers)
        return Linear(pair.lam, pair.weights[::-1])

    monkeypatch.setattr(CoupledEMA, "linear", wrong)


def swapped_alpha(monkeypatch):
    right = CoupledEMA.linear
    monkeypatch.setattr(CoupledEMA, "linear", lambda self, layers: right(CoupledEMA(1 - self.alpha), layers))


def forgotten_decay(monkeypatch):
    right = CoupledEMA.linear
    monkeypatch.setattr(CoupledEMA, "linear", lambda self, layers: Linear(1.0, right(self, layers).weights))


def other_prior(monkeypatch):
    place = keep_sets.KeepSets.place

    def wrong(self, newest, step):
        slot = self.slot.unsqueeze(-1).clone()
        place(self, newest, step)
        self.utility.scatter_(-1, slot, self.utility.gather(-1, slot) * 0.0)

    monkeypatch.setattr(keep_sets.KeepSets, "place", wrong)


def unprotected_sinks(monkeypatch):
    right = protect.Protect.resolve

    def wrong(self, *arguments):
        guard = right(self, *arguments)
        return protect.Resolved((), guard.recent, guard.newest, guard.rescue)

    monkeypatch.setattr(protect.Protect, "resolve", wrong)


def restarted_positions(monkeypatch):
    right = batches.forward

    def wrong(model, batch, tokens, positions, **how):
        if isinstance(batch, session.DecodeBatch):
            positions = [batch.filled(row) - 1 for row in range(len(positions))]
        return right(model, batch, tokens, positions, **how)

    monkeypatch.setattr(batches, "forward", wrong)


def wrong_head_map(monkeypatch):
    right = attention.slot_attention

    def wrong(query, keys, *rest, **named):
        heads, groups = keys.shape[1], query.shape[1] // keys.shape[1]
        mixed = query.view(query.shape[0], groups, heads, 1, -1).transpose(1, 2).reshape(query.shape)
        output, weights = right(mixed, keys, *rest, **named)
        back = output.view(output.shape[0], 1, heads, groups, -1).transpose(2, 3).reshape(output.shape)
        return back, weights

    monkeypatch.setattr(attention, "slot_attention", wrong)


def cut_inside_the_first_step(monkeypatch):
    """Evicting before the first step's attention instead of after it."""
    right = session.FirstStep.attend

    def wrong(self, layer_idx, *arguments):
        layer = self.prompt.layers[layer_idx]
        layer.values[:, :, : self.filled - 7] = 0
        return right(self, layer_idx, *arguments)

    monkeypatch.setattr(session.FirstStep, "attend", wrong)


MUTATIONS = [
    (reversed_layers, EMA),
    (swapped_alpha, EMA),
    (forgotten_decay, EMA),
    (other_prior, LAZY),
    (other_prior, REFRESHED),
    (unprotected_sinks, SINKS),
    (restarted_positions, EMA),
    (wrong_head_map, EMA),
    (cut_inside_the_first_step, EMA),
]


@pytest.mark.parametrize("mutate, policy", MUTATIONS, ids=[f"{m.__name__}-{i}" for i, (m, _) in enumerate(MUTATIONS)])
def test_the_mistake_is_noticed(mutate, policy, monkeypatch):
    network = models.tiny("llama", query_heads=8, kv_heads=2, seed=3)
    prompts = [models.prompt(24, seed) for seed in range(4)]
    for ids in prompts:
        compare(network, ids, policy, 12)
    mutate(monkeypatch)
    noticed = 0
    for ids in prompts:
        try:
            compare(network, ids, policy, 12)
        except AssertionError:
            noticed += 1
    assert noticed, f"{mutate.__name__} changes nothing that the oracle sees"
