"""What lm-eval's model takes: settings, generation settings, and what it refuses with a reason."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from inertia import Sampling, Stopping, preset
from inertia.lm_eval.gen_kwargs import read
from inertia.lm_eval.settings import check_requests, settings
from inertia.paths import config_dir

TINY = config_dir() / "backbone" / "tiny-random.yaml"


def test_settings_make_a_backbone_and_a_policy(tmp_path):
    found = settings(backbone="tiny-random", method="inertiakv", alpha=0.5, compression_ratio=0.75, device="cuda:1")
    assert found.policy == preset("inertiakv", alpha=0.5, compression_ratio=0.75)
    assert (found.backbone.name, found.backbone.device, found.seed) == ("tiny-random", "cuda:1", 0)
    mine = tmp_path / "mine.yaml"
    mine.write_text(TINY.read_text().replace("seed: 0", "seed: 7"))
    assert settings(backbone=str(mine), dtype="bfloat16").backbone.seed == 7
    assert settings(backbone=str(mine), dtype="bfloat16").backbone.dtype == "bfloat16"
    hub = settings(backbone="qwen2.5-7b-instruct", backbone_path="/models/q").backbone
    assert hub.path == "/models/q" and hub.device == "cuda"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"backbone": "gpt2"}, "smollm2-135m"),
        ({"method": "h2o2"}, "h2o_original"),
        ({"method": "inertiakv", "alhpa": 1}, "alpha, compression_ratio, tokens"),
        ({"method": "inertiakv", "compression_ratio": 1.5}, "compression_ratio"),
        ({"seed": -1}, "seed"),
        ({"max_gen_toks": 0}, "max_gen_toks"),
        ({"trust_remote_code": True}, "trust_remote_code"),
        ({"dtype": "int8"}, "float32"),
    ],
)
def test_a_bad_setting_is_named_with_what_is_allowed(given, said):
    with pytest.raises(ValueError, match=said):
        settings(**{"backbone": "tiny-random", **given})


# ---------------------------------------------------------------------------------------- generation settings


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, Stopping(99)),
        # lm-eval's LongBench says both; do_sample wins.
        ({"do_sample": False, "temperature": 1, "max_gen_toks": 32, "until": []}, Stopping(32)),
        ({"until": "\n", "max_new_tokens": 5, "temperature": 0.0}, Stopping(5, None, ("\n",))),
        ({"until": None, "max_tokens": 6, "top_p": 0.95, "num_beams": 1}, Stopping(6)),
        ({"until": ["Q:", "</s>"], "min_new_tokens": 1, "length_penalty": 1.0}, Stopping(99, None, ("Q:", "</s>"), 1)),
    ],
)
def test_generation_settings_become_one_greedy_decode(given, wanted):
    before = dict(given)
    assert read(given, 99) == (wanted, None)
    assert given == before


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"do_sample": True}, Sampling()),
        ({"temperature": 0.7}, Sampling(0.7)),
        ({"do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 20}, Sampling(0.6, 20, 0.95)),
        ({"do_sample": True, "min_p": 0.1, "num_beams": 1, "typical_p": 1.0}, Sampling(min_p=0.1)),
        ({"do_sample": True, "temperature": 0.0}, None),
    ],
)
def test_sampling_settings_are_followed(given, wanted):
    assert read({**given, "until": []}, 99) == (Stopping(99), wanted)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"do_sample": True, "temperature": 0.7, "typical_p": 0.9}, "only 1 is allowed"),
        ({"do_sample": True, "seed": 3}, "seed=3"),
        ({"do_sample": True, "top_p": 1.5}, "top_p"),
        ({"temperature": -0.7, "do_sample": True}, "temperature"),
        ({"num_beams": 4}, "only 1 is allowed"),
        ({"repetition_penalty": 1.2}, "repetition_penalty"),
        ({"logits_processor": 1}, "logits_processor"),
        ({"max_length": 100}, "max_length"),
        ({"until": [""]}, "empty"),
        ({"until": [3]}, "texts"),
        ({"max_gen_toks": 0}, "at least 1"),
    ],
)
def test_what_cannot_be_followed_is_refused(given, said):
    with pytest.raises(ValueError, match=said):
        read(given, 99)


def test_every_generation_task_of_lm_eval_is_followed():
    import lm_eval

    class Loader(yaml.SafeLoader):
        pass

    Loader.add_constructor("!function", lambda *_: None)
    seen = 0
    for file in (Path(lm_eval.__file__).parent / "tasks").rglob("*.y*ml"):
        if "\ngeneration_kwargs:" not in (text := file.read_text(encoding="utf-8")):
            continue
        given = yaml.load(text, Loader)["generation_kwargs"] or {}
        seen += 1
        stopping, sampling = read(given, 256)
        assert stopping.max_new_tokens >= 1, file.name
        asks = given.get("do_sample", bool(given.get("temperature"))) and given.get("temperature") != 0
        assert (sampling is not None) == asks, (file.name, given)
    assert seen > 200


# ---------------------------------------------------------------------------------------- log-likelihoods


@pytest.mark.parametrize(
    ("method", "kind", "said"),
    [
        ({"name": "inertiakv"}, "multiple_choice", "evicts while decoding"),
        ({"name": "tova_decode"}, "loglikelihood", "evicts while decoding"),
        ({"name": "inertiakv"}, "loglikelihood_rolling", "evicts while decoding"),
        ({"name": "snapkv", "question_visible": True}, "multiple_choice", "question_visible=false"),
        ({"name": "snapkv"}, "loglikelihood_rolling", "neither"),
        ({"name": "full_cache"}, "multiple_choice", None),
        ({"name": "full_cache"}, "loglikelihood_rolling", None),
        ({"name": "snapkv"}, "multiple_choice", None),
        ({"name": "inertiakv"}, "generate_until", None),
    ],
)
def test_likelihoods_are_refused_where_a_policy_would_not_act(method, kind, said):
    policy = preset(method.pop("name"), **method)
    if said is None:
        check_requests(policy, kind)
    else:
        with pytest.raises(ValueError, match=said):
            check_requests(policy, kind)
