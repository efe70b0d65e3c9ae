"""The layers of a prompt as a compressor sees them, from one plain forward: for proofs, not for speed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from inertia.eviction.layers import layers_of
from inertia.prefill.compressor import Compressor, PromptLayer
from inertia.prefill.kvzip import KVzip
from inertia.prefill.replay import Replay, ReplayLayer
from inertia.prefill.rotary import rotary_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from transformers import PreTrainedModel

NAME = "inertia_capture"


class Seen(NamedTuple):
    """What one layer's attention was given: query [Hq, T, D], keys and values [Hkv, T, D]."""

    query: Tensor
    keys: Tensor
    values: Tensor
    scaling: float
    softcap: float | None


def capture(model: PreTrainedModel, ids: Sequence[int]) -> dict[int, Seen]:
    """Run ids through a model once and return what each layer's attention was given, by layer index."""
    import torch
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import sdpa_mask

    found: dict[int, Seen] = {}

    def attend(module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **kwargs: Any) -> Any:
        found[module.layer_idx] = Seen(query[0], key[0], value[0], kwargs["scaling"], kwargs.get("softcap"))
        return sdpa_attention_forward(module, query, key, value, mask, **kwargs)

    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    before = model.config._attn_implementation
    model.set_attn_implementation(NAME)
    try:
        with torch.inference_mode():
            model(input_ids=torch.tensor([list(ids)], device=model.device), use_cache=False, logits_to_keep=1)
    finally:
        model.set_attn_implementation(before)
    return found


def prompt_layers(model: PreTrainedModel, ids: Sequence[int]) -> list[PromptLayer]:
    """Return the eligible layers of a prompt, as `Compressor.score` takes them."""
    import torch

    seen = capture(model, ids)
    eligible = layers_of(model.config).eligible
    positions = torch.arange(len(ids), device=model.device)
    found = []
    for index, layer in enumerate(eligible):
        query, keys, values, scaling, softcap = seen[layer]
        rotary = rotary_of(model, layer)
        found.append(
            PromptLayer(query, keys, values, scaling, *rotary(positions), rotary, index, len(eligible), softcap)
        )
    return found


def scores_of(
    model: PreTrainedModel, ids: Sequence[int], compressor: Compressor, replays: Sequence[Replay] = ()
) -> list[Tensor]:
    """Return a compressor's scores of a prompt, [Hkv, T] per eligible layer.

    Args:
        model: a causal language model of transformers.
        ids: the part of the prompt that is compressed.
        compressor: whose scores.
        replays: for a compressor that scores by replay.
    """
    import torch

    if not isinstance(compressor, KVzip):
        return [compressor.score(layer) for layer in prompt_layers(model, ids)]
    eligible = layers_of(model.config).eligible
    scores: list[Tensor] = []
    for replay in replays:
        seen = capture(model, (*ids, *replay.ids))
        found = [
            compressor.score_replay(
                ReplayLayer(
                    query=seen[layer].query[:, len(ids) :],
                    keys=seen[layer].keys,
                    scaling=seen[layer].scaling,
                    replay=replay,
                    layer=index,
                    layers=len(eligible),
                    softcap=seen[layer].softcap,
                )
            )
            for index, layer in enumerate(eligible)
        ]
        scores = [torch.maximum(*pair) for pair in zip(scores, found, strict=True)] if scores else found
    return scores
