"""The first cut: what of the prompt, and of the first decoded token, a row keeps after decode step 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from inertia.eviction.cache import SlidingWindow, Slots, joined_states, state_bytes
from inertia.eviction.keep_sets import Row, not_finite, reduce_heads, weights_of
from inertia.eviction.policy import PER_HEAD, SHARED, Policy
from inertia.eviction.pooling import pooled_gain
from inertia.eviction.prompt import Prompt
from inertia.eviction.protect import protected_mask


@dataclass(frozen=True)
class Cut:
    """A row after its first cut, in tensors of its own: the prompt that it is cut out of may go.

    Attributes:
        row: the sequence and its policy.
        length: tokens seen, which is the next true position.
        layers: slots (of the row's capacity, what stays in the first ones) or window of each layer that caches tokens.
        states: of the layers that keep one.
        heads: KV heads.
        depth: eligible layers K.
        ragged: whether units are heads whatever the policy's scope, after a compression of the prompt.
        positions: true positions of what stays, [UK, UH, kept]; -1 behind them where a unit holds fewer than another.
        utility: their utilities.
    """

    row: Row
    length: int
    layers: dict[int, Slots | SlidingWindow]
    states: dict[int, Any]
    heads: int
    depth: int
    ragged: bool
    positions: Tensor
    utility: Tensor

    @property
    def scope(self) -> str:
        """Scope of the row's units: heads where the prompt was compressed, shared where nothing is evicted."""
        if self.ragged:
            return PER_HEAD
        return self.row.policy.scope if self.row.policy.evicts else SHARED

    @property
    def row_bytes(self) -> int:
        """Bytes of the keys and values of all layers, and of their states."""
        tokens = sum(layer.row_bytes() for layer in self.layers.values())
        return tokens + sum(state_bytes(state) for state in self.states.values())

    @property
    def decode_bytes(self) -> int:
        """Bytes that the row takes while it decodes: slots of all layers, utilities, positions and scores."""
        units = self.positions.shape[0] * self.positions.shape[1]
        tables = units * (4 + 8) + self.depth * self.positions.shape[1] * 4
        capacity = max(layer.keys.shape[2] for layer in self.layers.values())
        return self.row_bytes + tables * capacity


def first_cut(
    row: Row, prompt: Prompt, scores: list[Tensor] | None, start: list[Tensor] | None, steps: int, *, adopt: bool = True
) -> Cut:
    """Decide what a row keeps, and copy it; the newcomer of step 1 is a candidate like any other.

    A row that keeps all of a plain prompt takes the prompt's own tensors over where it may adopt: one row at most.

    Args:
        row: the sequence and its policy.
        prompt: the cache after step 1.
        scores: of step 1, per eligible layer [Hkv or 1, n]; None for a policy that keeps everything.
        start: initial utilities of the prompt's tokens, per eligible layer [Hkv, L0], or None for zero.
        steps: decode steps in all, step 1 included.
        adopt: whether the prompt's own tensors may be taken over.

    Raises:
        FloatingPointError: the scores hold NaN or infinities.
    """
    positions = prompt.unit_positions(row.policy.scope if row.policy.evicts else SHARED)
    slots = torch.arange(positions.shape[-1], device=positions.device).expand_as(positions)
    utility = torch.zeros(positions.shape, device=positions.device)
    if scores is not None:
        utility, slots = ranked_cut(row, prompt, positions, slots, scores, start)
    adopts = adopt and scores is None and not prompt.ragged
    return Cut(
        row,
        prompt.length,
        dict(prompt.layers) if adopts else carried_over(prompt, slots, row.capacity(steps)),
        {number: state if adopts else joined_states([state]) for number, state in prompt.states.items()},
        prompt.heads,
        prompt.depth,
        prompt.ragged,
        positions.gather(-1, slots),
        utility.gather(-1, slots),
    )


def ranked_cut(
    row: Row, prompt: Prompt, positions: Tensor, everything: Tensor, scores: list[Tensor], start: list[Tensor] | None
) -> tuple[Tensor, Tensor]:
    """Return the utilities of all slots, [UK, UH, n], and the slots that stay under a budget, [UK, UH, kept]."""
    by_layer = torch.stack(scores)
    utility = first_utility(row, by_layer, positions, prompt.ragged)
    if start is not None:
        utility = utility + started(row.policy, start, positions)
    if not bool(torch.isfinite(utility).all()):
        raise FloatingPointError(not_finite(row.policy.scorer))
    budget = row.budget(1)
    if positions.shape[-1] <= budget:
        return utility, everything
    protected = first_protection(row, positions, by_layer, prompt.length - 1, prompt.ragged)
    ranked = utility.masked_fill(positions < 0, float("-inf"))
    return utility, row.policy.selection.keep(ranked, positions, protected, budget)


def carried_over(prompt: Prompt, slots: Tensor, capacity: int) -> dict[int, Slots | SlidingWindow]:
    """Return what stays of each layer of a prompt, [UK, UH, kept] in eligible ones, in fresh blocks of `capacity`."""
    made: dict[int, Slots | SlidingWindow] = {}
    eligible = 0
    for number, layer in prompt.layers.items():
        if isinstance(layer, SlidingWindow):
            made[number] = layer.joined()
            continue
        size = layer.keys.shape[2]
        # A compressed prompt's layers differ in size; what is cut off here is empty in this layer.
        stays = slots[eligible if slots.shape[0] > 1 else 0][:, :size].clamp(max=size - 1)
        made[number] = layer.taken(stays, capacity)
        eligible += 1
    return made


def first_utility(row: Row, scores: Tensor, positions: Tensor, ragged: bool) -> Tensor:
    """Return the utilities after step 1 from m_0 = 0, like `positions`.

    Args:
        row: the sequence and its policy.
        scores: of step 1, [K, Hkv or 1, n].
        positions: of the units, [UK, UH, n].
        ragged: whether units are heads whatever the policy's scope.
    """
    policy = row.policy
    _, weights = weights_of(policy, scores.shape[0], scores.device)
    if ragged and policy.scope != PER_HEAD:
        size = row.prompt_tokens + 1
        every_head = scores.expand(positions.shape)
        return pooled_gain(every_head[None], positions[None], weights[None], policy.scope, size)[0]
    reduced = reduce_heads(scores, policy.scope)
    if policy.scope == SHARED:
        return (weights @ reduced.flatten(1)).view(positions.shape)
    return (weights * reduced).expand(positions.shape)


def started(policy: Policy, start: list[Tensor], positions: Tensor) -> Tensor:
    """Return lam * m_0 at each unit's tokens, like `positions`; the newcomer starts at zero."""
    initial = torch.nn.functional.pad(reduce_heads(torch.stack(start), policy.scope), (0, 1))
    by_unit = initial.expand(positions.shape[0], positions.shape[1], -1)
    return policy.aggregation.unit().lam * by_unit.gather(-1, positions.clamp(min=0))


def first_protection(row: Row, positions: Tensor, scores: Tensor, newest: int, ragged: bool) -> Tensor | None:
    """Return which slots the first cut must keep, like `positions`, or None.

    Args:
        row: the sequence and its policy.
        positions: of the units, [UK, UH, n].
        scores: of step 1, [K, Hkv or 1, n].
        newest: position of the newcomer.
        ragged: whether units are heads whatever the policy's scope.
    """
    guard = row.protection()
    protected = None
    if guard.any():
        fixed = torch.zeros(1, newest + 1, dtype=torch.bool, device=positions.device)
        fixed[0, list(guard.fixed)] = True
        one = torch.ones(1, 1, 1, 1, dtype=torch.long, device=positions.device)
        protected = protected_mask(positions[None], one * newest, fixed, one * guard.recent, guard.newest)[0]
    if guard.rescue:
        best = best_layer(row.policy.scope, scores, positions, ragged, newest + 1)
        best = best.masked_fill(positions < 0, float("-inf"))
        if protected is not None:
            best = best.masked_fill(protected, float("-inf"))
        rescued = torch.zeros(positions.shape, dtype=torch.bool, device=positions.device)
        # Ties go to the smaller slot, as everywhere.
        order = best.sort(dim=-1, descending=True, stable=True).indices[..., : guard.rescue]
        rescued.scatter_(-1, order, True)
        protected = rescued if protected is None else protected | rescued
    return protected


def best_layer(scope: str, scores: Tensor, positions: Tensor, ragged: bool, size: int) -> Tensor:
    """Return each token's best score in any single layer of its unit's group, like `positions`.

    Args:
        scope: of the policy.
        scores: of step 1, [K, Hkv or 1, n].
        positions: of the units, [UK, UH, n], all below `size`.
        ragged: whether units are heads whatever the policy's scope; a head without a token then adds nothing to it.
        size: bound of the positions.
    """
    if not ragged or scope == PER_HEAD:
        reduced = reduce_heads(scores, scope)
        return (reduced.amax(dim=0, keepdim=True) if scope == SHARED else reduced).expand(positions.shape)
    every_head = scores.expand(positions.shape)
    index = positions.clamp(min=0).flatten(1)
    parts = (every_head / positions.shape[1]).masked_fill(positions < 0, 0.0).flatten(1)
    dense = torch.zeros(positions.shape[0], size, device=scores.device).scatter_add_(1, index, parts)
    if scope == SHARED:
        dense = dense.amax(dim=0, keepdim=True).expand_as(dense)
    return dense.gather(1, index).view(positions.shape)
