"""The cached tokens of one sequence before its first cut."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from inertia.eviction.cache import SlidingWindow, Slots, joined_states, state_bytes
from inertia.eviction.layers import Layers
from inertia.eviction.policy import PER_HEAD, SHARED


@dataclass
class Prompt:
    """One sequence in slots: plain (slot i of every head holds token i) or compressed (each head holds its own).

    Attributes:
        layers: slots or window, one row, of each layer that caches tokens.
        length: tokens seen, which is the next true position.
        positions: compressed only: true positions, [K, Hkv, C], filled slots first, -1 behind them.
        heads: KV heads.
        depth: eligible layers K.
        states: of the layers that keep one, one row.
    """

    layers: dict[int, Slots | SlidingWindow]
    length: int
    heads: int
    depth: int
    positions: Tensor | None = None
    states: Mapping[int, Any] = field(default_factory=dict)

    @property
    def ragged(self) -> bool:
        """Tell whether heads hold tokens of their own."""
        return self.positions is not None

    @property
    def device(self) -> torch.device:
        """Where the first layer lies."""
        return next(iter(self.layers.values())).keys.device

    def row_bytes(self, capacity: int | None = None) -> int:
        """Return the bytes of all layers, states included, with `capacity` slots where a policy cuts, or as it is."""
        tokens = sum(layer.row_bytes(capacity) for layer in self.layers.values())
        return tokens + sum(state_bytes(state) for state in self.states.values())

    def branch(self) -> Prompt:
        """Return the prompt to be continued by another token: what that overwrites for good is copied.

        Slots are shared: the newcomer's is the same one in every branch, so one branch at a time may go on, and only
        until what it keeps is taken out.
        """
        return replace(
            self,
            layers={
                number: layer.joined() if isinstance(layer, SlidingWindow) else layer
                for number, layer in self.layers.items()
            },
            states={number: joined_states([state]) for number, state in self.states.items()},
            positions=None if self.positions is None else self.positions.clone(),
        )

    def counts(self) -> Tensor:
        """Return the filled slots per head, [K, Hkv]."""
        if self.positions is None:
            return torch.full((self.depth, self.heads), self.length, device=self.device)
        return (self.positions >= 0).sum(-1)

    def longest(self) -> int:
        """Return the filled slots of the fullest head."""
        return self.length if self.positions is None else int(self.counts().max())

    def unit_positions(self, scope: str) -> Tensor:
        """Return the true positions of a scope's units, [UK, UH, n]; one unit per head where heads differ."""
        if self.positions is not None:
            return self.positions[..., : self.longest()]
        units = (1 if scope == SHARED else self.depth), (self.heads if scope == PER_HEAD else 1)
        return torch.arange(self.length, device=self.device).expand(*units, -1)


def compressed(
    plain: Prompt, windows: Mapping[int, Any], layers: Layers, keep: list[Tensor], room: int, removes: bool
) -> Prompt:
    """Return what a compressor keeps of a plain prompt, in slots of its own.

    Args:
        plain: the prompt; it is not changed.
        windows: the sliding windows by layer, which are copied: as they stood after the compressed part.
        layers: the model's layer kinds.
        keep: per eligible layer what stays, bool [Hkv, T], T tokens being compressed.
        room: slots for tokens that come later.
        removes: False: the slots of what does not stay are kept allocated (and stay empty).
    """
    part = keep[0].shape[1]
    counts = torch.stack([mask.sum(-1) for mask in keep])
    widest = (part if not removes else int(counts.max())) + room
    positions = torch.full((*counts.shape, widest), -1, device=plain.device)
    made: dict[int, Slots | SlidingWindow] = {}
    eligible = {layer: index for index, layer in enumerate(layers.eligible)}
    for number, layer in plain.layers.items():
        if number not in eligible:
            made[number] = windows[number].joined()
            continue
        index = eligible[number]
        most = int(counts[index].max())
        # A stable sort of "goes" puts what stays first, in order of position.
        slots = (~keep[index]).long().sort(dim=-1, stable=True).indices[:, :most]
        filled = torch.arange(most, device=plain.device) < counts[index][:, None]
        positions[index, :, :most] = slots.masked_fill(~filled, -1)
        made[number] = layer.taken(slots, (part if not removes else most) + room)
    states = {number: joined_states([state]) for number, state in plain.states.items()}
    return Prompt(made, part, plain.heads, plain.depth, positions, states)
