"""A loaded backbone: the model, its tokenizer, and what the harness must know about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class Backbone:
    """A model ready to prefill and decode.

    Attributes:
        name: the config's name.
        model: in evaluation mode, without gradients, on its device, with greedy and otherwise neutral
            generation settings.
        tokenizer: the model's own.
        label: what a table prints, e.g. "SmolLM2-135M-Instruct, Q4_1 dequantised, fp32".
        identity: everything here that can change an output; equal to `identity(config)`.
        context_window: tokens of prompt and answer together.
        eos_token_ids: every id that ends an answer, ascending.
        eligible_layers: layers with full attention, ascending; only their caches may be cut.
        chat_template: whether prompts go through the tokenizer's chat template.
    """

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    label: str
    identity: dict[str, Any]
    context_window: int
    eos_token_ids: tuple[int, ...]
    eligible_layers: tuple[int, ...]
    chat_template: bool
