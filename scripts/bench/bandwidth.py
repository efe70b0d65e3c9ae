"""How fast the machine reads memory, and what a decode step must read at least."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils.benchmark import Timer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_WIDTH = 4096


def buffer(device: str, size: int) -> Tensor:
    """Return fp32 ones to be read, [size / 16 KiB, 4096]; large against any processor's cache if `size` bytes are."""
    return torch.ones(max(1, size // (4 * _WIDTH)), _WIDTH, device=device)


def read_speed(matrix: Tensor) -> float:
    """Return the bytes per second at which a buffer is read, by the faster of a sum and a matrix-vector product."""
    names = {"matrix": matrix, "vector": torch.ones(_WIDTH, device=matrix.device)}
    ways = ("matrix.sum()", "matrix @ vector")
    timers = [Timer(way, globals=names, num_threads=torch.get_num_threads()) for way in ways]
    return matrix.nbytes / min(timer.timeit(1).mean for timer in timers)


def weight_bytes_per_step(model: PreTrainedModel) -> int:
    """Return the bytes of weights that one decode step reads: all, but of an input embedding of its own only a row."""
    embedding = model.get_input_embeddings().weight
    head = model.get_output_embeddings()
    tied = head is not None and head.weight.data_ptr() == embedding.data_ptr()
    total = sum(parameter.nbytes for parameter in model.parameters())
    return total if tied else total - embedding.nbytes + embedding[0].nbytes


def head_dim(model: PreTrainedModel) -> int:
    """Return the size of one key or value."""
    config = model.config
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def token_bytes(model: PreTrainedModel) -> int:
    """Return the bytes of one token's keys and values, all layers and KV heads."""
    config = model.config
    return 2 * config.num_hidden_layers * config.num_key_value_heads * head_dim(model) * model.dtype.itemsize
