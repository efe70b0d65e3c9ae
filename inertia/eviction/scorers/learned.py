"""A small bilinear head that imitates the model's own attention."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from inertia.eviction.layer_view import LayerView

QUERY, KEY = "query.weight", "key.weight"
RANK = 64
TRAIN = "train one with scripts/train_scorer.py"


@dataclass(frozen=True)
class Learned:
    """(W_k k) . (W_q q) / sqrt(rank), with q and k concatenated over the heads of a layer.

    The weights are one safetensors file with `query.weight` [rank, Hq * D] and `key.weight` [rank, Hkv * D].
    They are read once, here, and identified by their content: two copies of one file are the same scorer.

    Attributes:
        weights: path of the file.
        sha256: of the file.
        query_shape: [rank, Hq * D].
        key_shape: [rank, Hkv * D].

    Raises:
        ValueError: no file was given, or it does not hold these two matrices.
        FileNotFoundError: there is no such file.

    Source: InertiaKV (arXiv 2609.03515), scorer ablation: rank 64, no bias, 327,680 weights on Llama-3.1-8B.
    Deviations: the paper leaves three things open. q and k are those of the attention, rotary positions
    applied; one head serves all layers; in per_head scope a KV head is scored by its own share of the sum.
    """

    kind: ClassVar[str] = "learned"
    signed: ClassVar[bool] = True
    weights: str | None = field(default=None, compare=False, repr=False, metadata={"role": "transport"})
    sha256: str = field(init=False)
    query_shape: tuple[int, int] = field(init=False)
    key_shape: tuple[int, int] = field(init=False)
    _content: bytes = field(init=False, compare=False, repr=False, metadata={"role": "transport"})
    _placed: dict[torch.device, tuple[Tensor, Tensor]] = field(
        init=False, compare=False, repr=False, default_factory=dict, metadata={"role": "transport"}
    )

    def __post_init__(self) -> None:
        content = read(self.weights)
        query_shape, key_shape = shapes(content, str(self.weights))
        found = {
            "sha256": hashlib.sha256(content).hexdigest(),
            "query_shape": query_shape,
            "key_shape": key_shape,
            "_content": content,
        }
        for name, value in found.items():
            object.__setattr__(self, name, value)

    @property
    def parameters(self) -> int:
        """Number of weights."""
        return math.prod(self.query_shape) + math.prod(self.key_shape)

    def check(self, config: Any) -> None:
        """Refuse a model of another shape, before anything is decoded.

        Args:
            config: the model's transformers config.

        Raises:
            ValueError: naming the expected and the found widths.
        """
        found = (self.query_shape[1], self.key_shape[1])
        expected = widths(config)
        if found != expected:
            raise ValueError(
                f"scorer.weights={self.weights!r} was trained for Hq*D = {found[0]} and Hkv*D = {found[1]}, "
                f"but this model has {expected[0]} and {expected[1]}; {TRAIN} on this backbone."
            )

    def score(self, view: LayerView) -> Tensor:
        """Return [R, Hkv, T]: per KV head Hkv times its share, so that the mean over heads is the score."""
        import torch

        rows, heads, _, head_dim = view.keys.shape
        query_weight, key_weight = self._on(view.query.device)
        # W_k^T (W_q q) first: one product with the cached keys then does, instead of projecting each of them.
        projected = view.query.reshape(rows, -1).float() @ query_weight.T @ key_weight
        projected *= heads / math.sqrt(self.query_shape[0])
        score = torch.matmul(view.keys.float(), projected.view(rows, heads, head_dim, 1)).squeeze(-1)
        return score if view.valid is None else score.masked_fill(~view.valid, 0.0)

    def _on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the two matrices on a device, in fp32; copied there once."""
        if device not in self._placed:
            from safetensors.torch import load

            tensors = load(self._content)
            self._placed[device] = (tensors[QUERY].to(device).float(), tensors[KEY].to(device).float())
        return self._placed[device]


def widths(config: Any) -> tuple[int, int]:
    """Return (Hq * D, Hkv * D) of a model."""
    config = config.get_text_config()
    head_dim = getattr(config, "head_dim", None)
    if head_dim is None:
        head_dim = config.hidden_size // config.num_attention_heads
    return config.num_attention_heads * head_dim, config.num_key_value_heads * head_dim


def read(weights: str | None) -> bytes:
    """Return the content of the weights file.

    Raises:
        ValueError: none was given.
        FileNotFoundError: there is none.
    """
    if weights is None or weights == "":
        raise ValueError(f"scorer.weights={weights!r}: scorer=learned needs a safetensors file; {TRAIN}.")
    path = Path(weights).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"scorer.weights={weights!r} is no file; give a safetensors file or {TRAIN}.")
    return path.read_bytes()


def shapes(content: bytes, name: str) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the shapes of the two matrices in a safetensors file.

    Raises:
        ValueError: the file is not of this format, lacks one of them, or they do not fit each other.
    """
    from safetensors import SafetensorError, deserialize

    try:
        found = {key: tuple(entry["shape"]) for key, entry in deserialize(content)}
    except SafetensorError as error:
        raise ValueError(f"scorer.weights={name!r} is not a safetensors file ({error}); {TRAIN}.") from error
    query, key = found.get(QUERY, ()), found.get(KEY, ())
    if set(found) != {QUERY, KEY} or len(query) != 2 or len(key) != 2 or query[0] != key[0]:
        raise ValueError(
            f"scorer.weights={name!r} holds {found}; it must hold {QUERY!r} [rank, Hq*D] and "
            f"{KEY!r} [rank, Hkv*D] of one rank; {TRAIN}."
        )
    return query, key
