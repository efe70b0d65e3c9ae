"""Every family of decoders is decoded exactly, or refused by name; none is wrong."""

from __future__ import annotations

import re

import oracle
import pytest
import torch

from inertia import Observation, Policy, generate, preset
from inertia.backbones.__main__ import main
from inertia.backbones.families import FAMILIES, build, config_of, greedy, outcome, prompt_of
from inertia.decoding.request import TokensPrompt
from inertia.eviction.aggregation import Decoupled
from inertia.eviction.budget import Tokens
from inertia.paths import config_dir

REFUSED = {
    "phi3 longrope across": "'longrope' change their frequencies beyond 16 tokens, and a prompt of 12 with",
    "mistral windowed": "all its layers have a sliding window",
    "llama4_text": "layers of type chunked_attention",
    "mamba": "none of its layers has full attention",
    "recurrent_gemma": "none of its layers has full attention",
    "minimax": "MiniMax uses cache of its own",
    "nemotron": "does not hand the keywords of its forward to its layers",
    "stablelm": "does not hand the keywords of its forward to its layers",
    "doge": "give their attention attention_mask, which eviction would leave out",
    "xglm": "does not go through transformers' attention interface",
    "t5": "encoder-decoder",
}
EXACT = sorted(FAMILIES.keys() - REFUSED.keys())
POLICIES = {
    "shared": preset("inertiakv", tokens=6),
    "per_head": Policy(aggregation=Decoupled(), scope="per_head", budget=Tokens(6)),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_is_exact_or_refused_by_name(name):
    found = outcome(name)
    assert (found.layers is None) == (name in REFUSED)
    assert REFUSED.get(name, "exact") in str(found)


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("scope", POLICIES)
def test_evicting_equals_masking_in_every_family(name, scope):
    family, policy = FAMILIES[name], POLICIES[scope]
    model, ids = build(config_of(family)), prompt_of(family)
    full, ours = generate(
        model, ids, [preset("full_cache"), policy], family.new_tokens, observe=Observation(trace=True, logits=True)
    )
    tokens, kept, logits = oracle.run(model, ids[0].tolist(), policy, family.new_tokens)
    assert ours.tokens == tokens
    assert ours.kept == kept
    torch.testing.assert_close(ours.logits, logits, atol=family.tolerance, rtol=0)
    assert ours.evictions and (full.logits[2:] - ours.logits[2:]).abs().max() > 10 * family.tolerance


@pytest.mark.parametrize("name", ["qwen3_next", "jamba", "lfm2", "falcon_h1", "deepseek_v3", "gpt_oss"])
def test_together_equals_alone(name):
    family = FAMILIES[name]
    model, ids = build(config_of(family)), prompt_of(family)
    policies = [preset("inertiakv", tokens=6), preset("full_cache"), preset("h2o", tokens=7), POLICIES["per_head"]]
    alone = [generate(model, ids, [policy], 12, eos_token_id=[5, 40], trace=True)[0] for policy in policies]
    together = generate(model, ids, policies[::-1], 12, eos_token_id=[5, 40], trace=True)[::-1]
    for one, other in zip(alone, together, strict=True):
        assert (one.tokens, one.kept, one.cache_bytes) == (other.tokens, other.kept, other.cache_bytes)


def test_bytes_count_states_and_slots():
    family = FAMILIES["lfm2"]  # two layers with 3 positions of 32 numbers, two with 2 KV heads of size 8, fp32
    model, ids = build(config_of(family)), prompt_of(family)
    full, tight = generate(model, ids, [preset("full_cache"), preset("inertiakv", tokens=6)], 5)
    states = 2 * 3 * 32 * 4
    assert full.cache_bytes == states + 2 * (12 + 4) * 2 * 2 * 8 * 4
    assert tight.cache_bytes == states + 2 * (6 + 1) * 2 * 2 * 8 * 4


def test_a_latent_is_cached_once_for_all_heads():
    family = FAMILIES["deepseek_v3"]  # 4 layers, a latent of 12 numbers and 4 rotated ones
    model, ids = build(config_of(family)), prompt_of(family)
    (tight,) = generate(model, ids, [preset("inertiakv", tokens=6)], 5)
    assert tight.cache_bytes == 4 * (6 + 1) * (12 + 4) * 4


@pytest.mark.parametrize(
    ("prompt", "new", "fits"), [(8, 9, True), (8, 10, False), (16, 1, True), (16, 2, False), (17, 9, True)]
)
def test_longrope_is_decoded_on_one_side_of_its_change(prompt, new, fits):
    model = build(config_of(FAMILIES["phi3 longrope across"]))
    ids = torch.arange(3, 3 + prompt)[None]
    if fits:
        assert len(generate(model, ids, [preset("full_cache")], new)[0].tokens) == new
        return
    with pytest.raises(ValueError, match="longrope"):
        generate(model, ids, [preset("full_cache")], new)


def test_prompts_on_both_sides_of_a_change_are_answered_as_alone():
    model = build(config_of(FAMILIES["phi3 longrope across"]))
    prompts, policies = (
        [torch.arange(3, 11)[None], torch.arange(3, 23)[None]],
        [preset("full_cache"), POLICIES["shared"]],
    )
    together = generate(model, prompts, policies, 8)
    for ids, found in zip(prompts, together, strict=True):
        assert [one.tokens for one in found] == [one.tokens for one in generate(model, ids, policies, 8)]
        assert found[0].tokens == greedy(model, ids, 8)[0]


@pytest.mark.parametrize("name", ["qwen3_next", "jamba", "gpt_oss", "deepseek_v3", "bloom", "mpt", "falcon alibi"])
def test_prompts_of_several_lengths_are_answered_as_alone(name):
    model, policies = build(config_of(FAMILIES[name])), [*POLICIES.values(), preset("full_cache")]
    prompts = [torch.arange(3, 3 + length)[None] for length in (9, 20, 12)]
    for ids, found in zip(prompts, generate(model, prompts, policies, 8, trace=True), strict=True):
        alone = generate(model, ids, policies, 8, trace=True)
        assert [(one.tokens, one.kept) for one in found] == [(one.tokens, one.kept) for one in alone]
        assert found[-1].tokens == greedy(model, ids, 8)[0]


@pytest.mark.parametrize(
    ("name", "method", "message"),
    [
        ("gpt2", "expected_attention", "has no rotary positions"),
        ("cohere", "expected_attention", "turns other planes"),
        ("glm4", "expected_attention", "turns other planes|rotates 4 of 8"),
        ("deepseek_v3", "key_norm", "one cached latent for several heads"),
        ("falcon alibi", "key_norm", "a bias on its logits"),
        ("jamba", "key_norm", "layers with a state"),
        ("llama dynamic", "key_norm", "depend on the longest input"),
        ("gpt2", "key_norm", None),
        ("cohere", "keydiff", None),
        ("granitemoehybrid", "h2o_original", None),
    ],
)
def test_what_a_compressor_assumes_is_checked(name, method, message):
    family, policy = FAMILIES[name], preset(method, compression_ratio=0.5)
    model, prompt = build(config_of(family)), TokensPrompt(prompt_of(family), context_end=9)
    model.set_attn_implementation("sdpa")
    if message is None:
        assert len(generate(model, prompt, [policy], 4)[0].tokens) == 4
        return
    with pytest.raises(ValueError, match=message):
        generate(model, prompt, [policy], 4)


def test_an_answer_does_not_depend_on_a_longer_one_before():
    """Dynamic NTK remembers the longest input."""
    family = FAMILIES["llama dynamic"]
    model, ids = build(config_of(family)), prompt_of(family)
    first = generate(model, ids, [preset("full_cache")], 8, observe=Observation(logits=True))[0].logits
    with torch.inference_mode():
        model(torch.full((1, 200), 5))
    assert torch.equal(
        generate(model, ids, [preset("full_cache")], 8, observe=Observation(logits=True))[0].logits, first
    )


def test_the_command_lists_every_family_and_the_readme_says_how_many(capsys):
    assert main(["families"]) == 0
    *rows, last = capsys.readouterr().out.splitlines()
    assert [row[:26].strip() for row in rows] == list(FAMILIES)
    assert [row[:26].strip() for row in rows if "refused: " in row] == [name for name in FAMILIES if name in REFUSED]
    assert last == f"{len(EXACT)} of {len(FAMILIES)} exact, {len(REFUSED)} refused by name"
    readme = (config_dir().parent / "README.md").read_text()
    assert re.search(r"(\d+ of \d+) families", readme)[1] == f"{len(EXACT)} of {len(FAMILIES)}"
