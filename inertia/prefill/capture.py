"""The layers of a prompt as a compressor sees them, from one plain forward: for proofs, not for speed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from inertia.eviction.attention import attending
from inertia.eviction.layers import layers_of
from inertia.eviction.prefill_session import Observed
from inertia.prefill.compressor import Compressor, PromptLayer, prompt_layer
from inertia.prefill.replay import Replay, replay_layer
from inertia.prefill.rotary import rotary_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from transformers import PreTrainedModel

NAME = "inertia_capture"


def capture(model: PreTrainedModel, ids: Sequence[int]) -> list[Observed]:
    """Run ids through a model once and return what each eligible layer's attention was given."""
    import torch
    from transformers import AttentionMaskInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import sdpa_mask

    eligible, found = layers_of(model.config).eligible, []

    def attend(module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **kwargs: Any) -> Any:
        if (number := module.layer_idx) in eligible:
            scaling, softcap = kwargs["scaling"], kwargs.get("softcap")
            found.append(Observed(query[0], key[0], value[0], scaling, softcap, number, eligible.index(number)))
        return sdpa_attention_forward(module, query, key, value, mask, **kwargs)

    # Here the model's own masks are wanted, unlike where a session masks.
    AttentionMaskInterface.register(NAME, sdpa_mask)
    with attending(model, NAME, attend), torch.inference_mode():
        model(input_ids=torch.tensor([list(ids)], device=model.device), use_cache=False, logits_to_keep=1)
    return found


def prompt_layers(model: PreTrainedModel, ids: Sequence[int]) -> list[PromptLayer]:
    """Return the eligible layers of a prompt, as `Compressor.score` takes them."""
    seen = capture(model, ids)
    return [prompt_layer(each, len(ids), rotary_of(model, each.number), len(seen)) for each in seen]


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

    if not compressor.replay:
        return [compressor.score(layer) for layer in prompt_layers(model, ids)]
    scores: list[Tensor] = []
    for replay in replays:
        seen = capture(model, (*ids, *replay.ids))
        read = [each._replace(query=each.query[:, len(ids) :]) for each in seen]
        found = [compressor.score_replay(replay_layer(each, replay, len(seen))) for each in read]
        scores = [torch.maximum(*pair) for pair in zip(scores, found, strict=True)] if scores else found
    return scores
