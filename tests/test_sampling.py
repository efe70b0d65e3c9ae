"""Drawn tokens: the right probabilities, the same draw in any company, and samples that share a prompt alone."""

from __future__ import annotations

import math
from itertools import accumulate

import models
import pytest
import torch

from inertia import Observation, Policy, Sampling, Stopping, TokensPrompt, generate, preset
from inertia.backbones.families import FAMILIES, build, config_of
from inertia.decoding.choice import drawn, uniform
from inertia.eviction.aggregation import Decoupled
from inertia.eviction.budget import Ratio, Tokens, Unlimited
from inertia.eviction.prefill_rule import Prefill
from inertia.prefill.key_norm import KeyNorm

NEW = 8
POLICIES = [
    preset("full_cache"),
    preset("inertiakv", tokens=9),
    Policy(aggregation=Decoupled(), scope="per_head", budget=Tokens(8)),
    Policy(budget=Unlimited(), prefill=Prefill(KeyNorm(), Ratio(0.5), question_visible=False)),
    Policy(budget=Tokens(9), prefill=Prefill(KeyNorm(), Ratio(0.3), question_visible=True)),
]
EVERYTHING = Observation(trace=True, logits=True)
HOT = Sampling(temperature=1.5, samples=4)


def told(length=30, seed=0):
    return TokensPrompt(models.prompt(length, seed), context_end=length - 5, seed=seed)


def probabilities(logits, sampling):
    """The warped distribution, one rule after the other, by its definition."""
    scaled = [value / sampling.temperature for value in logits.double().tolist()]
    order = sorted(range(len(scaled)), key=lambda token: -scaled[token])
    alive = set(order if sampling.top_k is None else order[: sampling.top_k])

    def softmax():
        top = max(scaled[token] for token in alive)
        parts = {token: math.exp(scaled[token] - top) for token in alive}
        return {token: part / math.fsum(parts.values()) for token, part in parts.items()}

    if sampling.top_p < 1:
        chances, mass, kept = softmax(), 0.0, set()
        for token in order:
            if token in alive and mass < sampling.top_p:
                kept.add(token)
                mass += chances[token]
        alive = kept
    if sampling.min_p > 0:
        chances = softmax()
        alive = {token for token in alive if chances[token] >= sampling.min_p * max(chances.values())}
    chances = softmax()
    return [chances.get(token, 0.0) for token in range(len(scaled))]


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=0.6),
        Sampling(temperature=2.0, top_k=5),
        Sampling(temperature=2.0, top_p=0.7),
        Sampling(temperature=2.0, min_p=0.2),
        Sampling(temperature=1.3, top_k=20, top_p=0.8, min_p=0.05, samples=3),
    ],
)
def test_each_token_is_drawn_from_the_warped_distribution(sampling):
    outs = generate(models.tiny(), told(), POLICIES[:2], NEW, sampling=sampling, observe=EVERYTHING)
    for index, out in enumerate(outs):
        for step, token in enumerate(out.tokens):
            sums = list(accumulate(probabilities(out.logits[step], sampling)))
            level = uniform(0, index % sampling.samples, step)
            assert token == next(number for number, total in enumerate(sums) if level < total)


def test_draws_follow_their_probabilities():
    chances = torch.tensor([[0.0, 0.2, 0.0, 0.5, 0.3, 0.0]], dtype=torch.float64)
    numbers = torch.tensor([uniform(3, sample, 1) for sample in range(20000)], dtype=torch.float64)
    tokens, near = drawn(chances.expand(len(numbers), -1), numbers)
    counts = torch.bincount(torch.tensor(tokens), minlength=6) / len(tokens)
    torch.testing.assert_close(counts.double(), chances[0], atol=0.015, rtol=0)
    assert counts[[0, 2, 5]].sum() == 0
    edges = torch.tensor([0.0, 0.2 - 5e-6, 0.2 + 5e-6, 0.2 + 5e-5, 1 - 1e-16], dtype=torch.float64)
    tokens, near = drawn(chances.expand(len(edges), -1), edges)
    assert tokens == [1, 1, 3, 3, 4] and near.tolist()[1:4] == [1, 1, 0]


def test_a_draw_is_of_its_seed_sample_and_step():
    found = {uniform(seed, sample, step) for seed in range(5) for sample in range(5) for step in range(5)}
    assert len(found) == 125 and all(0 <= each < 1 for each in found)
    # Pinned: another value would be another answer under the same seed.
    assert uniform(12, 3, 4) == 0.3269291702246667


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_samples_are_the_same_in_any_company(architecture):
    network, prompts = models.tiny(architecture), [told(30, 1), told(22, 2), told(35, 3)]
    together = generate(network, prompts, POLICIES, NEW, sampling=HOT, observe=EVERYTHING)
    for prompt, rows in zip(prompts[::-1], together[::-1], strict=True):
        for number, policy in enumerate(POLICIES):
            alone = generate(network, prompt, [policy], NEW, sampling=HOT, observe=EVERYTHING)
            fewer = generate(network, prompt, [policy], NEW, sampling=Sampling(1.5, samples=2))
            for sample, wanted in enumerate(alone):
                found = rows[number * 4 + sample]
                if not found.near_ties:
                    assert (found.tokens, found.kept) == (wanted.tokens, wanted.kept)
                    torch.testing.assert_close(found.logits, wanted.logits, atol=1e-4, rtol=1e-4)
            assert [out.tokens for out in fewer] == [out.tokens for out in alone[:2]]


def same_as_forced(model, prompt, policies, tolerance=1e-4):
    """Each sample's logits are those of feeding its tokens alone: no sample sees another one's first token."""
    outs = generate(model, prompt, policies, NEW, sampling=HOT, observe=EVERYTHING)
    assert len({out.tokens[0] for out in outs}) > 1 and len({tuple(out.tokens) for out in outs}) > 3
    for number, out in enumerate(outs):
        alone = TokensPrompt(prompt.ids, prompt.context_end, prompt.seed, forced_tokens=out.tokens)
        (forced,) = generate(model, alone, [policies[number // 4]], NEW, observe=EVERYTHING)
        assert out.kept == forced.kept or out.near_ties
        if not out.near_ties:
            torch.testing.assert_close(out.logits, forced.logits, atol=tolerance, rtol=1e-4)
        assert out.cache_bytes == forced.cache_bytes


@pytest.mark.parametrize("architecture", ["llama", "qwen3", "gemma3"])
def test_a_sample_is_what_feeding_its_tokens_gives(architecture):
    same_as_forced(models.tiny(architecture), told(), POLICIES)


@pytest.mark.parametrize("name", ["qwen3_next", "jamba", "lfm2", "deepseek_v3", "gpt_oss"])
def test_a_sample_is_what_feeding_its_tokens_gives_in_families_of_every_kind(name):
    family = FAMILIES[name]
    same_as_forced(build(config_of(family)), told(14), POLICIES[:3], 5 * family.tolerance)


def test_samples_end_at_their_own_eos():
    network, prompt = models.tiny(), told()
    free = generate(network, prompt, POLICIES[:2], NEW, sampling=HOT)
    eos = [free[0].tokens[0], free[5].tokens[3]]
    outs = generate(network, prompt, POLICIES[:2], NEW, eos_token_id=eos, sampling=HOT)
    for out, whole in zip(outs, free, strict=True):
        ends = [index for index, token in enumerate(whole.tokens) if token in eos]
        assert out.tokens == (whole.tokens[: ends[0] + 1] if ends else whole.tokens)
        assert out.stop == ("eos" if ends else "length")
    late = generate(network, prompt, POLICIES[:2], stopping=Stopping(NEW, eos, min_new_tokens=NEW), sampling=HOT)
    assert all(len(out.tokens) == NEW and not set(eos) & set(out.tokens[:-1]) for out in late)


def test_a_low_temperature_is_greedy_decoding():
    network, prompt = models.tiny(), told()
    greedy = generate(network, prompt, POLICIES, NEW)
    cold = generate(network, prompt, POLICIES, NEW, sampling=Sampling(temperature=1e-4))
    assert [out.tokens for out in cold] == [out.tokens for out in greedy]


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"temperature": 0}, "temperature=0"),
        ({"temperature": -1.0}, "temperature"),
        ({"top_k": 0}, "top_k=0"),
        ({"top_p": 1.5}, "top_p"),
        ({"min_p": -0.1}, "min_p"),
        ({"samples": 0}, "samples=0"),
    ],
)
def test_bad_settings_are_refused(bad, said):
    with pytest.raises(ValueError, match=said):
        Sampling(**bad)
