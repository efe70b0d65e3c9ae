"""Keys and values of a decoding batch: fixed slots for full-attention layers, rings for sliding-window layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class Slots:
    """A fixed block of slots of one full-attention layer; a token overwrites a slot in place.

    Attributes:
        keys: [R, Hkv, C, D], rotated. Never-written slots are zeros, since weight 0 times NaN would be NaN.
        values: [R, Hkv, C, D].
    """

    def __init__(self, rows: int, capacity: int, like: Tensor) -> None:
        """Allocate zeros for `rows` x `capacity` slots with the heads, head size, dtype and device of `like`."""
        _, heads, _, head_dim = like.shape
        self.keys = like.new_zeros(rows, heads, capacity, head_dim)
        self.values = like.new_zeros(rows, heads, capacity, head_dim)

    def write(self, keys: Tensor, values: Tensor, slot: Tensor) -> None:
        """Write one token per row.

        Args:
            keys: [R, Hkv, 1, D].
            values: [R, Hkv, 1, D].
            slot: [R, 1] or [R, Hkv].
        """
        index = slot[:, :, None, None].expand(keys.shape)
        self.keys.scatter_(2, index, keys)
        self.values.scatter_(2, index, values)

    def select(self, rows: Tensor) -> None:
        """Keep only the given rows."""
        self.keys, self.values = self.keys[rows], self.values[rows]

    def taken(self, slots: Tensor, capacity: int) -> Slots:
        """Return some slots of a single row, [Hkv or 1, n], first in a new block of `capacity` slots."""
        made = Slots(1, capacity, self.keys)
        heads = torch.arange(self.keys.shape[1], device=self.keys.device)[:, None]
        slots = slots.to(self.keys.device)
        made.keys[0, :, : slots.shape[-1]] = self.keys[0, heads, slots]
        made.values[0, :, : slots.shape[-1]] = self.values[0, heads, slots]
        return made

    def joined(self, others: Sequence[Slots], capacity: int) -> Slots:
        """Return this row and others as rows of one new block, each padded to `capacity` slots."""
        made = Slots(1 + len(others), capacity, self.keys)
        for row, each in enumerate((self, *others)):
            made.keys[row, :, : each.keys.shape[2]] = each.keys[0]
            made.values[row, :, : each.keys.shape[2]] = each.values[0]
        return made

    @property
    def row_bytes(self) -> int:
        """Bytes of all slots (K and V, all KV heads) of one row."""
        return self.slot_bytes * self.keys.shape[2]

    @property
    def slot_bytes(self) -> int:
        """Bytes of one slot (K and V, all KV heads) of one row."""
        return 2 * self.keys.shape[1] * self.keys.shape[3] * self.keys.element_size()


class Ring:
    """The last `window` tokens of one sliding-window layer; token p lies in slot p mod window.

    The token that falls out of the window is exactly the one that the newcomer overwrites.
    """

    def __init__(self, rows: int, window: int, like: Tensor) -> None:
        """Allocate zeros for `rows` x `window` slots."""
        self.window = window
        self.slots = Slots(rows, window, like)

    @property
    def keys(self) -> Tensor:
        """Keys [R, Hkv, window, D]."""
        return self.slots.keys

    @property
    def values(self) -> Tensor:
        """Values [R, Hkv, window, D]."""
        return self.slots.values

    def select(self, rows: Tensor) -> None:
        """Keep only the given rows."""
        self.slots.select(rows)

    def copy(self) -> Ring:
        """Return a copy of a single row's ring."""
        return self.joined(())

    def joined(self, others: Sequence[Ring], capacity: int | None = None) -> Ring:
        """Return this row and others as rows of one new ring; a ring's capacity is its window, whatever is asked."""
        made = Ring(1 + len(others), self.window, self.keys)
        for row, each in enumerate((self, *others)):
            made.keys[row], made.values[row] = each.keys[0], each.values[0]
        return made

    def fill(self, keys: Tensor, values: Tensor, first: int) -> None:
        """Write the last of several consecutive tokens, [1, Hkv, T, D], the first of them at position `first`."""
        tokens = keys.shape[2]
        last = torch.arange(max(0, tokens - self.window), tokens, device=keys.device)
        slots = (first + last) % self.window
        self.keys[:, :, slots] = keys[:, :, last]
        self.values[:, :, slots] = values[:, :, last]

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.slots.row_bytes


class PromptCache:
    """Cache of one prompt while it is prefilled and through decode step 1; duck-types transformers' Cache.

    Full-attention layers get room for the prompt and `extra` tokens at once, so that step 1 (and the whole answer of
    the full cache) appends in place.
    """

    is_compileable = False

    def __init__(self, windows: Sequence[int | None], extra: int, checkpoint: int | None = None) -> None:
        """Create an empty cache.

        Args:
            windows: per layer, the sliding window or None for full attention.
            extra: tokens that will be appended after the prompt.
            checkpoint: also keep the rings as they stood after this many tokens.
        """
        self.windows = windows
        self.extra = extra
        self.checkpoint = checkpoint
        self.layers: list[Slots | Ring | None] = [None] * len(windows)
        self.earlier: list[Ring | None] = [None] * len(windows)
        self.length = 0

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Store the prompt's keys and values, [1, Hkv, L0, D]; the prompt attends to itself only."""
        tokens = keys.shape[2]
        window = self.windows[layer_idx]
        if window is None:
            layer: Slots | Ring = Slots(1, tokens + self.extra, keys)
            layer.keys[:, :, :tokens] = keys
            layer.values[:, :, :tokens] = values
        else:
            layer = Ring(1, window, keys)
            layer.fill(keys, values, 0)
            if self.checkpoint is not None:
                early = self.earlier[layer_idx] = Ring(1, window, keys)
                early.fill(keys[:, :, : self.checkpoint], values[:, :, : self.checkpoint], 0)
        self.layers[layer_idx] = layer
        self.length = tokens
        return keys, values

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return 0: the prompt is the first thing that this cache sees."""
        return 0

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """Return 0, as `get_seq_length`."""
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Return (keys, offset) of the prefill's attention: the prompt itself."""
        return query_length, 0

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """Return -1: no maximum."""
        return -1


class SessionCache:
    """What the model's forward takes for a cache in a decode step: writes go to the session's slots."""

    is_compileable = False

    def __init__(self, session: Any) -> None:
        """Wrap a session that has `write(layer_idx, keys, values)` and `seen`."""
        self.session = session

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write the newcomers, [R, Hkv, 1, D], and return them: attention reads the slots through the session."""
        self.session.write(layer_idx, keys, values)
        return keys, values

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return a length; unused, since position ids are always explicit."""
        return self.session.seen

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """Return a length; unused, since no mask is built."""
        return self.session.seen

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Return (keys, offset); unused, since no mask is built."""
        return self.session.seen + query_length, 0

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """Return -1: no maximum."""
        return -1
