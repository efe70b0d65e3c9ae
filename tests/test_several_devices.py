"""Layers in several places, as accelerate's device map puts models that are too large for one.

Two devices: nothing of one device may meet something of the other. The second device is "meta": its tensors refuse to
be mixed with others, as those of another accelerator do; what comes back from them is noise, so only paths are checked,
no value. Two places of one device: odd layers wait on the disk and are fetched by the hooks that also move data between
devices; the values are real there, and must be those of the model in one place.
"""

from __future__ import annotations

from dataclasses import replace

import families
import models
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM

from inertia import PromptFormat, TokensPrompt, generate, preset
from inertia.backbones import load
from inertia.backbones.config import read
from inertia.methods import METHODS
from inertia.paths import config_dir


class Noise(TorchDispatchMode):
    """Lets tensors come back from "meta", as noise."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name, kwargs = function.overloadpacket.__name__, kwargs or {}
        source = args[1] if name == "copy_" else args[0] if args else None
        back = isinstance(source, torch.Tensor) and source.device.type == "meta"
        if function._can_decompose():
            with self:
                parts = function.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        if back and name == "_to_copy" and torch.device(kwargs.get("device") or "meta").type == "cpu":
            return made_up(source, kwargs.get("dtype") or source.dtype)
        if back and name == "copy_" and args[0].device.type == "cpu":
            return function(args[0], made_up(source, source.dtype).expand_as(args[0]))
        if back and name == "_local_scalar_dense":
            return made_up(source, source.dtype).item()
        return function(*args, **kwargs)


def made_up(like, dtype):
    shape = tuple(like.shape)
    return torch.rand(shape).to(dtype) if dtype.is_floating_point else torch.ones(shape, dtype=dtype)


def spread(model):
    """Put the odd layers on the second device, as accelerate's device map does."""
    from accelerate.hooks import AlignDevicesHook, add_hook_to_module

    add_hook_to_module(model, AlignDevicesHook(execution_device="cpu", io_same_device=True))
    for index, layer in enumerate(model.model.layers):
        device = "meta" if index % 2 else "cpu"
        layer.to(device)
        add_hook_to_module(layer, AlignDevicesHook(execution_device=device))
    add_hook_to_module(model.model.norm, AlignDevicesHook(execution_device="cpu"))
    return model


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
@pytest.mark.parametrize("name", METHODS)
def test_layers_may_lie_on_several_devices(name, architecture, words):
    model = spread(models.tiny(architecture))
    policies = [preset("full_cache"), policy(name)]
    with Noise():
        told, how = TokensPrompt(models.prompt(40), context_end=30), PromptFormat(words, chat_template=False)
        found = generate(model, told, policies, 6, prompt_format=how)
    assert [len(each.tokens) for each in found] == [6, 6]


def policy(name):
    settings = {} if name == "full_cache" else {"tokens": 20}
    if name in ("snapkv", "adakv_snapkv"):
        settings["window"] = 4
    return preset(name, **settings)


def dispatched(model, folder):
    """Leave the odd layers on the disk, by accelerate itself."""
    from accelerate import dispatch_model

    places = {name: "cpu" for name in ("model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head")}
    layers = {f"model.layers.{index}": "disk" if index % 2 else "cpu" for index in range(len(model.model.layers))}
    return dispatch_model(model, {**places, **layers}, main_device="cpu", offload_dir=str(folder), force_hooks=True)


@pytest.mark.parametrize("architecture", ["llama", "gemma3", "qwen3_moe"])
def test_layers_that_hooks_fetch_give_what_the_model_gives_in_one_place(architecture, words, tmp_path):
    """Every method in one batch, with its trace: which tokens are kept is decided over layers of both places."""
    plain = models.tiny(architecture)
    split = dispatched(models.tiny(architecture), tmp_path)
    where = [layer.self_attn.q_proj.weight.device.type for layer in split.model.layers]
    assert where[:3] == ["cpu", "meta", "cpu"], "no layer was moved away"
    told, how = TokensPrompt(models.prompt(40), context_end=30), PromptFormat(words, chat_template=False)
    policies = [policy(name) for name in METHODS]
    expected = generate(plain, told, policies, 6, trace=True, prompt_format=how)
    found = generate(split, told, policies, 6, trace=True, prompt_format=how)
    for name, one, other in zip(METHODS, expected, found, strict=True):
        assert one.tokens == other.tokens, name
        assert one.kept == other.kept, name
    assert [layer.self_attn.q_proj.weight.device.type for layer in split.model.layers] == where


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_a_device_map_is_what_a_backbone_asks_accelerate_for(device, tmp_path, monkeypatch):
    """`device=auto` hands the layout to accelerate; without an accelerator everything then lies on the CPU."""
    family = families.FAMILIES["llama-3.3-70b"]
    families.write(family, tmp_path)
    asked, real = [], AutoModelForCausalLM.from_pretrained
    monkeypatch.setattr(
        AutoModelForCausalLM,
        "from_pretrained",
        lambda *words, **named: asked.append(named["device_map"]) or real(*words, **named),
    )
    declared = read(config_dir() / "backbone" / f"{family.base}.yaml")
    assert declared.device == "auto", "the largest backbone needs several GPUs"
    small = {"layers": "num_hidden_layers", "query_heads": "num_attention_heads", "kv_heads": "num_key_value_heads"}
    shape = {name: family.config[published] for name, published in small.items()}
    model = load(replace(declared, path=str(tmp_path), device=device, dtype="float32", **shape)).model
    assert asked == [{"auto": "auto", "cpu": None}[device]]
    assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}


@pytest.fixture(scope="module")
def words():
    class Words:
        """A tokenizer for requests that only need to be there."""

        def encode(self, text, **_):
            return [5 + ord(letter) % 80 for letter in text[:20]]

    return Words()
