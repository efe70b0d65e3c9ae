"""The plan of a run: numbers by hand, what is done and left of real runs, and every refusal."""

from __future__ import annotations

import io
import json
import os
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from inertia.backbones.config import read as read_backbone
from inertia.decoding import batches
from inertia.eviction.keep_sets import Row as EvictionRow
from inertia.experiments import cli
from inertia.experiments import run as harness
from inertia.experiments.plan import calls, history, memory
from inertia.experiments.plan.calls import Asked, Batch, Call
from inertia.experiments.plan.hardware import DECODE_SHARE, LAYER_SECONDS, PREFILL_SHARE, Hardware, devices
from inertia.experiments.plan.jobs import jobs_of
from inertia.experiments.plan.plan import Options, make_plan
from inertia.experiments.plan.report import print_plan
from inertia.experiments.plan.shape import Shape, read_config, shape_of, table
from inertia.experiments.plan.speed import Measured, Roofline, Stated
from inertia.methods import full_cache, h2o, inertiakv, preset
from inertia.paths import config_dir
from inertia.plan import main
from inertia.records import read_samples

ROOT = Path(__file__).resolve().parents[1]
PAPER = (
    "llama-3.1-8b-instruct",
    "llama-3.3-70b-instruct",
    "mistral-7b-instruct-v0.3",
    "qwen2.5-7b-instruct",
    "qwen2.5-14b-instruct",
    "qwen3-30b-a3b-instruct",
)
SMALL = (
    "backbone=tiny-random",
    "benchmark.tasks=[niah_single_1]",
    "benchmark.lengths=[512]",
    "logger=none",
    "progress=false",
)
# Two layers, one of them sliding; small enough to count by hand.
TINY = Shape(
    windows=(None, 16), query_heads=4, kv_heads=2, head_dim=8, hidden=32, intermediate=64, vocabulary=100, tied=False
)


def planned(capsys, *words):
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def plan(*words, **options):
    return make_plan(jobs_of(words), Options(**options))


def backbone(name):
    return read_backbone(config_dir() / "backbone" / f"{name}.yaml")


# ------------------------------------------------------------------------------------------------------- shapes


@pytest.mark.parametrize(
    ("name", "parameters"),
    [  # as the model cards and files state them
        ("meta-llama/Llama-3.1-8B-Instruct", 8_030_261_248),
        ("meta-llama/Llama-3.3-70B-Instruct", 70_553_706_496),
        ("mistralai/Mistral-7B-Instruct-v0.3", 7_248_023_552),
        ("Qwen/Qwen2.5-7B-Instruct", 7_615_616_512),
        ("Qwen/Qwen2.5-14B-Instruct", 14_770_033_664),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", 30_532_122_624),
        ("smollm2-135m", 134_515_008),
        ("gemma3-270m", 268_098_176),
    ],
)
def test_the_table_has_the_published_numbers_of_parameters(name, parameters):
    assert table()[name].parameters == pytest.approx(parameters, rel=5e-4)


def test_every_backbone_has_a_shape_that_agrees_with_its_config():
    for file in (config_dir() / "backbone").glob("*.yaml"):
        config = read_backbone(file)
        found = shape_of(config)
        assert (found.layers, found.query_heads, found.kv_heads) == (
            config.layers,
            config.query_heads,
            config.kv_heads,
        )


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "qwen3_moe", "mistral", "gemma3"])
def test_a_tiny_models_shape_counts_its_matrices_exactly(architecture):
    from inertia.backbones.tiny import build
    from inertia.eviction.layers import layers_of

    config = replace(backbone("tiny-random"), architecture=architecture)
    model = build(config)
    found = shape_of(config)
    assert found.parameters == sum(each.numel() for each in model.parameters() if each.dim() > 1)
    assert found.windows == layers_of(model.config).windows


def test_a_config_json_is_read_with_its_windows_heads_and_experts(tmp_path):
    import transformers

    common = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 32}
    common |= {"intermediate_size": 64, "vocab_size": 100}
    cases = {
        "off": (transformers.Qwen2Config(**common, sliding_window=64, use_sliding_window=False), (None, None), 8, 0),
        "wide": (transformers.LlamaConfig(**common, head_dim=16), (None, None), 16, 0),
        "mixed": (
            transformers.Gemma3TextConfig(
                **common, head_dim=8, sliding_window=16, layer_types=["sliding_attention", "full_attention"]
            ),
            (16, None),
            8,
            0,
        ),
        "experts": (
            transformers.Qwen3MoeConfig(
                **common, head_dim=8, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=48
            ),
            (None, None),
            8,
            6,
        ),
    }
    for name, (config, windows, head_dim, experts) in cases.items():
        config.save_pretrained(tmp_path / name)
        found = read_config(tmp_path / name)
        assert (found.windows, found.head_dim, found.experts) == (windows, head_dim, experts)
        assert (found.intermediate, found.experts_per_token) == ((48, 2) if experts else (64, 0))


@pytest.mark.parametrize(
    ("kind", "settings", "reason"),
    [
        ("GPT2Config", {}, "no one intermediate_size"),
        ("OPTConfig", {"ffn_dim": 64}, "no one intermediate_size"),
        ("DeepseekV3Config", {}, "MLA"),
        ("Lfm2Config", {"num_key_value_heads": 2, "layer_types": ["conv", "full_attention"]}, "keep a state"),
    ],
)
def test_a_shape_that_is_not_counted_is_refused_by_name(tmp_path, kind, settings, reason):
    import transformers

    common = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32, "vocab_size": 100}
    config = getattr(transformers, kind)(**common, **settings)
    config.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=f"{config.model_type}.*{reason}"):
        read_config(tmp_path)


def test_llama_takes_131072_bytes_a_token_and_parameters_are_counted_by_hand():
    llama = shape_of(backbone("llama-3.1-8b-instruct"))
    assert memory.cache(llama, 2, 1) == 2 * 32 * 8 * 128 * 2 == 131072
    # Two layers: q and o 32x32, k and v 32x16, gate, up and down 32x64; embedding and head 100x32.
    assert TINY.parameters == 2 * (2 * 1024 + 2 * 512 + 3 * 2048) + 2 * 3200
    assert TINY.slot == 32 and TINY.full_layers == 1
    moe = replace(TINY, experts=4, experts_per_token=2)
    assert moe.parameters == 2 * (2 * 1024 + 2 * 512 + 4 * 3 * 2048 + 4 * 32) + 2 * 3200
    assert moe.active == 2 * (2 * 1024 + 2 * 512 + 2 * 3 * 2048 + 4 * 32)


# ------------------------------------------------------------------------------------------------ tokens and rows


def test_a_call_reads_once_and_batches_rows_of_like_size():
    some = Call(1000, (full_cache(), inertiakv(), h2o(), preset("inertiakv", compression_ratio=0.5)), limit=11, made=11)
    assert (some.prefill, some.alone, some.decoded) == (1000, 4000, 44)
    # 100 + 1 slots for the two small ones, 500 + 1 for the other, 1000 + 10 for the full cache.
    assert calls.batches(some) == [Batch(1, 1010, True), Batch(2, 101, False), Batch(1, 501, False)]
    replaying = Call(1000, (full_cache(), preset("kvzip"), preset("kvzip", compression_ratio=0.5)), limit=2, made=2)
    assert (replaying.prefill, replaying.alone) == (2000, 5000)
    assert calls.batches(replaying) == []


def test_second_calls_and_fidelity_are_counted():
    two = Asked(1000, limit=100, made=100, second=20).calls([full_cache(), h2o()])
    assert [(call.prompt, len(call.policies), call.limit) for call in two] == [
        (1000, 2, 100),
        (164, 1, 20),
        (164, 1, 20),
    ]
    follows = Asked(1000, limit=100, made=30, fidelity=True).calls([inertiakv(), h2o()])
    # The answers, the full cache's answer, and both texts followed by the full cache and the two.
    assert [len(call.policies) for call in follows] == [2, 1, 3, 3]
    assert [len(call.policies) for call in Asked(1000, 100, 30, fidelity=True).calls([full_cache(), h2o()])] == [
        2,
        2,
        2,
    ]


@given(
    prompt=st.integers(2, 5000),
    steps=st.integers(1, 300),
    policy=st.sampled_from(
        [full_cache(), inertiakv(), preset("inertiakv", tokens=700), preset("h2o", compression_ratio=0.0)]
    ),
)
def test_capacity_is_the_cores(prompt, steps, policy):
    assert calls.capacity(policy, prompt, steps) == EvictionRow(policy, prompt, 0, prompt).capacity(steps)


def test_rows_share_a_batch_by_the_cores_rule():
    assert calls.CAPACITY_SPREAD == batches.CAPACITY_SPREAD


# -------------------------------------------------------------------------------------------------------- memory


def test_memory_is_counted_by_hand():
    call = Call(1000, (full_cache(), inertiakv()), limit=11, made=11)
    need = memory.peak(TINY, 4, call)
    assert need.weights == 4 * TINY.parameters
    # One full layer holds prompt and answer, the sliding one its window; a slot is 2 x 2 heads x 8 numbers.
    assert need.prompt == 4 * 32 * (1010 + 16)
    assert need.slots == 4 * 32 * (101 + 16)
    # Per token: the stream twice (64) and the widest of attention (8 x 12 = 96) and MLP (192); one scorer, logits.
    assert need.working == 4 * 1000 * (64 + 192) + 4 * 1 * 1 * 2 * 1001 + 4 * 100
    assert need.total == need.weights + need.prompt + need.slots + need.working
    eager = memory.peak(TINY, 4, call, eager=True)
    assert eager.working - need.working == 8 * 4 * 1000**2
    alone = memory.peak(TINY, 4, Call(1000, (inertiakv(),), limit=11, made=11))
    assert alone.prompt == 4 * 32 * (1001 + 16)
    cut = memory.peak(TINY, 4, Call(1000, (preset("tova", compression_ratio=0.9),), limit=11, made=11))
    # A compressed copy beside the plain prompt: 93 of 936 context tokens, the question of 64 behind them, the answer.
    assert cut.prompt == 4 * 32 * (1001 + 16) + 4 * 32 * (93 + 64 + 10 + 16)


def test_layers_are_spread_over_devices_and_working_memory_is_not():
    wide = replace(TINY, windows=(None,) * 5)
    call = Call(1000, (full_cache(), inertiakv()), limit=11, made=11)
    one, two = memory.peak(wide, 2, call), memory.peak(wide, 2, call, devices=2)
    assert two.weights == 2 * (3 * 9216 + 3200) and one.weights == 2 * (5 * 9216 + 6400)
    assert (two.prompt, two.slots) == (one.prompt * 3 / 5, one.slots * 3 / 5)
    assert two.working == one.working
    needs = [memory.peak(wide, 2, call, devices=count).total for count in (1, 2, 3)]
    assert memory.enough_devices(needs[1], lambda count: memory.peak(wide, 2, call, devices=count)) == 2
    assert memory.enough_devices(needs[2] // 9, lambda count: memory.peak(wide, 2, call, devices=count)) is None


def test_policies_are_halved_until_they_fit():
    assert memory.split(list(range(7)), lambda some: len(some) <= 3) == [[0, 1, 2], [3, 4], [5, 6]]
    assert memory.split([1, 2], lambda some: False) == [[1], [2]]


def said(plan):
    console = Console(record=True, width=100, file=io.StringIO())
    print_plan(plan, console, cells=False)
    return " ".join(console.export_text().split())


def test_a_batch_that_does_not_fit_is_split_and_reads_the_prompt_again():
    words = ("backbone=llama-3.1-8b-instruct", "benchmark.tasks=[vt]", "benchmark.lengths=[16384]", "method=inertiakv")
    jobs = jobs_of(["-m", *words, "budget.compression_ratio=0.5,0.51,0.52,0.53,0.54,0.55"])
    tight = make_plan(jobs, Options("rtx4090"))
    (row,) = tight.sections[0].groups
    assert row.parts == (3, 3) and row.fits and row.devices_needed == 2
    assert row.memory.total <= 0.95 * 24 * 2**30
    assert (row.work.prefill, row.work.alone) == (2 * 500 * (16384 - 30), 6 * 500 * (16384 - 30))
    assert "6 policies run as 3+3" in said(tight)
    roomy = make_plan(jobs, Options("h100-80gb"))
    (whole,) = roomy.sections[0].groups
    assert whole.parts == (6,) and whole.devices_needed is None
    assert whole.work.prefill == 500 * (16384 - 30)
    assert "split" not in said(roomy)


def test_a_model_that_is_too_large_says_how_many_devices_hold_it():
    words = (
        "backbone=llama-3.3-70b-instruct",
        "benchmark.lengths=[16384]",
        "benchmark.tasks=[vt]",
        "method=full_cache,inertiakv",
    )
    jobs = jobs_of(["-m", *words])
    one, two = (make_plan(jobs, Options("h100-80gb", count)) for count in (1, 2))
    # Halving the policies does not help, so they stay together.
    assert one.sections[0].groups[0].parts == (2,) and one.sections[0].work.prefill == 500 * (16384 - 30)
    assert not one.sections[0].groups[0].fits and one.sections[0].groups[0].devices_needed == 2
    assert two.sections[0].groups[0].fits and two.sections[0].groups[0].devices_needed is None
    assert "does not fit vt at 16384" in said(one) and "--devices 2" in said(one)
    assert "does not fit" not in said(two)


# --------------------------------------------------------------------------------------------------------- hours


def test_the_roofline_is_counted_by_hand():
    slow = Hardware("slow", None, {"float32": 1e-6}, 1e-3)  # a million FLOP/s, a million bytes/s
    speed = Roofline(slow, TINY, "float32", 4)
    call = Call(100, (full_cache(), inertiakv()), limit=11, made=11)
    matrices = 2 * 9216
    pairs = 100 * 100 / 2 + 100 * 16
    flops = 2 * (matrices * 100 + 3200) + 4 * 4 * 8 * pairs
    assert speed.prefill(call) == pytest.approx(flops / (PREFILL_SHARE * 1e6))
    moved = 4 * (matrices + 3200) + 2 * 4 * 32 * (50 + 16)
    compute = 2 * 2 * (matrices + 3200) / (PREFILL_SHARE * 1e6)
    assert speed.step(2, 50) == pytest.approx(max(moved / (DECODE_SHARE * 1e6), compute))
    # One first step over the prompt, then nine of the full cache (110 slots) and of the small row (11 slots).
    steps = speed.step(1, 100) + 9 * (speed.step(1, 110) + speed.step(1, 11))
    assert speed.decode(call) == pytest.approx(steps)
    assert speed.decode(replace(call, made=1)) == 0
    fast = Roofline(devices()["h100-80gb"], TINY, "bfloat16", 2)
    assert fast.step(1, 10) == 2 * LAYER_SECONDS


def test_of_a_mixture_only_the_experts_in_use_are_read():
    moe = replace(TINY, experts=8, experts_per_token=2)
    speed = Roofline(Hardware("slow", None, {"float32": 1e6}, 1e-9), moe, "float32", 4)
    moved = [speed.step(rows, 0) * DECODE_SHARE / 4 - rows * 32 * 16 for rows in (1, 2, 4, 100)]
    per_expert = 2 * 3 * 2048
    assert [round(more - moved[0]) for more in moved[1:]] == [2 * per_expert, 6 * per_expert, 6 * per_expert]


def test_stated_and_measured_speeds_are_taken_as_they_are(capsys):
    call = Call(1000, (full_cache(), inertiakv(), h2o()), limit=11, made=6)
    assert Stated(100, 3).prefill(call) == 10 and Stated(100, 3).decode(call) == 6
    measured = Measured(500, {1: 0.1, 4: 0.5}, 7)
    assert measured.prefill(call) == 2
    # The first step alone, then four steps of the full cache and of two rows (nearest: one row).
    assert measured.decode(call) == pytest.approx(0.1 + 4 * (0.1 + 0.1))
    found = planned(capsys, *SMALL, "benchmark.examples=2", "--prefill-tps", "10", "--decode-tps", "4")
    assert found["totals"]["work"]["seconds"] == 2 * 384 / 10 + 2 * 128 / 4


# ------------------------------------------------------------------------------------- jobs, cells, done and left


def test_without_records_everything_is_left(capsys):
    found = planned(capsys, "experiment=table05", "profile=laptop")
    totals = found["totals"]
    assert (totals["cells"], totals["groups"], totals["answers"]) == (49, 7, 504)
    assert totals["states"] == {"sealed": 0, "partly": 0, "missing": 49, "unknown": 0}
    assert totals["left"] == totals["work"] and totals["answers_left"] == 504
    # 24 + 6 x 8 examples, each read once for seven policies; prompts fill what the answers leave of 1,024.
    limits = {row["task"]: row["max_new_tokens"] for row in found["backbones"][0]["groups"]}
    assert limits["niah_noise_3keys"] == 128 and limits["vt"] == 30
    prefill = sum((24 if task == "niah_noise_3keys" else 8) * (1024 - limit) for task, limit in limits.items())
    assert totals["work"]["prefill"] == prefill and totals["work"]["alone"] == 7 * prefill
    decode = sum(7 * (24 if task == "niah_noise_3keys" else 8) * limit for task, limit in limits.items())
    assert totals["work"]["decode"] == totals["work"]["decode_most"] == decode


def test_a_real_sweep_has_the_planned_cells_and_then_nothing_is_left(capsys, results, monkeypatch):
    monkeypatch.setattr(sys, "argv", sys.argv)
    sweep = ("-m", *SMALL, "benchmark.examples=2", "method=full_cache,inertiakv", "aggregation.alpha=0,0.8")
    before = planned(capsys, *sweep)
    assert not results.exists()
    assert cli.main(sweep) == 0
    capsys.readouterr()
    frame = read_samples(results / "runs")
    ids = {cell["cell_id"] for cell in before["backbones"][0]["groups"][0]["cells"]}
    assert ids == set(frame["cell_id"]) and len(ids) == 3
    after = planned(capsys, *sweep)
    assert after["totals"]["states"]["sealed"] == 3 and after["totals"]["answers_left"] == 0
    assert set(after["totals"]["left"].values()) == {0}
    # What was planned is what was recorded: rows of a batch, and bytes of their slots.
    shape = shape_of(backbone("tiny-random"))
    policies = (full_cache(), inertiakv(0.0), inertiakv(0.8))
    for _, rows in frame.groupby("example_id"):
        prompt = int(rows["prompt_tokens"].iloc[0])
        batches = calls.batches(Call(prompt, policies, 128, 128))
        assert sorted(batch.rows for batch in batches for _ in range(batch.rows)) == sorted(rows["batch_rows"])
        sizes = [memory.cache(shape, 4, calls.capacity(policy, prompt, 127)) for policy in policies]
        assert sorted(sizes) == sorted(rows["cache_bytes"])
        assert prompt <= before["backbones"][0]["groups"][0]["prompt_tokens"]["longest"]


def test_what_is_left_counts_the_missing_answers_alone(capsys, results):
    harness.run(jobs_of(["-m", *SMALL, "benchmark.examples=2", "method=full_cache,inertiakv"]))
    found = planned(capsys, "-m", *SMALL, "benchmark.examples=3", "method=full_cache,inertiakv,h2o")
    (group,) = found["backbones"][0]["groups"]
    assert [cell["state"] for cell in group["cells"]] == ["partly", "partly", "missing"]
    assert [cell["done"] for cell in group["cells"]] == [2, 2, 0]
    prompt = group["prompt_tokens"]["mean"]
    # All three examples are read again: two for h2o alone, one for all three policies.
    assert group["left"]["prefill"] == 3 * prompt and group["left"]["alone"] == 5 * prompt
    made = read_samples(results / "runs")["new_tokens"].mean()
    assert group["recorded_answers"] == 4
    assert group["left"]["decode"] == pytest.approx(5 * made) and group["left"]["decode_most"] == 5 * 128
    assert 0 < group["left"]["seconds"] < group["work"]["seconds"]
    fewer = planned(capsys, *SMALL, "benchmark.examples=1", "method=inertiakv")
    assert fewer["totals"]["states"]["sealed"] == 1


def test_a_damaged_cell_is_named_and_counted_as_left(capsys, results):
    (outcome,) = harness.run(jobs_of([*SMALL, "benchmark.examples=1", "method=inertiakv"]))
    with sqlite3.connect(results / "runs" / "local.db") as connection:
        connection.execute("UPDATE cell SET manifest = '{'")
    found = planned(capsys, *SMALL, "benchmark.examples=1", "method=inertiakv")
    assert found["totals"]["answers_left"] == 1
    assert any(outcome.cell.id in note and "local.db" in note for note in found["notes"])


def test_speed_is_measured_on_sealed_records(capsys, results):
    words = (*SMALL, "benchmark.examples=2", "method=inertiakv")
    harness.run(jobs_of(words))
    frame = read_samples(results / "runs")
    speed = plan(*words, "benchmark.examples=5", measured=True).sections[0].machine.speed
    assert speed.prefill_tps == pytest.approx(frame["prompt_tokens"].sum() / frame["prefill_seconds"].sum())
    steps = frame["decode_seconds"] / (frame["new_tokens"] - 1)
    assert speed.step_seconds == {1: pytest.approx(steps.median())}
    found = planned(capsys, *words, "--measured")
    assert "measured on 2 batches" in found["backbones"][0]["hours_from"]


def test_rows_that_decoded_together_are_one_measurement():
    row = {"cell_id": "c1", "example_id": "a", "prompt_tokens": 100, "prefill_seconds": 2.0, "batch_rows": 2}
    row |= {"telemetry": json.dumps({"decoded_with": "b1"})}
    rows = ({**row, "new_tokens": 11, "decode_seconds": 1.0}, {**row, "new_tokens": 5, "decode_seconds": 0.9})
    found = history.measured([history.Rows("m", "ruler", "vt", 512, rows)])
    assert found == Measured(50.0, {2: 0.1}, 1)
    assert history.measured([]) is None


def test_a_shard_plans_its_own_part(capsys):
    whole = planned(capsys, *SMALL, "benchmark.examples=5")["totals"]
    part = planned(capsys, *SMALL, "benchmark.examples=5", "shard=1/2")["totals"]
    assert (whole["answers"], part["answers"]) == (5, 3)


# ----------------------------------------------------------------------------- what is not at hand, and no network


def test_the_six_backbones_are_planned_without_network_torch_or_traces(tmp_path):
    code = (
        "import sys; from inertia.plan import main; code = main(sys.argv[1:]); "
        "print('torch' in sys.modules, file=sys.stderr); sys.exit(code)"
    )
    words = ("-m", f"backbone={','.join(PAPER)}", "method=full_cache,inertiakv", "benchmark.lengths=[4096]", "--json")
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hub"), "INERTIA_RESULTS": "none"}
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=tmp_path,
        env={**environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.split()[-1] == "False"
    found = json.loads(done.stdout)
    assert [section["backbone"] for section in found["backbones"]] == list(PAPER)
    assert [section["kv_bytes_per_token"] for section in found["backbones"]] == [
        131072,
        327680,
        131072,
        57344,
        196608,
        98304,
    ]
    assert found["totals"]["states"]["unknown"] == 6 * 6 * 2 and found["totals"]["left"] is None
    assert found["totals"]["groups"] == 36
    (note,) = found["notes"]
    assert "meta-llama/Llama-3.1-8B-Instruct@main" in note and "unknown" in note
    assert not (tmp_path / "none").exists()


def test_data_that_are_not_at_hand_are_planned_from_counts(capsys, tmp_path):
    found = planned(capsys, "backbone=tiny-random", "benchmark=longbench", "benchmark.tasks=[hotpotqa]")
    (group,) = found["backbones"][0]["groups"]
    assert (group["answers"], group["answers_left"], group["left"]) == (200, None, None)
    # The official limit at a window of 8,192, and a template around it.
    assert group["prompt_tokens"] == {"mean": 7532, "longest": 7532, "source": "at most, by the window"}
    assert group["cells"][0]["cell_id"] is None
    assert "longbench hotpotqa: no data at hand" in found["notes"][0]
    essays = planned(capsys, "backbone=tiny-random", "benchmark.tasks=[niah_single_2,vt]", "benchmark.examples=2")
    states = {row["task"]: row["cells"][0]["state"] for row in essays["backbones"][0]["groups"]}
    assert states == {"niah_single_2": "unknown", "vt": "missing"}


def test_data_at_hand_are_counted_and_sampled(capsys, tmp_path):
    row = {"input": "?", "context": "word " * 50, "answers": ["x"], "length": 50, "all_classes": None}
    rows = [{"_id": str(number), **row} for number in range(3)]
    (tmp_path / "hotpotqa.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    source = ("benchmark.source.kind=path", f"benchmark.source.path={tmp_path}")
    found = planned(capsys, "backbone=tiny-random", "benchmark=longbench", "benchmark.tasks=[hotpotqa]", *source)
    (group,) = found["backbones"][0]["groups"]
    assert (group["examples"], group["answers_left"], found["notes"]) == (3, 3, [])
    assert group["prompt_tokens"]["source"] == "mean of the first 3"
    assert 50 < group["prompt_tokens"]["mean"] < group["prompt_tokens"]["longest"] == 7532
    (tmp_path / "hotpotqa.jsonl").write_text("{", encoding="utf-8")
    assert main(["backbone=tiny-random", "benchmark=longbench", "benchmark.tasks=[hotpotqa]", *source]) == 2


# ---------------------------------------------------------------------------------------------------- words of it


def test_tables_fit_80_and_120_columns_and_say_what_they_rest_on():
    words = (
        "backbone=llama-3.1-8b-instruct,tiny-random",
        "method=full_cache,inertiakv,tova",
        "benchmark.lengths=[8192]",
    )
    jobs = jobs_of(["-m", *words, "profile=laptop"])
    made = make_plan(jobs, Options())
    for width in (80, 120):
        console = Console(record=True, width=width, file=io.StringIO())
        print_plan(made, console, cells=True)
        out = console.export_text()
        assert max(map(len, out.splitlines())) <= width
        flat = " ".join(out.split())
        wanted = ("niah_noise_3keys", "131,072 bytes of cache per token", "roofline of h100-80gb, 50% of 989 TFLOP/s")
        for words in (*wanted, "Hours are estimates", "Shared prefills", "?/21", "0/21"):
            assert words in flat


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ((), "nothing was asked for"),
        (("nonsense",), "key=value"),
        (("backbone=lama",), "llama-3.1-8b-instruct"),
        (("scorerr=attention",), "Did you mean scorer"),
        (("backbone=tiny-random", "seed=0,1"), "add -m"),
        (("-m", "backbone=tiny-random", "budget.compression_ratio=0.9,1.5"), "job 1"),
        (("backbone=llama-3.1-8b-instruct", "backbone.path=/no/such/folder"), "/no/such/folder"),
        (("backbone=qwen2.5-7b-instruct", "backbone.repo=some/model"), "hf download some/model config.json"),
        (("backbone=llama-3.1-8b-instruct", "backbone.layers=31"), "declares 31 layers"),
        (("backbone=tiny-random", "--gpu", "h101"), "h100-80gb"),
        (("backbone=tiny-random", "--prefill-tps", "5"), "both or neither"),
        (("backbone=tiny-random", "--prefill-tps", "5", "--decode-tps", "5", "--measured"), "one of them"),
        (("backbone=tiny-random", "--measured"), "no sealed records of tiny-random"),
        (("backbone=tiny-random", "benchmark=longbench", "benchmark.lengths=[1024]"), "no nominal lengths"),
    ],
)
def test_what_cannot_be_planned_is_refused_by_name(words, reason, capsys):
    assert main(list(words)) == 2
    captured = capsys.readouterr()
    assert reason in captured.err and captured.out == ""


@pytest.mark.parametrize(
    "words", [("--devices", "0"), ("--devices", "1.5"), ("--decode-tps", "0"), ("--prefill-tps", "fast"), ("--foo",)]
)
def test_options_out_of_range_exit_2(words, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["backbone=tiny-random", *words])
    assert stopped.value.code == 2
    assert words[0] in capsys.readouterr().err
