"""transformers' own `generate` in a `with inertia.evicting(...)` block: our tokens, and the model as before."""

from __future__ import annotations

import models
import pytest
import torch

import inertia
from inertia import TokensPrompt, generate, preset
from inertia.backbones.families import FAMILIES, build, config_of
from inertia.methods import DECODING

NEW = 12
GREEDY = {"max_new_tokens": NEW, "do_sample": False, "eos_token_id": None}


def own(network, ids, policy, **settings):
    with inertia.evicting(network, policy, max_new_tokens=NEW, seed=3, context_end=ids.shape[1] - 5) as cache:
        out = network.generate(ids, attention_mask=torch.ones_like(ids), cache=cache, **{**GREEDY, **settings})
    return out[0, ids.shape[1] :].tolist()


@pytest.mark.parametrize("name", DECODING)
def test_greedy_tokens_are_those_of_our_generate(name):
    network, ids = models.tiny(), models.prompt(30)
    policy = preset(name, **({} if name == "full_cache" else {"tokens": 9}))
    (wanted,) = generate(network, TokensPrompt(ids, 25, 3), [policy], NEW)
    assert own(network, ids, policy) == wanted.tokens


@pytest.mark.parametrize("length", [2, 8, 9, 30])
@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "mistral", "gemma3", "qwen3_moe"])
def test_greedy_tokens_are_ours_in_every_architecture_and_length(architecture, length):
    network, ids = models.tiny(architecture), models.prompt(length, seed=length)
    for policy in (preset("full_cache"), preset("inertiakv", tokens=7), preset("tova_decode", tokens=7)):
        (wanted,) = generate(network, ids, [policy], NEW)
        with inertia.evicting(network, policy) as cache:
            out = network.generate(ids, attention_mask=torch.ones_like(ids), cache=cache, **GREEDY)
        assert out[0, length:].tolist() == wanted.tokens


@pytest.mark.parametrize("name", ["gpt_oss", "deepseek_v3", "gemma2", "phi3"])
def test_greedy_tokens_are_ours_in_families_with_sinks_latents_and_caps(name):
    model, ids = build(config_of(FAMILIES[name])), models.prompt(14)
    policy = preset("inertiakv", tokens=7)
    (wanted,) = generate(model, ids, [policy], NEW)
    assert own(model, ids, policy) == wanted.tokens


def test_evicted_tokens_are_gone_from_memory():
    network, ids = models.tiny(), models.prompt(60)
    with inertia.evicting(network, preset("inertiakv", tokens=9)) as cache:
        network.generate(ids, attention_mask=torch.ones_like(ids), cache=cache, **GREEDY)
        assert {layer.keys.shape[2] for layer in cache.session.now.layers.values()} == {10}


def test_the_model_is_as_before_on_any_exit():
    network, ids = models.tiny(), models.prompt(20)
    wanted = network.generate(ids, **GREEDY).tolist()
    network.train()
    with pytest.raises(KeyError), inertia.evicting(network, preset("inertiakv", tokens=7)) as cache:
        assert not network.training
        network.generate(ids, cache=cache, **GREEDY)
        raise KeyError
    assert network.training and network.config._attn_implementation == "sdpa"
    assert network.eval().generate(ids, **GREEDY).tolist() == wanted


def test_streamers_and_sampling_are_transformers_own():
    network, ids, seen = models.tiny(), models.prompt(20), []

    class Streamer:
        def put(self, tokens):
            seen.extend(tokens.flatten().tolist())

        def end(self):
            seen.append("end")

    torch.manual_seed(0)
    first = own(network, ids, preset("inertiakv", tokens=7), do_sample=True, top_k=5, streamer=Streamer())
    assert seen == [*ids[0].tolist(), *first, "end"]
    torch.manual_seed(0)
    assert own(network, ids, preset("inertiakv", tokens=7), do_sample=True, top_k=5) == first


def refused(said, policy="inertiakv", ids=None, **settings):
    network = models.tiny()
    ids = models.prompt(20) if ids is None else ids
    given = {"tokens": 7} if policy == "inertiakv" else {"tokens": 7, "question_visible": True}
    with pytest.raises((ValueError, AttributeError), match=said):
        with inertia.evicting(network, preset(policy, **given), max_new_tokens=NEW) as cache:
            network.generate(ids, cache=cache, **{"attention_mask": torch.ones_like(ids), **GREEDY, **settings})
    assert network.config._attn_implementation == "sdpa"


def test_what_cannot_work_is_refused_by_name():
    refused("one prompt with one answer.*2 rows", num_beams=2)
    refused("one prompt with one answer.*2 rows", do_sample=True, num_return_sequences=2)
    refused("one prompt with one answer.*2 rows", ids=models.prompt(20).repeat(2, 1))
    refused("max_new_tokens=12", max_new_tokens=NEW + 1)
    refused("decode policies only", policy="key_norm")
    mask = torch.ones_like(models.prompt(20))
    mask[0, :3] = 0
    refused("no padding", attention_mask=mask)
    refused("pieces", prefill_chunk_size=8)
    refused("drafts of an assistant|cache", assistant_model=models.tiny(layers=1, seed=1))
    with pytest.raises(ValueError, match="state"), inertia.evicting(
        build(config_of(FAMILIES["qwen3_next"])), preset("inertiakv", tokens=7)
    ):
        pass


def test_a_block_serves_one_prompt():
    network, ids = models.tiny(), models.prompt(20)
    with pytest.raises(ValueError, match="second prompt"):
        with inertia.evicting(network, preset("inertiakv", tokens=7)) as cache:
            for _ in range(2):
                network.generate(ids, attention_mask=torch.ones_like(ids), cache=cache, **GREEDY)
