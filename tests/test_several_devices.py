"""Layers on two devices: nothing of one device may meet something of the other. The second device is "meta".

Meta tensors refuse to be mixed with others, as those of another accelerator do; what comes back from them is noise, so
only the paths are checked here, no value.
"""

from __future__ import annotations

import models
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from inertia import Policy, generate
from inertia.policies import METHODS

pytestmark = pytest.mark.slow


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


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
@pytest.mark.parametrize("name", METHODS)
def test_layers_may_lie_on_several_devices(name, architecture, words):
    model = spread(models.tiny(architecture))
    settings = {} if name == "full_cache" else {"tokens": 20}
    if name in ("snapkv", "adakv_snapkv"):
        settings["window"] = 4
    policies = [Policy.named("full_cache"), Policy.named(name, **settings)]
    with Noise():
        found = generate(model, models.prompt(40), policies, 6, tokenizer=words, chat_template=False, context_end=30)
    assert [len(each.tokens) for each in found] == [6, 6]


@pytest.fixture(scope="module")
def words():
    class Words:
        """A tokenizer for requests that only need to be there."""

        def encode(self, text, **_):
            return [5 + ord(letter) % 80 for letter in text[:20]]

    return Words()
