"""The fidelity report, on numbers that are known by construction and on a run of the harness."""

from __future__ import annotations

import json

import pandas as pd
import pytest
import reports_data
from hydra import compose, initialize_config_dir
from reports_data import entry, grid_rows

from inertia.experiments import run as harness
from inertia.experiments.config import run_config
from inertia.paper.fidelity import fidelity
from inertia.paths import config_dir
from inertia.records import read_samples
from inertia.reports import build_table, load_source
from inertia.statistics import interval, macro_mean, sign_flip

TASKS = ("vt", "qa_1")
KL = {"full_cache": [0.0] * 4, "near": [0.1, 0.3, 0.2, 0.4], "far": [1.5, 2.5, 1.0, 3.0]}
SHORT = 3  # the last answer of qa_1 has two tokens


def numbers(method, task, i):
    short = task == "qa_1" and i == SHORT
    kl = KL[method][i] * (2 if task == "qa_1" else 1)
    return {
        "fidelity_kl": None if short else kl,
        "fidelity_agreement": None if short else 1 - kl / 10,
        "fidelity_tokens": 0 if short else 5,
        "reference_nll_rise": kl - 0.2 if method != "full_cache" else 0.0,
        "reference_tokens": 6,
    }


def source(methods=tuple(KL), drop=(), metrics=numbers, followed=lambda method, name: name, n=4):
    def cell(number, method, task):
        def columns(i):
            path = followed(method, f"{task}/512/{i:04d}")
            telemetry = json.dumps({"fidelity": {"followed": path}})
            return {"metrics": json.dumps(metrics(method, task, i)), "telemetry": telemetry}

        values = [None if (method, task, i) in drop else 1.0 for i in range(n)]
        return reports_data.cell(number, values, columns=columns, method=method, task=task, length=512)

    return reports_data.source_of(
        cell(len(TASKS) * i + j, method, task) for i, method in enumerate(methods) for j, task in enumerate(TASKS)
    )


def fidelity_table(source):
    return build_table(fidelity(source.experiment), source)


def line(table, **wanted):
    return entry(table.frame, **wanted)


def test_each_number_is_the_mean_over_examples_with_its_interval():
    table = fidelity_table(source())
    found = line(table, policy="far", task="vt", quantity="fidelity_kl")
    wanted = interval(KL["far"], bounded=False)
    assert (found["value"], found["low"], found["high"]) == (2.0, wanted.low, wanted.high)
    assert (found["n"], found["planned"], found["status"]) == (4, 4, "ok")
    assert found["cells"] == "c00000000004" and found["commit"] == reports_data.COMMIT
    agreement = line(table, policy="far", task="vt", quantity="fidelity_agreement")
    assert agreement["value"] == pytest.approx(80)
    rise = line(table, policy="far", task="vt", quantity="reference_nll_rise")
    # All four rise: of the 16 sign patterns two are as extreme.
    assert (rise["value"], rise["p"]) == (pytest.approx(1.8), 2 / 16)


def test_tasks_count_the_same_and_texts_too_short_are_left_out_and_counted():
    table = fidelity_table(source())
    qa = line(table, policy="near", task="qa_1", quantity="fidelity_kl")
    assert qa["value"] == pytest.approx((0.2 + 0.6 + 0.4) / 3)
    assert (qa["n"], qa["planned"]) == (3, 4)
    assert qa["note"].startswith("1 of 4 answers of the full cache have at most two tokens")
    assert line(table, policy="near", task="qa_1", quantity="reference_nll_rise")["n"] == 4
    mean = line(table, policy="near", task="mean", quantity="fidelity_kl")
    wanted = macro_mean({"0": KL["near"], "1": [0.2, 0.6, 0.4]}, bounded=False)
    assert mean["value"] == pytest.approx((0.25 + 0.4) / 2)
    assert (mean["low"], mean["high"]) == pytest.approx((wanted.low, wanted.high))
    # Both tasks have four rises, two of them 0.
    rise = line(table, policy="near", task="mean", quantity="reference_nll_rise")
    assert rise["p"] == sign_flip([-0.1, 0.1, 0.2, 0.4, 0.2, 0.6])[0] < 0.2
    assert any("qa_1 @512: 1 of 4 answers" in note for note in table.grid.notes)
    assert not any(note.startswith("vt") or "reference answers have" in note for note in table.grid.notes)


def test_the_full_cache_comes_first_without_an_interval():
    table = fidelity_table(source(methods=("near", "full_cache")))
    assert [row.label for row in table.grid.rows] == ["full_cache", "near"]
    assert table.grid.rows[0].cells[-3:] == (("0",), ("100.0",), ("+0",))
    found = line(table, policy="full_cache", task="vt", quantity="fidelity_kl")
    assert found["value"] == 0 and found[["low", "high", "p"]].isna().all()
    # Its agreement is 1 by construction: not a share that was estimated.
    assert line(table, policy="full_cache", task="vt", quantity="fidelity_agreement")[["low", "high"]].isna().all()


def test_it_needs_no_full_cache_among_the_cells():
    table = fidelity_table(source(methods=("near",)))
    assert line(table, policy="near", task="vt", quantity="reference_nll_rise")["value"] == pytest.approx(0.05)


def test_values_that_are_all_alike_have_no_interval_unless_they_are_shares():
    same = {"fidelity_kl": 0.5, "fidelity_agreement": 1.0, "reference_nll_rise": 0.25}
    table = fidelity_table(source(methods=("near",), metrics=lambda *_: same))
    for task in ("vt", "mean"):
        kl = line(table, policy="near", task=task, quantity="fidelity_kl")
        assert kl["value"] == 0.5 and kl[["low", "high"]].isna().all()
        share = line(table, policy="near", task=task, quantity="fidelity_agreement")
        assert share["high"] == 100.0 and 40 < share["low"] < 90
    assert table.grid.rows[0].cells[0] == ("0.5", "[-]")
    assert line(table, policy="near", task="vt", quantity="reference_nll_rise")["p"] == 2 / 16


def test_a_failed_example_leaves_its_cell_incomplete():
    table = fidelity_table(source(drop={("far", "vt", 2)}))
    found = line(table, policy="far", task="vt", quantity="fidelity_kl")
    assert found["status"] == "incomplete 3/4" and pd.isna(found["value"])
    assert line(table, policy="far", task="mean", quantity="fidelity_kl")["status"] == "incomplete 7/8"
    assert line(table, policy="near", task="vt", quantity="fidelity_kl")["status"] == "ok"
    far = grid_rows(table)["far"]
    assert far[-3] == ("incomplete", "7/8") and far[0] == ("incomplete", "3/4")


def test_the_sign_test_of_the_mean_counts_tasks_the_same():
    def rises(method, task, i):
        short = task == "qa_1" and i > 0
        rise = None if short else [1.0, -0.25, -0.25, -0.25][i] if task == "vt" else 0.3
        return {**numbers(method, task, i), "reference_nll_rise": rise}

    found = line(
        fidelity_table(source(methods=("near",), metrics=rises)),
        policy="near",
        task="mean",
        quantity="reference_nll_rise",
    )
    assert found["value"] == pytest.approx((0.0625 + 0.3) / 2)
    assert (
        found["p"]
        == sign_flip([0.25, -0.0625, -0.0625, -0.0625, 0.3])[0]
        != sign_flip([1, -0.25, -0.25, -0.25, 0.3])[0]
    )


def test_a_task_without_any_text_long_enough_is_empty():
    def short(method, task, i):
        nothing = {"fidelity_kl": None, "fidelity_agreement": None} if task == "vt" else {}
        return {**numbers(method, task, i), **nothing}

    table = fidelity_table(source(metrics=short))
    # A mean over tasks of which one is missing would be a mean over other tasks.
    assert pd.isna(line(table, policy="near", task="mean", quantity="fidelity_kl")["value"])
    found = line(table, policy="near", task="vt", quantity="fidelity_kl")
    assert pd.isna(found["value"]) and (found["n"], found["note"][:6]) == (0, "4 of 4")
    assert table.grid.rows[1].cells[0] == ()


def test_policies_that_followed_different_answers_are_refused():
    mixed = source(followed=lambda method, name: name + (method if name == "vt/512/0002" else ""))
    with pytest.raises(ValueError, match="different answers of the full cache to vt/512/0002"):
        fidelity_table(mixed)


def test_records_without_fidelity_say_how_to_get_it():
    with pytest.raises(ValueError, match=r"benchmark.metrics=\[official,fidelity\]"):
        fidelity_table(source(metrics=lambda *_: {"hit": 1.0}))


def test_a_policy_that_was_not_run_on_a_task_shows_a_gap():
    whole = source()
    table = fidelity_table(whole._replace(cells=whole.cells[:-1]))
    assert line(table, policy="far", task="mean", quantity="fidelity_kl")["status"] == "not run"
    far = grid_rows(table)["far"]
    assert far[-1] == far[3] == () and far[0]


def config(*overrides):
    words = [
        "backbone=tiny-random",
        "benchmark.tasks=[niah_single_1,niah_noise_3keys]",
        "benchmark.lengths=[512]",
        "benchmark.examples=2",
        "benchmark.metrics=[official,fidelity]",
        "logger=none",
        "progress=false",
        "experiment_name=mine",
        "profile_name=laptop",
    ]
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        return run_config(compose("config", overrides=[*words, *overrides]))


def test_a_run_records_and_reports_it(results, tmp_path, monkeypatch):
    jobs = [config("method=inertiakv"), config("method=key_norm"), config("method=full_cache")]
    outcomes = harness.run(jobs)
    assert all(outcome.problem is None for outcome in outcomes)
    table = fidelity_table(load_source(results, "mine", "laptop"))
    assert line(table, policy="full_cache", task="mean", quantity="fidelity_kl")["value"] == 0
    assert line(table, policy="inertiakv", task="niah_single_1", quantity="fidelity_kl")["value"] > 0
    summary = next(o.summary for o in outcomes if o.cell.config.label == "inertiakv")
    assert summary["metrics"]["fidelity_kl"]["n"] == 2
    monkeypatch.setenv("INERTIA_RESULTS", str(tmp_path / "alone"))
    harness.run([jobs[1]])
    one = read_samples(tmp_path / "alone" / "runs").set_index(["cell_id", "example_id"])
    both = read_samples(results / "runs").set_index(["cell_id", "example_id"]).loc[one.index]
    for mine, theirs in zip(one["metrics"], both["metrics"], strict=True):
        assert json.loads(mine) == pytest.approx(json.loads(theirs), abs=1e-5)
