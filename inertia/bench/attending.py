"""Let a model's layers use another attention function for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@contextmanager
def attending(model: PreTrainedModel, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Register an attention function, use it, and restore what was used before.

    No mask function is registered with it, so the model builds no mask and the function sees None.

    Args:
        model: whose layers.
        name: to register it by.
        function: as transformers calls it.
    """
    from transformers import AttentionInterface

    AttentionInterface.register(name, function)
    before = model.config._attn_implementation
    model.set_attn_implementation(name)
    try:
        yield
    finally:
        model.set_attn_implementation(before)
