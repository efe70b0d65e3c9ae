"""The bench: figures from made-up timings, references that notice a wrong step, and the whole run in small."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import bench_decode
from bench import bandwidth, masked, plain
from bench.cases import FULL_REFRESH, KVPRESS_TOVA, LAZY_4, OURS, SCORE_FREE, TOVA, Case, cases, named, together
from bench.figures import paired, share_beyond, slope, typical, windows
from bench.kvpress_client import BENCH, KVPress, KVPressFailed
from bench.measure import Measured, Setting, check_ours, check_plain, compare, measure, once, warm_up
from bench.prompt import Replayed, drawn_prompt, read_prompt
from bench.shapes import SHAPES, build, weight_bytes
from bench.table import COLUMNS, cells, faults, floor_of, rows_of, targets_of
from bench.timing import LEAD, highest, peak_while_decoding

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "scripts" / "bench_decode.py"
KEPT, STEPS = 48, 8
TIMES = st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=50)


@pytest.fixture(scope="module")
def model():
    return build(SHAPES["tiny"], "cpu", torch.float32)


@pytest.fixture(scope="module")
def prompt(model):
    with torch.inference_mode():
        return read_prompt(model, 160)


@pytest.fixture
def setting(model, prompt):
    return Setting(model, prompt, KEPT, STEPS, "cpu")


# ------------------------------------------------------------------------------------------ figures


@given(st.lists(TIMES, min_size=1, max_size=4), st.floats(0, 1))
def test_without_dear_steps_a_step_costs_a_quantile_of_all(repeats, share):
    assert typical(repeats) == pytest.approx(numpy.median(sum(repeats, [])), rel=1e-9)
    assert typical(repeats, share=share) == pytest.approx(numpy.quantile(sum(repeats, []), share), rel=1e-9)


def test_dear_steps_count_as_often_as_they_come():
    lazy = [[1.0, 1.0, 9.0, 1.0] * 3, [1.0, 1.0, 9.0, 1.0] * 3]
    assert typical(lazy, period=4, dear=2) == 3.0
    assert typical(lazy) == 1.0


def test_one_slow_moment_does_not_move_a_lazy_row():
    steady = [[1.0, 1.0, 9.0, 1.0] * 3]
    jolted = [[1.0, 500.0, 9.0, 1.0, *[1.0, 1.0, 9.0, 1.0] * 2]]
    assert typical(jolted, period=4, dear=2) == typical(steady, period=4, dear=2)


def test_fewer_steps_than_a_period_are_refused():
    with pytest.raises(ValueError, match="3 timed steps are fewer than a period of 4"):
        typical([[1.0] * 8, [1.0] * 3], period=4)


def test_the_dear_step_is_the_one_that_scores():
    from inertia.eviction.refresh import Every

    for period in (1, 2, 3, 4, 8):
        case = Case("x", OURS, period=period)
        numbers = [LEAD + 1 + at for at in range(period)]  # decode steps 1, 2, .. of the timed ones
        assert [at for at, number in enumerate(numbers) if Every(period).due(number)] == [case.dear]


def test_ratios_pair_repeats_so_a_slow_machine_cancels_out():
    assert paired([2.0, 20.0, 200.0], [1.0, 10.0, 100.0]) == [2.0, 2.0, 2.0]
    # The paper's own figure: 36% of a step is 1.5625 times the rest.
    assert share_beyond([1.5625], [1.0]) == pytest.approx(0.36)
    assert share_beyond([1.0], [1.25]) == pytest.approx(-0.25)


def test_slope_is_the_relative_rise_from_first_to_last():
    assert slope([5.0] * 10) == pytest.approx(0, abs=1e-12)
    assert slope([9.5, 10.0, 10.5]) == pytest.approx(0.1)
    assert slope([10.5, 10.0, 9.5]) == pytest.approx(-0.1)


def test_windows_are_medians_of_equal_parts():
    assert windows([1.0, 2.0, 90.0, 4.0, 5.0, 6.0, 7.0], 2) == [2.0, 5.0]
    with pytest.raises(ValueError, match="do not fill 3 windows"):
        windows([1.0, 2.0], 3)


# ------------------------------------------------------------------------------------------ memory and bandwidth


def test_the_highest_sum_counts_between_the_marks_only():
    events = [(1, 100), (2, None), (3, 7), (4, -7), (5, None), (6, -100), (7, 20), (8, None), (9, 999)]
    assert highest(events, lead=0) == 107
    assert highest(events, lead=1) == 107
    assert highest(events, lead=2) == 100
    assert highest(reversed(events), lead=1) == 107


def test_peak_is_what_torch_allocated_between_the_marks():
    def work(mark):
        large = torch.empty(1 << 20)  # before the first mark, and gone before it
        del large
        kept = torch.empty(1 << 16)
        mark()
        torch.empty(1 << 14)
        mark()
        return kept

    kept, peak = peak_while_decoding(work, "cpu", lead=1)
    assert peak == kept.nbytes + 4 * (1 << 14)


def test_a_step_reads_the_weights_once_and_every_row_once(model):
    config = SHAPES["tiny"].config
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    total = sum(parameter.numel() for parameter in model.parameters())
    assert weight_bytes(SHAPES["tiny"], torch.bfloat16) == 2 * total
    # Of the input embedding one row is read; the head is read whole.
    assert bandwidth.weight_bytes_per_step(model) == 4 * (total - (vocabulary - 1) * hidden)
    head_dim = hidden // config["num_attention_heads"]
    assert bandwidth.token_bytes(model) == 2 * 2 * config["num_key_value_heads"] * head_dim * 4


def test_the_speed_of_reading_is_that_of_the_faster_way(monkeypatch):
    buffer = bandwidth.buffer("cpu", 1 << 20)
    assert buffer.nbytes == 1 << 20 and buffer.all()
    assert 0 < bandwidth.read_speed(buffer) < float("inf")
    seconds = iter((0.5, 0.25))
    fixed = lambda *_, **__: SimpleNamespace(timeit=lambda passes: SimpleNamespace(mean=next(seconds)))  # noqa: E731
    monkeypatch.setattr(bandwidth, "Timer", fixed)
    assert bandwidth.read_speed(buffer) == 4 << 20


# ------------------------------------------------------------------------------------------ references


def test_a_replayed_prompt_decodes_as_the_real_one(model, prompt):
    from inertia import generate, preset

    front = Replayed(model, prompt)
    (replayed,) = generate(front, prompt.ids[:, :-1], [preset("full_cache")], 9)
    assert replayed.tokens[0] == int(prompt.ids[0, -1])
    with torch.inference_mode():
        assert replayed.tokens[1:] == plain.expected(model, prompt, 8)
    with torch.inference_mode():
        real = model.generate(prompt.ids, max_new_tokens=8, do_sample=False, pad_token_id=0)
    assert replayed.tokens[1:] == real[0, prompt.ids.shape[1] :].tolist()


def test_the_reference_is_the_model_itself_where_all_is_seen(model, prompt):
    fed = [int(prompt.ids[0, -1]), 5, 6]
    whole = torch.cat([prompt.ids[:, :-1], torch.tensor([fed])], 1)
    with torch.inference_mode():
        found = masked.reference(model, prompt, fed, [range(prompt.length + 1 + at) for at in range(3)])
        real = model(input_ids=whole).logits[0, prompt.length :]
    torch.testing.assert_close(found, real, atol=1e-5, rtol=0)


def test_sets_of_every_scope_become_masks():
    def seen_of(sets):
        mask = torch.zeros(2, 2, 3, dtype=torch.bool)
        masked.allow(mask, sets)
        return mask.nonzero().tolist()

    assert seen_of([0, 2]) == [[layer, head, at] for layer in range(2) for head in range(2) for at in (0, 2)]
    assert seen_of(range(2)) == [[layer, head, at] for layer in range(2) for head in range(2) for at in range(2)]
    assert seen_of([[0], [1, 2]]) == [[0, 0, 0], [0, 1, 0], [1, 0, 1], [1, 0, 2], [1, 1, 1], [1, 1, 2]]
    assert seen_of([[[0], [1]], [[2], []]]) == [[0, 0, 0], [0, 1, 1], [1, 0, 2]]
    assert masked.with_newcomer([[0], [1]], 7) == [[0, 7], [1, 7]]
    assert masked.sizes([[[1, 2], [3]], [[], [4]]]) == (0, 2)


def test_a_gap_is_how_much_worse_a_choice_was():
    logits = torch.tensor([[1.0, 4.0], [2.0, 2.5]])
    assert masked.gap(logits, [1, 1]) == 0.0
    assert masked.gap(logits, [1, 0]) == 0.5


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("kind", plain.FLOORS)
def test_every_candidate_for_the_floor_is_right(setting, kind, rows):
    case = Case(kind, "plain", kind, rows=rows)
    seconds, run = once(case, setting)
    checks = check_plain(case, setting, run)
    assert len(seconds) == STEPS and len(run.tokens) == rows and len(run.tokens[0]) == STEPS + LEAD
    assert checks.pop("masked cache") and all(checks.values())
    assert run.held == rows * KEPT * bandwidth.token_bytes(setting.model)


def test_a_floor_that_writes_the_wrong_slot_is_noticed(setting, monkeypatch):
    def stuck(self, keys, values, layer, *rest, **options):
        self.keys[layer][:, :, :1], self.values[layer][:, :, :1] = keys, values
        return self.keys[layer], self.values[layer]

    monkeypatch.setattr(plain.SlotCache, "update", stuck)
    case = Case("stuck", "plain", plain.SLOTS_SDPA)
    assert check_plain(case, setting, once(case, setting)[1]) == {"masked cache": False}


def test_the_growing_cache_is_that_of_transformers(setting):
    case = Case("growing", "plain", plain.GROWING)
    _, run = once(case, setting)
    assert check_plain(case, setting, run) == {"generate": True}
    wrong = run._replace(tokens=((*run.tokens[0][:-1], run.tokens[0][-1] ^ 1),))
    assert check_plain(case, setting, wrong) == {"generate": False}


@pytest.mark.parametrize("name", [FULL_REFRESH, LAZY_4, TOVA, "ours, KeyDiff per head", "ours, 4 policies"])
def test_rows_of_ours_pass_their_checks(setting, name):
    found = warm_up(named(cases(KEPT, everything=True, with_kvpress=False), name), setting)
    assert found.left_out is None
    assert set(found.checks) >= {"masked cache", "budget"} and all(found.checks.values())
    assert found.live == KEPT and found.peak >= found.held


def test_a_row_over_budget_is_noticed(setting):
    case = named(cases(KEPT + 1, everything=True, with_kvpress=False), FULL_REFRESH)
    checks = check_ours(case, setting, once(case, setting)[1])
    assert checks == {"masked cache": True, "same tokens traced": True, "budget": False}


@pytest.mark.parametrize("when", ["after every step", "at the end"])
def test_every_unit_must_hold_the_budget(setting, monkeypatch, when):
    case = named(cases(KEPT, everything=True, with_kvpress=False), TOVA)
    _, run = once(case, setting)
    if when == "at the end":
        run = run._replace(live=(KEPT - 0.5,))
    else:
        monkeypatch.setattr(masked, "sizes", lambda kept: (KEPT - 1, KEPT))
    assert not check_ours(case, setting, run)["budget"]


def test_a_batch_that_answers_otherwise_than_alone_is_noticed(setting):
    case = together(KEPT, 3)
    _, run = once(case, setting)
    assert check_ours(case, setting, run)["as alone"]
    wrong = run._replace(tokens=(*run.tokens[:-1], (run.tokens[-1][0] ^ 1, *run.tokens[-1][1:])))
    assert not check_ours(case, setting, wrong)["as alone"]


# ------------------------------------------------------------------------------------------ the table


def row(name, *repeats, kind="", rows=1, side=OURS, policies=(), **more):
    return Measured(
        Case(name, side, kind, policies, rows=rows),
        seconds=[list(times) for times in repeats],
        checks={"masked cache": True},
        live=float(KEPT),
        **more,
    )


@pytest.fixture
def found():
    evicting = named(cases(1024, everything=True, with_kvpress=False), FULL_REFRESH).policies
    return [
        row("static", [0.012] * 3, [0.024] * 3, kind=plain.STATIC, side="plain"),
        row("slots", [0.010] * 3, [0.020] * 3, kind=plain.SLOTS_SDPA, side="plain"),
        row("slots, 4 rows", [0.03] * 3, [0.06] * 3, kind=plain.SLOTS_SDPA, side="plain", rows=4),
        row(FULL_REFRESH, [0.011] * 3, [0.022] * 3, policies=evicting, held=10, peak=30),
        row(SCORE_FREE, [0.010] * 3, [0.020] * 3, policies=evicting),
        row("ours, 4 policies", [0.045] * 3, [0.09] * 3, rows=4, policies=evicting * 4),
        row(KVPRESS_TOVA, [0.05] * 3, [0.05] * 3, side="kvpress"),
        row(TOVA, [0.01] * 3, [0.01] * 3, policies=evicting),
        Measured(Case("too large", OURS), left_out="needs 9.0 GiB"),
    ]


def figures(found, kept=1024, shape="tiny"):
    rows = rows_of(found, [2e9, 1e9, 3e9], shape=shape, kept=kept, weights=8_000_000, token=1_000)
    return {entry["row"]: entry for entry in rows}


def test_the_floor_is_the_fastest_plain_row_of_as_many_batch_rows(found):
    assert floor_of(found).case.name == "slots"
    assert floor_of(found, 4).case.name == "slots, 4 rows"
    assert floor_of(found, 16) is None
    by_name = figures(found)
    assert by_name[FULL_REFRESH]["to_floor"] == pytest.approx(1.1)
    assert by_name["ours, 4 policies"]["to_floor"] == pytest.approx(1.5)
    assert by_name["static"]["to_floor"] == pytest.approx(1.2)


def test_the_figures_of_a_row(found):
    full = figures(found)[FULL_REFRESH]
    assert full["ms"] == pytest.approx(16.5) and full["repeats_ms"] == pytest.approx([11.0, 22.0])
    assert full["quartiles_ms"] == pytest.approx([11.0, 22.0])
    assert full["score_share"] == pytest.approx(1 - 1 / 1.1)
    assert full["step_bytes"] == 8_000_000 + 1024 * 1_000
    # The best of the three speeds counts.
    assert full["bandwidth_share"] == pytest.approx(full["step_bytes"] / 0.0165 / 3e9)
    assert full["roofline_ms"] == pytest.approx(full["ms"] * full["bandwidth_share"])
    assert (full["kv_bytes"], full["peak_bytes"], full["steps"]) == (10, 30, 6)
    assert figures(found)["static"]["score_share"] is None
    assert figures(found)["ours, 4 policies"]["step_bytes"] == 8_000_000 + 4 * 1024 * 1_000


def test_every_row_is_printed_and_is_json(found):
    by_name = figures(found)
    assert json.loads(json.dumps(list(by_name.values()))) == list(by_name.values())
    assert {len(cells(entry)) for entry in by_name.values()} == {len(COLUMNS)}
    assert cells(by_name["too large"])[-1] == "left out: needs 9.0 GiB"
    assert "(11.2 each)" not in cells(by_name[FULL_REFRESH])[1]
    assert cells(by_name["ours, 4 policies"])[1] == "67.5 (16.9 each)"


def test_only_what_is_wrong_with_us_is_a_fault(found):
    found[3].checks["budget"] = False
    found[6].checks["as ours"] = False
    found.append(Measured(Case("broken", OURS), left_out="ValueError: no", failed=True))
    by_name = figures(found)
    assert faults(list(by_name.values())) == [
        f"tiny, 1024 kept, {FULL_REFRESH}: not equal (budget)",
        "tiny, 1024 kept, broken: ValueError: no",
    ]
    assert cells(by_name[FULL_REFRESH])[-1] == "not equal: budget"


def test_targets_are_compared_where_both_rows_are_there(found):
    small = {entry["what"]: entry for entry in targets_of(found, shape="smollm2-135m", kept=4096)}
    assert small[f"{FULL_REFRESH} / floor"]["met"]
    assert small[f"{TOVA} / {KVPRESS_TOVA}"]["ratio"] == pytest.approx(0.2)
    assert f"{LAZY_4} / floor" not in small
    found[3].seconds = [[0.0112] * 3, [0.0224] * 3]
    (full, _) = targets_of(found, shape="tiny", kept=1024)
    assert full["ratio"] == pytest.approx(1.12) and not full["met"]
    assert targets_of(found, shape="tiny", kept=256) == []


# ------------------------------------------------------------------------------------------ the run


def test_rows_take_turns_and_an_interrupt_keeps_what_was_measured(setting):
    chosen = [Case(kind, "plain", kind) for kind in (plain.SLOTS_SDPA, plain.SLOTS_MATMUL)]
    order, found, speeds = [], [], []

    def tick(name):
        order.append(name)
        if len(order) == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure(found, speeds, chosen, setting, 9, bandwidth.buffer("cpu", 1 << 16), tick)
    assert order == ["slots_sdpa", "slots_matmul", "slots_sdpa", "slots_matmul", "slots_sdpa"]
    assert [len(entry.seconds) for entry in found] == [2, 1] and len(speeds) == 2
    rows = rows_of(found, speeds, shape="tiny", kept=KEPT, weights=1, token=1)
    assert all(entry["ms"] > 0 for entry in rows)


def test_a_row_that_fails_is_left_out_and_the_rest_goes_on(setting, monkeypatch):
    monkeypatch.setattr(plain, "matmul", lambda *_, **__: 1 / 0)
    monkeypatch.setattr(plain, "held", lambda cache: 1)
    chosen = [Case(kind, "plain", kind) for kind in (plain.SLOTS_MATMUL, plain.SLOTS_SDPA)]
    found, speeds = [], []
    measure(found, speeds, chosen, setting, 1, bandwidth.buffer("cpu", 1 << 16))
    assert found[0].left_out == "ZeroDivisionError: division by zero" and found[0].failed
    assert found[1].left_out is None and found[1].seconds


def test_rows_too_large_are_left_out_before_they_run(setting):
    small = Setting(setting.model, setting.prompt, KEPT, STEPS, "cpu", most_bytes=1.0)
    assert warm_up(together(KEPT, 2), small).left_out.startswith("needs 0.0 GiB, allowed are 0.0")


def test_rows_that_must_agree_are_compared():
    one, two = Measured(Case("a", OURS), tokens=((1, 2),)), Measured(Case("b", OURS, same_as="a"), tokens=((1, 3),))
    compare([one, two])
    assert one.checks == {} and two.checks == {"as a": False}


def test_every_row_has_its_own_name_and_the_main_ones_are_everywhere():
    everything = cases(KEPT, everything=True, with_kvpress=True)
    main = cases(KEPT, everything=False, with_kvpress=True)
    names = [case.name for case in everything]
    assert len(set(names)) == len(names)
    assert {case.same_as for case in everything} <= {None, *names}
    assert {FULL_REFRESH, LAZY_4, SCORE_FREE, TOVA, KVPRESS_TOVA} < {case.name for case in main} < set(names)
    assert all(
        len({repr(policy.describe()) for policy in case.policies}) == case.rows for case in everything if case.policies
    )
    assert len(cases(KEPT, everything=True, with_kvpress=False)) == len(everything) - 4


def test_a_random_shape_is_a_function_of_its_name():
    one, two = (build(SHAPES["tiny"], "cpu", torch.float32) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    # Rotary frequencies are no parameters; they must survive the way over the meta device.
    frequencies = 10000.0 ** -(torch.arange(0, 32, 2) / 32)
    torch.testing.assert_close(one.model.rotary_emb.inv_freq, frequencies)
    drawn = drawn_prompt(one, 7)
    assert drawn.ids.shape == (1, 8) and drawn.keys[0].shape == (1, 2, 7, 32)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--shape", "huge"], "argument --shape: invalid choice: 'huge' (choose from 'smollm2-135m', "),
        (["--steps", "6"], "--steps 6 is no multiple of 4"),
        (["--kept", "0"], "invalid numbers value: '0'"),
        (["--device", "tpu"], "--device tpu is unknown; give cpu, cuda or cuda:N"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(words, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        bench_decode.main(words)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_a_model_that_does_not_fit_is_refused_before_it_is_made(monkeypatch, capsys):
    monkeypatch.setattr(bench_decode, "room", lambda device: 2**30)
    assert bench_decode.main(["--shape", "llama-8b", "--no-kvpress"]) == 2
    assert "--shape llama-8b: its weights take 30 GiB" in capsys.readouterr().err


def test_kept_tokens_beyond_the_window_are_named(capsys):
    asked, line = bench_decode.options(["--quick", "--kept", "8,64,4096"]), {"notes": []}
    assert bench_decode.fitting(asked, SHAPES["tiny"], 200, line) == [64]
    assert len(line["notes"]) == 2
    assert "4096 kept tokens and 75 more do not fit its window of 200" in capsys.readouterr().err


def test_kvpress_that_does_not_come_up_says_why(model, prompt):
    with KVPress(Path(sys.executable), BENCH, 1) as side:
        with pytest.raises(KVPressFailed, match="ModuleNotFoundError: No module named 'kvpress'"):
            side.load(model, prompt, 1)
    assert side.process.poll() == 0


@pytest.mark.slow
def test_the_quick_bench_from_end_to_end():
    done = subprocess.run(
        [sys.executable, SCRIPT, "--quick", "--no-kvpress", "--curves"],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    line = json.loads(done.stdout.splitlines()[-1])
    assert line["complete"] and line["faults"] == [] and len(line["bandwidth_gb_s"]) == 4
    assert {(entry["shape"], entry["kept"]) for entry in line["rows"]} == {("tiny", 64), ("tiny", 256)}
    assert not [entry for entry in line["rows"] if "left_out" in entry]
    assert all(entry["checks"] and all(entry["checks"].values()) for entry in line["rows"])
    assert all(entry["live"] == entry["kept"] for entry in line["rows"] if "full cache" not in entry["row"])
    (sweep,), (curves,) = line["sweeps"], line["curves"]
    assert sweep["policies"] == 20 and sweep["checks"] == {"as alone": True}
    assert len(curves["flat"]["windows_ms"]) == 10 and curves["flat"]["checks"] == {"budget": True}
    assert [entry["interval"] for entry in curves["intervals"]] == [1, 2, 4, 8, 16, 32, 64, 128]
    assert {entry["compared"] for entry in curves["batches"]} == {"full", "equal batch", "equal memory"}
    for title in ("64 kept; floor:", "256 kept; floor:", "20 policies of one prompt", "batch rows", "targets"):
        assert title in done.stderr
