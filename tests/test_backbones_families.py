"""Every family of decoders is decoded exactly, or refused by name; none is wrong."""

from __future__ import annotations

import re

import oracle
import pytest
import torch

from inertia import Observation, Policy, generate, preset
from inertia.backbones.__main__ import main
from inertia.backbones.families import FAMILIES, build, config_of, outcome, prompt_of
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
