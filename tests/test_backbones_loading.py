"""Loading from a local folder and from the Hub's cache layout: identity, refusals, settings."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from inertia.backbones import BackboneConfig, from_mapping, hub, identity, load, load_tokenizer
from inertia.backbones.tiny import tiny_model
from inertia.backbones.tiny_tokenizer import tiny_tokenizer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("INERTIA_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    target = tmp_path / "model"
    model = tiny_model("qwen3", layers=2, query_heads=4, kv_heads=2)
    model.generation_config.eos_token_id = [2, 7]
    model.generation_config.repetition_penalty = 1.3
    model.save_pretrained(target)
    tiny_tokenizer().save_pretrained(target)
    return target


@pytest.fixture
def config(folder: Path) -> BackboneConfig:
    values = {"name": "m", "source": "hub", "repo": "org/Model-1B", "revision": "main", "path": str(folder)}
    shape = {"layers": 2, "query_heads": 4, "kv_heads": 2, "context_window": 4096}
    return from_mapping({**values, **shape, "chat_template": True})


def test_local_folder_loads_what_was_saved(config: BackboneConfig) -> None:
    backbone = load(config)
    ids = torch.arange(20)[None]
    saved = tiny_model("qwen3", layers=2, query_heads=4, kv_heads=2)
    assert torch.equal(backbone.model(ids).logits, saved(ids).logits)
    assert backbone.model.config._attn_implementation == "sdpa"
    assert backbone.label == "Model-1B (local files), fp32"
    assert backbone.eos_token_ids == (2, 7)
    assert backbone.identity == identity(config)
    assert not any(parameter.requires_grad for parameter in backbone.model.parameters())


def test_published_generation_settings_do_not_act(config: BackboneConfig) -> None:
    settings = load(config).model.generation_config
    assert settings.repetition_penalty in (None, 1.0)
    assert settings.do_sample is False
    assert settings.eos_token_id == [2, 7]


def test_dtype_is_the_declared_one(config: BackboneConfig) -> None:
    backbone = load(replace(config, dtype="bfloat16"))
    assert {parameter.dtype for parameter in backbone.model.parameters()} == {torch.bfloat16}
    assert backbone.label.endswith("bf16")


def test_identity_of_a_folder_is_its_content(config: BackboneConfig, folder: Path, tmp_path: Path) -> None:
    first = identity(config)
    moved = folder.rename(tmp_path / "elsewhere")
    assert identity(replace(config, path=str(moved))) == first
    (moved / "README.md").write_text("not read by transformers")
    assert identity(replace(config, path=str(moved))) == first
    weights = moved / "model.safetensors"
    before = weights.stat()
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert identity(replace(config, path=str(moved))) != first
    assert not any(str(tmp_path) in str(value) for value in first.values())


def test_another_shape_is_refused_before_weights_are_read(config: BackboneConfig, folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"reading this would raise something else")
    with pytest.raises(ValueError, match="kv_heads: declared 4, found 2"):
        load(replace(config, kv_heads=4))


def test_missing_weights_are_an_error_not_random_numbers(config: BackboneConfig, folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.self_attn.v_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(RuntimeError, match="lack 1 of its weights .*v_proj"):
        load(config)


@pytest.mark.parametrize("name", ["model.layers.2.mlp.up_proj.weight", "model.layers.0.self_attn.o_proj.bias"])
def test_weights_without_a_place_are_refused_unless_allowed(
    config: BackboneConfig, folder: Path, name: str
) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    weights[name] = torch.zeros(3)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(RuntimeError, match=f"1 weights that the model has no place for .{name}"):
        load(config)
    assert load(replace(config, allow_unexpected_weights=True)).identity == identity(config)


def test_a_tokenizer_with_more_ids_than_the_embedding_is_refused(config: BackboneConfig, folder: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["<one more>"])
    tokenizer.save_pretrained(folder)
    (folder / "model.safetensors").write_bytes(b"reading this would raise something else")
    with pytest.raises(ValueError, match="gives '<one more>' the id 1024, but the model embeds ids 0 to 1023 only"):
        load(config)


def test_pickled_weights_are_not_read(config: BackboneConfig, folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")
    with pytest.raises(FileNotFoundError, match="safetensors"):
        load(config)


def test_remote_code_is_not_run(config: BackboneConfig, folder: Path, tmp_path: Path) -> None:
    written = tmp_path / "ran"
    (folder / "evil.py").write_text(f"open({str(written)!r}, 'w')\nclass C: pass\n")
    values = json.loads((folder / "config.json").read_text())
    values |= {
        "model_type": "unheard-of",
        "auto_map": {"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.C"},
    }
    (folder / "config.json").write_text(json.dumps(values))
    with pytest.raises(ValueError):
        load(config)
    assert not written.exists()


def test_a_base_model_declared_as_chat_model_is_refused(config: BackboneConfig, folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(ValueError, match="looks like a base model"):
        load_tokenizer(config)


def test_a_branch_becomes_the_commit_it_names(
    monkeypatch: pytest.MonkeyPatch, config: BackboneConfig
) -> None:
    asked: list[tuple[str, str, str]] = []

    def download(repo: str, file: str, revision: str, local_files_only: bool) -> str:
        asked.append((repo, file, revision))
        return f"/hub/models--org--Model-1B/snapshots/{COMMIT}/config.json"

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    online = replace(config, path=None)
    assert identity(online)["revision"] == COMMIT
    assert asked == [("org/Model-1B", "config.json", "main")]
    pinned = identity(replace(online, revision=COMMIT))
    assert len(asked) == 1  # a commit is not asked about
    assert pinned == identity(online)


def test_no_hub_tells_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: object, **__: object) -> str:
        raise OSError("offline mode is enabled")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", offline)
    with pytest.raises(
        ConnectionError, match="'main' of org/Model: the Hub does not answer.*hf auth login.*backbone.path"
    ):
        hub.resolve_revision("org/Model", "main")
