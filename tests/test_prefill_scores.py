"""Every compressor's scores against slow literal ones: loops over tokens, float64, straight from the definitions."""

from __future__ import annotations

import math
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inertia.backbones.tiny import tiny_model
from inertia.eviction.layers import layers_of
from inertia.prefill.adakv import AdaKV
from inertia.prefill.attention import last_attention
from inertia.prefill.capture import capture, prompt_layers, scores_of
from inertia.prefill.compressor import PromptLayer
from inertia.prefill.expected_attention import ExpectedAttention
from inertia.prefill.key_norm import KeyNorm
from inertia.prefill.keydiff import KeyDiff
from inertia.prefill.methods import adakv_expected_attention
from inertia.prefill.rotary import rotary_of, turn, turn_back
from inertia.prefill.snapkv import SnapKV
from inertia.prefill.streaming_llm import StreamingLLM
from inertia.prefill.tova import TOVA

INF = float("inf")


class Case(NamedTuple):
    """A layer, and its queries before rotation, [Hq, T, D]."""

    layer: PromptLayer
    unturned: torch.Tensor


def angles(positions, size):
    """Angle of each plane at each position, [N, D / 2], float64."""
    return [[p / 10 ** (2 * i / size) for i in range(size // 2)] for p in positions]


def rotary(size, length=1.0):
    """Rotary factors of a model whose factors carry a length, as YaRN's do."""

    def factors(positions):
        half = torch.tensor(angles(positions.tolist(), size), dtype=torch.float64)
        both = torch.cat((half, half), dim=-1)
        return (length * both.cos()).float(), (length * both.sin()).float()

    return factors


def make(seed, *, heads=3, groups=3, tokens=12, size=4, zeros=0.0, softcap=None, length=1.0, scaling=0.7):
    generator = torch.Generator().manual_seed(seed)

    def draw(count):
        return torch.randn(count, tokens, size, generator=generator)

    unturned = draw(heads * groups) + 0.5
    factors = rotary(size, length)
    cos, sin = factors(torch.arange(tokens))
    keys = 2 * draw(heads) * (torch.rand(heads, tokens, 1, generator=generator) >= zeros)
    query = turn(unturned, cos, sin)
    layer = PromptLayer(query, keys, draw(heads), scaling, factors, 0, 1, softcap)
    return Case(layer, unturned)


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def softmax(logits):
    top = max(logits)
    powers = [math.exp(x - top) for x in logits]
    return [x / sum(powers) for x in powers]


def weights_of(layer, query_head, position):
    """What one query attends to: {position: weight}, causal."""
    groups = layer.query.shape[0] // layer.keys.shape[0]
    query = layer.query[query_head, position].double().tolist()
    keys = layer.keys[query_head // groups].double().tolist()
    logits = [dot(query, keys[p]) * layer.scaling for p in range(position + 1)]
    if layer.softcap is not None:
        logits = [math.tanh(x / layer.softcap) * layer.softcap for x in logits]
    return dict(enumerate(softmax(logits)))


def norm(vector):
    return math.sqrt(dot(vector, vector))


def slow_snapkv(part, case):
    layer = case.layer
    heads, tokens = layer.keys.shape[:2]
    groups = layer.query.shape[0] // heads
    before = max(tokens - part.window, 0)
    scores = []
    for head in range(heads):
        seen = [0.0] * before
        rows = [
            weights_of(layer, head * groups + g, q) for g in range(groups) for q in range(before, tokens)
        ]
        for p in range(before):
            seen[p] = sum(row[p] for row in rows) / len(rows)
        reach = part.pool // 2
        pooled = [
            sum(seen[j] for j in range(p - reach, p + reach + 1) if 0 <= j < before) / part.pool
            for p in range(before)
        ]
        scores.append(pooled + [INF] * (tokens - before))
    return scores


def slow_tova(part, case):
    layer = case.layer
    tokens = layer.keys.shape[1]
    rows = [weights_of(layer, head, tokens - 1) for head in range(layer.query.shape[0])]
    score = [sum(row[p] for row in rows) / len(rows) for p in range(tokens)]
    if part.keep_last:
        score[-1] = INF
    return [score] * layer.keys.shape[0]


def slow_keydiff(part, case):
    scores = []
    for keys in case.layer.keys.double().tolist():
        units = [[x / norm(key) for x in key] if norm(key) > 0 else key for key in keys]
        anchor = [sum(column) / len(units) for column in zip(*units, strict=True)]
        scores.append([-dot(unit, anchor) / norm(anchor) if norm(anchor) > 0 else 0.0 for unit in units])
    return scores


def slow_key_norm(part, case):
    return [[-norm(key) for key in keys] for keys in case.layer.keys.double().tolist()]


def slow_streaming_llm(part, case):
    tokens = case.layer.keys.shape[1]
    return [[INF if p < part.sinks else float(p) for p in range(tokens)]] * case.layer.keys.shape[0]


def rotation(position, size, length):
    """The matrix that turns a state to a position."""
    matrix = [[0.0] * size for _ in range(size)]
    for plane, angle in enumerate(angles([position], size)[0]):
        other = plane + size // 2
        matrix[plane][plane] = matrix[other][other] = length * math.cos(angle)
        matrix[plane][other], matrix[other][plane] = -length * math.sin(angle), length * math.sin(angle)
    return torch.tensor(matrix, dtype=torch.float64)


def slow_expected_attention(part, case, length=1.0):
    layer = case.layer
    heads, tokens, size = layer.keys.shape
    groups = layer.query.shape[0] // heads
    turned = sum(rotation(p, size, length) for p in range(tokens, tokens + part.future)) / part.future
    counted = range(part.sinks, tokens)
    scores = []
    for head in range(heads):
        keys = layer.keys[head].double()
        rows = []
        for g in range(groups):
            queries = [case.unturned[head * groups + g, p].double() for p in counted]
            mean = sum(queries) / len(queries)
            spread = sum(torch.outer(q - mean, q - mean) for q in queries) / len(queries)
            logits = []
            for p in counted:
                logit = layer.scaling * float((turned @ mean) @ keys[p])
                if part.covariance:
                    logit += layer.scaling**2 / 2 * float(keys[p] @ (turned @ spread @ turned.T) @ keys[p])
                logits.append(logit)
            rows.append(softmax(logits))
        score = [sum(column) / groups for column in zip(*rows, strict=True)]
        if part.value_norm:
            values = layer.values[head].double().tolist()
            score = [(s + part.epsilon) * norm(values[p]) for s, p in zip(score, counted, strict=True)]
        scores.append([INF] * part.sinks + score)
    return scores


PARTS = [
    (SnapKV(window=3), slow_snapkv),
    (SnapKV(window=5, pool=3), slow_snapkv),
    (SnapKV(window=1, pool=1), slow_snapkv),
    (TOVA(), slow_tova),
    (TOVA(keep_last=True), slow_tova),
    (KeyDiff(), slow_keydiff),
    (KeyNorm(), slow_key_norm),
    (StreamingLLM(sinks=2), slow_streaming_llm),
    (StreamingLLM(sinks=0), slow_streaming_llm),
    (ExpectedAttention(future=5, sinks=2), slow_expected_attention),
    (ExpectedAttention(future=3, sinks=0, covariance=False), slow_expected_attention),
    (ExpectedAttention(future=4, sinks=1, value_norm=False), slow_expected_attention),
    (ExpectedAttention(future=4, sinks=1, epsilon=0.01), slow_expected_attention),
]
every_part = pytest.mark.parametrize(("part", "slow"), PARTS, ids=[repr(part) for part, _ in PARTS])


def assert_close(scores, expected):
    assert scores.dtype == torch.float32
    assert scores.shape == (len(expected), len(expected[0]))
    for row, slow in zip(scores.tolist(), expected, strict=True):
        assert row == pytest.approx(slow, rel=2e-4, abs=2e-6)


@every_part
@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    shape=st.sampled_from([(3, 3), (2, 4), (1, 1), (4, 1)]),
    tokens=st.integers(3, 14),
    zeros=st.sampled_from([0.0, 0.3]),
)
def test_scores_are_the_literal_ones(part, slow, seed, shape, tokens, zeros):
    case = make(seed, heads=shape[0], groups=shape[1], tokens=tokens, zeros=zeros)
    assert_close(part.score(case.layer), slow(part, case))


@pytest.mark.parametrize("part", [SnapKV(window=3), TOVA()])
def test_a_cap_on_the_logits_is_applied(part):
    capped, free = make(1, softcap=1.5), make(1)
    slow = slow_snapkv if isinstance(part, SnapKV) else slow_tova
    assert_close(part.score(capped.layer), slow(part, capped))
    assert not torch.equal(part.score(capped.layer), part.score(free.layer))


def test_expected_attention_takes_rotary_factors_that_carry_a_length():
    part = ExpectedAttention(future=6, sinks=2)
    case = make(2, length=1.3)
    assert_close(part.score(case.layer), slow_expected_attention(part, case, length=1.3))


def test_expected_attention_is_what_gaussian_queries_give_on_average():
    # Independent of the formula: draw queries of the past's mean and covariance and average exp(logit).
    part = ExpectedAttention(future=1, sinks=1, value_norm=False)
    case = make(5, heads=1, groups=1, tokens=40, scaling=0.3)
    past = case.unturned[0, 1:].double()
    mean = past.mean(0)
    spread = (past - mean).T @ (past - mean) / len(past)
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(400_000, 4, generator=generator, dtype=torch.float64)
    drawn = mean + noise @ torch.linalg.cholesky(spread).T
    turned = drawn @ rotation(40, 4, 1.0).T
    attention = (turned @ case.layer.keys[0, 1:].double().T * 0.3).exp().mean(0)
    found = part.score(case.layer)[0, 1:].double()
    assert torch.allclose(found, attention / attention.sum(), rtol=0.03)


@pytest.mark.parametrize("tokens", [1, 2, 3])
def test_prompts_within_window_or_sinks_are_kept_whole(tokens):
    layer = make(0, tokens=tokens).layer
    for part in (SnapKV(window=3), StreamingLLM(sinks=3), ExpectedAttention(sinks=3)):
        assert bool((part.score(layer) == INF).all())


def test_low_precision_is_scored_in_fp32():
    layer = make(3, tokens=30).layer
    low = layer._replace(**{name: getattr(layer, name).bfloat16() for name in ("query", "keys", "values")})
    exact = low._replace(**{name: getattr(low, name).float() for name in ("query", "keys", "values")})
    for part, _ in PARTS:
        found, expected = part.score(low), part.score(exact)
        assert found.dtype == torch.float32
        # Only the products q.k are rounded, to 8 bits.
        finite = expected.isfinite()
        assert torch.equal(finite, found.isfinite())
        assert torch.allclose(found[finite], expected[finite], rtol=0.1, atol=2e-3)
    assert torch.equal(KeyNorm().score(low), KeyNorm().score(exact))


def test_adakv_scores_are_its_base_s():
    case = make(4)
    assert torch.equal(AdaKV(SnapKV(window=3)).score(case.layer), SnapKV(window=3).score(case.layer))
    assert adakv_expected_attention().base == ExpectedAttention(future=512, sinks=4, epsilon=0.01)


def test_turning_back_undoes_turning():
    states = torch.randn(2, 9, 6, generator=torch.Generator().manual_seed(0))
    cos, sin = rotary(6, 1.7)(torch.arange(9))
    assert torch.allclose(turn_back(turn(states, cos, sin), cos, sin), states, atol=1e-5)


# ------------------------------------------------------------------------------------------------ real models


def ids_of(length, seed=0):
    return torch.randint(4, 1024, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "qwen3_moe", "mistral", "gemma3"])
def test_captured_layers_attend_as_the_model_does(architecture):
    model = tiny_model(architecture, attention="eager")
    ids = ids_of(20)
    with torch.inference_mode():
        expected = model(input_ids=torch.tensor([ids]), output_attentions=True).attentions
    eligible = layers_of(model.config).eligible
    layers = prompt_layers(model, ids)
    assert [layer.layer for layer in layers] == list(range(len(eligible)))
    assert model.config._attn_implementation == "eager"
    for index, layer in zip(eligible, layers, strict=True):
        found = last_attention(layer.query, layer.keys, layer.scaling, layer.softcap).flatten(0, 1)
        assert torch.allclose(found, expected[index][0], atol=1e-5)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "mistral", "gemma3"])
def test_turning_captured_queries_back_gives_the_projected_ones(architecture):
    model = tiny_model(architecture)
    inputs = {}
    hooks = [
        layer.self_attn.register_forward_pre_hook(
            lambda module, args, kwargs: inputs.update({module.layer_idx: kwargs["hidden_states"]}), with_kwargs=True
        )
        for layer in model.model.layers
    ]
    seen = capture(model, ids_of(20))
    for hook in hooks:
        hook.remove()
    for layer in seen:
        index = layer.number
        module = model.model.layers[index].self_attn
        with torch.inference_mode():
            projected = module.q_proj(inputs[index]).view(20, -1, module.head_dim)
            if hasattr(module, "q_norm"):
                projected = module.q_norm(projected)
        factors = rotary_of(model, index)(torch.arange(20))
        assert torch.allclose(turn_back(layer.query, *factors), projected.transpose(0, 1), atol=1e-5)


def test_every_compressor_scores_a_real_prompt():
    model = tiny_model("gemma3")
    for part, _ in PARTS:
        scores = scores_of(model, ids_of(12), part)
        assert len(scores) == len(layers_of(model.config).eligible)
        assert not any(bool(score.isnan().any()) for score in scores)


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_rotary_factors_with_a_memory_are_refused(kind):
    model = tiny_model()
    model.model.rotary_emb.rope_type = kind
    with pytest.raises(ValueError, match=kind):
        rotary_of(model, 0)(torch.arange(3))


def test_partial_rotation_is_refused():
    layer = make(0).layer
    with pytest.raises(ValueError, match="rotates 2 of 4"):
        ExpectedAttention(sinks=1).score(layer._replace(rotary=rotary(2)))
