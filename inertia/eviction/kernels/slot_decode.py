"""One-token attention over cached slots that returns the output and the weights, reading keys and values once.

A weight needs the softmax's normaliser, which is known only after the last slot. So the first kernel splits the slots
over programs; each reads its keys and values once, keeps its logits (G numbers a slot, against 2 D read) and leaves a
partial output with the log of its normaliser. The second kernel joins the partial outputs and turns logits to weights.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Literal

import torch
import triton
import triton.language as tl
from torch import Tensor

Weights = Literal["none", "head_mean", "all"]
WEIGHTS: tuple[str, ...] = ("none", "head_mean", "all")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# The matrix units want at least 16 rows; more than this and a program's accumulator leaves the registers.
SMALLEST, LARGEST_GROUP, LARGEST_DIM = 16, 32, 256
# Bytes of keys in one tile, by the size of a number. Keys and values of three stages then fit the 99 KB that a program
# has on any supported GPU; fp32 goes without matrix units, and a larger tile would leave the registers.
TILE_BYTES = {2: 16 * 1024, 4: 8 * 1024}
STAGES = 3
# Enough programs in flight to hide a load's latency; more splits than this only make joining dearer.
PROGRAMS_PER_PROCESSOR, MOST_SPLITS = 4, 128
JOINED_DIMS, JOINED_SLOTS = 64, 256


@triton.jit
def _filled(counts, row, head, counts_row, counts_head, slots):
    """Return how many slots of a KV head are filled: all where nothing is counted."""
    filled = slots
    if counts is not None:
        count = tl.load(counts + row * counts_row + head * counts_head).to(tl.int32)
        filled = tl.maximum(tl.minimum(count, slots), 0)
    return filled


@triton.jit
def _product(left, right, onto, WIDEN: tl.constexpr):
    """Return left @ right + onto in fp32."""
    if WIDEN:
        left = left.to(tl.float32)
        right = right.to(tl.float32)
    return tl.dot(left, right, onto, input_precision="ieee")


@triton.jit(do_not_specialize=["slots", "logits_row", "logits_head"])
def _attend(
    query,
    keys,
    values,
    counts,
    mask,
    logits,
    partials,
    norms,
    scaling,
    softcap,
    slots,
    query_row,
    query_head,
    query_dim,
    keys_row,
    keys_head,
    keys_slot,
    keys_dim,
    values_row,
    values_head,
    values_slot,
    values_dim,
    counts_row,
    counts_head,
    mask_row,
    mask_head,
    mask_slot,
    logits_row,
    logits_head,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    GROUP_PAD: tl.constexpr,
    DIM_PAD: tl.constexpr,
    TILE: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """Attend from the G query heads of one KV head to one split of its slots."""
    unit = tl.program_id(0)
    split = tl.program_id(1)
    splits = tl.num_programs(1)
    # Sizes of a whole cache pass 2^31 elements, so whatever counts rows, heads or tiles is 64 bits wide.
    row = (unit // KV_HEADS).to(tl.int64)
    head = (unit % KV_HEADS).to(tl.int64)
    members = tl.arange(0, GROUP_PAD)
    dims = tl.arange(0, DIM_PAD)
    lanes = tl.arange(0, TILE)
    real = (members < GROUP)[:, None]
    inside = dims < DIM
    heads = head * GROUP + members[:, None]

    asked = tl.load(
        query + row * query_row + heads * query_head + dims[None, :] * query_dim,
        mask=real & inside[None, :],
        other=0.0,
    )
    filled = _filled(counts, row, head, counts_row, counts_head, slots)
    tiles = tl.cdiv(filled, TILE)
    peak = tl.full([GROUP_PAD], float("-inf"), tl.float32)
    total = tl.zeros([GROUP_PAD], tl.float32)
    summed = tl.zeros([GROUP_PAD, DIM_PAD], tl.float32)
    for tile in range(split * tiles // splits, (split + 1) * tiles // splits):
        start = tl.cast(tile, tl.int64) * TILE
        live = start + lanes < filled
        if mask is not None:
            allowed = mask + row * mask_row + head * mask_head + (start + lanes) * mask_slot
            live = live & (tl.load(allowed, mask=live, other=0) != 0)
        # What stands in an empty slot may be NaN, so it is never read.
        key = tl.load(
            keys + row * keys_row + head * keys_head + start * keys_slot
            + (lanes[None, :] * keys_slot + dims[:, None] * keys_dim),
            mask=live[None, :] & inside[:, None],
            other=0.0,
        )  # fmt: skip
        logit = _product(asked, key, tl.zeros([GROUP_PAD, TILE], tl.float32), WIDEN) * scaling
        if softcap is not None:
            # tanh by way of an exponential that cannot overflow.
            fading = tl.exp(-2.0 * tl.abs(logit / softcap))
            capped = softcap * (1.0 - fading) / (1.0 + fading)
            logit = tl.where(logit < 0, -capped, capped)
        logit = tl.where(live[None, :], logit, float("-inf"))
        if logits is not None:
            kept = logits + row * logits_row + heads * logits_head + (start + lanes)[None, :]
            tl.store(kept, logit, mask=real & (start + lanes < filled)[None, :])
        higher = tl.maximum(peak, tl.max(logit, 1))
        # Of nothing but -inf the difference would be NaN.
        base = tl.where(higher == float("-inf"), 0.0, higher)
        shrink = tl.exp(peak - base)
        weight = tl.exp(logit - base[:, None])
        value = tl.load(
            values + row * values_row + head * values_head + start * values_slot
            + (lanes[:, None] * values_slot + dims[None, :] * values_dim),
            mask=live[:, None] & inside[None, :],
            other=0.0,
        )  # fmt: skip
        total = total * shrink + tl.sum(weight, 1)
        summed = _product(weight.to(value.dtype), value, summed * shrink[:, None], WIDEN)
        peak = higher

    part = (unit.to(tl.int64) * splits + split) * GROUP + members
    # A split without live slots has output 0 and normaliser 0, and joins as nothing.
    divisor = tl.where(total == 0.0, 1.0, total)
    norm = tl.where(total == 0.0, float("-inf"), peak + tl.log(divisor))
    tl.store(norms + part, norm, mask=members < GROUP)
    tl.store(partials + part[:, None] * DIM + dims[None, :], summed / divisor[:, None], mask=real & inside[None, :])


@triton.jit
def _joined(norm):
    """Return the log of the whole normaliser per head from those of the splits, [splits, heads]; finite if empty."""
    peak = tl.max(norm, 0)
    base = tl.where(peak == float("-inf"), 0.0, peak)
    total = tl.sum(tl.exp(norm - base[None, :]), 0)
    return tl.where(total == 0.0, 0.0, base + tl.log(tl.where(total == 0.0, 1.0, total)))


@triton.jit
def _join_output(partials, norms, output, unit, member, dims, splits, GROUP, DIM, SPLITS_PAD: tl.constexpr):
    """Join the partial outputs of one query head, in some of its dimensions."""
    parts = tl.arange(0, SPLITS_PAD)[:, None]
    place = (unit * splits + parts) * GROUP + member
    norm = tl.load(norms + place, mask=parts < splits, other=float("-inf"))
    partial = tl.load(partials + place * DIM + dims[None, :], mask=(parts < splits) & (dims < DIM)[None, :], other=0.0)
    joined = tl.sum(partial * tl.exp(norm - _joined(norm)[None, :]), 0)
    tl.store(output + (unit * GROUP + member) * DIM + dims, joined.to(output.dtype.element_ty), mask=dims < DIM)


@triton.jit(do_not_specialize=["slots", "splits", "logits_row", "logits_head", "weights_row", "weights_head"])
def _join(
    partials,
    norms,
    counts,
    logits,
    weights,
    output,
    slots,
    splits,
    counts_row,
    counts_head,
    logits_row,
    logits_head,
    weights_row,
    weights_head,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    GROUP_PAD: tl.constexpr,
    SPLITS_PAD: tl.constexpr,
    DIMS: tl.constexpr,
    SLOTS: tl.constexpr,
    HEAD_MEAN: tl.constexpr,
):
    """Join the splits of one KV head: some programs take a part of an output, the others some slots' weights."""
    unit = tl.program_id(0).to(tl.int64)
    job = tl.program_id(1)
    chunks = (DIM + DIMS - 1) // DIMS
    if job < GROUP * chunks:
        dims = (job % chunks) * DIMS + tl.arange(0, DIMS)
        _join_output(partials, norms, output, unit, job // chunks, dims, splits, GROUP, DIM, SPLITS_PAD)
    else:
        # A branch that no program takes is compiled all the same.
        if weights is not None:
            row = unit // KV_HEADS
            head = unit % KV_HEADS
            filled = _filled(counts, row, head, counts_row, counts_head, slots)
            members = tl.arange(0, GROUP_PAD)
            real = (members < GROUP)[:, None]
            parts = tl.arange(0, SPLITS_PAD)[:, None]
            norm = tl.load(
                norms + (unit * splits + parts) * GROUP + members[None, :],
                mask=(parts < splits) & (members < GROUP)[None, :],
                other=float("-inf"),
            )
            place = (job - GROUP * chunks).to(tl.int64) * SLOTS + tl.arange(0, SLOTS)
            heads = (head * GROUP + members)[:, None]
            # Logits were left for filled slots only.
            logit = tl.load(
                logits + row * logits_row + heads * logits_head + place[None, :],
                mask=real & (place < filled)[None, :],
                other=float("-inf"),
            )
            weight = tl.exp(logit - _joined(norm)[:, None])
            if HEAD_MEAN:
                mean = tl.sum(weight, 0) / GROUP
                tl.store(weights + row * weights_row + head * weights_head + place, mean, mask=place < slots)
            else:
                out = weights + row * weights_row + heads * weights_head + place[None, :]
                tl.store(out, weight, mask=real & (place < slots)[None, :])


def _tile(head_dim: int, itemsize: int) -> int:
    """Return how many slots a program reads at once."""
    return max(SMALLEST, min(128, TILE_BYTES[itemsize] // (_pad(head_dim) * itemsize)))


def _pad(size: int, least: int = SMALLEST) -> int:
    """Return the smallest power of two that holds a size; a matrix product needs 16 of everything."""
    return max(least, 1 << (size - 1).bit_length())


def split_count(query: Tensor, keys: Tensor) -> int:
    """Return over how many programs the slots of one KV head are split when the caller leaves it open.

    Depends on shapes and the device alone. It never falls when there are more slots of as many rows.

    Args:
        query: [R, Hq, D].
        keys: [R, Hkv, C, D].
    """
    rows, kv_heads, slots, head_dim = keys.shape
    tiles = -(-slots // _tile(head_dim, keys.element_size()))
    processors = torch.cuda.get_device_properties(query.device).multi_processor_count if query.is_cuda else 1
    wanted = -(-PROGRAMS_PER_PROCESSOR * processors // max(1, rows * kv_heads))
    return max(1, min(wanted, tiles, MOST_SPLITS))


def workspace_size(query: Tensor, keys: Tensor, *, weights: Weights = "none", splits: int | None = None) -> int:
    """Return how many fp32 numbers of workspace `slot_decode` needs; it never falls when there are more slots.

    Args:
        query: [R, Hq, D].
        keys: [R, Hkv, C, D].
        weights: as for `slot_decode`.
        splits: as for `slot_decode`.
    """
    rows, query_heads, head_dim = query.shape
    parts = rows * query_heads * (split_count(query, keys) if splits is None else splits)
    logits = rows * query_heads * keys.shape[2] if weights == "head_mean" else 0
    return parts * head_dim + _whole(parts) + logits


def _whole(size: int) -> int:
    """Return a size rounded up so that what follows in the workspace stays aligned."""
    return -(-size // 32) * 32


def _interpreted() -> bool:
    """Return whether the kernels run in Triton's interpreter, which takes a product's bf16 numbers for integers."""
    return not isinstance(_attend, triton.JITFunction)


def _launch(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    counts: Tensor | None,
    mask: Tensor | None,
    output: Tensor,
    weights: Tensor | None,
    workspace: Tensor,
    scaling: float,
    softcap: float | None,
    head_mean: bool,
    splits: int,
) -> None:
    """Run both kernels; everything is checked and allocated."""
    rows, query_heads, head_dim = query.shape
    kv_heads, slots = keys.shape[1], keys.shape[2]
    group = query_heads // kv_heads
    parts = rows * query_heads * splits
    partials, norms = workspace, workspace[parts * head_dim :]
    logits, logits_strides = None, (0, 0)
    if weights is not None and head_mean:
        logits, logits_strides = norms[_whole(parts) :], (query_heads * slots, slots)
    elif weights is not None:
        logits, logits_strides = weights, weights.stride()[:2]
    units = rows * kv_heads
    if units == 0:
        return
    counts_strides = (0, 0) if counts is None else counts.stride()
    mask_strides = (0, 0, 0) if mask is None else mask.stride()
    # Triton launches on the current device, and a model's layers may lie on several.
    with torch.cuda.device(query.device) if query.is_cuda else nullcontext():
        _attend[(units, splits)](
            query, keys, values, counts, mask, logits, partials, norms, scaling, softcap, slots,
            *query.stride(), *keys.stride(), *values.stride(), *counts_strides, *mask_strides, *logits_strides,
            KV_HEADS=kv_heads, GROUP=group, DIM=head_dim, GROUP_PAD=_pad(group), DIM_PAD=_pad(head_dim),
            TILE=_tile(head_dim, keys.element_size()), WIDEN=_interpreted() and keys.dtype == torch.bfloat16,
            num_warps=4, num_stages=STAGES,
        )  # fmt: skip
        jobs = group * -(-head_dim // JOINED_DIMS) + (0 if weights is None else -(-slots // JOINED_SLOTS))
        _join[(units, jobs)](
            partials, norms, counts, logits, weights, output, slots, splits,
            *counts_strides, *logits_strides, *((0, 0) if weights is None else weights.stride()[:2]),
            KV_HEADS=kv_heads, GROUP=group, DIM=head_dim, GROUP_PAD=_pad(group, 1),
            SPLITS_PAD=_pad(splits, 1), DIMS=JOINED_DIMS, SLOTS=JOINED_SLOTS, HEAD_MEAN=head_mean,
            num_warps=4,
        )  # fmt: skip


_operator = torch.library.custom_op("inertia::slot_decode", _launch, mutates_args=("output", "weights", "workspace"))
_operator.register_fake(lambda *_: None)


def slot_decode(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    scaling: float,
    *,
    counts: Tensor | None = None,
    mask: Tensor | None = None,
    softcap: float | None = None,
    weights: Weights = "none",
    splits: int | None = None,
    out_weights: Tensor | None = None,
    workspace: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Attend from one token per row to the filled slots of each KV head.

    Sums and weights are fp32; the product with the values rounds the weights to the values' dtype first. Nothing is
    copied whatever the strides, empty slots are never read, and the host never waits for the device. With
    `out_weights` and `workspace` given, only the output is allocated.

    Args:
        query: [R, Hq, D], fp32, bf16 or fp16.
        keys: [R, Hkv, C, D], of the query's dtype and device.
        values: [R, Hkv, C, D], likewise.
        scaling: factor on q.k.
        counts: int [R, Hkv or 1] on the device: slots 0..count-1 are filled; None when all are.
        mask: bool [R, Hkv or 1, C], False where a filled slot is hidden; None when none is.
        softcap: tanh cap of the logits, where the model has one.
        weights: what to return of the softmax: nothing, its mean over the query heads of a group, or all of it.
        splits: programs per KV head; None lets `split_count` choose.
        out_weights: fp32 tensor of the weights' shape to write to, its last dimension contiguous.
        workspace: contiguous fp32 [n] with n at least `workspace_size(...)`; its content is overwritten.

    Returns:
        Output [R, Hq, D] in the query's dtype, and the weights in fp32: [R, Hkv, C] for "head_mean", [R, Hq, C] for
        "all", None for "none". A head without filled slots has output 0 and weights 0.

    Raises:
        ValueError: a shape, dtype, device, size or setting that does not fit, or a gradient was asked for.
    """
    _check(query, keys, values, counts, mask, softcap, weights, splits)
    rows, query_heads, _ = query.shape
    kv_heads, slots = keys.shape[1], keys.shape[2]
    shape = (rows, kv_heads if weights == "head_mean" else query_heads, slots)
    splits = split_count(query, keys) if splits is None else splits
    size = workspace_size(query, keys, weights=weights, splits=splits)
    if workspace is None:
        workspace = torch.empty(size, dtype=torch.float32, device=query.device)
    elif workspace.ndim != 1 or workspace.shape[0] < size or not workspace.is_contiguous():
        raise ValueError(f"workspace is {list(workspace.shape)}; it must be contiguous, [n] with n at least {size}.")
    if weights == "none":
        if out_weights is not None:
            raise ValueError("out_weights was given with weights='none'; ask for 'head_mean' or 'all'.")
    elif out_weights is None:
        out_weights = torch.empty(shape, dtype=torch.float32, device=query.device)
    elif tuple(out_weights.shape) != shape or (slots > 1 and out_weights.stride(-1) != 1):
        raise ValueError(
            f"out_weights is {list(out_weights.shape)}; it must be {list(shape)}, last dimension contiguous."
        )
    for name, given in {"workspace": workspace, "out_weights": out_weights}.items():
        if given is not None and (given.dtype != torch.float32 or given.device != query.device):
            raise ValueError(f"{name} is {given.dtype} on {given.device}; it must be torch.float32 on {query.device}.")
    output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    # The operator is what torch.compile can look past; called from Python it costs more than the launch.
    run = _operator if torch.compiler.is_compiling() else _launch
    run(
        query,
        keys,
        values,
        None if counts is None else counts.expand(rows, kv_heads),
        None if mask is None else mask.expand(rows, kv_heads, slots),
        output,
        out_weights,
        workspace,
        scaling,
        softcap,
        weights == "head_mean",
        splits,
    )
    return output, out_weights


def _check(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    counts: Tensor | None,
    mask: Tensor | None,
    softcap: float | None,
    weights: str,
    splits: int | None,
) -> None:
    """Raise ValueError for inputs that the kernels cannot take."""
    if query.ndim != 3 or keys.ndim != 4 or keys.shape != values.shape:
        raise ValueError(
            f"query is {list(query.shape)}, keys {list(keys.shape)}, values {list(values.shape)}; "
            "they must be [R, Hq, D], [R, Hkv, C, D] and [R, Hkv, C, D]."
        )
    rows, query_heads, head_dim = query.shape
    kv_heads, slots = keys.shape[1], keys.shape[2]
    if keys.shape[0] != rows or keys.shape[3] != head_dim or kv_heads == 0 or query_heads % kv_heads:
        raise ValueError(
            f"query {list(query.shape)} does not go with keys {list(keys.shape)}; rows and head size must be equal, "
            "and the query heads a multiple of the KV heads."
        )
    group = query_heads // kv_heads
    if not 1 <= group <= LARGEST_GROUP or not 1 <= head_dim <= LARGEST_DIM:
        raise ValueError(
            f"{group} query heads per KV head of size {head_dim}; at most {LARGEST_GROUP} of size {LARGEST_DIM} fit. "
            "Use the eager attention."
        )
    if query.dtype not in DTYPES or keys.dtype != query.dtype or values.dtype != query.dtype:
        raise ValueError(
            f"query, keys and values are {query.dtype}, {keys.dtype}, {values.dtype}; they must have one dtype of "
            f"{', '.join(map(str, DTYPES))}."
        )
    if counts is not None and (
        counts.is_floating_point()
        or counts.ndim != 2
        or counts.shape[0] != rows
        or counts.shape[1] not in (1, kv_heads)
    ):
        raise ValueError(
            f"counts is {counts.dtype} {list(counts.shape)}; it must be integers [{rows}, {kv_heads} or 1]."
        )
    if mask is not None and (
        mask.dtype != torch.bool
        or mask.ndim != 3
        or mask.shape[0] != rows
        or mask.shape[1] not in (1, kv_heads)
        or mask.shape[2] != slots
    ):
        raise ValueError(
            f"mask is {mask.dtype} {list(mask.shape)}; it must be bool [{rows}, {kv_heads} or 1, {slots}]."
        )
    for name, given in {"keys": keys, "values": values, "counts": counts, "mask": mask}.items():
        if given is not None and given.device != query.device:
            raise ValueError(f"{name} is on {given.device}, the query on {query.device}; they must be on one device.")
    if not query.is_cuda and not _interpreted():
        raise ValueError(f"the kernel needs a CUDA device, not {query.device}; use the eager attention there.")
    if torch.is_grad_enabled() and (query.requires_grad or keys.requires_grad or values.requires_grad):
        raise ValueError("the kernel has no backward pass; call it under torch.no_grad() or torch.inference_mode().")
    if softcap is not None and not softcap > 0:
        raise ValueError(f"softcap is {softcap}; it must be above 0, or None for no cap.")
    if weights not in WEIGHTS:
        raise ValueError(f"weights is {weights!r}; allowed: {', '.join(WEIGHTS)}.")
    if splits is not None and not 1 <= splits <= MOST_SPLITS:
        raise ValueError(f"splits is {splits}; allowed: 1 to {MOST_SPLITS}, or None.")
