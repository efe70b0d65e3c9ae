"""Backbone configs: typed, closed, every field classified, every shipped file valid."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields, replace

import pytest

from inertia.backbones import BackboneConfig, from_mapping, identity, label, read
from inertia.paths import config_dir

TINY = {
    "name": "t",
    "source": "tiny",
    "architecture": "llama",
    "seed": 0,
    "chat_template": True,
    "context_window": 512,
    "layers": 2,
    "query_heads": 4,
    "kv_heads": 2,
    "head_dim": 8,
}
# (layers, query heads, kv heads) as the paper and the public model configs give them.
SHAPES = {
    "llama-3.1-8b-instruct": (32, 32, 8),
    "qwen2.5-7b-instruct": (28, 28, 4),
    "llama-3.3-70b-instruct": (80, 64, 8),
    "qwen3-30b-a3b-instruct": (48, 32, 4),
    "mistral-7b-instruct-v0.3": (32, 32, 8),
    "qwen2.5-14b-instruct": (48, 40, 8),
    "smollm2-135m": (30, 9, 3),
    "gemma3-270m": (18, 4, 1),
    "tiny-random": (3, 9, 3),
}


@pytest.mark.parametrize("name", SHAPES)
def test_shipped_config_reads_and_declares_its_shape(name: str) -> None:
    config = read(config_dir() / "backbone" / f"{name}.yaml")
    assert config.name == name
    assert (config.layers, config.query_heads, config.kv_heads) == SHAPES[name]
    assert config.prefill_attention == "sdpa"
    assert label(config)


def test_every_shipped_config_is_in_the_table() -> None:
    assert {file.stem for file in (config_dir() / "backbone").glob("*.yaml")} == set(SHAPES)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"devce": "cpu"}, r"backbone has no setting 'devce'; it has name, source"),
        ({"source": "s3"}, r"source='s3' is unknown; give one of 'embedded', 'hub', 'tiny'"),
        ({"dtype": "int8"}, r"dtype='int8' is unknown; give one of 'float32', 'bfloat16', 'float16'"),
        ({"prefill_attention": "auto"}, r"prefill_attention='auto' is unknown; give one of 'sdpa', 'eager'"),
        ({"layers": True}, r"layers must be int, got bool True"),
        ({"layers": "2"}, r"layers must be int, got str '2'"),
        ({"layers": 0}, r"layers is 0; it must be at least 1"),
        ({"kv_heads": 3}, r"no multiple of kv_heads 3"),
        ({"repo": "a/b"}, r"does not use 'repo'"),
        ({"head_dim": None}, r"needs 'head_dim'"),
        (
            {"source": "hub", "architecture": None, "head_dim": None, "seed": None},
            r"needs 'repo', 'revision'",
        ),
    ],
)
def test_bad_values_are_named_with_the_allowed_ones(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_mapping({**TINY, **change})


def test_missing_fields_are_named() -> None:
    with pytest.raises(ValueError, match="lacks 'kv_heads'"):
        from_mapping({key: value for key, value in TINY.items() if key != "kv_heads"})


def test_unquoted_numeric_revision_is_refused_not_rounded() -> None:
    hub = {key: value for key, value in TINY.items() if key not in ("architecture", "head_dim", "seed")}
    with pytest.raises(ValueError, match="revision must be str or null, got int"):
        from_mapping({**hub, "source": "hub", "repo": "a/b", "revision": 3563412})


def test_seed_zero_is_a_value() -> None:
    assert from_mapping(TINY).seed == 0


# One other legal value per field; a new field has no entry and fails here until it is thought about.
OTHER = {
    "name": "u",
    "source": "embedded",
    "chat_template": False,
    "context_window": 256,
    "layers": 3,
    "query_heads": 8,
    "kv_heads": 1,
    "dtype": "bfloat16",
    "prefill_attention": "eager",
    "allow_unused_template": True,
    "allow_unexpected_weights": True,
    "device": "cuda",
    "architecture": "qwen3",
    "head_dim": 16,
    "seed": 1,
    "sliding_window": 8,
}
NOT_OF_TINY = {"path", "repo", "revision"}


def test_every_field_is_identity_or_transport_and_acts_so() -> None:
    config = from_mapping({**TINY, "architecture": "mistral"})
    roles = {f.name: f.metadata["role"] for f in fields(BackboneConfig)}
    assert set(roles) == set(OTHER) | NOT_OF_TINY
    for name, value in OTHER.items():
        if name == "source":
            continue
        changed = replace(config, **{name: value})
        assert (identity(changed) != identity(config)) == (roles[name] == "identity"), name


def test_hub_identity_follows_repo_and_commit() -> None:
    config = read(config_dir() / "backbone" / "qwen2.5-7b-instruct.yaml")
    first = replace(config, revision="a" * 40)
    assert identity(first)["revision"] == "a" * 40
    assert identity(first) != identity(replace(first, revision="b" * 40))
    assert identity(first) != identity(replace(first, repo="other/repo"))
    assert identity(first) == identity(replace(first, device="cpu", name="x"))


def test_importing_backbones_does_not_import_torch() -> None:
    code = "import sys, inertia.backbones; sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
