"""Rows of several prompts in one batch: each answers as it would alone, and holds nothing of its full cache."""

from __future__ import annotations

import gc
import weakref
from itertools import product

import models
import pytest
import torch

from inertia import Execution, Observation, Policy, PromptFormat, TokensPrompt, generate, preset
from inertia.backbones.families import FAMILIES, build, config_of
from inertia.backbones.tiny_tokenizer import tiny_tokenizer
from inertia.decoding import batches
from inertia.eviction.adaptive import AdaptiveRefresh
from inertia.eviction.aggregation import Decoupled, TimeEMA
from inertia.eviction.budget import Ratio, SeenRatio, Tokens, Unlimited
from inertia.eviction.cache import PromptCache
from inertia.eviction.prefill_rule import Prefill
from inertia.eviction.protect import Protect
from inertia.eviction.refresh import Every
from inertia.eviction.scorers.keydiff import KeyDiff
from inertia.methods import METHODS
from inertia.prefill.key_norm import KeyNorm

NEW = 12
LENGTHS = (9, 40, 26, 33, 10, 11)
POLICIES = {
    "full": preset("full_cache"),
    "shared": preset("inertiakv", tokens=9),
    "ratio": preset("inertiakv", alpha=0.5, compression_ratio=0.5),
    "lazy": Policy(budget=Tokens(9), refresh=Every(4), protect=Protect(sinks=2, recent=2)),
    "per_layer": Policy(aggregation=Decoupled(time=TimeEMA(0.5)), scope="per_layer", budget=Tokens(10)),
    "per_head": Policy(aggregation=Decoupled(), scope="per_head", budget=SeenRatio(0.6)),
    "random": preset("random", tokens=8),
    "adaptive": preset("adaptive_refresh", compression_ratio=0.6),
    "signed": Policy(KeyDiff(), refresh=AdaptiveRefresh(), budget=Ratio(0.4)),
    "compressed": Policy(budget=Unlimited(), prefill=Prefill(KeyNorm(), Ratio(0.5), question_visible=False)),
    "both": Policy(budget=Tokens(5), prefill=Prefill(KeyNorm(), Ratio(0.3), question_visible=True)),
}
EVERYTHING = Observation(trace=True, logits=True)


def told(lengths=LENGTHS, seed=0, vocabulary=97):
    """Prompts of mixed lengths, each with a context and a seed of its own."""
    return [
        TokensPrompt(models.prompt(length, seed + index, vocab=vocabulary), context_end=length - 4, seed=index)
        for index, length in enumerate(lengths)
    ]


def same(found, wanted, atol=1e-4):
    assert (found.tokens, found.stop, found.kept) == (wanted.tokens, wanted.stop, wanted.kept)
    assert found.retained_tokens == wanted.retained_tokens and found.peak_tokens == wanted.peak_tokens
    assert found.cache_bytes == wanted.cache_bytes and found.evictions == wanted.evictions
    torch.testing.assert_close(found.logits, wanted.logits, atol=atol, rtol=1e-4)


def compare(network, prompts, policies, atol=1e-4, **how):
    together = generate(network, prompts, policies, NEW, **how, observe=EVERYTHING)
    assert [len(rows) for rows in together] == [len(policies)] * len(prompts)
    close = 0
    for prompt, rows in zip(prompts, together, strict=True):
        for policy, found in zip(policies, rows, strict=True):
            (alone,) = generate(network, prompt, [policy], NEW, **how, observe=EVERYTHING)
            # Where a choice was within rounding of another one, and says so, either is right.
            if found.near_ties:
                close += 1
            else:
                same(found, alone, atol)
    assert close <= len(prompts) * len(policies) // 10
    return together


@pytest.mark.parametrize("architecture", ["llama", "qwen3", "gemma3", "qwen3_moe"])
def test_every_policy_of_every_prompt_answers_as_alone(architecture):
    together = compare(models.tiny(architecture), told(), list(POLICIES.values()))
    assert max(row.batch_rows for rows in together for row in rows) > len(POLICIES)


@pytest.mark.parametrize("name", POLICIES)
def test_one_policy_over_prompts_of_mixed_lengths(name):
    together = compare(models.tiny(seed=1), told(seed=50), [POLICIES[name]])
    assert max(row.batch_rows for (row,) in together) > 1


@pytest.mark.parametrize("name", ["qwen3_next", "jamba", "lfm2", "falcon_h1", "deepseek_v3", "gpt_oss"])
def test_families_of_every_kind(name):
    family = FAMILIES[name]
    model = build(config_of(family))
    vocabulary = model.get_input_embeddings().weight.shape[0]
    compare(
        model,
        told((14, 9, 12), vocabulary=min(vocabulary, 97)),
        [POLICIES["full"], POLICIES["shared"], POLICIES["per_layer"], POLICIES["per_head"]],
        family.tolerance,
    )


def test_every_method_over_three_prompts_in_one_call():
    words = PromptFormat(tiny_tokenizer(), chat_template=False)
    names = [name for name in METHODS if "snapkv" not in name]
    policies = [preset(name, **({} if name == "full_cache" else {"tokens": 20})) for name in names]
    policies += [preset(name, tokens=20, window=4) for name in ("snapkv", "adakv_snapkv")]
    compare(models.tiny(vocab_size=1024), told((40, 44, 37)), policies, prompt_format=words)


def test_rows_end_at_their_own_eos_and_the_others_go_on():
    network, prompts = models.tiny(), told()
    policies = [POLICIES["full"], POLICIES["shared"], POLICIES["per_head"]]
    free = generate(network, prompts, policies, NEW)
    eos = [free[1][0].tokens[4], free[2][1].tokens[0], free[4][2].tokens[7]]
    together = compare(network, prompts, policies, eos_token_id=eos)
    lengths = {len(row.tokens) for rows in together for row in rows}
    assert 1 in lengths and NEW in lengths and len(lengths) > 2


def test_forced_tokens_and_seeds_are_each_prompts_own():
    network, ids = models.tiny(), models.prompt(30)
    random = [preset("random", tokens=6)]
    prompts = [TokensPrompt(ids, seed=seed, forced_tokens=[token] * NEW) for seed, token in product((1, 2), (5, 6))]
    together = compare(network, prompts, random)
    assert [rows[0].tokens[0] for rows in together] == [5, 6, 5, 6]
    assert together[0][0].kept[-1] != together[2][0].kept[-1]


def test_the_order_of_prompts_changes_nothing():
    network, prompts, policies = models.tiny(), told(), [POLICIES["shared"], POLICIES["per_layer"]]
    forward = generate(network, prompts, policies, NEW, observe=EVERYTHING)
    backward = generate(network, prompts[::-1], policies[::-1], NEW, observe=EVERYTHING)
    for rows, others in zip(forward, backward[::-1], strict=True):
        for found, wanted in zip(rows, others[::-1], strict=True):
            same(found, wanted)


def test_a_list_of_one_gives_a_list_of_one():
    network, ids, policies = models.tiny(), models.prompt(20), [POLICIES["full"], POLICIES["shared"]]
    (listed,) = generate(network, [ids], policies, NEW)
    assert [row.tokens for row in listed] == [row.tokens for row in generate(network, ids, policies, NEW)]


def test_rows_are_numbered_over_the_prompts():
    seen = set()
    observe = Observation(on_logits=lambda row, token, logits: seen.add((row, token)))
    generate(models.tiny(), told((9, 12, 10)), [POLICIES["full"], POLICIES["shared"]], 5, observe=observe)
    assert seen == {(row, token) for row in range(6) for token in range(5)}


def test_no_more_prompts_decode_together_than_memory_is_given():
    network, prompts, policies = models.tiny(), told((30, 31, 32, 33, 34)), [POLICIES["shared"]]
    row = 3 * 2 * 3 * 8 * 4 * 10 + (12 + 3 * 4) * 10
    together = compare(network, prompts, policies, execution=Execution(batch_gib=2.5 * row / 2**30))
    assert [row.batch_rows for (row,) in together] == [2, 2, 2, 2, 1]
    together = generate(network, prompts, policies, NEW, execution=Execution(batch_gib=5 * row / 2**30))
    assert [row.batch_rows for (row,) in together] == [5] * 5


@pytest.mark.parametrize("fits", [1, 2, 3])
def test_where_memory_runs_out_prompts_are_split_and_it_says_so(fits, monkeypatch):
    network, prompts, policies = models.tiny(), told((30, 31, 32, 33, 34)), [POLICIES["shared"]]
    wanted, real = generate(network, prompts, policies, NEW), batches.forward

    def forward(model, session, tokens, positions, **how):
        if len(tokens) > fits:
            raise torch.OutOfMemoryError("no room")
        return real(model, session, tokens, positions, **how)

    monkeypatch.setattr(batches, "forward", forward)
    with pytest.warns(UserWarning, match="memory ran out with 5 prompts together.*2 at a time"):
        found = generate(network, prompts, policies, NEW)
    assert [row.tokens for (row,) in found] == [row.tokens for (row,) in wanted]
    assert max(row.batch_rows for (row,) in found) <= fits
    observe = Observation(on_logits=lambda *_: None)
    with pytest.raises(torch.OutOfMemoryError):
        generate(network, prompts, policies, NEW, observe=observe)


def test_the_full_cache_of_a_prompt_is_gone_before_the_next_is_read(monkeypatch):
    seen, alive = [], []
    write = PromptCache.write

    def watched(self, layer_idx, keys, values):
        if layer_idx == 0:
            gc.collect()
            alive.append(sum(ref() is not None for ref in seen))
        found = write(self, layer_idx, keys, values)
        seen.append(weakref.ref(self.layers[layer_idx].keys))
        return found

    monkeypatch.setattr(PromptCache, "write", watched)
    generate(models.tiny(), told((60, 50, 40)), [POLICIES["shared"], POLICIES["per_head"]], 5)
    assert alive == [0, 0, 0] and len(seen) == 9


def test_one_bad_prompt_is_refused_before_anything_runs(monkeypatch):
    network = models.tiny()
    monkeypatch.setattr(type(network), "forward", lambda *_, **__: pytest.fail("the model ran"))
    with pytest.raises(ValueError, match="from 3 to 97"):
        generate(network, [models.prompt(9), torch.tensor([[3, 97]])], [POLICIES["full"]], NEW)
    with pytest.raises(ValueError, match="context_end"):
        generate(network, [*told((9,)), models.prompt(9)], [POLICIES["compressed"]], NEW)
