"""What layers cache of a decoding batch: fixed slots, sliding windows, and the states of layers without attention."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from inertia.eviction.layers import Layers


class Slots:
    """A fixed block of slots of one layer; a token overwrites a slot in place.

    What lies in a slot is what the model hands to its cache: rotated keys and values, or MLA's latent and its rotated
    part, as one head. The two may differ in size.

    Attributes:
        keys: [R, Hkv, C, D]. Never-written slots are zeros, since weight 0 times NaN would be NaN.
        values: [R, Hkv, C, Dv].
    """

    def __init__(self, rows: int, capacity: int, keys: Tensor, values: Tensor) -> None:
        """Allocate zeros for `rows` x `capacity` slots with heads, head size, dtype and device of what is given."""
        self.keys, self.values = (
            like.new_zeros(rows, like.shape[1], capacity, like.shape[3]) for like in (keys, values)
        )

    def write(self, keys: Tensor, values: Tensor, slot: Tensor) -> None:
        """Write one token per row.

        Args:
            keys: [R, Hkv, 1, D].
            values: [R, Hkv, 1, Dv].
            slot: [R, 1] or [R, Hkv].
        """
        index = slot[:, :, None, None]
        self.keys.scatter_(2, index.expand(keys.shape), keys)
        self.values.scatter_(2, index.expand(values.shape), values)

    def select(self, rows: Tensor) -> None:
        """Keep only the given rows."""
        self.keys, self.values = self.keys[rows], self.values[rows]

    def taken(self, slots: Tensor, capacity: int) -> Slots:
        """Return some slots of a single row, [Hkv or 1, n], first in a new block of `capacity` slots."""
        made = Slots(1, capacity, self.keys, self.values)
        heads = torch.arange(self.keys.shape[1], device=self.keys.device)[:, None]
        slots = slots.to(self.keys.device)
        made.keys[0, :, : slots.shape[-1]] = self.keys[0, heads, slots]
        made.values[0, :, : slots.shape[-1]] = self.values[0, heads, slots]
        return made

    def joined(self, others: Sequence[Slots], capacity: int) -> Slots:
        """Return this row and others as rows of one new block, each padded to `capacity` slots."""
        made = Slots(1 + len(others), capacity, self.keys, self.values)
        for row, each in enumerate((self, *others)):
            made.keys[row, :, : each.keys.shape[2]] = each.keys[0]
            made.values[row, :, : each.keys.shape[2]] = each.values[0]
        return made

    def row_bytes(self, capacity: int | None = None) -> int:
        """Return the bytes (K and V, all KV heads) that one row takes with `capacity` slots, or with those it has."""
        slots = self.keys.shape[2] if capacity is None else capacity
        return slots * sum(part.shape[1] * part.shape[3] * part.element_size() for part in (self.keys, self.values))


class SlidingWindow:
    """The last `window` tokens of one sliding-window layer; token p lies in slot p mod window.

    The token that falls out of the window is exactly the one that the newcomer overwrites.

    Attributes:
        window: tokens.
        keys: [R, Hkv, window, D].
        values: [R, Hkv, window, Dv].
    """

    def __init__(self, rows: int, window: int, keys: Tensor, values: Tensor) -> None:
        """Allocate zeros for `rows` x `window` slots; see `Slots`."""
        self.window = window
        self.slots = Slots(rows, window, keys, values)

    @property
    def keys(self) -> Tensor:
        """Keys [R, Hkv, window, D]."""
        return self.slots.keys

    @property
    def values(self) -> Tensor:
        """Values [R, Hkv, window, Dv]."""
        return self.slots.values

    def select(self, rows: Tensor) -> None:
        """Keep only the given rows."""
        self.slots.select(rows)

    def joined(self, others: Sequence[SlidingWindow] = (), capacity: int | None = None) -> SlidingWindow:
        """Return a new window with these rows and those of others; its capacity is its own, whatever is asked."""
        made = copy.copy(self)
        made.slots = copy.copy(self.slots)
        made.slots.keys = torch.cat([self.keys, *(each.keys for each in others)])
        made.slots.values = torch.cat([self.values, *(each.values for each in others)])
        return made

    def fill(self, keys: Tensor, values: Tensor, first: int) -> None:
        """Write the last of several consecutive tokens, [1, Hkv, T, ..], the first of them at position `first`."""
        tokens = keys.shape[2]
        last = torch.arange(max(0, tokens - self.window), tokens, device=keys.device)
        slots = (first + last) % self.window
        self.keys[:, :, slots] = keys[:, :, last]
        self.values[:, :, slots] = values[:, :, last]

    def write(self, keys: Tensor, values: Tensor, positions: Tensor) -> None:
        """Write one token per row, [R, Hkv, 1, ..], at true positions [R]."""
        self.slots.write(keys, values, (positions % self.window)[:, None].to(keys.device))

    def row_bytes(self, capacity: int | None = None) -> int:
        """Return the bytes of one row, whatever the capacity of other layers."""
        return self.slots.row_bytes()


def new_states(layers: Layers) -> dict[int, Any]:
    """Return transformers' own empty states for the layers that keep one, by layer."""
    from transformers.cache_utils import LinearAttentionLayer

    return {number: LinearAttentionLayer(count) for number, count in enumerate(layers.states) if count}


def joined_states(states: Sequence[Any]) -> Any:
    """Return the rows of several states of one layer as rows of a new one."""
    return _changed(states[0], lambda name, index: torch.cat([getattr(state, name)[index] for state in states]))


def selected_states(state: Any, rows: Tensor) -> Any:
    """Return some rows of one layer's states."""
    return _changed(state, lambda name, index: (held := getattr(state, name)[index])[rows.to(held.device)])


def state_bytes(state: Any) -> int:
    """Return the bytes of one row of one layer's states."""
    return sum(
        part[0].numel() * part.element_size()
        for parts in (state.conv_states, state.recurrent_states)
        for part in parts.values()
        if part is not None
    )


def _changed(state: Any, change: Any) -> Any:
    """Return a copy of a layer's states with every tensor changed."""
    made = copy.copy(state)
    for name in ("conv_states", "recurrent_states"):
        held = getattr(state, name)
        setattr(made, name, {index: None if part is None else change(name, index) for index, part in held.items()})
    return made


class PromptCache:
    """What one prompt leaves behind when it is prefilled.

    Full-attention layers get room for the prompt and `extra` tokens at once, so that step 1 (and the whole answer of
    the full cache) appends in place.

    Attributes:
        layers: slots or windows, one row, of the layers that cache tokens.
        earlier: sliding windows as they stood after `checkpoint` tokens.
        states: of the layers that keep one.
        seen: 0, as the prompt is the first thing that this cache sees.
    """

    seen = 0

    def __init__(self, layers: Layers, extra: int, checkpoint: int | None = None) -> None:
        """Create an empty cache.

        Args:
            layers: the model's layers.
            extra: tokens that will be appended after the prompt.
            checkpoint: also keep the sliding windows as they stood after this many tokens.
        """
        self.windows = layers.windows
        self.extra = extra
        self.checkpoint = checkpoint
        self.layers: dict[int, Slots | SlidingWindow] = {}
        self.earlier: dict[int, SlidingWindow] = {}
        self.states = new_states(layers)

    def write(self, layer_idx: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store the prompt's keys and values, [1, Hkv, L0, ..]; the prompt attends to itself only."""
        tokens = keys.shape[2]
        window = self.windows[layer_idx]
        if window is None:
            slots = self.layers[layer_idx] = Slots(1, tokens + self.extra, keys, values)
            slots.keys[:, :, :tokens] = keys
            slots.values[:, :, :tokens] = values
        else:
            self.layers[layer_idx] = self._window(window, keys, values, tokens)
            if self.checkpoint is not None:
                self.earlier[layer_idx] = self._window(window, keys, values, self.checkpoint)
        return keys, values

    def heads(self, layers: Layers) -> int:
        """Return how many KV heads every eligible layer caches.

        Raises:
            ValueError: they do not agree.
        """
        counts = {layer: self.layers[layer].keys.shape[1] for layer in layers.eligible}
        if len(set(counts.values())) > 1:
            raise ValueError(
                f"this model's layers cache different numbers of KV heads ({counts}); use another backbone."
            )
        return counts[layers.eligible[0]]

    @staticmethod
    def _window(window: int, keys: Tensor, values: Tensor, tokens: int) -> SlidingWindow:
        """Return a window as it stands after so many tokens."""
        made = SlidingWindow(1, window, keys, values)
        made.fill(keys[:, :, :tokens], values[:, :, :tokens], 0)
        return made


class SessionCache:
    """What the model's forward takes for a cache (transformers' `Cache`): tokens and states lie with the session."""

    is_compileable = False
    is_croppable = False
    # What transformers' generate asks: whether all layers are without attention.
    is_linear = (False,)

    def __init__(self, session: Any) -> None:
        """Wrap a session that has `write(layer_idx, keys, values)`, `states` and `seen`."""
        self.session = session

    def __getattr__(self, name: str) -> Any:
        """Refuse what a model may ask of its cache beyond what is here, by name."""
        raise AttributeError(f"this model asks its cache for {name!r}, which a cache that evicts has not; use another.")

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write the newcomers, [R, Hkv, N, ..], and return all that they attend to."""
        return self.session.write(layer_idx, keys, values)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the tokens seen; position ids are always explicit."""
        return self.session.seen

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """Return the tokens seen."""
        return self.session.seen

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Return (keys, offset) of a mask: the prompt itself; a decode step builds none."""
        return self.session.seen + query_length, 0

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """Return -1: no maximum."""
        return -1

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool:
        """Tell whether a layer (by default the last one that keeps states) has read anything."""
        held = self.session.states[max(self.session.states) if layer_idx is None else layer_idx].has_previous_state
        return all(held.values()) if state_idx is None else held[state_idx]

    def is_recording_past(self, layer_idx: int) -> bool:
        """Return False: no step is taken back."""
        return False

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        """Return a layer's convolution state, None before it has read anything."""
        held = self.session.states[layer_idx]
        return held.conv_states[state_idx] if held.has_previous_state[state_idx] else None

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        """Return a layer's recurrent state, None before it has read anything."""
        held = self.session.states[layer_idx]
        return held.recurrent_states[state_idx] if held.has_previous_state[state_idx] else None

    def update_conv_state(self, states: Tensor, layer_idx: int, state_idx: int = 0, **settings: Any) -> Tensor:
        """Write a layer's convolution state, and return it with what it gains."""
        return self.session.states[layer_idx].update_conv_state(states, state_idx, **settings)

    def update_recurrent_state(self, states: Tensor, layer_idx: int, state_idx: int = 0, **settings: Any) -> Tensor:
        """Write a layer's recurrent state and return it."""
        return self.session.states[layer_idx].update_recurrent_state(states, state_idx, **settings)
