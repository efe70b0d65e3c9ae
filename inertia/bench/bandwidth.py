"""How fast the machine reads memory, and what a decode step must read at least."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Large against any processor's cache.
BUFFER_BYTES = 2**30
_WIDTH = 4096


class Reader:
    """Reads a large fp32 buffer; the faster of a sum and a matrix-vector product counts."""

    def __init__(self, device: str, size: int = BUFFER_BYTES) -> None:
        """Allocate and touch the buffer.

        Args:
            device: whose memory.
            size: bytes.
        """
        rows = max(1, size // (4 * _WIDTH))
        self.matrix = torch.ones(rows, _WIDTH, device=device)
        self.vector = torch.ones(_WIDTH, device=device)

    def measure(self) -> float:
        """Return bytes per second of one pass."""
        return self.matrix.nbytes / min(
            self._seconds(lambda: self.matrix.sum()), self._seconds(lambda: self.matrix @ self.vector)
        )

    def _seconds(self, work: Callable[[], Tensor]) -> float:
        self._wait()
        started = time.perf_counter()
        work()
        self._wait()
        return time.perf_counter() - started

    def _wait(self) -> None:
        if self.matrix.is_cuda:
            torch.cuda.synchronize()


def weight_bytes_per_step(model: PreTrainedModel) -> int:
    """Return the bytes of weights that one decode step reads: all, but of an input embedding of its own only a row."""
    embedding = model.get_input_embeddings().weight
    head = model.get_output_embeddings()
    tied = head is not None and head.weight.data_ptr() == embedding.data_ptr()
    total = sum(parameter.nbytes for parameter in model.parameters())
    return total if tied else total - embedding.nbytes + embedding[0].nbytes


def token_bytes(model: PreTrainedModel) -> int:
    """Return the bytes of one token's keys and values, all layers and KV heads."""
    config = model.config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * config.num_hidden_layers * config.num_key_value_heads * head_dim * model.dtype.itemsize


def step_bytes(weights: int, token: int, tokens: int, rows: int) -> int:
    """Return the bytes that a decode step must read: weights once, and each row's keys and values once.

    Args:
        weights: bytes of weights that a step reads.
        token: bytes of one token's keys and values.
        tokens: that each row attends to.
        rows: of the batch.
    """
    return weights + token * tokens * rows


def roofline_seconds(size: int, bandwidth: float) -> float:
    """Return the least time that reading some bytes takes at some bytes per second."""
    return size / bandwidth


def bandwidth_share(size: int, seconds: float, bandwidth: float) -> float:
    """Return which share of the memory's speed was reached by reading some bytes in some seconds, 1 at best."""
    return size / seconds / bandwidth
