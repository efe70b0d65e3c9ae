"""The learned scorer: its file, its identity, its errors, its scores, and the script that trains it."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import oracle
import oracle_scores
import pytest
import torch
from models import prompt, tiny
from safetensors.torch import load_file, save_file
from scipy.stats import spearmanr
from test_scorers import assert_agrees, in_every_scope, make

import train_scorer
from inertia.decoding.generation import generate
from inertia.decoding.request import TokensPrompt
from inertia.eviction.budget import Tokens
from inertia.eviction.describe import describe
from inertia.eviction.layer_view import LayerView
from inertia.eviction.policy import Policy
from inertia.eviction.scorers.learned import Learned, widths
from inertia.methods import preset


def weights_file(path, query_width, key_width, rank=64, seed=0, **extra):
    """Random weights of a head; returns the path as text."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        "query.weight": torch.randn(rank, query_width, generator=generator) / query_width**0.5,
        "key.weight": torch.randn(rank, key_width, generator=generator) / key_width**0.5,
        **extra,
    }
    save_file(tensors, path)
    return str(path)


# ---------------------------------------------------------------------------------------- scores


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("slots", [None, 11])
@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("heads", [1, 3])
def test_scores_equal_the_slow_ones(tmp_path, heads, per_head, slots, dtype):
    scorer = Learned(weights_file(tmp_path / "w.safetensors", heads * 2 * 4, heads * 4, rank=5))
    for seed in range(5):
        assert_agrees(scorer, make(seed, heads=heads, slots=slots, per_head=per_head, dtype=dtype))


def test_the_mean_over_heads_is_the_bilinear_form_on_concatenated_heads(tmp_path):
    path = weights_file(tmp_path / "w.safetensors", 3 * 2 * 4, 3 * 4)
    view = make(1, rows=2, heads=3, slots=None).view
    weights = load_file(path)
    for row in range(2):
        query = weights["query.weight"] @ torch.cat([head for group in view.query[row] for head in group])
        for slot in range(8):
            key = weights["key.weight"] @ torch.cat([view.keys[row, head, slot] for head in range(3)])
            score = Learned(path).score(view)[row, :, slot].mean()
            torch.testing.assert_close(score, key @ query / 8)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "gemma3"])
def test_the_same_positions_survive_as_under_the_oracle(tmp_path, architecture):
    model = tiny(architecture, layers=2, query_heads=4, kv_heads=2)
    path = weights_file(tmp_path / "w.safetensors", 32, 16)
    forced = prompt(6, seed=5)[0].tolist()
    policies = in_every_scope(Learned(path))
    results = generate(model, TokensPrompt(prompt(15), forced_tokens=forced), policies, 6, trace=True)
    for policy, result in zip(policies, results, strict=True):
        slow = oracle_scores.scores()
        _, kept, _ = oracle.run(model, prompt(15)[0].tolist(), policy, 6, forced=forced, scores=slow)
        assert result.kept == kept


def test_every_kv_head_counts(tmp_path):
    scorer = Learned(weights_file(tmp_path / "w.safetensors", 24, 12))
    view = make(2, rows=1, heads=3, slots=None).view
    before = scorer.score(view).mean(dim=1)
    for head in range(3):
        keys = view.keys.clone()
        keys[:, head] += 1
        assert not torch.allclose(scorer.score(view._replace(keys=keys)).mean(dim=1), before)


# ---------------------------------------------------------------------------------------- identity and errors


def test_the_parameter_count_on_the_llama_8b_shape(tmp_path):
    import transformers

    config = transformers.LlamaConfig(hidden_size=4096, num_attention_heads=32, num_key_value_heads=8)
    assert widths(config) == (4096, 1024)
    scorer = Learned(weights_file(tmp_path / "w.safetensors", *widths(config)))
    assert scorer.parameters == 327_680
    scorer.check(config)


def test_the_file_is_identified_by_its_content_and_not_its_path(tmp_path):
    first = weights_file(tmp_path / "a.safetensors", 24, 12)
    scorer = Learned(first)
    copy = Learned(str(shutil.copy(first, tmp_path / "b.safetensors")))
    other = Learned(weights_file(tmp_path / "c.safetensors", 24, 12, seed=1))
    assert scorer == copy and hash(scorer) == hash(copy) and repr(scorer) == repr(copy)
    assert scorer != other and repr(scorer) != repr(other)
    assert describe(scorer) == {
        "kind": "learned",
        "sha256": hashlib.sha256(Path(first).read_bytes()).hexdigest(),
        "query_shape": [64, 24],
        "key_shape": [64, 12],
    }
    assert str(tmp_path) not in json.dumps(Policy(scorer=scorer).describe())


def test_the_scores_are_those_of_the_identified_content_even_if_the_file_changes(tmp_path):
    path = tmp_path / "w.safetensors"
    scorer = Learned(weights_file(path, 16, 8))
    view = make(3).view
    expected = Learned(str(path)).score(view)
    weights_file(path, 16, 8, seed=1)
    torch.testing.assert_close(scorer.score(view), expected)
    assert not torch.allclose(Learned(str(path)).score(view), expected)


@pytest.mark.parametrize("weights", [None, ""])
def test_no_weights_is_an_error_that_says_how_to_get_them(weights):
    with pytest.raises(ValueError, match=r"scorer\.weights=.*scripts/train_scorer\.py"):
        Learned(weights)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nothing\.safetensors' is no file"):
        Learned(str(tmp_path / "nothing.safetensors"))
    with pytest.raises(FileNotFoundError, match="is no file"):
        Learned(str(tmp_path))


def test_a_file_of_another_kind_is_refused(tmp_path):
    path = tmp_path / "w.safetensors"
    path.write_bytes(b"not a tensor in sight")
    with pytest.raises(ValueError, match="is not a safetensors file"):
        Learned(str(path))


@pytest.mark.parametrize(
    "tensors",
    [
        {"query.weight": torch.zeros(4, 8)},
        {"query.weight": torch.zeros(4, 8), "key.weight": torch.zeros(3, 8)},
        {"query.weight": torch.zeros(32), "key.weight": torch.zeros(32)},
        {"query.weight": torch.zeros(4, 8), "key.weight": torch.zeros(4, 8), "query.bias": torch.zeros(4)},
    ],
    ids=["no key", "two ranks", "vectors", "a bias"],
)
def test_a_file_with_other_tensors_is_refused(tmp_path, tensors):
    save_file(tensors, tmp_path / "w.safetensors")
    with pytest.raises(ValueError, match=r"must hold 'query\.weight' \[rank, Hq\*D\] and 'key\.weight'"):
        Learned(str(tmp_path / "w.safetensors"))


def test_a_model_of_another_shape_is_refused_before_the_prefill(tmp_path):
    model = tiny("llama", layers=1, query_heads=4, kv_heads=2)
    scorer = Learned(weights_file(tmp_path / "w.safetensors", 32, 8))
    model.forward = lambda *args, **kwargs: pytest.fail("the model ran")
    with pytest.raises(ValueError, match=r"Hq\*D = 32 and Hkv\*D = 8, but this model has 32 and 16"):
        generate(model, prompt(6), [preset("inertiakv"), Policy(scorer=scorer, budget=Tokens(3))], 3)


# ---------------------------------------------------------------------------------------- training

QUICK = {"count": 8, "length": 64, "steps": 5, "epochs": 6, "learning_rate": 3e-3}


def quick_prompts(count=8, seed=1):
    return train_scorer.synthetic(range(3, 97), 64, count, seed)


def test_synthetic_prompts_hide_the_answer_to_their_question():
    prompts = quick_prompts()
    assert [len(ids) for ids in prompts] == [64] * 8
    assert prompts == quick_prompts() != quick_prompts(seed=2)
    for ids in prompts:
        question = ids[-4:]
        assert question in [ids[start : start + 4] for start in range(60)]
        assert all(3 <= token < 97 for token in ids)


def test_a_trace_holds_what_the_model_saw():
    model = tiny("llama", layers=2, query_heads=4, kv_heads=2)
    ids = prompt(12)[0].tolist()
    traces = train_scorer.collect(model, ids, 4)
    assert len(traces) == 2
    forced = generate(model, torch.tensor([ids]), [preset("full_cache")], 5)[0].tokens
    every = ids + forced[:4]
    layers = oracle.layers_of(model.config)
    for step in range(4):
        _, seen = oracle.forward(model, every[: 13 + step], {}, layers)
        for layer, trace in enumerate(traces):
            tokens = 13 + step
            torch.testing.assert_close(trace.queries[step], seen[layer].query.flatten())
            torch.testing.assert_close(trace.attention[step, :tokens], seen[layer].weights.mean(0))
            assert not trace.attention[step, tokens:].any()
            assert train_scorer.visible(trace)[step].tolist() == [True] * tokens + [False] * (16 - tokens)
            if step == 3:
                keys = torch.cat(list(seen[layer].keys), dim=-1)
                torch.testing.assert_close(trace.keys, keys)


def test_layers_are_chosen_by_name_or_index():
    model = tiny("gemma3", layers=3, query_heads=4, kv_heads=2)
    all_layers = train_scorer.collect(model, prompt(9)[0].tolist(), 2)
    middle = train_scorer.collect(model, prompt(9)[0].tolist(), 2, "middle")
    two = train_scorer.collect(model, prompt(9)[0].tolist(), 2, "0,1")
    assert (len(all_layers), len(middle), len(two)) == (3, 1, 2)
    torch.testing.assert_close(middle[0].keys, all_layers[1].keys)
    for layers in ("3", "first", "-1", ""):
        with pytest.raises(ValueError, match=r"layers=.*0\.\.2"):
            train_scorer.collect(model, prompt(9)[0].tolist(), 2, layers)


def test_the_loss_is_squared_error_plus_a_tenth_of_the_divergence():
    settings = train_scorer.Settings(**QUICK)
    trace = train_scorer.collect(tiny("llama", layers=1, query_heads=4, kv_heads=2), prompt(7)[0].tolist(), 3)[0]
    head = train_scorer.initial(32, 16, replace(settings, rank=3))
    total = 0.0
    for step in range(3):
        tokens = 8 + step
        query = head.query @ trace.queries[step]
        logits = [float(query @ (head.key @ trace.keys[i])) / 3**0.5 for i in range(tokens)]
        exponentials = [torch.tensor(x, dtype=torch.float64).exp() for x in logits]
        for i in range(tokens):
            p, q = float(trace.attention[step, i]), float(exponentials[i] / sum(exponentials))
            total += (q - p) ** 2 + 0.1 * p * (torch.tensor(p).log() - torch.tensor(q).log()).item()
    assert train_scorer.loss_of(head, trace, settings).item() == pytest.approx(total / 3, rel=1e-3)


def test_overlap_of_the_top_shares():
    first = torch.randn(50, generator=torch.Generator().manual_seed(0))
    assert train_scorer.jaccard(first, first, 0.1) == 1
    assert train_scorer.jaccard(torch.arange(10.0), -torch.arange(10.0), 0.5) == 0


def test_training_lowers_the_loss_and_raises_the_rank_correlation(tmp_path, capsys):
    model = tiny("llama", layers=2, query_heads=4, kv_heads=2)
    settings = train_scorer.Settings(**QUICK)
    out = tmp_path / "head.safetensors"
    report = train_scorer.run(model, quick_prompts(), settings, out)
    assert len(report["losses"]) == 6
    assert report["losses"][-1] < 0.8 * report["losses"][0]
    assert abs(report["before"]["spearman"]) < 0.2
    assert report["after"]["spearman"] > report["before"]["spearman"] + 0.2
    assert report["after"]["top_tenth_jaccard"] > report["before"]["top_tenth_jaccard"]
    assert report["prompts_used"] == {"trained": 7, "held_out": 1}
    assert json.loads(out.with_suffix(".json").read_text()) == report
    scorer = Learned(str(out))
    assert scorer.sha256 == report["sha256"]
    assert scorer.parameters == report["parameters"] == 64 * (32 + 16)
    # The head in the file ranks as the trained one does, through the scorer itself.
    assert ranks_like_attention(scorer, model) == pytest.approx(report["after"]["spearman"], abs=1e-4)
    progress = capsys.readouterr().err
    assert "tracing" in progress and "training" in progress and "<00:" in progress
    again = train_scorer.run(model, quick_prompts(), settings, tmp_path / "again.safetensors")
    assert again["sha256"] == report["sha256"] and again["losses"] == report["losses"]
    reseeded = replace(settings, seed=1)
    other = train_scorer.run(model, quick_prompts(), reseeded, tmp_path / "other.safetensors")
    assert other["sha256"] != report["sha256"]


def ranks_like_attention(scorer, model):
    """Mean Spearman of the scorer's own scores with attention on the held-out prompt."""
    correlations = []
    for layer, trace in enumerate(train_scorer.collect(model, quick_prompts()[-1], 5)):
        for step, seen in enumerate(train_scorer.visible(trace)):
            keys = trace.keys[seen].view(-1, 2, 8).transpose(0, 1)[None]
            view = LayerView(
                weights=trace.attention[step, seen].expand(1, 2, 2, -1),
                query=trace.queries[step].view(1, 2, 2, 8),
                keys=keys,
                values=keys,
                positions=torch.arange(keys.shape[2]).view(1, 1, -1),
                valid=None,
                layer=layer,
                seeds=torch.zeros(1, dtype=torch.long),
            )
            score = scorer.score(view).mean(dim=1)[0]
            correlations.append(float(spearmanr(score, trace.attention[step, seen]).statistic))
    return sum(correlations) / len(correlations)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"temperature": 0}, "temperature=0"),
        ({"learning_rate": 0.0}, "learning_rate=0"),
        ({"kl_weight": -0.1}, "kl_weight=-0.1"),
        ({"length": 10}, "length=10"),
        ({"count": 1}, "count=1"),
        ({"held_out": 1.0}, "held_out=1.0"),
        ({"steps": 0}, "steps=0"),
    ],
)
def test_settings_out_of_range_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        train_scorer.Settings(**change)


def test_prompts_that_end_at_once_are_counted_and_refused(tmp_path):
    model = tiny("llama", layers=1, query_heads=4, kv_heads=2)
    ends, out = list(range(97)), tmp_path / "w.safetensors"
    with pytest.raises(ValueError, match="0 of 3 prompts gave a decode step"):
        train_scorer.run(model, quick_prompts(3), train_scorer.Settings(**QUICK), out, ends)


def test_the_command_line_trains_on_a_backbone_and_leaks_no_path(tmp_path, capsys):
    texts = tmp_path / "prompts.jsonl"
    lines = [json.dumps({"text": f"Number {i} is the one after {i - 1}."}) for i in range(4)]
    texts.write_text("\n".join(lines))
    quick = ["--backbone", "tiny-random", "--count", "4", "--steps", "2", "--epochs", "1"]
    for name, prompts in (("synthetic", "synthetic"), ("texts", str(texts))):
        out = tmp_path / f"{name}.safetensors"
        assert train_scorer.main([*quick, "--length", "64", "--prompts", prompts, "--out", str(out)]) == 0
        last = json.loads(capsys.readouterr().out.splitlines()[-1])
        report = json.loads(out.with_suffix(".json").read_text())
        assert last["sha256"] == report["sha256"] == Learned(str(out)).sha256
        assert str(tmp_path) not in json.dumps(report)
        assert report["backbone"]["identity"]["architecture"] == "llama"
        assert ("prompts_sha256" in report) == (name == "texts")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--backbone", "no-such", "--out", "w.safetensors"], "no-such"),
        (["--backbone", "tiny-random", "--out", "w.bin"], "must end in .safetensors"),
        (["--backbone", "tiny-random", "--out", "w.safetensors", "--epochs", "0"], "epochs=0"),
        (["--backbone", "tiny-random", "--out", "w.safetensors", "--prompts", "no.jsonl"], "no.jsonl"),
        (["--backbone", "tiny-random", "--out", "w.safetensors", "--prompts", "ruler:nonsense"], "nonsense"),
    ],
)
def test_the_command_line_refuses_with_a_reason(capsys, arguments, message):
    with pytest.raises(SystemExit) as stopped:
        train_scorer.main(arguments)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
