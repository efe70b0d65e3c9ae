"""`python -m inertia.lm_eval` with lm-eval's real code, offline, on local data."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from inertia.lm_eval import run as lm_run
from inertia.lm_eval.__main__ import main
from inertia.lm_eval.results import add_telemetry, run_name, save
from inertia.lm_eval.settings import settings

ROOT = Path(__file__).resolve().parents[1]
ANSWER = """
task: local_sums
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}, cache_dir: {cache}}}
test_split: test
output_type: generate_until
doc_to_text: "Question: {{{{question}}}}\\nAnswer:"
doc_to_target: "{{{{answer}}}}"
target_delimiter: ""
generation_kwargs: {{until: ["\\n"], do_sample: false, temperature: 1, max_gen_toks: 12}}
metric_list: [{{metric: exact_match, aggregation: mean, higher_is_better: true}}]
metadata: {{version: 1}}
"""
CHOICE = """
task: local_choice
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}, cache_dir: {cache}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_target: 0
doc_to_choice: ["one", "two"]
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
metadata: {{version: 1}}
"""


@pytest.fixture
def local(tmp_path):
    """A folder with two tasks over four local rows."""
    folder = tmp_path / "tasks"
    folder.mkdir()
    data = tmp_path / "rows.json"
    rows = [{"question": f"what is {n} and {n}? " * (n + 1), "answer": str(2 * n)} for n in range(4)]
    data.write_text("\n".join(map(json.dumps, rows)))
    for name, text in (("sums", ANSWER), ("choice", CHOICE)):
        (folder / f"{name}.yaml").write_text(text.format(data=data, cache=tmp_path / "cache"))
    return folder


def call(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["inertia.lm_eval", *map(str, words)])
    return main()


def tiny(method, *words):
    return ["--model", "inertia", "--model_args", f"backbone=tiny-random,method={method}", *words]


def written(folder):
    (results,) = folder.glob("results_*.json")
    samples = {
        file.name.split("_2")[0]: [json.loads(line) for line in file.read_text().splitlines()]
        for file in folder.glob("samples_*.jsonl")
    }
    return json.loads(results.read_text()), samples


def test_a_local_task_runs_under_policies_each_in_a_folder_of_its_own(local, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    shared = ["--tasks", "local_sums", "--include_path", local, "--output_path", out, "--log_samples", "--limit", 3]
    methods = ("full_cache", "inertiakv,tokens=6", "inertiakv,tokens=7")
    for method in methods:
        assert call(monkeypatch, *tiny(method, *shared, "--apply_chat_template")) == 0
    assert "local_sums" in capsys.readouterr().out
    folders = sorted(each.name for each in out.iterdir())
    assert len(folders) == 3 and all(name.startswith("tiny-random__") for name in folders)
    seen = {}
    for name in folders:
        results, samples = written(out / name)
        rows = samples["samples_local_sums"]
        assert [row["doc_id"] for row in rows] == [0, 1, 2]
        assert results["config"]["model"] == "inertia" and results["model_name"] == name
        assert results["config"]["inertia"]["answers"] == 3
        assert results["n-samples"]["local_sums"] == {"original": 4, "effective": 3}
        assert all(
            "\n" not in row["resps"][0][0] and "im_start" in row["arguments"]["gen_args_0"]["arg_0"] for row in rows
        )
        assert len({row["inertia"]["prompt_tokens"] for row in rows}) == 3
        assert {row["inertia"]["stop"] for row in rows} <= {"string", "length", "eos"}
        budget = rows[0]["inertia"]["budget_tokens"]
        assert all(
            row["inertia"]["retained_tokens"] == budget for row in rows if budget and row["inertia"]["new_tokens"] > 1
        )
        seen[budget] = [row["resps"][0][0] for row in rows]
    assert set(seen) == {None, 6, 7}
    assert seen[None] != seen[6]


def test_a_log_likelihood_task_runs_under_the_full_cache_and_is_refused_under_eviction(
    local, tmp_path, monkeypatch, capsys
):
    shared = ["--tasks", "local_sums,local_choice", "--include_path", local]
    assert call(monkeypatch, *tiny("full_cache", *shared)) == 0
    assert "local_choice" in capsys.readouterr().out
    monkeypatch.setattr("inertia.backbones.load", lambda *_: pytest.fail("a model was loaded"))
    assert call(monkeypatch, *tiny("inertiakv", *shared)) == 2
    said = capsys.readouterr().err
    assert "multiple_choice" in said and "evicts while decoding" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (tiny("inertiakv", "--use_cache", "x"), "neither model nor policy"),
        (tiny("inertiakv", "--cache_requests", "true"), "neither lengths nor data"),
        (tiny("inertiakv", "--trust_remote_code"), "never run"),
        (tiny("inertiakv", "--wandb_args", "project=x"), "--wandb_args"),
        (tiny("inertia"), "method='inertia' is unknown"),
        (tiny("inertiakv,beta=1"), "no setting 'beta'"),
    ],
)
def test_bad_flags_and_settings_are_refused_before_anything_is_read(words, said, monkeypatch, capsys):
    monkeypatch.setattr(lm_run, "evaluate", lambda *_: pytest.fail("the run began"))
    assert call(monkeypatch, *words, "--tasks", "kv_ruler_vt_1k") == 2
    assert said in capsys.readouterr().err


def test_an_unknown_model_is_refused_too_and_tasks_must_exist(local, monkeypatch, capsys):
    monkeypatch.setattr(
        "lm_eval.config.evaluate_config.EvaluatorConfig.process_tasks",
        lambda config, _: (_ for _ in ()).throw(ValueError(f"Tasks not found: {config.tasks}")),
    )
    assert call(monkeypatch, *tiny("inertiakv", "--tasks", "kv_ruler_vt_3k")) == 2
    assert "kv_ruler_vt_3k" in capsys.readouterr().err


def test_a_device_that_nobody_asked_for_is_the_backbones_own(monkeypatch):
    found = []
    monkeypatch.setattr(lm_run, "evaluate", lambda config, _: found.append(config.model_args) or {"results": {}})
    monkeypatch.setattr("lm_eval.utils.make_table", lambda *_: "")
    call(monkeypatch, *tiny("full_cache", "--tasks", "kv_ruler_vt_1k"))
    call(monkeypatch, *tiny("full_cache", "--tasks", "kv_ruler_vt_1k", "--device", "cuda:3"))
    call(monkeypatch, *tiny("full_cache,device=cpu", "--tasks", "kv_ruler_vt_1k", "--device", "cuda:3"))
    assert [args.get("device") for args in found] == [None, "cuda:3", "cpu"]


def test_samples_are_matched_by_order_and_checked():
    def results(*hashes, filters=("none",)):
        rows = [{"doc_id": 7, "prompt_hash": each, "filter": name} for name in filters for each in hashes]
        return {"samples": {"t": rows}}

    facts = {("t", 0): {"prompt_hash": "a", "stop": "eos"}, ("t", 1): {"prompt_hash": "b", "stop": "length"}}
    found = results("a", "b", filters=("strict", "loose"))
    add_telemetry(found, facts)
    assert [row["inertia"]["stop"] for row in found["samples"]["t"]] == ["eos", "length"] * 2
    with pytest.raises(RuntimeError, match="order"):
        add_telemetry(results("b", "a"), facts)


def test_chosen_samples_carry_their_own_telemetry(local, tmp_path, monkeypatch):
    out = tmp_path / "out"
    words = ["--tasks", "local_sums", "--include_path", local, "--output_path", out, "--log_samples"]
    assert call(monkeypatch, *tiny("full_cache", *words)) == 0
    chosen = tmp_path / "chosen"
    words = [*words[:-3], "--output_path", chosen, "--log_samples", "--samples", '{"local_sums": [1, 3]}']
    assert call(monkeypatch, *tiny("full_cache", *words)) == 0
    (every,), (some,) = out.iterdir(), chosen.iterdir()
    whole = {row["doc_id"]: row for row in written(every)[1]["samples_local_sums"]}
    part = written(some)[1]["samples_local_sums"]
    assert [row["doc_id"] for row in part] == [1, 3]
    for row in part:
        assert row["inertia"]["prompt_sha256"] == whole[row["doc_id"]]["inertia"]["prompt_sha256"]
        assert row["resps"] == whole[row["doc_id"]]["resps"]


def test_run_names_differ_by_everything_that_makes_a_policy():
    base = dict(backbone="tiny-random", method="inertiakv", tokens=8)
    others = ({}, {"alpha": 0.5}, {"tokens": 9}, {"seed": 1}, {"dtype": "bfloat16"}, {"method": "h2o"})
    names = {run_name(settings(**{**base, **other})) for other in others}
    assert len(names) == len(others)
    assert run_name(settings(**base)) == run_name(settings(**base, device="cuda", max_gen_toks=3))


def test_files_that_were_not_written_are_an_error(tmp_path, monkeypatch):
    from lm_eval.loggers import EvaluationTracker

    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    tracker = EvaluationTracker(output_path=str(blocked / "results.json"))
    with pytest.raises(RuntimeError, match="wrote 0 of 1"):
        save(tracker, {"results": {}}, None)


def test_registering_keeps_lm_evals_own_models_known():
    code = (
        "from inertia.lm_eval.run import register; register(); register()\n"
        "from lm_eval.api.registry import model_registry\n"
        "import sys; assert 'inertia' in model_registry and 'hf' in model_registry and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


# ---------------------------------------------------------------------------------------- slow


def child(*words):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "inertia.lm_eval", *map(str, words)]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_lm_evals_own_hf_model_still_runs_beside_and_agrees(local, tmp_path):
    from inertia import backbones
    from inertia.lm_eval.settings import backbone_config

    backbone = backbones.load(backbone_config("tiny-random"))
    backbone.model.save_pretrained(tmp_path / "model")
    backbone.tokenizer.save_pretrained(tmp_path / "model")
    shared = ["--tasks", "local_sums,local_choice,kv_ruler_niah_single_1_512", "--include_path", local, "--limit", 2]
    shared += ["--log_samples", "--output_path"]
    pretrained = f"pretrained={tmp_path / 'model'},max_length=8192"
    theirs = child("--model", "hf", "--model_args", pretrained, "--device", "cpu", *shared, tmp_path / "hf")
    assert theirs.returncode == 0, theirs.stderr[-2000:]
    ours = child(*tiny("full_cache", *shared), tmp_path / "ours")
    assert ours.returncode == 0, ours.stderr[-2000:]
    (left,), (right,) = (tmp_path / "hf").iterdir(), (tmp_path / "ours").iterdir()
    wanted, found = written(left)[1], written(right)[1]
    assert set(wanted) == set(found) and len(found) == 3
    for task in ("samples_local_sums", "samples_kv_ruler_niah_single_1_512"):
        assert [row["resps"] for row in wanted[task]] == [row["resps"] for row in found[task]]
    numbers = [
        [pair[0] for row in rows["samples_local_choice"] for (pair,) in row["resps"]] for rows in (wanted, found)
    ]
    assert [float(a) for a in numbers[0]] == pytest.approx([float(b) for b in numbers[1]], rel=1e-4)


@pytest.mark.slow
def test_the_embedded_model_finds_a_needle_through_lm_eval(tmp_path):
    model = "backbone=smollm2-135m,method=inertiakv,compression_ratio=0.9"
    done = child(
        *("--model", "inertia", "--model_args", model, "--tasks", "kv_ruler_niah_single_1_1k", "--limit", 2),
        *("--apply_chat_template", "--gen_kwargs", "max_gen_toks=24", "--log_samples", "--output_path", tmp_path),
    )
    assert done.returncode == 0, done.stderr[-2000:]
    (folder,) = tmp_path.iterdir()
    results, samples = written(folder)
    assert results["results"]["kv_ruler_niah_single_1_1k"]["score,none"] == 1
    for row in samples["samples_kv_ruler_niah_single_1_1k"]:
        facts = row["inertia"]
        assert facts["budget_tokens"] == facts["retained_tokens"] < facts["prompt_tokens"] / 9


def test_the_gsm8k_script_asks_for_policies_that_exist(tmp_path):
    from lm_eval._cli import HarnessCLI

    script = [str(ROOT / "scripts" / "lm_eval_gsm8k.sh"), "tiny-random", str(tmp_path), "--limit", "5"]
    done = subprocess.run(script, env={**os.environ, "PYTHON": "echo"}, capture_output=True, text=True, check=True)
    lines = [line.split() for line in done.stdout.splitlines()]
    made = []
    for line in lines:
        parsed = HarnessCLI()._parser.parse_args(["run", *line[2:]])
        assert line[:2] == ["-m", "inertia.lm_eval"] and (parsed.limit, parsed.tasks) == (5, ["gsm8k_cot_zeroshot"])
        assert parsed.gen_kwargs == {"do_sample": False, "max_gen_toks": 1024}
        made.append(settings(**parsed.model_args))
    assert made[0].method == "full_cache" and len({run_name(each) for each in made}) == len(made) == 7
