"""The GPU kernels against a slow float64 softmax: in Triton's interpreter on CPU, and compiled for real GPUs.

The interpreter must be chosen before Triton is imported and changes it for the whole process, so it runs in a worker.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import pickle
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from inertia.eviction import kernels

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "inertia" / "eviction" / "kernels" / "slot_decode.py"
BENCH = ROOT / "scripts" / "bench_kernel.py"
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed: pip install -e '.[gpu]'"
)


class Problem(NamedTuple):
    """Arguments of `slot_decode`."""

    query: Tensor
    keys: Tensor
    values: Tensor
    scaling: float
    options: dict


# --- in the worker -----------------------------------------------------------------------------------------------


def interpret():
    os.environ["TRITON_INTERPRET"] = "1"
    torch.set_num_threads(1)


def module(path=None):
    """Return the kernel's module, or one made from another source file."""
    if path is None:
        from inertia.eviction.kernels import slot_decode

        return slot_decode
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def solved(problem, path=None):
    return module(path).slot_decode(*problem[:4], **problem.options)


def written(problem, reserve):
    """Solve with the caller's buffers, which lie in larger ones full of 7; return those and the results."""
    decode = module()
    size = decode.workspace_size(
        problem.query, problem.keys, weights=problem.options["weights"], splits=problem.options["splits"]
    )
    workspace = torch.full((size + 5,), 7.0)
    whole = torch.full((*reserve,), 7.0)
    slots = problem.keys.shape[2]
    output, weights = decode.slot_decode(
        *problem[:4], **problem.options, workspace=workspace[:size], out_weights=whole[:, :, :slots]
    )
    assert weights.data_ptr() == whole.data_ptr()
    return output, weights.clone(), workspace[size:], whole[:, :, slots:]


def dispatched(problem, buffers):
    """Return the torch operations of a call apart from the kernels themselves, and the bytes they allocate."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Log(TorchDispatchMode):
        names, bytes = [], 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            Log.names.append(str(function))
            Log.bytes += result.untyped_storage().nbytes() if "empty" in str(function) else 0
            return result

    class Launch:
        def __getitem__(self, grid):
            return lambda *args, **kwargs: None

    decode = module()
    extra = {}
    if buffers:
        rows, query_heads, _ = problem.query.shape
        extra["workspace"] = torch.empty(decode.workspace_size(problem.query, problem.keys, weights="head_mean"))
        extra["out_weights"] = torch.empty(rows, problem.keys.shape[1], problem.keys.shape[2])
    right = decode._attend, decode._join
    decode._attend, decode._join = Launch(), Launch()
    try:
        with Log():
            decode.slot_decode(*problem[:4], **problem.options, **extra)
    finally:
        decode._attend, decode._join = right
    return Log.names, Log.bytes


def compiled(problem):
    """Return what a compiled function gives that writes to a buffer of the caller's and computes with the output."""
    decode = module()
    weights = torch.full((problem.query.shape[0], problem.keys.shape[1], problem.keys.shape[2]), 7.0)

    def step(query, keys, values, out):
        output, found = decode.slot_decode(query, keys, values, problem.scaling, **problem.options, out_weights=out)
        return output * 2, found.sum(-1)

    step = torch.compile(step, fullgraph=True, backend="aot_eager")
    output, sums = step(problem.query, problem.keys, problem.values, weights)
    return output / 2, weights, sums


def registered(problem):
    """Check the operator's registration with torch's own tool."""
    decode = module()
    rows, query_heads, _ = problem.query.shape
    output = torch.empty_like(problem.query)
    weights = torch.empty(rows, problem.keys.shape[1], problem.keys.shape[2])
    workspace = torch.zeros(decode.workspace_size(problem.query, problem.keys, weights="head_mean", splits=2))
    arguments = (
        *problem[:3],
        problem.options["counts"],
        None,
        output,
        weights,
        workspace,
        problem.scaling,
        None,
        True,
        2,
    )
    return torch.library.opcheck(
        torch.ops.inertia.slot_decode.default, arguments, test_utils=("test_schema", "test_faketensor")
    )


def benched(seed):
    """Return what each candidate of the benchmark gives for one small problem, and what it checks them against."""
    bench = module(BENCH)
    torch.manual_seed(seed)
    given = bench.inputs(2, 70, "cpu", torch.float32)
    return {name: attend(*given) for name, attend in bench.candidates().items()}, bench.expected(*given), given


def call(request):
    function, arguments = pickle.loads(request)
    return pickle.dumps(function(*arguments))


# --- in the test process -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def worker():
    """Return a function that calls another one where Triton interprets."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, initializer=interpret) as pool:
        # Plain pickling keeps storages, strides and what lies outside a view; torch's own would share memory.
        yield lambda function, *arguments: pickle.loads(
            pool.submit(call, pickle.dumps((function, arguments))).result(timeout=120)
        )


def reference(problem):
    """Return output and weights [R, Hkv, G, C] in float64, head by head and slot by slot."""
    query, keys, values = (tensor.double() for tensor in problem[:3])
    rows, query_heads, head_dim = query.shape
    kv_heads, slots = keys.shape[1], keys.shape[2]
    group = query_heads // kv_heads
    counts, mask, softcap = (problem.options.get(name) for name in ("counts", "mask", "softcap"))
    output = torch.zeros(rows, query_heads, head_dim, dtype=torch.float64)
    weights = torch.zeros(rows, kv_heads, group, slots, dtype=torch.float64)
    for row in range(rows):
        for head in range(kv_heads):
            live = list(range(slots))
            if counts is not None:
                live = live[: int(counts[row, head % counts.shape[1]])]
            if mask is not None:
                live = [slot for slot in live if mask[row, head % mask.shape[1], slot]]
            if not live:
                continue
            for member in range(group):
                logits = keys[row, head, live] @ query[row, head * group + member] * problem.scaling
                if softcap is not None:
                    logits = softcap * torch.tanh(logits / softcap)
                share = torch.softmax(logits, dim=0)
                weights[row, head, member, live] = share
                output[row, head * group + member] = share @ values[row, head, live]
    return output, weights


def assert_solves(problem, output, weights):
    """Compare with the reference.

    The output may be off by two roundings of its dtype (weights and result) of the largest value; an fp32 weight by
    the fp32 rounding of the logits it came from.
    """
    expected, shares = reference(problem)
    assert output.dtype == problem.query.dtype and output.shape == problem.query.shape
    dead = torch.isnan(problem.values)
    largest = float(problem.values.masked_fill(dead, 0.0).abs().max()) if problem.values.numel() else 0.0
    size = problem.keys.masked_fill(torch.isnan(problem.keys), 0.0).double().norm(dim=-1)
    logit = float(size.max()) * float(problem.query.double().norm(dim=-1).max()) if size.numel() else 0.0
    rounding = 2e-7 * (10 + logit * abs(problem.scaling))
    torch.testing.assert_close(
        output.double(), expected, rtol=0, atol=(2 * torch.finfo(output.dtype).eps + rounding) * largest
    )
    asked = problem.options.get("weights", "none")
    if asked == "none":
        assert weights is None
        return
    assert weights.dtype == torch.float32
    shares = shares.mean(2) if asked == "head_mean" else shares.flatten(1, 2)
    torch.testing.assert_close(weights.double(), shares, rtol=0, atol=rounding)


def made(seed, rows, kv_heads, group, slots, head_dim, dtype, layout="packed", dead=(), scaling=None, **options):
    """Return a random problem whose dead slots, and all memory around its tensors, hold NaN.

    Packed or not: keys and values that are not lie in memory in two different ways.
    """
    generator = torch.Generator().manual_seed(seed)

    def random(*shape):
        return torch.randn(*shape, generator=generator).to(dtype)

    def cached(layout):
        if layout == "packed":
            return random(rows, kv_heads, slots, head_dim)
        if layout == "view":
            whole = torch.full((rows + 1, kv_heads, slots + 9, head_dim), float("nan"), dtype=dtype)
            part = whole[1:, :, 3 : slots + 3]
        else:
            whole = torch.full((slots, head_dim + 3, rows, kv_heads), float("nan"), dtype=dtype)
            part = whole.permute(2, 3, 0, 1)[..., 1 : head_dim + 1]
        return part.copy_(random(rows, kv_heads, slots, head_dim))

    query = random(rows, group * kv_heads, 1, head_dim).squeeze(2)
    if layout == "strided":
        query = query.transpose(1, 2).contiguous().transpose(1, 2)
    keys, values = cached(layout), cached({"view": "strided", "strided": "view"}.get(layout, layout))
    if "counts" in dead:
        options["counts"] = torch.randint(0, slots + 1, (rows, kv_heads), generator=generator, dtype=torch.int32)
    if "mask" in dead:
        options["mask"] = torch.rand(rows, kv_heads, slots, generator=generator) < 0.6
    live = torch.ones(rows, kv_heads, slots, dtype=torch.bool)
    if options.get("counts") is not None:
        live &= torch.arange(slots) < options["counts"][..., None]
    if options.get("mask") is not None:
        live &= options["mask"]
    keys.masked_fill_(~live[..., None], float("nan"))
    values.masked_fill_(~live[..., None], float("nan"))
    return Problem(query, keys, values, head_dim**-0.5 if scaling is None else scaling, options)


@st.composite
def problems(draw, most_slots=100):
    return made(
        draw(st.integers(0, 2**31)),
        rows=draw(st.integers(1, 2)),
        kv_heads=draw(st.integers(1, 3)),
        group=draw(st.sampled_from([1, 2, 3, 4, 5, 7, 8, 16])),
        slots=draw(st.integers(0, most_slots)),
        head_dim=draw(st.sampled_from([64, 80, 96, 128, 256])),
        dtype=draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16])),
        layout=draw(st.sampled_from(["packed", "view", "strided"])),
        dead=draw(st.sampled_from([(), ("counts",), ("mask",), ("counts", "mask")])),
        scaling=draw(st.sampled_from([None, 3.0])),
        softcap=draw(st.sampled_from([None, 5.0])),
        weights=draw(st.sampled_from(["none", "head_mean", "all"])),
        splits=draw(st.sampled_from([None, 1, 2, 3, 7])),
    )


@needs_triton
@settings(max_examples=12)
@given(problem=problems())
def test_any_shape_agrees_with_a_slow_softmax(worker, problem):
    assert_solves(problem, *worker(solved, problem))


@needs_triton
@pytest.mark.slow
@settings(max_examples=150)
@given(problem=problems(most_slots=400))
def test_many_shapes_agree_with_a_slow_softmax(worker, problem):
    assert_solves(problem, *worker(solved, problem))


FIXED = {
    "llama": dict(rows=1, kv_heads=2, group=4, slots=1100, head_dim=128, dtype=torch.bfloat16, splits=7, weights="all"),
    "smollm": dict(
        rows=4, kv_heads=3, group=3, slots=600, head_dim=64, dtype=torch.float32, splits=4, dead=("counts",)
    ),
    "gemma": dict(rows=1, kv_heads=1, group=4, slots=700, head_dim=256, dtype=torch.float16, splits=16, softcap=50.0),
    "more splits than tiles": dict(rows=1, kv_heads=1, group=2, slots=40, head_dim=64, dtype=torch.float32, splits=128),
    "wide group": dict(rows=1, kv_heads=1, group=20, slots=90, head_dim=80, dtype=torch.float32, splits=2),
    "peaked": dict(
        rows=1, kv_heads=1, group=3, slots=200, head_dim=128, dtype=torch.float32, splits=3, scaling=40.0, weights="all"
    ),
}


@needs_triton
@pytest.mark.parametrize("name", FIXED)
def test_larger_shapes_agree_with_a_slow_softmax(worker, name):
    problem = made(1, **{"weights": "head_mean", **FIXED[name]})
    assert_solves(problem, *worker(solved, problem))


@needs_triton
@pytest.mark.parametrize("weights", ["head_mean", "all"])
def test_a_head_without_filled_slots_gives_zeros(worker, weights):
    counts = torch.tensor([[0, 70], [3, 0]], dtype=torch.int32)
    problem = made(2, 2, 2, 3, 70, 64, torch.float32, counts=counts, weights=weights, splits=2)
    output, found = worker(solved, problem)
    assert output.view(2, 2, -1)[[0, 1], [0, 1]].eq(0).all()
    assert found.view(2, 2, -1)[[0, 1], [0, 1]].eq(0).all()
    assert_solves(problem, output, found)


@needs_triton
def test_one_count_and_one_mask_serve_all_heads(worker):
    counts, mask = torch.tensor([[50], [7]]), torch.arange(60).expand(2, 1, 60) % 3 != 1
    problem = made(3, 2, 2, 2, 60, 64, torch.float32, weights="all", counts=counts, mask=mask)
    assert_solves(problem, *worker(solved, problem))


@needs_triton
def test_nan_in_a_filled_slot_reaches_output_and_weights(worker):
    problem = made(4, 1, 2, 2, 100, 64, torch.float32, weights="all", splits=3)
    problem.keys[0, 1, 70, 5] = float("nan")
    output, weights = worker(solved, problem)
    assert torch.isnan(output[0, 2:]).all() and torch.isnan(weights[0, 2:]).all()
    assert torch.isfinite(output[0, :2]).all() and torch.isfinite(weights[0, :2]).all()


@needs_triton
@pytest.mark.parametrize("weights", ["head_mean", "all"])
def test_buffers_of_the_caller_are_used_and_nothing_beside_them_is_written(worker, weights):
    problem = made(5, 2, 2, 3, 77, 80, torch.float32, dead=("counts",), weights=weights, splits=3)
    heads = 2 if weights == "head_mean" else 6
    output, found, after, beside = worker(written, problem, (2, heads, 90))
    assert_solves(problem, output, found)
    assert after.eq(7).all() and beside.eq(7).all()


@needs_triton
def test_a_call_copies_nothing_and_never_waits_for_the_device(worker):
    problem = made(6, 2, 2, 4, 500, 64, torch.float32, layout="view", dead=("counts", "mask"), weights="head_mean")
    views = {"aten.expand.default", "aten.slice.Tensor", "aten.detach.default"}
    names, _ = worker(dispatched, problem, False)
    assert set(names) - views == {"aten.empty.memory_format"}
    names, allocated = worker(dispatched, problem, True)
    assert names.count("aten.empty.memory_format") == 1
    assert allocated == problem.query.nbytes


@needs_triton
def test_a_compiled_step_gives_what_a_plain_one_gives(worker):
    problem = made(7, 2, 2, 3, 90, 64, torch.float32, dead=("counts",), weights="head_mean", splits=2)
    output, weights, sums = worker(compiled, problem)
    assert_solves(problem, output, weights)
    torch.testing.assert_close(sums, weights.sum(-1))
    assert set(worker(registered, problem).values()) == {"SUCCESS"}


@needs_triton
@given(st.integers(1, 40), st.integers(1, 8), st.integers(0, 10_000), st.integers(0, 3000))
def test_a_workspace_for_more_slots_serves_fewer(rows, kv_heads, slots, more):
    from inertia.eviction.kernels.slot_decode import workspace_size

    query = torch.empty(rows, kv_heads * 2, 64, device="meta")
    sizes = [
        workspace_size(query, torch.empty(rows, kv_heads, count, 64, device="meta"), weights="head_mean")
        for count in (slots, slots + more)
    ]
    assert sizes[0] <= sizes[1]


MUTATIONS = {
    "the splits keep their own scale": ("joined = tl.sum(partial * tl.exp(norm - _joined(norm)[None, :]), 0)",
                                        "joined = tl.sum(partial * tl.exp(norm - norm), 0)"),
    "weights are not rescaled": ("weight = tl.exp(logit - _joined(norm)[:, None])", "weight = tl.exp(logit)"),
    "a new peak does not shrink what is summed": ("shrink = tl.exp(peak - base)", "shrink = tl.exp(base - base)"),
    "counts are forgotten": ("if counts is not None:", "if counts is not None and False:"),
    "the cap is forgotten": ("logit = tl.where(logit < 0, -capped, capped)", "logit = logit"),
    "the mean is a sum": ("tl.sum(weight, 0) / GROUP", "tl.sum(weight, 0)"),
    "the last tile is lost": ("range(split * tiles // splits, (split + 1) * tiles // splits)",
                              "range(split * tiles // splits, (split + 1) * (tiles - 1) // splits)"),
}  # fmt: skip


@needs_triton
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mistake_in_the_kernel_is_noticed(worker, tmp_path, name):
    right, wrong = MUTATIONS[name]
    source = SOURCE.read_text()
    assert source.count(right) == 1
    path = tmp_path / "mutant.py"
    path.write_text(source.replace(right, wrong).replace("inertia::slot_decode", "inertia_mutant::slot_decode"))
    counts = torch.tensor([[150], [90]], dtype=torch.int32)
    problem = made(
        8, 2, 1, 3, 150, 64, torch.float32, counts=counts, softcap=2.0, scaling=1.0, weights="head_mean", splits=2
    )
    assert_solves(problem, *worker(solved, problem))
    with pytest.raises(AssertionError):
        assert_solves(problem, *worker(solved, problem, path))


GOOD = dict(rows=2, kv_heads=2, group=3, slots=10, head_dim=64, dtype=torch.float32)
BAD = {
    "query is": lambda p: p._replace(query=p.query[None]),
    "query .* does not go with keys": lambda p: p._replace(query=p.query[:, :5]),
    "at most 32 of size 256": lambda p: p._replace(query=p.query.repeat(1, 22, 1)),
    "one dtype of": lambda p: p._replace(keys=p.keys.half()),
    r"\[2, 2 or 1\]": lambda p: p._replace(options={"counts": torch.zeros(2, 3, dtype=torch.int32)}),
    r"\[2, 2 or 1, 10\]": lambda p: p._replace(options={"mask": torch.ones(2, 2, 9, dtype=torch.bool)}),
    "mask is torch.int64": lambda p: p._replace(options={"mask": torch.ones(2, 2, 10, dtype=torch.int64)}),
    "on one device": lambda p: p._replace(keys=p.keys.to("meta")),
    "no backward pass": lambda p: p._replace(query=p.query.clone().requires_grad_()),
    "softcap is 0": lambda p: p._replace(options={"softcap": 0.0}),
    "weights is 'mean'; allowed: none, head_mean, all": lambda p: p._replace(options={"weights": "mean"}),
    "splits is 0": lambda p: p._replace(options={"splits": 0}),
    "workspace is": lambda p: p._replace(options={"workspace": torch.empty(3)}),
    "workspace is torch.float64": lambda p: p._replace(options={"workspace": torch.empty(10**5, dtype=torch.float64)}),
    "out_weights was given": lambda p: p._replace(options={"out_weights": torch.empty(2, 2, 10)}),
    "out_weights is": lambda p: p._replace(options={"weights": "all", "out_weights": torch.empty(2, 2, 10)}),
}


@needs_triton
@pytest.mark.parametrize("message", BAD)
def test_what_does_not_fit_is_refused(worker, message):
    with pytest.raises(ValueError, match=message):
        worker(solved, BAD[message](made(9, **GOOD)))


@needs_triton
def test_without_the_interpreter_a_cpu_tensor_is_refused():
    with pytest.raises(ValueError, match="needs a CUDA device, not cpu"):
        solved(made(9, **GOOD))


POINTERS = {"counts": "*i32", "mask": "*i1"}
VARIANTS = {
    "bf16, Llama's heads": dict(group=4, head_dim=128),
    "bf16, all options": dict(group=7, head_dim=80, options=("counts", "mask", "softcap"), weights="all"),
    "bf16, Gemma's heads": dict(group=4, head_dim=256, options=("softcap",), weights="none"),
    "fp32": dict(group=3, head_dim=64, kind="fp32", options=("counts",)),
    "fp16, widest": dict(group=32, head_dim=256, kind="fp16"),
}


@needs_triton
@pytest.mark.parametrize("capability", [pytest.param(80, marks=pytest.mark.slow), 90])
@pytest.mark.parametrize("name", VARIANTS)
def test_the_kernels_compile_for_a_gpu_and_fit_its_shared_memory(monkeypatch, tmp_path, name, capability):
    """The interpreter takes Python that the compiler refuses."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    compiled_for(capability, **VARIANTS[name])


def compiled_for(capability, group, head_dim, kind="bf16", options=(), weights="head_mean"):
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from inertia.eviction.kernels import slot_decode as decode

    absent = {name: None for name in ("counts", "mask", "softcap") if name not in options}
    absent |= {"logits": None, "weights": None} if weights == "none" else {}
    sizes = dict(KV_HEADS=8, GROUP=group, DIM=head_dim)
    tile = decode._tile(head_dim, 4 if kind == "fp32" else 2)
    attend = dict(
        sizes,
        GROUP_PAD=decode._pad(group),
        DIM_PAD=decode._pad(head_dim),
        TILE=tile,
        WIDEN=False,
        keys_dim=1,
        values_dim=1,
    )
    join = dict(
        sizes, GROUP_PAD=decode._pad(group, 1), SPLITS_PAD=decode.MOST_SPLITS, DIMS=decode.JOINED_DIMS,
        SLOTS=decode.JOINED_SLOTS, HEAD_MEAN=weights == "head_mean",
    )  # fmt: skip
    pointers = POINTERS | dict.fromkeys(("query", "keys", "values", "output"), f"*{kind}")
    pointers |= dict.fromkeys(("logits", "partials", "norms", "weights"), "*fp32")
    for kernel, constants, stages in ((decode._attend, attend, decode.STAGES), (decode._join, join, 1)):
        constants |= {name: value for name, value in absent.items() if name in kernel.arg_names}
        types = pointers | {"scaling": "fp32", "softcap": "fp32"}
        signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in kernel.arg_names}
        aligned = {
            (place,): [["tt.divisibility", 16]]
            for place, (name, type) in enumerate(signature.items())
            if type.startswith("*") or (type == "i32" and name.startswith(("query", "keys", "values")))
        }
        places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
        built = triton.compile(
            ASTSource(fn=kernel, signature=signature, constexprs=places, attrs=aligned),
            target=GPUTarget("cuda", capability, 32),
            options={"num_warps": 4, "num_stages": stages},
        )
        assert built.asm["cubin"]
        assert built.metadata.shared <= 99 * 1024
        if kernel is decode._attend and kind != "fp32":
            assert "mma.sync" in built.asm["ptx"] and "cp.async.cg" in built.asm["ptx"]


def test_kernels_are_available_on_cuda_devices_only():
    assert not kernels.available("cpu")
    assert not kernels.available(torch.device("meta"))
    there = torch.cuda.is_available() and importlib.util.find_spec("triton") is not None
    assert kernels.available("cuda") is there


def test_importing_the_package_loads_no_compiler():
    code = "import sys, inertia.eviction.kernels; sys.exit('triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


@needs_triton
def test_all_that_the_benchmark_measures_computes_the_same(worker):
    found, expected, given = worker(benched, 10)
    problem = Problem(*given, 128**-0.5, {"weights": "head_mean"})
    assert_solves(problem, expected, found["kernel, weights"][1])
    for name, (output, weights) in found.items():
        torch.testing.assert_close(output, expected, rtol=0, atol=1e-5)
        assert (weights is None) == name.endswith("no weights")
    torch.testing.assert_close(found["eager, weights"][1], found["kernel, weights"][1], rtol=0, atol=1e-6)


def test_a_measurement_counts_keys_and_values_once(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "120")
    bench = module(BENCH)
    sets = [bench.inputs(1, 16, "cpu", torch.float32) for _ in range(2)]
    monkeypatch.setattr(bench, "replayed", lambda work, repeats: [60.0, 20.0, 40.0, 80.0])
    row = bench.measured("right", lambda *given: (bench.expected(*given), None), sets, 4, 20.0)
    # Two sets a replay, so 25 microseconds each: 2 tensors x 8 heads x 16 slots x 128 numbers x 4 bytes.
    assert (row.rows, row.slots, row.microseconds, row.spread) == (1, 16, 25.0, (20.0, 30.0))
    assert row.gigabytes == pytest.approx(131072 / 25e-6 / 1e9) and row.share == pytest.approx(row.gigabytes / 20)
    assert row.off == 0
    bench.print_rows([row, bench.Row("SDPA, no weights", 16, 65536)], "a device")
    shown = capsys.readouterr()
    assert "25.0" in shown.err and "out of memory" in shown.err and shown.out == ""


def test_without_a_device_the_benchmark_says_so():
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, str(BENCH)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 3 and done.stdout == ""
    assert "needs a CUDA device and Triton" in done.stderr
