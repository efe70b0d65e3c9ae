"""Utilities and slot tables of rows that share scope, scorer, selection and protection.

A unit is what owns one keep-set: the whole row (shared), one layer (per_layer), or one KV head of one layer
(per_head). Tensors have the shape [R, UK, UH, C]: rows, unit layers (1 or K), unit heads (1 or Hkv), slots.
Filled slots are always the first `count` of a unit once the newcomer is placed: a slot freed by an eviction is the
next one to be written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from inertia.eviction.policy import PER_HEAD, SHARED, Policy

if TYPE_CHECKING:
    from inertia.eviction.view import LayerView


@dataclass(frozen=True)
class Row:
    """One sequence under one policy, and where it stands.

    Attributes:
        policy: what decides.
        prompt_tokens: L0.
        seed: seed of the example.
    """

    policy: Policy
    prompt_tokens: int
    seed: int

    def budget(self, step: int) -> int | None:
        """Return how many tokens may stay after decode step `step`, None for all."""
        return self.policy.budget.tokens(self.prompt_tokens, self.prompt_tokens + step)

    def capacity(self, steps: int) -> int:
        """Return the slots needed for `steps` decode steps, newcomer included."""
        longest = self.prompt_tokens + steps
        budget = self.budget(steps)
        return longest if budget is None else min(budget + 1, longest)


def unit_shape(scope: str, layers: int, heads: int) -> tuple[int, int]:
    """Return (UK, UH) of a scope."""
    return (1 if scope == SHARED else layers), (heads if scope == PER_HEAD else 1)


def reduce_heads(score: Tensor, scope: str) -> Tensor:
    """Return per-KV-head scores [R, Hkv, T] as a unit's scores: the mean over KV heads unless the scope is per_head."""
    return score if scope == PER_HEAD else score.mean(dim=1, keepdim=True)


def first_utility(policy: Policy, scores: Tensor) -> Tensor:
    """Return the utilities after step 1, from m_0 = 0.

    Args:
        policy: whose aggregation counts.
        scores: [K, UH, T] scores of step 1, heads already reduced.

    Returns:
        [UK, UH, T] fp32.
    """
    if policy.scope == SHARED:
        weights = torch.tensor(policy.aggregation.linear(scores.shape[0]).weights, device=scores.device)
        return (weights @ scores.flatten(1)).view(1, *scores.shape[1:])
    return policy.aggregation.unit().weights[0] * scores


def first_cut(row: Row, utility: Tensor, budget: int | None) -> Tensor:
    """Return the positions that stay after step 1, [UK, UH, kept], ascending.

    Raises:
        ValueError: the policy protects more slots than its budget has.
    """
    tokens = utility.shape[-1]
    positions = torch.arange(tokens, device=utility.device).expand_as(utility)
    if budget is None or tokens <= budget:
        return positions
    row.policy.check_protected(budget)
    protect = row.policy.protect
    protected = protect.mask(positions, tokens - 1) if protect.any() else None
    return row.policy.selection.keep(utility, positions, protected, budget)


class Units:
    """Mutable utilities and slot tables of R rows; see the module's docstring for the shapes."""

    def __init__(
        self,
        rows: list[Row],
        kept: list[Tensor],
        utilities: list[Tensor],
        layers: int,
        heads: int,
        capacity: int,
    ) -> None:
        """Start from the state after step 1.

        Args:
            rows: rows of equal scope, scorer, selection and protection.
            kept: per row the positions that stay, [UK, UH, kept].
            utilities: per row the utilities of step 1, [UK, UH, T].
            layers: eligible layers K.
            heads: KV heads.
            capacity: slots C.
        """
        first = rows[0].policy
        device = utilities[0].device
        self.rows = rows
        self.scorer, self.scope = first.scorer, first.scope
        self.selection, self.protect = first.selection, first.protect
        shape = (len(rows), *unit_shape(self.scope, layers, heads))
        self.utility = torch.zeros(*shape, capacity, device=device)
        self.positions = torch.full((*shape, capacity), -1, device=device)
        self.count = torch.zeros(shape, dtype=torch.long, device=device)
        for index, (positions, utility) in enumerate(zip(kept, utilities, strict=True)):
            size = positions.shape[-1]
            self.positions[index, ..., :size] = positions
            self.utility[index, ..., :size] = utility.gather(-1, positions)
            self.count[index] = size
        self.slot = self.count.clone()
        # Filled slots per row as the host knows them, so that a step needs no synchronisation.
        self.filled = [positions.shape[-1] for positions in kept]
        linear = [
            row.policy.aggregation.linear(layers) if self.scope == SHARED else row.policy.aggregation.unit()
            for row in rows
        ]
        self.lam = torch.tensor([pair.lam for pair in linear], device=device).view(-1, 1, 1, 1)
        self.weights = torch.tensor([pair.weights for pair in linear], device=device)
        self.zero_prior = torch.tensor([row.policy.new_token.on_refresh == "zero" for row in rows], device=device)
        self.spare_frozen = torch.tensor([row.policy.new_token.when_frozen == "protect" for row in rows], device=device)
        self.spares = bool(self.spare_frozen.any())
        score_shape = (len(rows), layers, shape[2], capacity)
        self.scores = torch.zeros(score_shape, device=device)
        self.seeds = torch.tensor([row.seed for row in rows], device=device)
        self.due: list[bool] = [False] * len(rows)
        self.finite = torch.ones((), dtype=torch.bool, device=device)

    def place(self, newest: Tensor, step: int) -> None:
        """Give each row's newcomer its slot, its position and its prior, before the step's forward.

        Args:
            newest: true positions of the newcomers, [R].
            step: the decode step.
        """
        self.due = [row.policy.evicts and row.policy.refresh.due(step) for row in self.rows]
        slot = self.slot.unsqueeze(-1)
        mean = self.utility.sum(-1) / self.count
        due = torch.tensor(self.due, device=mean.device)
        zero = (self.zero_prior & due).view(-1, 1, 1)
        self.utility.scatter_(-1, slot, mean.masked_fill(zero, 0.0).unsqueeze(-1))
        self.positions.scatter_(-1, slot, newest.view(-1, 1, 1, 1).expand_as(slot))
        self.count += 1
        self.filled = [filled + 1 for filled in self.filled]

    def absorb(self, layer: int, view: LayerView) -> None:
        """Take the scores of one layer; `layer` counts the eligible layers from 0."""
        score = reduce_heads(self.scorer.score(view), self.scope)
        self.scores[:, layer, :, : score.shape[-1]] = score

    def advance(self, newest: Tensor, step: int) -> None:
        """Update the utilities and evict, after the step's forward.

        Args:
            newest: true positions of the newcomers, [R].
            step: the decode step.
        """
        if any(self.due):
            self._refresh()
        budgets = [row.budget(step) for row in self.rows]
        if all(budget is None or filled <= budget for budget, filled in zip(budgets, self.filled, strict=True)):
            self.slot = self.count.clamp(max=self.positions.shape[-1] - 1)
            return
        capacity = self.positions.shape[-1]
        limits = torch.tensor([capacity if budget is None else budget for budget in budgets], device=newest.device)
        evict = self.count > limits.view(-1, 1, 1)
        victim = self.selection.victim(self.utility, self.positions, self._protected(newest))
        self.slot = torch.where(evict, victim, self.count.clamp(max=capacity - 1))
        self._free(self.slot.unsqueeze(-1), evict.unsqueeze(-1))
        self.count -= evict.long()
        self.filled = [
            filled if budget is None else min(filled, budget)
            for budget, filled in zip(budgets, self.filled, strict=True)
        ]

    def kept(self, index: int) -> Tensor:
        """Return the positions cached in one row, [UK, UH, C]; -1 in free slots."""
        return self.positions[index]

    def select(self, rows: list[int]) -> None:
        """Keep only the rows with the given indices."""
        index = torch.tensor(rows, device=self.lam.device)
        for name in (
            "utility",
            "positions",
            "count",
            "slot",
            "lam",
            "weights",
            "zero_prior",
            "spare_frozen",
            "scores",
            "seeds",
        ):
            setattr(self, name, getattr(self, name)[index])
        self.rows = [self.rows[row] for row in rows]
        self.filled = [self.filled[row] for row in rows]
        self.due = [self.due[row] for row in rows]

    def check(self) -> None:
        """Stop on NaN or infinite utilities.

        Raises:
            FloatingPointError: naming the scorer.
        """
        if not bool(self.finite):
            raise FloatingPointError(
                f"scorer {type(self.scorer).__name__} gave NaN or infinite scores; nothing can be ranked by them. "
                "Check the model's weights and dtype, or the scorer."
            )

    def _refresh(self) -> None:
        """Apply (lam, w) to the rows that are due; the others keep their utilities."""
        due = torch.tensor(self.due, device=self.lam.device)
        lam = torch.where(due.view(-1, 1, 1, 1), self.lam, 1.0)
        weights = torch.where(due.view(-1, 1), self.weights, 0.0)
        if self.scope == SHARED:
            gain = torch.bmm(weights.unsqueeze(1), self.scores.squeeze(2)).unsqueeze(2)
        else:
            gain = weights.view(-1, 1, 1, 1) * self.scores
        self.utility = (self.utility * lam + gain).masked_fill_(self.positions < 0, 0.0)
        self.finite &= self.utility.sum().isfinite()

    def _protected(self, newest: Tensor) -> Tensor | None:
        """Return which slots are no candidates now, or None."""
        newest = newest.view(-1, 1, 1, 1)
        protected = self.protect.mask(self.positions, newest) if self.protect.any() else None
        if self.spares:
            due = torch.tensor(self.due, device=newest.device)
            spared = (self.positions == newest) & (self.spare_frozen & ~due).view(-1, 1, 1, 1)
            protected = spared if protected is None else protected | spared
        return protected

    def _free(self, slot: Tensor, evict: Tensor) -> None:
        """Empty the victims' slots where there is a victim."""
        for table, empty in ((self.utility, 0.0), (self.positions, -1)):
            table.scatter_(-1, slot, table.gather(-1, slot).masked_fill(evict, empty))
