"""Exactness gates: a full budget is plain generate, together equals alone, and no state survives an example."""

from __future__ import annotations

import models
import pytest
import torch

from inertia import Observation, Policy, Stopping, TokensPrompt, generate, preset
from inertia.eviction.aggregation import Decoupled
from inertia.eviction.budget import SeenRatio, Tokens
from inertia.eviction.cache import Slots
from inertia.eviction.protect import Protect
from inertia.eviction.refresh import Every

ARCHITECTURES = ["llama", "qwen2", "qwen3", "mistral", "gemma3", "qwen3_moe"]


def plain(network, ids, new, eos=None):
    """transformers' own greedy decoding, told everything that could make it differ."""
    from transformers import GenerationConfig

    settings = GenerationConfig(do_sample=False, max_new_tokens=new, eos_token_id=eos, pad_token_id=0)
    out = network.generate(ids, attention_mask=torch.ones_like(ids), generation_config=settings)
    return out[0, ids.shape[1] :].tolist()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_budget_that_is_never_exceeded_is_plain_generate(architecture):
    network, ids, new = models.tiny(architecture), models.prompt(30), 16
    never = preset("inertiakv", tokens=30 + new - 1)
    full, wide = generate(network, ids, [preset("full_cache"), never], new)
    assert full.tokens == wide.tokens == plain(network, ids, new)
    assert full.evictions == wide.evictions == 0
    assert full.retained_tokens == 30 + new - 1


def test_one_less_than_that_does_evict():
    network, ids, new = models.tiny(), models.prompt(30), 16
    (out,) = generate(network, ids, [preset("inertiakv", tokens=30 + new - 2)], new, trace=True)
    assert out.evictions == 1
    assert len(out.kept[-1]) == 30 + new - 2


MIXED = [
    preset("inertiakv", tokens=6),
    preset("full_cache"),
    preset("inertiakv", alpha=0, tokens=7),
    Policy(aggregation=Decoupled(), scope="per_head", budget=Tokens(6)),
    Policy(aggregation=Decoupled(), scope="per_layer", budget=Tokens(6)),
    preset("score_free", tokens=20),
    preset("h2o", tokens=6),
    Policy(refresh=Every(3), budget=SeenRatio(0.75)),
    preset("inertiakv_lazy", tokens=7),
]


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
@pytest.mark.parametrize("eos", [None, 40])
def test_together_equals_alone_in_any_order(architecture, eos):
    network, ids = models.tiny(architecture), models.prompt(25)
    alone = [generate(network, ids, [policy], 14, eos_token_id=eos, trace=True)[0] for policy in MIXED]
    for order in (range(len(MIXED)), reversed(range(len(MIXED)))):
        order = list(order)
        outs = generate(network, ids, [MIXED[i] for i in order], 14, eos_token_id=eos, trace=True)
        for i, out in zip(order, outs, strict=True):
            assert (out.tokens, out.kept, out.stop) == (alone[i].tokens, alone[i].kept, alone[i].stop)
            assert (out.retained_tokens, out.cache_bytes, out.peak_tokens) == (
                alone[i].retained_tokens,
                alone[i].cache_bytes,
                alone[i].peak_tokens,
            )


def test_rows_that_end_early_do_not_disturb_the_others():
    network, ids = models.tiny(seed=4), models.prompt(25, seed=2)
    free = generate(network, ids, MIXED, 20)
    # The first two tokens are common to all policies, so an end among them would end every row at once.
    ends = {out.tokens[position] for position, out in zip((9, 3, 5, 12, 7), free, strict=False)}
    ends = list(ends - set(free[0].tokens[:2]))
    outs = generate(network, ids, MIXED, 20, eos_token_id=ends)
    for out, whole in zip(outs, free, strict=True):
        stop = next((i for i, token in enumerate(whole.tokens) if token in ends), 19)
        assert out.tokens == whole.tokens[: stop + 1]
        assert out.stop == ("eos" if whole.tokens[stop] in ends else "length")
    assert len({len(out.tokens) for out in outs}) > 2, "the case must have rows of different lengths"


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_equal_policies_give_equal_results(architecture):
    network, ids = models.tiny(architecture, seed=1), models.prompt(20)
    full, tight = preset("full_cache"), preset("inertiakv", tokens=6)
    outs = generate(network, ids, [full, tight, full, tight], 20, observe=Observation(trace=True, logits=True))
    (alone,) = generate(network, ids, [full], 20)
    assert outs[0].tokens == outs[2].tokens == alone.tokens
    assert outs[1].kept == outs[3].kept
    assert plain(network, ids, 20) == alone.tokens


def test_a_falling_budget_is_refused():
    from dataclasses import dataclass

    @dataclass(frozen=True)
    class Falling:
        def tokens(self, prompt_tokens, seen_tokens):
            return 20 if seen_tokens < prompt_tokens + 3 else 12

    policy = Policy(budget=Falling())
    with pytest.raises((ValueError, RuntimeError), match="budget fell|expanded size"):
        generate(models.tiny(), models.prompt(30), [policy, preset("inertiakv", tokens=25)], 8)


def test_bytes_do_not_depend_on_company():
    network, ids = models.tiny(), models.prompt(15)
    first = plain(network, ids, 1)[0]
    tight, full = preset("inertiakv", tokens=6), preset("full_cache")
    alone = generate(network, ids, [tight], 10, eos_token_id=first)[0]
    both = generate(network, ids, [full, tight], 10, eos_token_id=first)[1]
    assert alone.cache_bytes == both.cache_bytes


def test_answers_do_not_depend_on_what_ran_before():
    network = models.tiny()
    first, second = models.prompt(20, seed=1), models.prompt(31, seed=2)
    policy = [preset("h2o", tokens=5)]
    ab = [generate(network, ids, policy, 10, trace=True)[0].kept for ids in (first, second)]
    ba = [generate(network, ids, policy, 10, trace=True)[0].kept for ids in (second, first)]
    assert ab == ba[::-1]


def test_the_attention_implementation_is_restored_on_any_exit(monkeypatch):
    from inertia.eviction import session

    network, ids = models.tiny(), models.prompt(12)
    generate(network, ids, [preset("inertiakv", tokens=5)], 4)
    assert network.config._attn_implementation == "sdpa"
    monkeypatch.setattr(session.DecodeBatch, "advance", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        generate(network, ids, [preset("inertiakv", tokens=5)], 6)
    assert network.config._attn_implementation == "sdpa"


def test_dead_slots_are_never_read(monkeypatch):
    """Slots that hold NaN before they are written must not reach any output (0 x NaN is NaN)."""
    network, ids = models.tiny(), models.prompt(20)
    policies = [preset("inertiakv", tokens=n) for n in (6, 7, 26)] + [Policy(budget=SeenRatio(0.7))]
    clean = [out.tokens for out in generate(network, ids, policies, 10)]
    make = Slots.__init__

    def poisoned(self, rows, capacity, keys, values):
        make(self, rows, capacity, keys, values)
        self.keys.fill_(float("nan"))

    monkeypatch.setattr(Slots, "__init__", poisoned)
    assert [out.tokens for out in generate(network, ids, policies, 10)] == clean


def test_first_token_comes_from_the_prefill():
    network, ids = models.tiny(), models.prompt(15)
    (out,) = generate(network, ids, [preset("inertiakv", tokens=4)], 1, trace=True)
    assert out.tokens == plain(network, ids, 1)
    assert out.kept == []
    assert (out.retained_tokens, out.evictions, out.peak_tokens) == (15, 0, 15)


def test_eos_as_first_token_ends_every_row():
    network, ids = models.tiny(), models.prompt(15)
    first = plain(network, ids, 1)[0]
    outs = generate(network, ids, MIXED, 10, eos_token_id=[first, 1])
    assert {tuple(out.tokens) for out in outs} == {(first,)}
    assert {out.stop for out in outs} == {"eos"}


def test_step_one_sees_the_whole_prompt():
    """The second token's logits are those of the full cache under every policy."""
    network, ids = models.tiny(), models.prompt(40)
    full, tight = generate(
        network, ids, [preset("full_cache"), preset("inertiakv", tokens=1)], 4, observe=Observation(logits=True)
    )
    torch.testing.assert_close(full.logits[:2], tight.logits[:2], atol=0, rtol=0)
    assert not torch.allclose(full.logits[2], tight.logits[2], atol=1e-3)


def test_forced_tokens_are_fed_and_returned():
    network, ids = models.tiny(), models.prompt(18)
    forced = [7, 8, 9, 10, 11]
    policies = [preset("full_cache"), preset("inertiakv", tokens=6)]
    full, _ = generate(
        network,
        TokensPrompt(ids, forced_tokens=forced),
        policies,
        5,
        eos_token_id=9,
        observe=Observation(logits=True),
    )
    assert full.tokens == forced and full.stop == "length"
    with torch.inference_mode():
        whole = network(torch.cat([ids, torch.tensor([forced])], 1)).logits[0, 17:22]
    torch.testing.assert_close(full.logits, whole, atol=1e-4, rtol=0)


def test_cache_bytes_are_what_the_slots_take():
    network, ids = models.tiny(), models.prompt(40)  # 3 layers, 3 KV heads, head size 8, fp32
    full, tight = generate(network, ids, [preset("full_cache"), preset("inertiakv", tokens=10)], 6)
    assert full.cache_bytes == 2 * 3 * 3 * 8 * 4 * (40 + 5)
    assert tight.cache_bytes == 2 * 3 * 3 * 8 * 4 * (10 + 1)


def test_the_budget_is_never_exceeded_after_a_step():
    network, ids = models.tiny(), models.prompt(40)
    (out,) = generate(network, ids, [preset("inertiakv_lazy", tokens=9)], 30, trace=True)
    assert {len(kept) for kept in out.kept} == {9}
    assert out.peak_tokens == 9 and out.retained_tokens == 9 and out.evictions == 40 + 29 - 9


@pytest.mark.parametrize("dtype, tolerance", [(torch.bfloat16, 0.12), (torch.float16, 0.02)])
def test_half_precision_stays_within_a_stated_tolerance(dtype, tolerance):
    """Scores and utilities are fp32 whatever the model's dtype; logits may differ by the dtype's rounding."""
    ids, forced = models.prompt(30), list(range(5, 15))
    policy = [preset("full_cache")]
    told, keep = TokensPrompt(ids, forced_tokens=forced), Observation(logits=True)
    wanted = generate(models.tiny(), told, policy, 10, observe=keep)[0].logits
    got = generate(models.tiny().to(dtype), told, policy, 10, observe=keep)[0].logits
    assert (wanted - got).abs().max() < tolerance * wanted.abs().max()
    outs = generate(models.tiny().to(dtype), ids, MIXED, 10)
    assert all(len(out.tokens) == 10 for out in outs)


def test_nan_scores_stop_the_run():
    network = models.tiny()
    network.model.layers[1].self_attn.q_proj.weight.data[0, 0] = float("nan")
    with pytest.raises(FloatingPointError, match="NaN"):
        generate(network, models.prompt(12), [preset("inertiakv", tokens=4)], 5)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"input_ids": torch.zeros(2, 5, dtype=torch.long)}, r"\[1, L0\]"),
        ({"input_ids": torch.zeros(1, 0, dtype=torch.long)}, r"L0 >= 1"),
        ({"policies": []}, "at least one Policy"),
        ({"policies": ["inertiakv"]}, "inertia.preset"),
        ({"max_new_tokens": 0}, "max_new_tokens=0"),
        ({"input_ids": TokensPrompt(models.prompt(9), forced_tokens=[1, 2])}, "forced_tokens has 2"),
        ({"input_ids": TokensPrompt(models.prompt(9), forced_tokens=[5, 6, 7, 200])}, "from 5 to 200"),
        ({"input_ids": torch.zeros(1, 4095, dtype=torch.long)}, "window of 4096"),
        ({"input_ids": torch.tensor([[5, 97]])}, "from 5 to 97, but the model embeds 0 to 96"),
        ({"input_ids": torch.tensor([[-1, 9]])}, "from -1 to 9, but the model embeds 0 to 96"),
        ({"input_ids": torch.tensor([[5.0, 9.0]])}, "float32; give int64"),
        ({"input_ids": torch.tensor([[5, 9]], dtype=torch.uint8)}, "uint8; give int64"),
        ({"input_ids": [5, 9]}, "input_ids holds 5; give LongTensors"),
        ({"input_ids": [[5, 9]]}, r"input_ids holds \[5, 9\]; give LongTensors"),
        ({"input_ids": "text"}, "input_ids holds 't'; give LongTensors"),
        ({"max_new_tokens": 2.0}, "max_new_tokens=2.0 is not an integer"),
        ({"max_new_tokens": True}, "max_new_tokens=True is not an integer"),
        ({"eos_token_id": "<eos>"}, "eos_token_id=.* is not an integer"),
        ({"eos_token_id": torch.tensor([2])}, "eos_token_id=.* is not an integer"),
        ({"eos_token_id": [None]}, "eos_token_id=None is not an integer"),
        ({"eos_token_id": 2.0}, "eos_token_id=2.0 is not an integer"),
        ({"input_ids": []}, "no prompt"),
        ({"input_ids": [models.prompt(9), torch.ones(1, 5)]}, "float32; give int64"),
        ({"stopping": Stopping(4)}, "either max_new_tokens"),
        ({"max_new_tokens": None}, "either max_new_tokens"),
        ({"max_new_tokens": None, "stopping": Stopping(4), "eos_token_id": 3}, "either max_new_tokens"),
        ({"max_new_tokens": None, "stopping": Stopping(4, stop_strings=("x",))}, "tokenizer"),
        ({"trace": True, "observe": Observation(logits=True)}, "either trace=True or observe"),
    ],
)
def test_bad_calls_say_what_is_wrong(change, message):
    call = {"input_ids": models.prompt(9), "policies": [preset("full_cache")], "max_new_tokens": 4, **change}
    with pytest.raises(ValueError, match=message):
        generate(models.tiny(), **call)


def test_as_many_slots_may_be_protected_as_the_budget_has():
    policy = Policy(budget=Tokens(4), protect=Protect(sinks=2))
    assert generate(models.tiny(), models.prompt(9), [policy], 4)


def test_a_model_in_training_mode_is_in_it_again_afterwards_and_answers_as_in_eval_mode():
    network, policies = models.tiny(attention_dropout=0.5), [preset("full_cache"), preset("inertiakv", tokens=9)]
    (wanted, evicted) = (each.tokens for each in generate(network, models.prompt(30), policies, 12))
    network.train()
    network.model.layers[1].eval()
    modes = [module.training for module in network.modules()]
    for _ in range(2):
        assert [each.tokens for each in generate(network, models.prompt(30), policies, 12)] == [wanted, evicted]
    assert [module.training for module in network.modules()] == modes
    with pytest.raises(FloatingPointError):
        network.model.layers[1].self_attn.q_proj.weight.data[0, 0] = float("nan")
        generate(network, models.prompt(30), policies, 12)
    assert [module.training for module in network.modules()] == modes
