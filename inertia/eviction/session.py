"""Decoding sessions: all state of the sequences that decode together, from step 1 to the last step.

Decode step 1 runs once per prompt, over all that the prompt left (`FirstStep`); then each policy cuts, and its row
goes on in a batch of fixed slots (`DecodeBatch`). A session is made for one example and thrown away.
"""

from __future__ import annotations

from itertools import groupby

import torch
from torch import Tensor

from inertia.eviction.attention import Attention, Logits, slot_attention, slot_bias
from inertia.eviction.cache import joined_states, selected_states
from inertia.eviction.cut import Cut
from inertia.eviction.keep_sets import KeepSets, cached_heads
from inertia.eviction.layer_view import LayerView, Scorer
from inertia.eviction.layers import Layers
from inertia.eviction.policy import Policy
from inertia.eviction.prompt import Prompt


class FirstStep:
    """Decode step 1: one token over everything that the prompt left, scored for every policy at once.

    The prompt is changed in place: it gains the newcomer.
    """

    def __init__(
        self,
        layers: Layers,
        prompt: Prompt,
        scorers: list[Scorer],
        seed: int,
        attention: Attention = slot_attention,
    ) -> None:
        """Place the newcomer.

        Args:
            layers: the model's layers.
            prompt: the prompt, with room for one more token.
            scorers: the distinct scorers of the policies that evict.
            seed: seed of the example.
            attention: of one token to the slots of an eligible layer.
        """
        self.prompt = prompt
        self.attention = attention
        self.seen = prompt.length
        self.eligible = {layer: index for index, layer in enumerate(layers.eligible)}
        self.scores: dict[Scorer, list[Tensor]] = {scorer: [] for scorer in scorers}
        self.seeds = torch.tensor([seed], device=prompt.device)
        self.counts = prompt.counts()
        if prompt.positions is not None:
            prompt.positions.scatter_(-1, self.counts[..., None], self.seen)
        prompt.length += 1
        self.filled = prompt.longest()
        self.states = prompt.states
        self.attended: set[int] = set()

    def write(self, layer_idx: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append the newcomer, [1, Hkv, 1, ..], and return all that it attends to."""
        layer, filled = self.prompt.layers[layer_idx], self.filled
        if layer_idx in self.eligible:
            layer.write(keys, values, self.counts[self.eligible[layer_idx]][None].to(keys.device))
        else:
            layer.fill(keys, values, self.seen)
            filled = min(self.seen + 1, layer.window)
        return layer.keys[:, :, :filled], layer.values[:, :, :filled]

    def attend(self, layer_idx: int, query: Tensor, keys: Tensor, values: Tensor, logits: Logits) -> Tensor:
        """Attend to what `write` returned, score if eligible, and return the output [1, 1, Hq, Dv]."""
        self.attended.add(layer_idx)
        if layer_idx not in self.eligible:
            return slot_attention(query, keys, values, logits)[0]
        index = self.eligible[layer_idx]
        positions, mask = torch.arange(self.filled, device=query.device).view(1, 1, -1), None
        if self.prompt.positions is not None:
            positions = self.prompt.positions[index, :, : self.filled][None].to(query.device)
            mask = positions[..., : keys.shape[2]] >= 0
        if logits.bias is not None:
            logits = logits._replace(bias=slot_bias(logits.bias, positions, keys.shape[1]))
        output, weights = self.attention(query, keys, values, logits, mask, scored=bool(self.scores))
        if not self.scores:
            return output
        view = LayerView(
            weights=weights,
            query=query.view(1, keys.shape[1], -1, query.shape[-1]),
            keys=keys,
            values=values,
            positions=positions[..., : keys.shape[2]],
            valid=mask,
            layer=index,
            seeds=self.seeds.to(query.device),
        )
        for scorer, scores in self.scores.items():
            score = cached_heads(scorer.score(view), self.prompt.heads)[0]
            # Layers may lie on several devices; what is decided over all of them lies where the prompt starts.
            padded = torch.nn.functional.pad(score, (0, self.filled - score.shape[-1]))
            scores.append(padded.to(self.prompt.device))
        return output

    def check(self) -> None:
        """Refuse, after the step's forward, a model of which some layer attended past the session.

        Raises:
            ValueError: names the layers.
        """
        past = sorted(self.prompt.layers.keys() - self.attended)
        if past:
            raise ValueError(
                f"layers {past} of this model do not attend through transformers' attention interface, so that nothing "
                "can be evicted from them; use another backbone."
            )

    def scores_of(self, policy: Policy) -> list[Tensor] | None:
        """Return the layer scores of a policy's scorer, [Hkv or 1, n] each; None for a policy that never evicts."""
        return self.scores[policy.scorer] if policy.evicts else None


def unit_key(item: Cut) -> str:
    """Return what rows must share to have their utilities in one `KeepSets`."""
    policy = item.row.policy
    return repr((item.ragged, policy.scope, policy.scorer, policy.selection, policy.protect.newest))


class DecodeBatch:
    """Rows that decode together after their first cut: slots, utilities and victims."""

    def __init__(self, layers: Layers, cuts: list[Cut], steps: int, attention: Attention = slot_attention) -> None:
        """Take the rows' tensors over, joined into one block per layer; a single row's stay as they are.

        Args:
            layers: the model's layers.
            cuts: the rows, of one prompt or of several, those of equal `unit_key` next to each other; their `layers`
                and `states` are emptied, so that no second copy of the cache exists.
            steps: decode steps in all, step 1 included.
            attention: of one token to the slots of an eligible layer.
        """
        self.attention = attention
        self.eligible = {layer: index for index, layer in enumerate(layers.eligible)}
        self.capacity = max(item.row.capacity(steps) for item in cuts)
        self.layers, self.states = {}, {}
        for number in list(cuts[0].layers):
            first, *others = [item.layers.pop(number) for item in cuts]
            self.layers[number] = first.joined(others, self.capacity) if others else first
        for number in list(cuts[0].states):
            self.states[number] = joined_states([item.states.pop(number) for item in cuts])
        self.capacity = max(self.layers[layer].keys.shape[2] for layer in layers.eligible)
        self.device = next(iter(self.layers.values())).keys.device
        self.order = torch.arange(self.capacity, device=self.device)
        self.heads = cuts[0].heads
        self.seen = max(item.length for item in cuts)
        self.newest = torch.tensor([item.length - 1 for item in cuts], device=self.device)
        self.rows = [item.row for item in cuts]
        self.units: list[KeepSets] = []
        for _, members in groupby(cuts, key=unit_key):
            group = list(members)
            self.units.append(
                KeepSets(
                    [item.row for item in group],
                    [item.positions for item in group],
                    [item.utility for item in group],
                    ragged=group[0].ragged,
                    layers=len(self.eligible),
                    heads=self.heads,
                    capacity=self.capacity,
                    steps=steps,
                )
            )

    def place(self, step: int) -> None:
        """Prepare decode step `step` (2, 3, ..): give every newcomer its slot and prior."""
        self.newest += 1
        for units, rows in self._spans():
            units.place(self.newest[rows], step)
        self.scoring = any(any(units.due) for units in self.units)
        # Slots as written this step and filled slots, [K or 1, R, Hkv or 1].
        self.slots = self._joined([units.slot for units in self.units])
        fills = [fill for units in self.units for fill in units.filled]
        self.longest = max(fills)
        self.mask: Tensor | None = None
        if min(fills) != self.longest or any(units.uneven for units in self.units):
            counts = self._joined([units.count for units in self.units])
            self.mask = self.order[: self.longest] < counts.unsqueeze(-1)

    def write(self, layer_idx: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write the newcomers of one layer, [R, Hkv, 1, ..], over free slots; return what there is to attend to."""
        layer = self.layers[layer_idx]
        if layer_idx not in self.eligible:
            layer.write(keys, values, self.newest)
            return layer.keys, layer.values
        layer.write(keys, values, self._of_layer(self.slots, self.eligible[layer_idx]).to(keys.device))
        return layer.keys[:, :, : self.longest], layer.values[:, :, : self.longest]

    def attend(self, layer_idx: int, query: Tensor, keys: Tensor, values: Tensor, logits: Logits) -> Tensor:
        """Attend to what `write` returned, score the rows that are due, and return the output [R, 1, Hq, Dv]."""
        size = keys.shape[2]
        if layer_idx not in self.eligible:
            filled = (self.newest + 1).clamp(max=size)
            mask = torch.arange(size, device=self.device) < filled[:, None, None]
            return slot_attention(query, keys, values, logits, mask.to(query.device))[0]
        index = self.eligible[layer_idx]
        mask = None if self.mask is None else self._of_layer(self.mask, index)[..., :size].to(query.device)
        if logits.bias is not None:
            tables = [self._of_unit(units.positions, index) for units, _ in self._spans()]
            heads = max(table.shape[1] for table in tables)
            positions = torch.cat([table.expand(-1, heads, -1) for table in tables])[..., :size]
            logits = logits._replace(bias=slot_bias(logits.bias, positions.to(query.device), keys.shape[1]))
        output, weights = self.attention(query, keys, values, logits, mask, scored=self.scoring)
        if self.scoring:
            grouped = query.view(query.shape[0], keys.shape[1], -1, query.shape[-1])
            for units, rows in self._spans():
                if any(units.due):
                    positions = self._of_unit(units.positions, index)[..., :size].to(query.device)
                    view = LayerView(
                        weights=weights[rows],
                        query=grouped[rows],
                        keys=keys[rows],
                        values=values[rows],
                        positions=positions,
                        valid=None if mask is None else positions >= 0,
                        layer=index,
                        seeds=units.seeds.to(query.device),
                    )
                    units.add_scores(index, view)
        return output

    def advance(self, step: int) -> None:
        """Finish decode step `step`: update utilities, choose victims."""
        for units, rows in self._spans():
            units.advance(self.newest[rows], step, full=self.mask is None, shared=len(self.rows) > 1)
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
        for layer in self.layers.values():
            layer.select(index.to(layer.keys.device))
        self.states = {number: selected_states(state, index) for number, state in self.states.items()}
        self.newest = self.newest[index]
        self.rows = [self.rows[row] for row in rows]

    def kept(self, row: int) -> Tensor:
        """Return the positions cached in a row, [UK, UH, C], -1 where a slot is free."""
        units, index = self._owner(row)
        return units.kept(index)

    def scope(self, row: int) -> str:
        """Return the scope of a row's units."""
        return self._owner(row)[0].scope

    def filled(self, row: int) -> int:
        """Return how many slots of a row are filled, in its fullest unit."""
        units, index = self._owner(row)
        return units.filled[index]

    def near_ties(self, row: int) -> int:
        """Return at how many steps a row's victim was within rounding of another one, while it shared its batch."""
        units, index = self._owner(row)
        return int(units.near_ties[index])

    def check(self) -> None:
        """Stop on NaN or infinite utilities."""
        for units in self.units:
            units.check()

    def _owner(self, row: int) -> tuple[KeepSets, int]:
        """Return the `KeepSets` of a row and its index there."""
        for units, span in self._spans():
            if span.start <= row < span.stop:
                return units, row - span.start
        raise IndexError(f"row {row} is not in this batch of {len(self.rows)} rows.")

    def _spans(self) -> list[tuple[KeepSets, slice]]:
        """Return each `KeepSets` with the batch rows that it owns."""
        spans, start = [], 0
        for units in self.units:
            spans.append((units, slice(start, start + len(units.rows))))
            start += len(units.rows)
        return spans

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
