"""Fidelity to the full cache, against a decoder without cache and a divergence computed in another way."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache

import models
import numpy as np
import oracle
import oracle_scores
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inertia import Observation, Policy, generate, preset
from inertia.backbones import Backbone
from inertia.backbones.tiny import tiny_model
from inertia.backbones.tiny_tokenizer import tiny_tokenizer
from inertia.benchmarks.example import Example
from inertia.benchmarks.registry import Benchmark
from inertia.benchmarks.render import Renderer
from inertia.benchmarks.sources import Source
from inertia.eviction.aggregation import CoupledEMA, Decoupled, TimeEMA
from inertia.eviction.budget import Tokens, Unlimited
from inertia.eviction.layers import layers_of
from inertia.eviction.prefill_rule import Prefill
from inertia.measure import fidelity
from inertia.measure.answers import TaskRunner
from inertia.measure.fidelity import Comparison, Followed, with_fidelity
from inertia.prefill.capture import scores_of
from inertia.prefill.key_norm import KeyNorm
from inertia.prefill.snapkv import SnapKV

NEW, SEED = 9, 3
DECODE = {
    "full_cache": preset("full_cache"),
    "inertiakv": preset("inertiakv", tokens=12),
    "lazy": preset("inertiakv_lazy", tokens=12, interval=3),
    "score_free": preset("score_free", tokens=10),
    "per_layer": Policy(aggregation=Decoupled(time=TimeEMA(0.5)), scope="per_layer", budget=Tokens(12)),
    "per_head": Policy(aggregation=Decoupled(), scope="per_head", budget=Tokens(12)),
    "random": preset("random", tokens=12),
    "never_full": preset("inertiakv", tokens=500),
}
COMPRESSED = {
    "context": Policy(budget=Unlimited(), prefill=Prefill(KeyNorm(), Tokens(15), question_visible=False)),
    "whole": Policy(budget=Unlimited(), prefill=Prefill(SnapKV(window=4, pool=3), Tokens(20), question_visible=True)),
    "both": Policy(
        aggregation=CoupledEMA(0.8), budget=Tokens(14), prefill=Prefill(KeyNorm(), Tokens(25), question_visible=True)
    ),
}
EXAMPLE = Example(
    id="one",
    task="niah_single_1",
    length=None,
    context="the red key is 17. the blue key is 23. the green city has a river and a house. now look here.\n",
    question="which number is the red key?",
    answer_prefix=" the red key is",
    references=("1234567",),
    max_new_tokens=NEW,
)


@cache
def runner(architecture="llama", benchmark="ruler", chat=True, seed=0, dtype=torch.float32, source=None):
    model, tokenizer = tiny_model(architecture, seed=seed, dtype=dtype), tiny_tokenizer()
    backbone = Backbone(
        name="tiny",
        model=model,
        tokenizer=tokenizer,
        label="tiny",
        identity={},
        context_window=8192,
        eos_token_ids=(),
        eligible_layers=layers_of(model.config).eligible,
        chat_template=chat,
    )
    return TaskRunner(backbone, Renderer(tokenizer, chat), Benchmark(benchmark, 0, source))


def measured(who, example, policies):
    return with_fidelity(who, example, policies, who.answers(example, policies, SEED), SEED)


def oracle_logits(who, prompt, policy, forced):
    """Logits along a forced text from the decoder without cache, float64 [tokens, vocabulary]."""
    model, ids, stay, part = who.backbone.model, list(prompt.ids), None, None
    rule = policy.prefill
    if rule.compressor is not None:
        part = len(ids) if rule.question_visible else prompt.context_end
        keep = rule.compressor.keep(scores_of(model, ids[:part], rule.compressor), rule.budget.tokens(part, part))
        stay = {
            (layer, head): set(mask.nonzero().flatten().tolist())
            for layer, masks in zip(layers_of(model.config).eligible, keep, strict=True)
            for head, mask in enumerate(masks)
        }
    scores = {**oracle.SCORES, **oracle_scores.scores(SEED, len(layers_of(model.config).eligible))}
    _, _, logits = oracle.run(
        model, ids, policy, len(forced), forced, scores, stay=stay, part=part, context_end=prompt.context_end
    )
    return logits.double().numpy()


def log_softmax(logits):
    shifted = logits - logits.max()
    return shifted - math.log(math.fsum(np.exp(shifted)))


def divergence(full, ours):
    """KL by the definition, one vocabulary entry after the other."""
    p, q = log_softmax(full), log_softmax(ours)
    return math.fsum(math.exp(a) * (a - b) for a, b in zip(p, q, strict=True))


@pytest.mark.parametrize("architecture", ["llama", "gemma3", "qwen3_moe"])
def test_every_token_equals_the_decoder_without_cache(architecture):
    who, policies = runner(architecture), {**DECODE, **COMPRESSED}
    found = measured(who, EXAMPLE, list(policies.values()))
    prompt, path = found[0].prompt, found[0].generation.tokens
    told = who.backbone.tokenizer(" 1234567", add_special_tokens=False)["input_ids"]
    assert len(path) == NEW and len(told) == 8
    full = {text: oracle_logits(who, prompt, DECODE["full_cache"], list(text)) for text in (tuple(path), tuple(told))}
    for (name, policy), answer in zip(policies.items(), found, strict=True):
        seen = answer.telemetry["fidelity"]
        along, beside = (oracle_logits(who, prompt, policy, text) for text in (path, told))
        kl = [divergence(full[tuple(path)][t], along[t]) for t in range(NEW)]
        agree = [int(full[tuple(path)][t].argmax() == along[t].argmax()) for t in range(NEW)]
        nll = [-log_softmax(beside[t])[token] for t, token in enumerate(told)]
        base = [-log_softmax(full[tuple(told)][t])[token] for t, token in enumerate(told)]
        np.testing.assert_allclose(seen["first"]["kl"] + seen["answer"]["kl"], kl, atol=2e-5, err_msg=name)
        np.testing.assert_allclose(seen["first"]["nll"] + seen["reference"]["nll"], nll, atol=2e-5, err_msg=name)
        assert seen["first"]["agree"] + seen["answer"]["agree"] == agree, name
        wanted = {
            "fidelity_kl": sum(kl[2:]) / (NEW - 2),
            "fidelity_kl_total": sum(kl[2:]),
            "fidelity_agreement": sum(agree[2:]) / (NEW - 2),
            "fidelity_tokens": NEW - 2,
            "reference_nll": sum(nll[2:]) / 6,
            "reference_nll_total": sum(nll[2:]),
            "reference_nll_rise": (sum(nll[2:]) - sum(base[2:])) / 6,
            "reference_tokens": 6,
        }
        assert answer.metrics == pytest.approx(wanted, abs=1e-4), name
        # The oracle must have something to tell apart.
        assert (max(kl[2:]) > 1e-3) == (name not in ("full_cache", "never_full")), name
        assert (max(kl[:2]) > 1e-3) == (name in COMPRESSED), name


def test_the_full_cache_is_exactly_itself_and_so_are_the_first_two_of_all_that_act_while_decoding():
    found = dict(zip(DECODE, measured(runner(), EXAMPLE, list(DECODE.values())), strict=True))
    full = found["full_cache"]
    assert full.metrics["fidelity_kl"] == full.metrics["fidelity_kl_total"] == full.metrics["reference_nll_rise"] == 0.0
    assert full.metrics["fidelity_agreement"] == 1.0
    assert full.telemetry["fidelity"]["answer"] == {"kl": [0.0] * (NEW - 2), "agree": [1] * (NEW - 2)}
    for answer in found.values():
        assert answer.telemetry["fidelity"]["first"] == full.telemetry["fidelity"]["first"]
        assert answer.telemetry["fidelity"]["first"]["kl"] == [0.0, 0.0]


def test_what_the_answer_held_before_stays():
    who = runner()
    before = who.answers(EXAMPLE, [DECODE["inertiakv"]], 0)
    before = [replace(before[0], metrics={"mine": 1.0}, telemetry={"fact": 2})]
    (after,) = with_fidelity(who, EXAMPLE, [DECODE["inertiakv"]], before, 0)
    assert (after.metrics["mine"], after.telemetry["fact"]) == (1.0, 2)
    assert (after.generation, after.prediction, after.prompt) == (
        before[0].generation,
        before[0].prediction,
        before[0].prompt,
    )
    assert (before[0].metrics, before[0].telemetry) == ({"mine": 1.0}, {"fact": 2})


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_a_policy_measured_alone_gives_what_it_gives_among_others_in_any_order(architecture):
    who = runner(architecture)
    policies = [*COMPRESSED.values(), *DECODE.values(), DECODE["inertiakv"], DECODE["full_cache"]]
    together = measured(who, EXAMPLE, policies)
    backwards = measured(who, EXAMPLE, policies[::-1])[::-1]
    alone = {place: measured(who, EXAMPLE, [policies[place]])[0] for place in (0, 3, 4, 8)}
    for place, (one, other) in enumerate(zip(together, backwards, strict=True)):
        for answer in (other, alone.get(place, other)):
            assert answer.metrics == pytest.approx(one.metrics, abs=1e-5)
            assert answer.telemetry["fidelity"]["followed"] == one.telemetry["fidelity"]["followed"]


@pytest.mark.parametrize("limit, counted", [(1, 0), (2, 0), (3, 1)])
def test_answers_of_one_or_two_tokens_have_no_fidelity_and_say_so(limit, counted):
    example = replace(EXAMPLE, max_new_tokens=limit)
    policies = [DECODE["full_cache"], DECODE["inertiakv"], COMPRESSED["context"]]
    for answer in measured(runner(), example, policies):
        numbers = answer.metrics
        assert numbers["fidelity_tokens"] == numbers["reference_tokens"] == counted
        names = set(numbers) - {"fidelity_tokens", "reference_tokens"}
        assert {name for name in names if numbers[name] is None} == (set() if counted else names)
        assert len(answer.telemetry["fidelity"]["first"]["kl"]) == min(limit, 2)
        assert answer.telemetry["fidelity"]["reference_cut"]
        json.dumps(numbers, allow_nan=False), json.dumps(answer.telemetry, allow_nan=False)


@pytest.mark.parametrize("where", [1, 2, 5])
def test_the_followed_answer_ends_with_its_eos_and_counts_it(where):
    who = runner(seed=4)
    (free,) = who.answers(EXAMPLE, [DECODE["full_cache"]], 0)
    tokens = free.generation.tokens
    assert tokens.index(tokens[where - 1]) == where - 1, "the test needs a first token of its kind"
    ending = replace(who, backbone=replace(who.backbone, eos_token_ids=(tokens[where - 1],)))
    for answer in measured(ending, EXAMPLE, [DECODE["inertiakv"]]):
        assert answer.telemetry["fidelity"]["answer_tokens"] == where
        assert answer.metrics["fidelity_tokens"] == max(where - 2, 0)
        # The reference is no answer of the model: an EOS rule plays no part in it.
        assert answer.metrics["reference_tokens"] == 6


def test_the_full_cache_is_decoded_only_where_it_is_not_among_the_policies(monkeypatch):
    calls = []
    real = TaskRunner.generate

    def watched(self, prompt, policies, *rest, **named):
        calls.append((len(policies), "forced_tokens" in named))
        return real(self, prompt, policies, *rest, **named)

    monkeypatch.setattr(TaskRunner, "generate", watched)
    measured(runner(), EXAMPLE, [DECODE["inertiakv"], DECODE["full_cache"]])
    assert calls == [(2, False), (2, True), (2, True)]
    calls.clear()
    measured(runner(), EXAMPLE, [DECODE["inertiakv"]])
    assert calls == [(1, False), (1, False), (2, True), (2, True)]


def test_logits_are_dropped_as_they_come(monkeypatch):
    waiting = []
    real = Comparison.__call__

    def watched(self, *arguments):
        real(self, *arguments)
        waiting.append((len(self.waiting), len(self.full)))

    monkeypatch.setattr(Comparison, "__call__", watched)
    measured(runner(), EXAMPLE, [*DECODE.values(), *COMPRESSED.values()])
    # Policies that compress start before the plain prompt does; nothing else ever waits.
    assert max(held for held, _ in waiting) == 2 * len(COMPRESSED)
    assert waiting[-1] == (0, 8) and max(full for _, full in waiting) == NEW


def test_logits_that_are_no_numbers_stop_it():
    comparison = Comparison([0], [Followed(), Followed()])
    comparison(0, 0, torch.zeros(4))
    with pytest.raises(FloatingPointError, match="token 0 of row 1"):
        comparison(1, 0, torch.tensor([0.0, math.nan, 0.0, 0.0]))


def test_rounding_leaves_no_divergence_below_zero():
    generator = torch.Generator().manual_seed(0)
    full = torch.randn(500, generator=generator).double() * 3
    ours = full + torch.randn(500, generator=generator).double() * 1e-9
    p, q = full.log_softmax(-1), ours.log_softmax(-1)
    assert float((p.exp() * (p - q)).sum()) < 0, "the test needs logits whose plain sum is below zero"
    comparison = Comparison([0], [Followed(), Followed()])
    comparison(0, 0, full)
    comparison(1, 0, ours)
    assert comparison.rows[1].kl == [0.0]


def test_a_decoder_may_use_its_logits_again():
    comparison, buffer = Comparison([0], [Followed(), Followed()]), torch.zeros(3)
    for row, values in ((1, [0.0, 1.0, 2.0]), (0, [2.0, 1.0, 0.0])):
        comparison(row, 0, buffer.copy_(torch.tensor(values)))
        buffer.zero_()
    assert comparison.rows[0].kl == [0.0]
    assert comparison.rows[1].kl == pytest.approx([divergence(np.array([2.0, 1, 0]), np.array([0.0, 1, 2]))])
    late = Comparison([0], [Followed(), Followed()])
    for row, values in ((0, [2.0, 1.0, 0.0]), (1, [0.0, 1.0, 2.0])):
        late(row, 0, buffer.copy_(torch.tensor(values)))
    assert late.rows[1].kl == comparison.rows[1].kl


def test_half_precision_models_are_compared_in_double():
    who = runner(dtype=torch.bfloat16)
    full, other = measured(who, EXAMPLE, [DECODE["full_cache"], DECODE["inertiakv"]])
    assert full.metrics["fidelity_kl"] == 0.0
    assert other.metrics["fidelity_kl"] > 1e-4


rows = st.lists(st.lists(st.floats(-30, 30), min_size=5, max_size=5), min_size=3, max_size=3)


@settings(max_examples=50)
@given(full=rows, ours=rows, order=st.permutations([(row, token) for row in (0, 1) for token in range(3)]))
def test_a_comparison_is_the_definition_whatever_order_rows_come_in(full, ours, order):
    # The tokens of one row come in order; rows come as they like.
    order = [(row, [o[0] for o in order[:place]].count(row)) for place, (row, _) in enumerate(order)]
    logits = {0: torch.tensor(full, dtype=torch.float64), 1: torch.tensor(ours, dtype=torch.float64)}
    found = Comparison([4, 0, 2], [Followed(), Followed()])
    for row, token in order:
        found(row, token, logits[row][token])
    same, other = found.rows
    assert (same.kl, same.agree) == ([0.0] * 3, [1] * 3)
    assert other.kl == pytest.approx(
        [divergence(np.array(a), np.array(b)) for a, b in zip(full, ours, strict=True)], abs=1e-12
    )
    assert other.nll == pytest.approx([-log_softmax(np.array(b))[t] for b, t in zip(ours, (4, 0, 2), strict=True)])
    assert other.agree == [int(np.argmax(a) == np.argmax(b)) for a, b in zip(full, ours, strict=True)]
    assert min(other.kl) >= 0 and found.waiting == []


# ------------------------------------------------------------------------------------------------------ generate


def test_on_logits_sees_what_return_logits_keeps_and_the_full_cache_first():
    network, ids = models.tiny("gemma3"), models.prompt(30)
    policies = [
        preset("inertiakv", tokens=6),
        preset("h2o", tokens=20),
        Policy(budget=Unlimited(), prefill=Prefill(KeyNorm(), Tokens(9), question_visible=True)),
        preset("full_cache"),
    ]
    seen = {}
    outs = generate(
        network,
        ids,
        policies,
        7,
        observe=Observation(
            logits=True,
            on_logits=lambda policy, token, logits: seen.setdefault((policy, token), logits.clone()),
        ),
    )
    assert set(seen) == {(policy, token) for policy in range(4) for token in range(7)}
    for policy, out in enumerate(outs):
        for token in range(7):
            torch.testing.assert_close(seen[policy, token], out.logits[token], atol=0, rtol=0)
    late = [policy for policy, token in seen if token >= 2]
    assert late[:5] == [3] * 5


# ---------------------------------------------------------------------------------------------------- protocols


V2_ROW = {
    "_id": "66",
    "domain": "Code",
    "sub_domain": "Repo",
    "difficulty": "hard",
    "length": "short",
    "question": "which key is red?",
    "choice_A": "one",
    "choice_B": "two",
    "choice_C": "three",
    "choice_D": "four",
    "answer": "B",
    "context": "the red key is number two. the blue key is number five. nothing else is known here.",
}


def v2(tmp_path, task):
    file = tmp_path / "rows.json"
    file.write_text(json.dumps([V2_ROW]))
    source = Source(kind="path", path=str(file))
    who = runner(benchmark="longbench_v2", source=source)
    (example,) = who.benchmark.examples(task, None, 1, who.renderer)
    return who, example


def test_a_forced_choice_follows_the_forced_sentence(tmp_path):
    who, example = v2(tmp_path, "forced_choice")
    policies = [DECODE["inertiakv"], DECODE["full_cache"]]
    found = measured(who, example, policies)
    stem, _ = who.choices(example.metadata["stem"], example.metadata["options"])
    assert [answer.telemetry["fidelity"]["answer_tokens"] for answer in found] == [len(stem) + 1] * 2
    assert found[0].metrics["fidelity_tokens"] == len(stem) - 1
    # One new token is the limit of a forced choice; the reference is as long as the sentence all the same.
    assert found[0].telemetry["fidelity"]["reference_tokens"] == len(stem) + 1
    assert found[0].metrics["fidelity_kl"] > 0 and "letter_logits" in found[0].telemetry
    (alone,) = measured(who, example, policies[:1])
    assert alone.metrics == pytest.approx(found[0].metrics, abs=1e-5)


def test_of_two_calls_the_one_with_the_document_is_followed(tmp_path):
    who, example = v2(tmp_path, "cot")
    example = replace(example, max_new_tokens=12)
    found = measured(who, example, [DECODE["full_cache"], DECODE["inertiakv"]])
    (first,) = who.free(example, [DECODE["full_cache"]], SEED)
    wanted = fidelity.digest(first.prompt.sha256, first.generation.tokens)
    assert [answer.telemetry["fidelity"]["followed"] for answer in found] == [wanted] * 2
    assert all(answer.prompt.sha256 != first.prompt.sha256 for answer in found)
    assert found[0].metrics["fidelity_kl"] == 0.0 and found[1].metrics["fidelity_kl"] > 0
    assert found[1].metrics["fidelity_tokens"] == len(first.generation.tokens) - 2


def test_stop_strings_and_least_lengths_end_the_followed_answer_as_they_end_any():
    who = runner(benchmark="longbench", chat=False)
    (free,) = who.free(EXAMPLE, [DECODE["full_cache"]], 0)
    pieces = [who.backbone.tokenizer.decode(free.generation.tokens[: n + 1]) for n in range(NEW)]
    stop = pieces[4][len(pieces[3]) :]
    assert stop and stop not in pieces[3]
    example = replace(EXAMPLE, task="samsum", metadata={"stop": [stop], "min_new_tokens": 1})
    (answer,) = measured(who, example, [DECODE["inertiakv"]])
    assert answer.telemetry["fidelity"]["answer_tokens"] == 5


# ------------------------------------------------------------------------------------------------- the reference


@pytest.mark.parametrize(
    "benchmark, task, references, text",
    [
        ("ruler", "niah_single_1", ("12",), "12"),
        ("ruler", "niah_multiquery", ("12", "34"), "12, 34"),
        ("ruler", "vt", ("AAAAA", "BBBBB"), "AAAAA BBBBB"),
        ("ruler", "cwe", ("oak", "elm"), "1. oak 2. elm"),
        ("ruler", "fwe", ("abc", "def", "ghi"), "abc, def, ghi"),
        ("ruler", "qa_1", ("Paris", "the city of Paris"), "Paris"),
        ("longbench", "qasper", ("BERT", "a model"), "BERT"),
        ("longbench_v2", "zero_shot", ("C",), "The correct answer is (C)"),
        ("niah", "needle_noise", ("The keeper hides it.",), "The keeper hides it."),
        ("recite", "recite_20", ("red oak", "old elm", "fig"), "red oak\n2. old elm\n3. fig"),
        ("longbench", "qasper", (), ""),
    ],
)
def test_the_reference_is_written_as_its_benchmark_states_it(benchmark, task, references, text):
    assert Benchmark(benchmark, 0).reference_answer(replace(EXAMPLE, task=task, references=references)) == text


@pytest.mark.parametrize(
    "chat, prefix, text",
    [(True, " the key is", " red house"), (True, "", "red house"), (True, "is: ", "red house")],
)
def test_a_blank_stands_before_the_reference_where_the_prompt_ends_in_a_word(chat, prefix, text):
    who = runner(chat=chat)
    example = replace(EXAMPLE, answer_prefix=prefix, references=(" red house\n",))
    ids = fidelity.reference_ids(who, example, who.renderer.render(example))
    assert ids == who.backbone.tokenizer(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("references", [(), ("",), (" \n",), ("7",)])
def test_a_reference_that_is_missing_or_short_has_no_likelihood(references):
    full, other = measured(
        runner(), replace(EXAMPLE, references=references), [DECODE["full_cache"], DECODE["inertiakv"]]
    )
    for answer in (full, other):
        assert answer.metrics["reference_tokens"] == 0
        assert answer.metrics["reference_nll"] is answer.metrics["reference_nll_rise"] is None
    assert other.metrics["fidelity_kl"] > 0
    assert len(full.telemetry["fidelity"]["first"]["nll"]) == (2 if references == ("7",) else 0)


def test_a_reference_longer_than_an_answer_may_be_is_cut_and_marked():
    example = replace(EXAMPLE, references=("1234567890123",))
    (answer,) = measured(runner(), example, [DECODE["inertiakv"]])
    seen = answer.telemetry["fidelity"]
    assert (seen["reference_tokens"], seen["reference_cut"]) == (NEW, True)
    (whole,) = measured(runner(), EXAMPLE, [DECODE["inertiakv"]])
    assert whole.telemetry["fidelity"]["reference_cut"] is False
    assert seen["reference"]["nll"][:6] == pytest.approx(whole.telemetry["fidelity"]["reference"]["nll"], abs=1e-5)
