"""Utilities and slot tables of rows that are updated alike.

A unit is what owns one keep-set: the whole row (shared), one layer (per_layer), or one KV head of one layer
(per_head). Tensors have the shape [R, UK, UH, C]: rows, unit layers (1 or K), unit heads (1 or Hkv), slots.
Filled slots are always the first `count` of a unit once the newcomer is placed: a slot freed by an eviction is the
next one to be written.

Rows whose prompt was compressed head by head have one unit per head whatever their policy's scope; a shared or
per_layer policy then pools its utilities over them (`pooling`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from inertia.eviction.adaptive import AdaptiveRefresh, total_variation
from inertia.eviction.policy import PER_HEAD, SHARED, Policy
from inertia.eviction.pooling import pooled_gain, pooled_mean
from inertia.eviction.protect import Resolved, protected_mask

if TYPE_CHECKING:
    from inertia.eviction.layer_view import LayerView


# Rounding of batched products in fp32, relative: utilities closer than this may rank otherwise in another batch.
ROUNDING = 1e-4


@dataclass(frozen=True)
class Row:
    """One sequence under one policy.

    Attributes:
        policy: what decides.
        prompt_tokens: L0.
        seed: seed of the example.
        cached: tokens cached when decoding starts, in the fullest unit; less than L0 after a compression.
        context_end: first position of the question, or None.
    """

    policy: Policy
    prompt_tokens: int
    seed: int
    cached: int
    context_end: int | None = None

    def budget(self, step: int) -> int | None:
        """Return how many tokens may stay after decode step `step`, None for all."""
        return self.policy.budget.tokens(self.prompt_tokens, self.prompt_tokens + step)

    def capacity(self, steps: int) -> int:
        """Return the slots needed for `steps` decode steps, newcomer included."""
        longest = self.cached + steps
        budget = self.budget(steps)
        return longest if budget is None else min(budget + 1, longest)

    def protection(self) -> Resolved:
        """Return what is protected, under the budget of step 1 (the smallest).

        Raises:
            ValueError: more slots are protected than the budget has.
        """
        budget = self.budget(1)
        if budget is None:
            return Resolved((), 0, False, 0)
        return self.policy.protect.resolve(self.prompt_tokens, budget, self.context_end)


def unit_shape(scope: str, layers: int, heads: int) -> tuple[int, int]:
    """Return (UK, UH) of a scope."""
    return (1 if scope == SHARED else layers), (heads if scope == PER_HEAD else 1)


def cached_heads(score: Tensor, heads: int) -> Tensor:
    """Return scores [.., H, T] of attention heads as those of the cached ones: means where several read one (MLA)."""
    return score if score.shape[-2] <= heads else score.unflatten(-2, (heads, -1)).mean(-2)


def reduce_heads(score: Tensor, scope: str) -> Tensor:
    """Return per-KV-head scores [R, Hkv, T] as a unit's scores: the mean over KV heads unless the scope is per_head."""
    return score if scope == PER_HEAD else score.mean(dim=1, keepdim=True)


def weights_of(policy: Policy, layers: int, device: torch.device) -> tuple[float, Tensor]:
    """Return lam and the weights [K] (shared) or the scale [1] (other scopes) of a policy."""
    pair = policy.aggregation.linear(layers) if policy.scope == SHARED else policy.aggregation.unit()
    return pair.lam, torch.tensor(pair.weights, device=device)


class KeepSets:
    """Mutable utilities and slot tables of R rows; see the module's docstring for the shapes."""

    def __init__(
        self,
        rows: list[Row],
        kept: list[Tensor],
        utilities: list[Tensor],
        *,
        ragged: bool,
        layers: int,
        heads: int,
        capacity: int,
        steps: int,
    ) -> None:
        """Start from the state after step 1.

        Args:
            rows: rows of equal `session.unit_key`.
            kept: per row the positions that stay, [UK, UH, kept], filled slots first, -1 behind them.
            utilities: per row their utilities, like `kept`.
            ragged: whether the rows have one unit per head whatever their policy's scope.
            layers: eligible layers K.
            heads: KV heads.
            capacity: slots C.
            steps: decode steps in all.
        """
        first = rows[0].policy
        device = utilities[0].device
        self.rows, self.heads = rows, heads
        self.scorer, self.selection = first.scorer, first.selection
        self.scope = PER_HEAD if ragged else first.scope
        # The scope of a policy whose utilities are pooled over the units of its group, or None.
        self.pooled = first.scope if ragged and first.scope != PER_HEAD else None
        self.size = max(row.prompt_tokens for row in rows) + steps + 1
        shape = (len(rows), *unit_shape(self.scope, layers, heads))
        self.utility = torch.zeros(*shape, capacity, device=device)
        self.positions = torch.full((*shape, capacity), -1, device=device)
        for index, (positions, utility) in enumerate(zip(kept, utilities, strict=True)):
            size = positions.shape[-1]
            self.positions[index, ..., :size] = positions
            self.utility[index, ..., :size] = utility.masked_fill(positions < 0, 0.0)
        self.count = (self.positions >= 0).sum(-1)
        self.slot = self.count.clamp(max=capacity - 1)
        # Filled slots of the fullest unit per row, as the host knows them: a step needs no synchronisation.
        self.filled = [int(count.max()) for count in self.count]
        self.uneven = bool((self.count != self.count.amax(dim=(1, 2), keepdim=True)).any())
        pairs = [weights_of(row.policy, layers, device) for row in rows]
        self.lam = torch.tensor([lam for lam, _ in pairs], device=device).view(-1, 1, 1, 1)
        self.weights = torch.stack([weights for _, weights in pairs])
        self.zero_prior = torch.tensor([row.policy.new_token.on_refresh == "zero" for row in rows], device=device)
        self.spare_frozen = torch.tensor([row.policy.new_token.when_frozen == "protect" for row in rows], device=device)
        self.spares = bool(self.spare_frozen.any())
        protection = [row.protection() for row in rows]
        self.guarded = any(each.any() for each in protection)
        self.spare_newest = first.protect.newest
        self.recent = torch.tensor([each.recent for each in protection], device=device).view(-1, 1, 1, 1)
        self.fixed = torch.zeros(len(rows), self.size, dtype=torch.bool, device=device)
        for index, each in enumerate(protection):
            self.fixed[index, list(each.fixed)] = True
        self.scores = torch.zeros(len(rows), layers, shape[2], capacity, device=device)
        self.seeds = torch.tensor([row.seed for row in rows], device=device)
        self.finite = torch.ones((), dtype=torch.bool, device=device)
        self.near_ties = torch.zeros(len(rows), dtype=torch.long, device=device)
        self.adapts = any(isinstance(row.policy.refresh, AdaptiveRefresh) for row in rows)
        self.due: list[bool] = [False] * len(rows)
        watched = [getattr(row.policy.aggregation, "watcher", None) for row in rows]
        self.watchers = [None if make is None else make() for make in watched]
        # Interval and next refresh of rows whose refresh adapts.
        self.pace = [(1, 2)] * len(rows)

    def place(self, newest: Tensor, step: int) -> None:
        """Give each row's newcomer its slot, its position and its prior, before the step's forward.

        Args:
            newest: true positions of the newcomers, [R].
            step: the decode step.
        """
        self.due = [self._is_due(index, step) for index in range(len(self.rows))]
        slot = self.slot.unsqueeze(-1)
        mean = self.utility.sum(-1) / self.count
        if self.pooled is not None:
            mean = pooled_mean(mean, self.pooled)
        due = torch.tensor(self.due, device=mean.device)
        zero = (self.zero_prior & due).view(-1, 1, 1)
        self.utility.scatter_(-1, slot, mean.masked_fill(zero, 0.0).unsqueeze(-1))
        self.positions.scatter_(-1, slot, newest.view(-1, 1, 1, 1).expand_as(slot))
        self.count += 1
        self.filled = [filled + 1 for filled in self.filled]

    def add_scores(self, layer: int, view: LayerView) -> None:
        """Take the scores of one layer; `layer` counts the eligible layers from 0."""
        score = reduce_heads(cached_heads(self.scorer.score(view), self.heads), self.scope)
        self.scores[:, layer, :, : score.shape[-1]] = score

    def advance(self, newest: Tensor, step: int, *, full: bool = False, shared: bool = False) -> None:
        """Update the utilities and evict, after the step's forward.

        Args:
            newest: true positions of the newcomers, [R].
            step: the decode step.
            full: whether no scored slot is empty: all rows and units of the batch hold equally many tokens.
            shared: whether the rows share a batch; near ties are then counted.
        """
        if any(self.due):
            self._refresh(step, full)
        capacity = self.positions.shape[-1]
        budgets = [row.budget(step) for row in self.rows]
        if all(budget is None or filled <= budget for budget, filled in zip(budgets, self.filled, strict=True)):
            self.slot = self.count.clamp(max=capacity - 1)
            return
        for budget, filled in zip(budgets, self.filled, strict=True):
            if budget is not None and filled > budget + 1:
                raise ValueError(
                    f"the budget fell to {budget} tokens while {filled} are cached; one token goes per decode step, so "
                    "a budget may grow but not fall."
                )
        limits = torch.tensor([capacity if budget is None else budget for budget in budgets], device=newest.device)
        evict = self.count > limits.view(-1, 1, 1)
        protected = self._protected(newest)
        victim = self.selection.victim(self.utility, self.positions, protected)
        if shared:
            self.near_ties += near_tie(self.utility, self.positions, protected, victim, evict)
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
            "recent",
            "fixed",
            "scores",
            "seeds",
            "near_ties",
        ):
            setattr(self, name, getattr(self, name)[index])
        for name in ("rows", "filled", "due", "watchers", "pace"):
            setattr(self, name, [getattr(self, name)[row] for row in rows])

    def check(self) -> None:
        """Stop on NaN or infinite utilities.

        Raises:
            FloatingPointError: naming the scorer.
        """
        if not bool(self.finite):
            raise FloatingPointError(not_finite(self.scorer))

    def _is_due(self, index: int, step: int) -> bool:
        """Tell whether a row is scored at this step."""
        policy = self.rows[index].policy
        if not policy.evicts:
            return False
        if isinstance(policy.refresh, AdaptiveRefresh):
            return step >= self.pace[index][1]
        return policy.refresh.due(step)

    def _refresh(self, step: int, full: bool) -> None:
        """Apply (lam, w) to the rows that are due; the others keep their utilities."""
        self._watch(step)
        due = torch.tensor(self.due, device=self.lam.device)
        lam = torch.where(due.view(-1, 1, 1, 1), self.lam, 1.0)
        weights = torch.where(due.view(-1, 1), self.weights, 0.0)
        if self.pooled is not None:
            gain = pooled_gain(self.scores, self.positions, weights, self.pooled, self.size)
        elif self.scope == SHARED:
            gain = torch.bmm(weights.unsqueeze(1), self.scores.squeeze(2)).unsqueeze(2)
        else:
            gain = weights.view(-1, 1, 1, 1) * self.scores
        before = self.utility.clone() if self.adapts else self.utility
        self.utility.mul_(lam).add_(gain)
        if not full:
            self.utility.masked_fill_(self.positions < 0, 0.0)
        self.finite &= self.utility.sum().isfinite()
        for index, row in enumerate(self.rows):
            if self.due[index] and isinstance(row.policy.refresh, AdaptiveRefresh):
                # Slots beyond the filled ones are the batch's, and may not count.
                mine = (index, ..., slice(self.filled[index]))
                change = total_variation(before[mine].flatten(), self.utility[mine].flatten())
                interval = row.policy.refresh.interval(change, self.pace[index][0])
                self.pace[index] = (interval, step + interval)

    def _watch(self, step: int) -> None:
        """Let the rows with an adaptive alpha choose this step's pair."""
        for index, watcher in enumerate(self.watchers):
            if watcher is None or not self.due[index]:
                continue
            filled = self.filled[index]
            pair = watcher.update(
                self.scores[index, :, 0, :filled],
                self.utility[index, 0, 0, :filled],
                self.positions[index, 0, 0, :filled],
                self.rows[index].budget(step),
            )
            self.lam[index] = pair.lam
            self.weights[index] = torch.tensor(pair.weights, device=self.weights.device)

    def _protected(self, newest: Tensor) -> Tensor | None:
        """Return which slots are no candidates now, or None."""
        newest = newest.view(-1, 1, 1, 1)
        protected = None
        if self.guarded:
            protected = protected_mask(self.positions, newest, self.fixed, self.recent, self.spare_newest)
        if self.spares:
            due = torch.tensor(self.due, device=newest.device)
            spared = (self.positions == newest) & (self.spare_frozen & ~due).view(-1, 1, 1, 1)
            protected = spared if protected is None else protected | spared
        return protected

    def _free(self, slot: Tensor, evict: Tensor) -> None:
        """Empty the victims' slots where there is a victim."""
        for table, empty in ((self.utility, 0.0), (self.positions, -1)):
            table.scatter_(-1, slot, table.gather(-1, slot).masked_fill(evict, empty))


def near_tie(utility: Tensor, positions: Tensor, protected: Tensor | None, victim: Tensor, evict: Tensor) -> Tensor:
    """Return per row 1 where another token was within rounding of being the victim, else 0, [R].

    Within rounding means by a relative `ROUNDING`. Utilities of zero are left out: no rounding made them, and a rule
    tells them apart.

    Args:
        utility: [R, UK, UH, C].
        positions: like `utility`, -1 in empty slots.
        protected: bool like `utility`, or None.
        victim: slot that goes, [R, UK, UH].
        evict: whether the unit evicts, like `victim`.
    """
    lowest = utility.gather(-1, victim.unsqueeze(-1))
    close = ((utility - lowest).abs() <= ROUNDING * lowest.abs()) & (lowest != 0) & (positions >= 0)
    close.scatter_(-1, victim.unsqueeze(-1), False)
    if protected is not None:
        close &= ~protected
    return (close.any(-1) & evict).flatten(1).any(-1).long()


def not_finite(scorer: object) -> str:
    """Return what to say of a scorer with NaN or infinite scores."""
    return (
        f"scorer {type(scorer).__name__} gave NaN or infinite scores; nothing can be ranked by them. "
        "Check the model's weights and dtype, or the scorer."
    )
