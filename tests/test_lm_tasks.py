"""Our benchmarks as lm-eval tasks: none missing, the same prompts and scores as in our own harness."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import yaml
from hydra import compose, initialize_config_dir
from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

from inertia.backbones.tiny_tokenizer import tiny_tokenizer
from inertia.benchmarks import registry
from inertia.benchmarks.example import Example
from inertia.benchmarks.render import Renderer
from inertia.experiments import run as harness
from inertia.experiments.config import run_config
from inertia.lm_eval.model import InertiaLM
from inertia.lm_eval.results import add_telemetry
from inertia.lm_eval.tasks.docs import Docs, document, load, text
from inertia.lm_eval.tasks.files import LENGTHS, name_of, tasks, write
from inertia.paths import config_dir
from inertia.records import read_samples


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("tasks")
    write(found)
    return found


def manager(folder, **metadata):
    return TaskManager(include_path=str(folder), include_defaults=False, metadata=metadata)


# ---------------------------------------------------------------------------------------- files


def test_every_task_of_every_benchmark_is_there_at_every_length(folder):
    known = set(manager(folder).all_subtasks)
    for benchmark in registry.NAMES:
        package = registry.package(benchmark)
        single = [task for task in package.TASKS if tasks(benchmark).get(task)]
        # Two calls and forced choices are no lm-eval generation; everything else is.
        assert set(package.TASKS) - set(single) == ({"cot", "forced_choice"} if benchmark == "longbench_v2" else set())
        lengths = (None,) if benchmark.startswith("longbench") else LENGTHS
        wanted = {name_of(benchmark, task, length) for task in single for length in lengths}
        assert wanted <= known
        known -= wanted
    assert not known
    assert {"kv_ruler_1k", "kv_ruler_128k", "kv_longbench", "kv_recite_2k"} <= set(manager(folder).all_groups)
    assert name_of("ruler", "niah_single_1", 1024) == "kv_ruler_niah_single_1_1k"
    assert name_of("niah", "needle_noise", 512) == "kv_niah_needle_noise_512"


def test_limits_and_stops_are_the_benchmarks_own(folder):
    def settings(name):
        return yaml.load((folder / f"{name}.yaml").read_text().split("custom_dataset:")[0], yaml.SafeLoader)[
            "generation_kwargs"
        ]

    greedy = {"do_sample": False, "until": []}
    assert settings("kv_ruler_vt_4k") == {**greedy, "max_gen_toks": 30}
    assert settings("kv_longbench_gov_report") == {**greedy, "max_gen_toks": 512}
    samsum = {"do_sample": False, "max_gen_toks": 128, "min_new_tokens": 1, "until": ["\n"]}
    assert settings("kv_longbench_samsum") == samsum


# ---------------------------------------------------------------------------------------- documents


def test_documents_are_made_when_they_are_asked_for():
    asked = []

    def source():
        for index in range(5):
            asked.append(index)
            yield {"number": index}

    docs = Docs(5, source())
    assert len(docs) == 5 and not asked
    assert docs[2] == {"number": 2} and asked == [0, 1, 2]
    assert [each["number"] for each in docs] == list(range(5)) and asked == list(range(5))
    assert docs[0] == {"number": 0}
    for bad in (5, -1):
        with pytest.raises(IndexError):
            docs[bad]


def test_documents_are_the_harness_examples_and_say_what_was_cut():
    found = load("ruler", "niah_single_1", 512, backbone="tiny-random", examples=3)["test"]
    renderer = Renderer(tiny_tokenizer(), True)
    wanted = list(registry.package("ruler").examples("niah_single_1", 512, 3, 42, renderer))
    assert len(found) == 3
    for doc, example in zip(found, wanted, strict=True):
        assert (doc["kv_id"], doc["context"], doc["question"]) == (example.id, example.context, example.question)
        assert doc["references"] == list(example.references) and not doc["kv_truncated"]
        json.dumps(doc)
    assert len(load("ruler", "vt", 1024, backbone="tiny-random")["test"]) == 500
    with pytest.raises(ValueError, match="exceeds the window of 8192"):
        load("ruler", "vt", 16384, backbone="tiny-random")


def test_a_long_document_is_cut_in_the_middle_as_in_the_harness():
    renderer = Renderer(tiny_tokenizer(), True, max_prompt_tokens=60)
    example = Example("x", "t", None, "one two three " * 60, "\nWhat is four?", "So", ("a",), 5)
    doc = document("longbench", example, renderer, False)
    assert doc["kv_truncated"] and doc["question"] == example.question
    whole = renderer.render(example).text
    assert text(doc) in whole and whole.endswith("So") and doc["answer_prefix"] == "So"
    # The question alone is longer than half of the limit: nothing counts as context.
    lost = document("longbench", replace(example, question="four five six " * 60), renderer, False)
    assert lost["context"] == "" and lost["question"] == text(lost) and lost["kv_truncated"]


# ---------------------------------------------------------------------------------------- runs


def own_harness(*words):
    shared = ["backbone=tiny-random", "logger=none", "progress=false"]
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        return harness.run([run_config(compose("config", overrides=[*shared, *words]))])


@pytest.mark.parametrize(
    ("method", "word"),
    [
        ({"method": "inertiakv", "compression_ratio": 0.9}, "method=inertiakv"),
        # Draws by example.
        ({"method": "random"}, "method=random"),
        # Must know where the context ends, and whether a template surrounds it.
        ({"method": "kvzip", "compression_ratio": 0.5}, "method=kvzip prefill.budget.compression_ratio=0.5"),
    ],
)
def test_our_tasks_give_the_answers_and_scores_of_our_harness(folder, results, method, word):
    own_harness("benchmark.tasks=[niah_multikey_2]", "benchmark.lengths=[512]", "benchmark.examples=2", *word.split())
    ours = read_samples(results / "runs").sort_values("index")
    model = InertiaLM(backbone="tiny-random", **method)
    name = "kv_ruler_niah_multikey_2_512"
    found = simple_evaluate(
        model=model,
        tasks=[name],
        task_manager=manager(folder, backbone="tiny-random"),
        limit=2,
        apply_chat_template=True,
        bootstrap_iters=0,
    )
    add_telemetry(found, model.telemetry)
    samples = found["samples"][name]
    assert [each["resps"][0][0] for each in samples] == ours["prediction"].tolist()
    assert [each["score"] for each in samples] == ours["score"].tolist()
    for column in ("prompt_sha256", "retained_tokens", "cache_bytes", "new_tokens", "stop", "prompt_tokens"):
        assert [each["inertia"][column] for each in samples] == ours[column].tolist(), column
    assert found["results"][name]["score,none"] == pytest.approx(ours["score"].mean())


def test_a_group_is_the_unweighted_mean_of_its_tasks(folder):
    model = InertiaLM(backbone="tiny-random")
    found = simple_evaluate(
        model=model,
        tasks=["kv_niah_512"],
        task_manager=manager(folder, backbone="tiny-random"),
        limit=1,
        apply_chat_template=True,
        gen_kwargs={"max_gen_toks": 3},
        bootstrap_iters=0,
    )
    assert set(found["groups"]) == {"kv_niah_512"}
    assert {each["new_tokens"] for each in model.telemetry.values()} == {3}


def test_longbench_reads_local_rows_and_keeps_its_template_rule(folder, tmp_path):
    row = {"_id": "r1", "input": "Which?", "context": "one two three " * 9, "answers": ["x"], "length": 3}
    row |= {"dataset": "trec", "language": "en", "all_classes": ["x", "y"]}
    for task in ("qasper", "trec"):
        (tmp_path / f"{task}.jsonl").write_text(json.dumps(row) + "\n")
    model = InertiaLM(backbone="tiny-random", method="inertiakv", tokens=64)

    def run(task, **settings):
        return simple_evaluate(
            model=model,
            tasks=[f"kv_longbench_{task}"],
            task_manager=manager(folder, backbone="tiny-random", longbench_source=str(tmp_path)),
            gen_kwargs={"max_gen_toks": 2},
            bootstrap_iters=0,
            **settings,
        )["samples"][f"kv_longbench_{task}"]

    (sample,) = run("qasper", apply_chat_template=True)
    assert sample["doc"]["kv_id"] == "qasper/r1" and "im_start" in sample["arguments"][0][0]
    with pytest.raises(ValueError, match="without --apply_chat_template"):
        run("trec", apply_chat_template=True)
    (sample,) = run("trec")
    assert "im_start" not in sample["arguments"][0][0]


def test_loading_a_task_makes_one_document_and_prompts_are_joined_to_the_letter(folder):
    name = "kv_recite_numbers_1k"
    task = manager(folder, backbone="tiny-random").load([name])["tasks"][name]
    docs = task.dataset["test"]
    assert (len(docs), len(docs.made)) == (100, 1)
    task.set_fewshot_seed(0)
    task.build_all_requests(limit=2)
    assert len(docs.made) == 2
    for request, doc in zip(task.instances, docs.made, strict=True):
        # No blank where the answer begins, template or not.
        assert request.args[0] == text(doc) + doc["answer_prefix"]


def test_a_score_counts_the_first_answer_and_the_right_metric():
    from inertia.lm_eval.tasks.docs import score

    doc = {"kv_benchmark": "ruler", "task": "vt", "references": ["ABC", "DEF"], "metadata": {}}
    assert score(doc, ["abc and more"]) == {"score": 0.5}
