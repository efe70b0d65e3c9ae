"""Sessions: all state of the sequences that decode together, from the prompt's cache to the last step.

Decode step 1 runs once per prompt, over the whole prompt (`FirstStep`); then each policy cuts, and its row goes on in
a batch of fixed slots (`DecodeBatch`). A session is made for one example and thrown away.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from inertia.eviction.attention import slot_attention
from inertia.eviction.cache import PromptCache, Ring, Slots
from inertia.eviction.layers import Layers
from inertia.eviction.policy import PER_HEAD, Policy
from inertia.eviction.units import Row, Units, first_cut, first_utility, reduce_heads
from inertia.eviction.view import LayerView, Scorer


class FirstStep:
    """Decode step 1: one token over the full cache, scored for every policy at once."""

    def __init__(self, layers: Layers, prompt: PromptCache, scorers: list[Scorer], seed: int) -> None:
        """Take over the prompt's cache.

        Args:
            layers: the model's layers.
            prompt: the prefilled cache, with room for the newcomer.
            scorers: the distinct scorers of the policies that evict.
            seed: seed of the example.
        """
        self.prompt = prompt
        self.seen = prompt.length
        self.eligible = {layer: index for index, layer in enumerate(layers.eligible)}
        self.scores: dict[Scorer, list[Tensor]] = {scorer: [] for scorer in scorers}
        self.seeds = torch.tensor([seed], device=prompt.layers[0].keys.device)

    def write(self, layer_idx: int, keys: Tensor, values: Tensor) -> None:
        """Append the newcomer, [1, Hkv, 1, D]."""
        layer = self.prompt.layers[layer_idx]
        slot = self.seen % layer.window if isinstance(layer, Ring) else self.seen
        layer.keys[:, :, slot] = keys[:, :, 0]
        layer.values[:, :, slot] = values[:, :, 0]

    def attend(
        self,
        layer_idx: int,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        scaling: float,
        softcap: float | None,
    ) -> Tensor:
        """Attend to the prompt and the newcomer, score if eligible, and return the output [1, 1, Hq, D]."""
        layer = self.prompt.layers[layer_idx]
        filled = min(self.seen + 1, layer.keys.shape[2])
        cached_keys, cached_values = layer.keys[:, :, :filled], layer.values[:, :, :filled]
        output, weights = slot_attention(query, cached_keys, cached_values, scaling, softcap=softcap)
        if layer_idx in self.eligible:
            positions = torch.arange(filled, device=query.device).view(1, 1, -1)
            view = LayerView(
                weights=weights,
                query=query.view(1, keys.shape[1], -1, query.shape[-1]),
                keys=cached_keys,
                values=cached_values,
                positions=positions,
                valid=None,
                layer=self.eligible[layer_idx],
                seeds=self.seeds,
            )
            for scorer, scores in self.scores.items():
                scores.append(scorer.score(view)[0])
        return output

    def utility(self, policy: Policy) -> Tensor:
        """Return the policy's utilities after step 1, [UK, UH, L0 + 1].

        Raises:
            FloatingPointError: the scores hold NaN or infinities.
        """
        reduced = [reduce_heads(score.unsqueeze(0), policy.scope)[0] for score in self.scores[policy.scorer]]
        scores = torch.stack(reduced)
        if policy.scope == PER_HEAD:
            # Scorers on which all KV heads agree give one head; each still is a unit of its own.
            scores = scores.expand(-1, self.prompt.layers[0].keys.shape[1], -1)
        utility = first_utility(policy, scores)
        if not bool(torch.isfinite(utility).all()):
            raise FloatingPointError(
                f"scorer {type(policy.scorer).__name__} gave NaN or infinite scores at the first decode step; nothing "
                "can be ranked by them. Check the model's weights and dtype, or the scorer."
            )
        return utility


@dataclass(frozen=True)
class Cut:
    """A row after its first cut.

    Attributes:
        row: the sequence and its policy.
        kept: positions that stay, [UK, UH, kept], ascending.
        utility: utilities of step 1, [UK, UH, L0 + 1].
    """

    row: Row
    kept: Tensor
    utility: Tensor


def cut(step: FirstStep, row: Row) -> Cut:
    """Decide what of the prompt a row keeps; the newcomer of step 1 is a candidate like any other."""
    if row.policy.evicts:
        utility = step.utility(row.policy)
    else:
        utility = torch.zeros(1, 1, step.seen + 1, device=step.seeds.device)
    return Cut(row, first_cut(row, utility, row.budget(1)), utility)


def unit_key(policy: Policy) -> str:
    """Return what rows must share to have their utilities in one `Units`."""
    return repr((policy.scope, policy.scorer, policy.selection, policy.protect))


def carry_over(layer: Slots | Ring, index: int | None, cuts: list[Cut], capacity: int) -> Slots | Ring:
    """Return one layer of the batch: what each row keeps of the prompt's layer, in fresh slots.

    Args:
        layer: the prompt's layer, one row.
        index: which eligible layer it is, None for a sliding one (which every row keeps whole).
        cuts: the batch's rows.
        capacity: slots per row.
    """
    if index is None:
        ring = Ring(len(cuts), layer.window, layer.keys)
        ring.keys[:] = layer.keys
        ring.values[:] = layer.values
        return ring
    slots = Slots(len(cuts), capacity, layer.keys)
    heads = torch.arange(layer.keys.shape[1], device=layer.keys.device)[:, None]
    for row, item in enumerate(cuts):
        kept = item.kept[index if item.kept.shape[0] > 1 else 0]
        slots.keys[row, :, : kept.shape[-1]] = layer.keys[0, heads, kept]
        slots.values[row, :, : kept.shape[-1]] = layer.values[0, heads, kept]
    return slots


class DecodeBatch:
    """Rows that decode together after their first cut: slots, utilities and victims."""

    def __init__(
        self, layers: Layers, prompt: PromptCache, cuts: list[Cut], steps: int, *, adopt: bool = False
    ) -> None:
        """Copy what the rows keep out of the prompt's cache.

        Args:
            layers: the model's layers.
            prompt: the prompt's cache after step 1.
            cuts: the rows, those of equal `unit_key` next to each other.
            steps: decode steps in all, step 1 included.
            adopt: take the prompt's tensors over instead of copying them; for a single row that keeps everything.
        """
        self.eligible = {layer: index for index, layer in enumerate(layers.eligible)}
        self.capacity = max(item.row.capacity(steps) for item in cuts)
        if adopt:
            self.layers = list(prompt.layers)
        else:
            self.layers = [
                carry_over(layer, self.eligible.get(index), cuts, self.capacity)
                for index, layer in enumerate(prompt.layers)
            ]
        sample = self.layers[layers.eligible[0]]
        self.capacity = sample.keys.shape[2]
        self.heads = sample.keys.shape[1]
        self.device = sample.keys.device
        self.seen = prompt.length + 1
        self.newest = torch.full((len(cuts),), prompt.length, device=self.device)
        self.rows = [item.row for item in cuts]
        self.units: list[Units] = []
        for _, members in groupby(cuts, key=lambda item: unit_key(item.row.policy)):
            group = list(members)
            self.units.append(
                Units(
                    [item.row for item in group],
                    [item.kept for item in group],
                    [item.utility for item in group],
                    len(self.eligible),
                    self.heads,
                    self.capacity,
                )
            )

    def place(self, step: int) -> None:
        """Prepare decode step `step` (2, 3, ..): give every newcomer its slot and prior."""
        self.newest += 1
        for units, rows in self._spans():
            units.place(self.newest[rows], step)
        self.scoring = any(any(units.due) for units in self.units)
        # Slots as written this step and filled slots, [K or 1, R, Hkv or 1]; the newcomer's slot was not moved yet.
        self.slots = self._joined([units.slot for units in self.units])
        fills = [fill for units in self.units for fill in units.filled]
        self.longest = max(fills)
        self.mask: Tensor | None = None
        counts = self._joined([units.count for units in self.units])
        if min(fills) != self.longest or self._ragged():
            self.mask = torch.arange(self.longest, device=self.device) < counts.unsqueeze(-1)

    def write(self, layer_idx: int, keys: Tensor, values: Tensor) -> None:
        """Write the newcomers of one layer, [R, Hkv, 1, D], over free slots."""
        layer = self.layers[layer_idx]
        if isinstance(layer, Ring):
            layer.slots.write(keys, values, (self.newest % layer.window)[:, None])
        else:
            layer.write(keys, values, self._of_layer(self.slots, self.eligible[layer_idx]))

    def attend(
        self,
        layer_idx: int,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        scaling: float,
        softcap: float | None,
    ) -> Tensor:
        """Attend to the filled slots, score the rows that are due, and return the output [R, 1, Hq, D]."""
        layer = self.layers[layer_idx]
        if isinstance(layer, Ring):
            filled = (self.newest + 1).clamp(max=layer.window)
            mask = torch.arange(layer.window, device=self.device) < filled[:, None, None]
            return slot_attention(query, layer.keys, layer.values, scaling, mask, softcap)[0]
        index = self.eligible[layer_idx]
        cached_keys, cached_values = layer.keys[:, :, : self.longest], layer.values[:, :, : self.longest]
        mask = None if self.mask is None else self._of_layer(self.mask, index)
        output, weights = slot_attention(query, cached_keys, cached_values, scaling, mask, softcap)
        if self.scoring:
            grouped = query.view(query.shape[0], self.heads, -1, query.shape[-1])
            for units, rows in self._spans():
                if any(units.due):
                    positions = self._of_unit(units.positions, index)[..., : self.longest]
                    view = LayerView(
                        weights=weights[rows],
                        query=grouped[rows],
                        keys=cached_keys[rows],
                        values=cached_values[rows],
                        positions=positions,
                        valid=None if mask is None else positions >= 0,
                        layer=index,
                        seeds=units.seeds,
                    )
                    units.absorb(index, view)
        return output

    def advance(self, step: int) -> None:
        """Finish decode step `step`: update utilities, choose victims."""
        for units, rows in self._spans():
            units.advance(self.newest[rows], step)
        self.seen += 1

    def select(self, rows: list[int]) -> None:
        """Keep only the rows with the given indices, in ascending order."""
        remaining = []
        for units, span in self._spans():
            mine = [row - span.start for row in rows if span.start <= row < span.stop]
            if mine:
                units.select(mine)
                remaining.append(units)
        self.units = remaining
        index = torch.tensor(rows, device=self.device)
        for layer in self.layers:
            layer.select(index)
        self.newest = self.newest[index]
        self.rows = [self.rows[row] for row in rows]

    def kept(self, row: int) -> Tensor:
        """Return the positions cached in a row, [UK, UH, C], -1 where a slot is free."""
        for units, span in self._spans():
            if span.start <= row < span.stop:
                return units.kept(row - span.start)
        raise IndexError(f"row {row} is not in this batch of {len(self.rows)} rows.")

    def filled(self, row: int) -> int:
        """Return how many slots of a row are filled, in its fullest unit."""
        return [filled for units in self.units for filled in units.filled][row]

    def check(self) -> None:
        """Stop on NaN or infinite utilities."""
        for units in self.units:
            units.check()

    def _spans(self) -> list[tuple[Units, slice]]:
        """Return each `Units` with the batch rows that it owns."""
        spans, start = [], 0
        for units in self.units:
            spans.append((units, slice(start, start + len(units.rows))))
            start += len(units.rows)
        return spans

    def _ragged(self) -> bool:
        """Tell whether units of one row may hold different numbers of tokens."""
        return False

    def _joined(self, tables: list[Tensor]) -> Tensor:
        """Return per-unit tables [R_i, UK_i, UH_i] as one [K or 1, R, Hkv or 1]."""
        layers = max(table.shape[1] for table in tables)
        heads = max(table.shape[2] for table in tables)
        return torch.cat([table.expand(-1, layers, heads) for table in tables]).transpose(0, 1)

    @staticmethod
    def _of_layer(table: Tensor, index: int) -> Tensor:
        """Return the part of a [K or 1, ..] table that belongs to an eligible layer."""
        return table[index if table.shape[0] > 1 else 0]

    @staticmethod
    def _of_unit(table: Tensor, index: int) -> Tensor:
        """Return the part of a [R, UK, ..] table that belongs to an eligible layer."""
        return table[:, index if table.shape[1] > 1 else 0]
