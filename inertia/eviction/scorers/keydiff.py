"""How much a key differs from the average key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from torch import Tensor

    from inertia.eviction.layer_view import LayerView


@dataclass(frozen=True)
class KeyDiff:
    """Minus the cosine of the key and the mean of the normalised cached keys, per KV head.

    A zero key, and every key where the mean is zero, scores 0. Stale keys in empty slots do not count, but must be
    finite, as the cache keeps them: masking them out would cost a copy of all keys.

    Source: KeyDiff (arXiv 2504.15364), as the scorer ablation of InertiaKV (arXiv 2609.03515) uses it.
    Deviations: keys as cached, rotary positions applied; block-wise prefill is a matter of the method.
    """

    kind: ClassVar[str] = "keydiff"
    signed: ClassVar[bool] = True

    def score(self, view: LayerView) -> Tensor:
        """Return [R, Hkv, T], in [-1, 1]; empty slots get 0."""
        import torch

        keys = view.keys.float()
        norms = torch.linalg.vector_norm(keys, dim=-1)
        counts = norms > 0 if view.valid is None else (norms > 0) & view.valid
        inverse = torch.where(counts, norms.reciprocal(), 0.0)
        # The sum of the normalised keys, without writing them out; to a cosine it is as good as their mean.
        anchor = torch.matmul(inverse.unsqueeze(2), keys)
        anchor = torch.nn.functional.normalize(anchor, dim=-1)
        cosine = torch.matmul(keys, anchor.transpose(-1, -2)).squeeze(-1) * inverse
        return -cosine if view.valid is None else -cosine.masked_fill(~view.valid, 0.0)
