"""What a decode step may not do: copy the cache, wait for the device, or grow with the number of steps."""

from __future__ import annotations

import gc
import weakref
from collections import Counter

import models
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from inertia import Observation, Policy, TokensPrompt, generate, preset
from inertia.eviction.aggregation import Decoupled
from inertia.eviction.budget import Tokens
from inertia.eviction.cache import PromptCache
from inertia.eviction.refresh import Every

HEADS, HEAD_DIM = 3, 8
SYNCHRONISING = ("_local_scalar_dense", "nonzero", "is_nonzero")
GATHERING = ("cat", "index.Tensor", "index_select", "gather", "sort", "topk", "clone", "repeat", "stack")


def policies(budget):
    return {
        "full_refresh": preset("inertiakv", tokens=budget),
        "lazy": preset("inertiakv_lazy", tokens=budget),
        "score_free": preset("score_free", tokens=budget),
        "every_layer": Policy(aggregation=Decoupled(), scope="per_layer", budget=Tokens(budget)),
        "every_head": Policy(aggregation=Decoupled(), scope="per_head", refresh=Every(2), budget=Tokens(budget)),
    }


class Ops(TorchDispatchMode):
    """Counts operators, and remembers the largest new storage (in elements) that each made."""

    def __init__(self):
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.largest: dict[str, int] = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        given = {id_of(item) for item in torch.utils._pytree.tree_leaves((args, kwargs)) if torch.is_tensor(item)}
        out = function(*args, **(kwargs or {}))
        name = str(function).removeprefix("aten.")
        self.calls[name] += 1
        for made in torch.utils._pytree.tree_leaves(out):
            if torch.is_tensor(made) and id_of(made) not in given:
                self.largest[name] = max(self.largest.get(name, 0), made.numel())
        return out


def id_of(tensor):
    return tensor.untyped_storage().data_ptr()


def steps_of(policy, budget, steps=6):
    """Operators of decode steps, from the third generated token on: the first cut is over."""
    network = models.tiny(query_heads=9, kv_heads=HEADS, head_dim=HEAD_DIM)
    ids = models.prompt(budget + 20)
    ops, made = Ops(), []

    def started(number, token, logits):
        made.append(token)
        if token == 2:
            ops.__enter__()

    try:
        told = TokensPrompt(ids, forced_tokens=[5] * (3 + steps))
        generate(network, told, [policy], 3 + steps, observe=Observation(on_logits=started))
    finally:
        ops.__exit__(None, None, None)
    assert made == list(range(3 + steps))
    return ops


@pytest.mark.parametrize("name", policies(1))
def test_no_step_copies_keys_or_values(name):
    budget = 256
    ops = steps_of(policies(budget)[name], budget)
    cache = (budget + 1) * HEADS * HEAD_DIM  # keys of one layer
    copies = {op: size for op, size in ops.largest.items() if size >= cache}
    assert not copies, f"new tensors as large as a layer's keys: {copies}"


@pytest.mark.parametrize("name", policies(1))
def test_gathers_and_waits_do_not_depend_on_the_budget(name):
    small, large = (steps_of(policies(budget)[name], budget) for budget in (64, 512))
    for op in {*small.calls, *large.calls}:
        plain = op.split(".default")[0]
        if plain in GATHERING:
            assert small.largest.get(op, 0) == large.largest.get(op, 0), f"{op} grows with the budget"
        if plain in SYNCHRONISING:
            assert small.calls[op] == large.calls[op], f"{op} is called more often at a larger budget"
    assert small.calls == large.calls


def test_nothing_grows_with_the_number_of_steps():
    short, long = (steps_of(policies(64)["full_refresh"], 64, steps) for steps in (6, 30))
    assert short.largest == long.largest
    for op, calls in long.calls.items():
        assert calls == short.calls[op] * 5 or abs(calls - short.calls[op] * 5) <= 4 * 24, op


def test_the_full_cache_is_gone_right_after_the_cut(monkeypatch):
    seen, alive = [], {}
    write = PromptCache.write

    def watched(self, layer_idx, keys, values):
        found = write(self, layer_idx, keys, values)
        layer = self.layers[layer_idx]
        seen.extend([weakref.ref(layer.keys), weakref.ref(layer.values)])
        return found

    monkeypatch.setattr(PromptCache, "write", watched)

    def count(number, token, logits):
        gc.collect()
        alive[token] = sum(ref() is not None for ref in seen)

    generate(
        models.tiny(), models.prompt(60), [preset("inertiakv", tokens=10)], 5, observe=Observation(on_logits=count)
    )
    assert alive[1] == len(seen) == 6  # step 1 reads the prompt's own tensors
    assert alive[2] == alive[4] == 0


def test_the_first_step_makes_no_second_copy_of_the_prompt():
    network, ids, ops = models.tiny(query_heads=9, kv_heads=HEADS, head_dim=HEAD_DIM), models.prompt(200), Ops()

    def between(number, token, logits):
        ops.__enter__() if token == 0 else ops.__exit__(None, None, None) if token == 1 else None

    generate(network, ids, [preset("inertiakv", tokens=10)], 2, observe=Observation(on_logits=between))
    assert ops.calls
    copies = {op: size for op, size in ops.largest.items() if size >= 200 * HEADS * HEAD_DIM}
    assert not copies
