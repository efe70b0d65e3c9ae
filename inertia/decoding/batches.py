"""Rows that have been cut, decoded together: which share a batch, and the steps of a batch."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import psutil
import torch
from torch import Tensor

from inertia.decoding.choice import choose
from inertia.decoding.row import GrowingRow, mean_count
from inertia.eviction.attention import attention_of, decoding_attention
from inertia.eviction.cache import SessionCache
from inertia.eviction.execution import CAPACITY_SPREAD, GIB, Execution
from inertia.eviction.layers import Layers
from inertia.eviction.session import DecodeBatch, FirstStep, unit_key
from inertia.eviction.support import rotary_side

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def batch_bytes(model: PreTrainedModel, execution: Execution) -> float:
    """Return the most bytes that may decode together: as set, or half of what the model's device has free now."""
    if execution.batch_gib is not None:
        return execution.batch_gib * GIB
    device = model.get_input_embeddings().weight.device
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available
    return free / 2


def decode(model: PreTrainedModel, layers: Layers, rows: Sequence[GrowingRow], most_bytes: float) -> None:
    """Decode rows from their first cut to their end, in batches of at most so many bytes."""
    if not rows:
        return
    attention, steps = attention_of(rows[0].request.execution.scoring), rows[0].request.steps
    sides: dict[tuple[bool, ...], list[GrowingRow]] = {}
    for row in rows:
        sides.setdefault(rotary_side(model.config, row.cut.row.prompt_tokens), []).append(row)
    with decoding_attention(model):
        for members in (batch for side in sides.values() for batch in by_capacity(side, steps, most_bytes)):
            cuts = [row.cut for row in members]
            for row in members:
                row.cut = None
            run(model, DecodeBatch(layers, cuts, steps, attention), members)


def by_capacity(rows: Sequence[GrowingRow], steps: int, most_bytes: float = float("inf")) -> list[list[GrowingRow]]:
    """Split rows into batches of similar capacity, rows of one kind side by side; full caches go by themselves.

    They go first: what they hold is the largest, and is free then before the others run.

    Args:
        rows: rows that were cut.
        steps: decode steps in all.
        most_bytes: of slots and tables in one batch; a row that is bigger by itself goes alone.
    """
    groups: list[list[GrowingRow]] = []
    split = False

    def order(row: GrowingRow) -> tuple[bool, int]:
        return row.policy.evicts or row.cut.ragged, row.cut.row.capacity(steps)

    for row in sorted(rows, key=order):
        smallest = order(groups[-1][0]) if groups else (None, 0)
        evicts, capacity = order(row)
        alike = smallest[0] == evicts and capacity <= CAPACITY_SPREAD * smallest[1]
        # Every row is padded to the widest, which is this one.
        fits = alike and (len(groups[-1]) + 1) * row.cut.decode_bytes <= most_bytes
        split = split or (alike and not fits)
        if fits:
            groups[-1].append(row)
        else:
            groups.append([row])
    if split:
        warnings.warn(
            f"rows are decoded in more batches than one to stay below execution.batch_gib={most_bytes / GIB:.3g}; "
            "raise it where memory allows.",
            stacklevel=2,
        )
    return [sorted(group, key=lambda row: unit_key(row.cut)) for group in groups]


def run(model: PreTrainedModel, batch: DecodeBatch, rows: list[GrowingRow]) -> None:
    """Decode rows together until each has ended, dropping ended rows once they are half of the batch."""
    started = time.perf_counter()
    request, everyone = rows[0].request, list(rows)
    for row in everyone:
        row.batch_rows = len(everyone)
    ended = [False] * len(rows)
    ties = torch.zeros(len(rows), dtype=torch.long, device=batch.device)
    step = 1
    while not all(ended):
        step += 1
        batch.place(step)
        tokens = [row.tokens[-1] for row in rows]
        logits = forward(model, batch, tokens, batch.newest.tolist(), compiled=request.execution.compiled)
        batch.advance(step)
        chosen, near = choose(rows, logits)
        if len(rows) > 1:
            ties += near.to(ties.device)
        for index, row in enumerate(rows):
            if ended[index]:
                continue
            row.peak = max(row.peak, batch.filled(index))
            row.note(batch.kept(index), batch.scope(index))
            ended[index] = row.take(logits[index], chosen[index])
            if ended[index]:
                row.retained = mean_count(batch.kept(index))
                row.near_ties = int(ties[index]) + batch.near_ties(index)
        alive = [index for index, over in enumerate(ended) if not over]
        if 0 < len(alive) <= len(rows) // 2:
            batch.check()
            batch.select(alive)
            ties = ties[alive]
            rows, ended = [rows[index] for index in alive], [False] * len(alive)
    batch.check()
    for row in everyone:
        row.decode_seconds += time.perf_counter() - started


def forward(
    model: PreTrainedModel,
    session: FirstStep | DecodeBatch,
    tokens: list[int],
    positions: list[int],
    *,
    compiled: bool = False,
) -> Tensor:
    """Feed one token per row at its true position and return the logits, [R, vocabulary]."""
    device = model.get_input_embeddings().weight.device
    ids = torch.tensor(tokens, device=device)[:, None]
    position_ids = torch.tensor(positions, device=device)[:, None]
    if not compiled:
        return decode_step(model, session, ids, position_ids)
    # Compiled code is kept by torch with the function; wrapping it anew costs nothing. Shapes change with the prompt.
    with torch._dynamo.config.patch(recompile_limit=64):
        return torch.compile(decode_step)(model, session, ids, position_ids)


def decode_step(
    model: PreTrainedModel, session: FirstStep | DecodeBatch, input_ids: Tensor, position_ids: Tensor
) -> Tensor:
    """Take one token per row, [R, 1], through the model and the session; return the logits, [R, vocabulary]."""
    output = model(
        input_ids=input_ids,
        position_ids=position_ids,
        cache=SessionCache(session),
        use_cache=True,
        session=session,
    )
    return output.logits[:, -1]
