"""Compressed prompts through `generate`: what is dropped is never seen again, and decoding uses what is left."""

from __future__ import annotations

import models
import oracle
import oracle_scores
import pytest
import torch

from inertia import Observation, Policy, PromptFormat, TokensPrompt, generate, preset
from inertia.backbones.tiny_tokenizer import tiny_tokenizer
from inertia.eviction.aggregation import CoupledEMA, Decoupled, TimeEMA
from inertia.eviction.budget import Ratio, Tokens, Unlimited
from inertia.eviction.layers import layers_of
from inertia.eviction.policy import PER_HEAD, PER_LAYER, SHARED
from inertia.eviction.prefill_rule import Prefill
from inertia.eviction.prefill_sums import PrefillSums
from inertia.eviction.protect import Protect
from inertia.eviction.refresh import Every
from inertia.methods import METHODS
from inertia.prefill.adakv import AdaKV
from inertia.prefill.capture import prompt_layers, scores_of
from inertia.prefill.expected_attention import ExpectedAttention
from inertia.prefill.key_norm import KeyNorm
from inertia.prefill.keydiff import KeyDiff
from inertia.prefill.kvzip import KVzip
from inertia.prefill.snapkv import SnapKV
from inertia.prefill.streaming_llm import StreamingLLM
from inertia.prefill.tova import TOVA

COMPRESSORS = {
    "snapkv": SnapKV(window=4, pool=3),
    "adakv": AdaKV(ExpectedAttention(future=16, sinks=2, epsilon=0.01), alpha=0.2),
    "keydiff": KeyDiff(),
    "key_norm": KeyNorm(),
    "tova": TOVA(),
    "streaming_llm": StreamingLLM(sinks=2),
}
CONTEXT, LENGTH, STEPS = 24, 31, 8


def stays(network, ids, compressor, part, budget):
    """What the compressor keeps, per (layer, head), from a plain forward over the part that it may see."""
    keep = compressor.keep(scores_of(network, ids[0, :part].tolist(), compressor), budget)
    eligible = layers_of(network.config).eligible
    return {
        (layer, head): set(keep[index][head].nonzero().flatten().tolist())
        for index, layer in enumerate(eligible)
        for head in range(keep[index].shape[0])
    }


def compare(network, ids, policy):
    rule = policy.prefill
    part = LENGTH if rule.question_visible else CONTEXT
    stay = stays(network, ids, rule.compressor, part, rule.budget.tokens(part, part))
    observe = Observation(trace=True, logits=True)
    (ours,) = generate(network, TokensPrompt(ids, CONTEXT), [policy], STEPS, observe=observe)
    tokens, kept, logits = oracle.run(
        network, ids[0].tolist(), policy, STEPS, stay=stay, part=part, context_end=CONTEXT
    )
    assert ours.tokens == tokens
    assert ours.kept == kept
    torch.testing.assert_close(ours.logits, logits, atol=1e-4, rtol=0)
    sizes = [len(left) for left in stay.values()]
    assert ours.prefill_retained_tokens == pytest.approx(sum(sizes) / len(sizes))
    return ours


@pytest.mark.parametrize("visible", [True, False])
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "mistral", "gemma3", "qwen3_moe"])
@pytest.mark.parametrize("name", COMPRESSORS)
def test_equals_the_masked_full_cache(name, architecture, visible):
    network, ids = models.tiny(architecture), models.prompt(LENGTH, seed=len(name))
    policy = Policy(budget=Unlimited(), prefill=Prefill(COMPRESSORS[name], Tokens(9), visible))
    out = compare(network, ids, policy)
    assert out.prefill_budget_tokens == 9 and out.budget_tokens is None


@pytest.mark.parametrize("visible", [True, False])
@pytest.mark.parametrize(
    "decode",
    [
        Policy(aggregation=CoupledEMA(0.8), budget=Tokens(6)),
        Policy(aggregation=CoupledEMA(0.5), budget=Tokens(6), refresh=Every(3)),
        Policy(aggregation=Decoupled(time=TimeEMA(0.5)), scope=PER_LAYER, budget=Tokens(6)),
        Policy(aggregation=Decoupled(time=TimeEMA(0.5)), scope=PER_HEAD, budget=Tokens(6)),
        Policy(aggregation=Decoupled(), budget=Tokens(7), protect=Protect(sinks=1, recent=2)),
        Policy(aggregation=CoupledEMA(0.8), budget=Tokens(20)),
    ],
    ids=["shared", "lazy", "per_layer", "per_head", "protected", "reached_late"],
)
@pytest.mark.parametrize("name", ["snapkv", "adakv", "tova"])
def test_a_decode_policy_goes_on_from_what_is_left(name, decode, visible):
    from dataclasses import replace

    network, ids = models.tiny(), models.prompt(LENGTH, seed=5)
    policy = replace(decode, prefill=Prefill(COMPRESSORS[name], Tokens(9), visible))
    out = compare(network, ids, policy)
    assert (out.prefill_budget_tokens, out.budget_tokens) == (9, decode.budget.count)


def test_a_budget_of_everything_is_the_full_cache():
    network, ids = models.tiny(), models.prompt(LENGTH)
    policies = [
        preset("full_cache"),
        *(Policy(budget=Unlimited(), prefill=Prefill(KeyDiff(), Tokens(500), visible)) for visible in (True, False)),
    ]
    outs = generate(network, TokensPrompt(ids, CONTEXT), policies, STEPS)
    assert outs[0].tokens == outs[1].tokens == outs[2].tokens


def test_together_equals_alone():
    network, ids = models.tiny("gemma3"), models.prompt(LENGTH, seed=9)
    policies = [
        preset("full_cache"),
        preset("inertiakv", tokens=6),
        *(
            Policy(budget=Unlimited(), prefill=Prefill(compressor, Tokens(9), visible))
            for compressor in COMPRESSORS.values()
            for visible in (True, False)
        ),
        Policy(budget=Tokens(5), prefill=Prefill(COMPRESSORS["snapkv"], Tokens(9), True)),
    ]
    together = generate(network, TokensPrompt(ids, CONTEXT), policies, STEPS, trace=True)
    for policy, out in zip(policies, together, strict=True):
        (alone,) = generate(network, TokensPrompt(ids, CONTEXT), [policy], STEPS, trace=True)
        assert (alone.tokens, alone.kept, alone.cache_bytes) == (out.tokens, out.kept, out.cache_bytes)


@pytest.mark.parametrize("visible", [True, False])
@pytest.mark.parametrize("mode", ["removed", "masked"])
def test_kvzip_replays_and_keeps_what_it_says(mode, visible):
    from inertia.backbones.tiny import tiny_model

    network, tokenizer = tiny_model(), tiny_tokenizer()
    chat = [{"role": "user", "content": "the red key is 17. the blue key is 23. which is the red key?"}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    ids = torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"]])
    length = ids.shape[1]
    part = length if visible else length - 12
    compressor = KVzip(chunk=8, mode=mode)
    policy = Policy(budget=Unlimited(), prefill=Prefill(compressor, Ratio(0.5), visible))
    told, observe = TokensPrompt(ids, length - 12), Observation(trace=True, logits=True)
    words = PromptFormat(tokenizer)
    (out,) = generate(network, told, [policy], 6, observe=observe, prompt_format=words)
    replays = compressor.replays(tokenizer, ids[0, :part].tolist(), chat_template=True)
    assert len(replays) > 1
    keep = compressor.keep(
        scores_of(network, ids[0, :part].tolist(), compressor, replays), policy.prefill.budget.tokens(part, part)
    )
    stay = {
        (layer, head): set(mask[head].nonzero().flatten().tolist())
        for layer, mask in enumerate(keep)
        for head in range(mask.shape[0])
    }
    tokens, kept, logits = oracle.run(network, ids[0].tolist(), policy, 6, stay=stay, part=part)
    assert (out.tokens, out.kept) == (tokens, kept)
    torch.testing.assert_close(out.logits, logits, atol=1e-4, rtol=0)
    removed = Policy(budget=Unlimited(), prefill=Prefill(KVzip(chunk=8), Ratio(0.5), visible))
    (small,) = generate(network, told, [removed], 6, observe=observe, prompt_format=words)
    assert small.tokens == out.tokens
    assert (small.cache_bytes < out.cache_bytes) == (mode == "masked")


def test_h2o_starts_from_the_sums_over_the_prompt():
    network, ids = models.tiny(), models.prompt(20, seed=3)
    policy = preset("h2o_original", tokens=8)
    sums = [PrefillSums().score(layer) for layer in prompt_layers(network, ids[0].tolist())]
    for layer, seen in zip(sums, prompt_layers(network, ids[0].tolist()), strict=True):
        groups = seen.query.shape[0] // seen.keys.shape[0]
        for head in range(seen.keys.shape[0]):
            slow = torch.zeros(20)
            for group in range(groups):
                for at in range(20):
                    row = (seen.query[head * groups + group, at] @ seen.keys[head, : at + 1].T) * seen.scaling
                    slow[: at + 1] += row.softmax(-1) / groups
            torch.testing.assert_close(layer[head], slow, atol=1e-5, rtol=1e-5)
    m0 = {(layer, head): {p: float(sums[layer][head, p]) for p in range(20)} for layer in range(3) for head in range(3)}
    (ours,) = generate(network, ids, [policy], STEPS, trace=True)
    tokens, kept, _ = oracle.run(network, ids[0].tolist(), policy, STEPS, m0=m0)
    assert (ours.tokens, ours.kept) == (tokens, kept)
    assert all(len(head) == 8 for layer in ours.kept[-1] for head in layer)


@pytest.mark.parametrize(
    "protect", [Protect(reserve=0.5), Protect(rescue=0.5), Protect(reserve=0.3, rescue=0.3, recent=1)]
)
@pytest.mark.parametrize("scope", [SHARED, PER_LAYER, PER_HEAD])
def test_reserve_and_rescue(protect, scope):
    network, ids = models.tiny(), models.prompt(30, seed=6)
    aggregation = CoupledEMA(0.8) if scope == SHARED else Decoupled()
    policy = Policy(aggregation=aggregation, scope=scope, budget=Tokens(10), protect=protect)
    (ours,) = generate(network, ids, [policy], STEPS, trace=True)
    tokens, kept, _ = oracle.run(network, ids[0].tolist(), policy, STEPS)
    assert (ours.tokens, ours.kept) == (tokens, kept)


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"kvzip"}))
def test_every_method_runs_and_keeps_its_budget(name):
    network, ids = models.tiny(seed=2), models.prompt(100, seed=7)
    settings = {} if name == "full_cache" else {"compression_ratio": 0.7}
    settings |= {"window": 8} if "snapkv" in name else {}
    policy = preset(name, **settings)
    (out,) = generate(network, TokensPrompt(ids, 90, 1), [policy], 12, trace=True)
    assert len(out.tokens) == 12
    if policy.evicts:
        assert out.budget_tokens == 30 and out.retained_tokens == 30
    if policy.prefill.compressor is not None:
        assert out.prefill_budget_tokens == 27
        assert out.prefill_retained_tokens == pytest.approx(27, abs=1)
        assert out.retained_tokens == pytest.approx(out.prefill_retained_tokens + 10 + 11)


EXACT = [name for name in METHODS if preset(name).evicts and name not in ("selected_alpha", "reactive_alpha")]


@pytest.mark.parametrize("name", [name for name in EXACT if name not in ("h2o_original", "adaptive_refresh")])
@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_every_decode_method_equals_its_oracle(name, architecture):
    # No id twice: the first layer's keys of equal ids have equal norms, and ranking those would be rounding.
    order = (torch.randperm(94, generator=torch.Generator().manual_seed(11)) + 3).tolist()
    network, ids, forced = models.tiny(architecture, seed=1), torch.tensor([order[:40]]), order[40 : 40 + STEPS]
    policy = preset(name, tokens=12)
    (ours,) = generate(network, TokensPrompt(ids, 34, 17, forced), [policy], STEPS, trace=True)
    layers = layers_of(network.config)
    table = {**oracle.SCORES, **oracle_scores.scores(17, len(layers.eligible))}
    _, kept, _ = oracle.run(network, order[:40], policy, STEPS, scores=table, context_end=34, forced=forced)
    assert ours.kept == kept


def test_adaptive_rules_change_with_what_they_see():
    network, ids = models.tiny(seed=1), models.prompt(60, seed=3)
    names = ("inertiakv", "selected_alpha", "reactive_alpha", "adaptive_refresh")
    outs = generate(network, ids, [preset(name, tokens=15) for name in names], 30, trace=True)
    base = outs[0].kept
    assert all(len(out.kept[-1]) == 15 for out in outs)
    assert any(out.kept != base for out in outs[1:])
    for name, out in zip(names, outs, strict=True):
        (alone,) = generate(network, ids, [preset(name, tokens=15)], 30, trace=True)
        assert alone.kept == out.kept


@pytest.mark.parametrize(
    "policy, context_end, message",
    [
        (preset("snapkv", tokens=10), 20, "64"),
        (preset("keydiff", tokens=5), None, "context_end"),
        (preset("keydiff", tokens=5), 30, r"0 < context_end < 30"),
        (preset("kvzip", tokens=5), 20, "needs a tokenizer"),
        (preset("random_keep_question", tokens=5), None, "context_end"),
        (Policy(budget=Ratio(0.9), protect=Protect(sinks=4)), None, "up to 4 slots.*budget is 3"),
        (preset("streaming_llm", tokens=2), 20, "sinks"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_runs(policy, context_end, message, monkeypatch):
    network = models.tiny()
    monkeypatch.setattr(type(network), "forward", lambda *_, **__: pytest.fail("the model ran"))
    with pytest.raises(ValueError, match=message):
        generate(network, TokensPrompt(models.prompt(30), context_end), [policy], 5)
