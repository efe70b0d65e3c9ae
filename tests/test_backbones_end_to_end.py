"""Every backbone's whole path, on random weights of its own architecture: folder, config, prompt, harness, records."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import families
import oracle
import pytest
import torch
from hydra import compose, initialize_config_dir

from inertia import Observation, TokensPrompt, generate, preset
from inertia.backbones import embedded, load, load_tokenizer, read
from inertia.benchmarks.example import Example
from inertia.benchmarks.render import Renderer
from inertia.experiments import decode
from inertia.experiments import run as harness
from inertia.experiments.config import RunConfig, run_config
from inertia.paths import config_dir
from inertia.records import read_samples

# Compressors take part with their own corners: a fixed window, requests in the template's words, rotation of averages.
HALF = ("prefill.budget.compression_ratio=0.5",)
METHODS = {
    "full_cache": (),
    "inertiakv": (),
    "tova_decode": (),
    "snapkv": HALF,
    "kvzip": HALF,
    "adakv_expected_attention": HALF,
}
RULER = (
    "benchmark=ruler",
    "benchmark.tasks=[fwe]",
    "benchmark.lengths=[512]",
    "benchmark.examples=2",
    "logger=none",
    "progress=false",
)
SHORT = Example(
    id="short",
    task="short",
    length=None,
    context="One of the special magic numbers for house is: 1234567. The grass is green, the sky is blue.\n\n",
    question="What is the special magic number for house?",
    answer_prefix=" The special magic number is",
    references=("1234567",),
    max_new_tokens=8,
)


@dataclass(frozen=True)
class Made:
    """A small model of one family on disk, and the settings that run it."""

    family: families.Family
    folder: Path

    @property
    def overrides(self) -> tuple[str, ...]:
        """The backbone's own file with the path and the small shape put in."""
        config = self.family.config
        # Declared as published; "auto" and "cpu" both stay on this machine's CPU.
        device = read(config_dir() / "backbone" / f"{self.family.base}.yaml").device
        return (
            f"backbone={self.family.base}",
            *self.family.overrides,
            f"backbone.path={self.folder}",
            f"backbone.layers={config['num_hidden_layers']}",
            f"backbone.query_heads={config['num_attention_heads']}",
            f"backbone.kv_heads={config['num_key_value_heads']}",
            "backbone.dtype=float32",
            *(["backbone.device=cpu"] if device == "cuda" else []),
        )

    def job(self, method: str, *more: str) -> RunConfig:
        """Return the run of one method."""
        return compose_run(*self.overrides, f"method={method}", *more)

    @cached_property
    def reference(self) -> Any:
        """The model as transformers alone loads it."""
        from transformers import AutoModelForCausalLM, GenerationConfig

        model = AutoModelForCausalLM.from_pretrained(self.folder, dtype=torch.float32).eval()
        # generate() fills what it is not told from the published settings, repetition penalties included.
        model.generation_config = GenerationConfig()
        return model


def compose_run(*overrides: str) -> RunConfig:
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        return run_config(compose("config", overrides=[*RULER, *overrides]))


@pytest.fixture(scope="module", params=families.FAMILIES)
def made(request, tmp_path_factory) -> Made:
    folder = tmp_path_factory.mktemp(request.param)
    families.write(families.FAMILIES[request.param], folder)
    return Made(families.FAMILIES[request.param], folder)


@pytest.fixture
def own_cache(monkeypatch, tmp_path) -> None:
    """Keep what is remembered of the made folders out of the user's cache."""
    monkeypatch.setenv("INERTIA_CACHE", str(tmp_path / "cache"))


def prompts(job: RunConfig) -> dict[str, Any]:
    """Return what the harness shows the model, by example id."""
    (cell, *_) = harness.cells_of(job)
    runner = decode.task_runner(load(job.backbone), cell.benchmark, cell.task)
    count = job.benchmark.count(cell.task)
    found = cell.benchmark.examples(cell.task, cell.length, count, runner.renderer)
    return {each.id: runner.renderer.render(each) for each in found}


def greedy(model: Any, ids: tuple[int, ...], count: int, ends: tuple[int, ...]) -> list[int]:
    """Return the answer of transformers' own generate, told everything that would otherwise be guessed."""
    from transformers import GenerationConfig

    prompt = torch.tensor([ids])
    settings = GenerationConfig(do_sample=False, max_new_tokens=count, eos_token_id=list(ends), pad_token_id=0)
    answer = model.generate(prompt, attention_mask=torch.ones_like(prompt), generation_config=settings)
    return answer[0, len(ids) :].tolist()


def slots_bytes(config: dict[str, Any], eligible: tuple[int, ...], slots: int) -> int:
    """Return the bytes of K and V in fp32: `slots` in eligible layers, the window in the others."""
    per_token = 2 * 4 * config["num_key_value_heads"] * config.get("head_dim", 8)
    windows = config["num_hidden_layers"] - len(eligible)
    return per_token * (len(eligible) * slots + windows * (config.get("sliding_window") or 0))


def test_a_small_model_keeps_what_the_backbone_declares(made: Made) -> None:
    declared = read(config_dir() / "backbone" / f"{made.family.base}.yaml")
    config = made.family.config
    assert config["num_attention_heads"] / config["num_key_value_heads"] == declared.query_heads / declared.kv_heads
    assert config["max_position_embeddings"] == declared.context_window
    if not made.family.overrides:
        assert declared.chat_template is (made.family.template is not None)


def test_ruler_runs_under_every_kind_of_policy(made: Made, own_cache: None, results: Path) -> None:
    jobs = [made.job(method, *settings) for method, settings in METHODS.items()]
    outcomes = harness.run(jobs)
    assert [outcome.problem for outcome in outcomes] == [None] * len(METHODS)
    frame = read_samples(results / "runs")
    assert len(frame) == 2 * len(METHODS) and set(frame["status"]) == {"ok"}
    assert frame["score"].between(0, 1).all()
    shown, config, ends = prompts(jobs[0]), made.family.config, load(jobs[0].backbone).eos_token_ids
    for row in frame.itertuples():
        prompt = shown[row.example_id]
        assert (row.prompt_sha256, row.prompt_tokens) == (prompt.sha256, len(prompt.ids))
        assert not row.truncated and len(row.tokens) == row.new_tokens
        assert row.stop == ("eos" if row.tokens[-1] in ends else "length")
        assert row.new_tokens == 50 or row.stop == "eos"
    by_method = {
        outcome.cell.config.label: frame[frame["cell_id"] == outcome.cell.id].set_index("example_id")
        for outcome in outcomes
    }
    for example, prompt in shown.items():
        assert list(by_method["full_cache"].loc[example, "tokens"]) == greedy(made.reference, prompt.ids, 50, ends)
    for method in ("inertiakv", "tova_decode"):
        rows = by_method[method]
        assert (rows["retained_tokens"] == rows["budget_tokens"]).all()
        assert (rows["budget_tokens"] < 0.11 * rows["prompt_tokens"]).all()
        assert rows["cache_bytes"].tolist() == [
            slots_bytes(config, made.family.eligible, budget + 1) for budget in rows["budget_tokens"]
        ]
    compressed = [json.loads(text) for text in by_method["snapkv"]["telemetry"]]
    assert all(0 < each["context_tokens"] < 512 for each in compressed)
    assert all(each["prefill_retained_tokens"] == each["prefill_budget_tokens"] for each in compressed)


def test_answers_end_at_every_published_end(made: Made, own_cache: None, results: Path, tmp_path: Path) -> None:
    ids = made_ids(made)
    job = made.job("full_cache", "benchmark.examples=1")
    assert load(job.backbone).eos_token_ids == tuple(sorted(ids[name] for name in made.family.ends))
    # Whatever the model says in its 12th token becomes one more end, in the place where publishers add theirs.
    (prompt,) = prompts(job).values()
    answer = greedy(made.reference, prompt.ids, 12, ())
    folder = tmp_path / "another"
    shutil.copytree(made.folder, folder)
    settings = json.loads((folder / "generation_config.json").read_text())
    published = settings["eos_token_id"]
    settings["eos_token_id"] = [*(published if isinstance(published, list) else [published]), answer[-1]]
    (folder / "generation_config.json").write_text(json.dumps(settings))
    other = Made(made.family, folder)
    harness.run([other.job("full_cache", "benchmark.examples=1")])
    frame = read_samples(results / "runs")
    assert frame["stop"].tolist() == ["eos"]
    assert list(frame["tokens"].tolist()[0]) == answer[: answer.index(answer[-1]) + 1]


def made_ids(made: Made) -> dict[str, int]:
    """Return the ids of the special tokens by name."""
    return {name: number for number, name in enumerate(made.family.spelling.special)}


def test_prompts_follow_the_template_with_bos_once(made: Made, own_cache: None) -> None:
    backbone = load(made.job("full_cache").backbone)
    renderer = Renderer(backbone.tokenizer, backbone.chat_template)
    prompt = renderer.render(SHORT)
    name, times = made.family.bos
    assert prompt.ids.count(made_ids(made)[name]) == times
    if times == 1:
        assert prompt.ids[0] == made_ids(made)[name]
    assert backbone.tokenizer.decode(prompt.ids).startswith(made.family.opening)
    assert prompt.text.count(SHORT.context.strip()) == prompt.text.count(SHORT.question) == 1
    assert prompt.text.endswith(SHORT.answer_prefix)
    shown = backbone.tokenizer.decode(prompt.ids[: prompt.context_end])
    assert "blue." in shown and "What" not in shown
    assert renderer.count(SHORT) == len(prompt.ids)


@pytest.mark.parametrize("method", ["inertiakv", "tova_decode"])
def test_evicting_equals_a_decoder_without_cache(made: Made, own_cache: None, method: str) -> None:
    """The oracle runs on the model as transformers alone loads it."""
    backbone = load(made.job("full_cache").backbone)
    prompt = Renderer(backbone.tokenizer, backbone.chat_template).render(SHORT)
    policy = preset(method, tokens=12)
    (ours,) = generate(
        backbone.model, torch.tensor([prompt.ids]), [policy], 6, observe=Observation(trace=True, logits=True)
    )
    tokens, kept, logits = oracle.run(made.reference, prompt.ids, policy, 6)
    assert backbone.eligible_layers == made.family.eligible
    assert ours.kept == kept
    assert ours.tokens == tokens
    assert (ours.logits - logits).abs().max() < 1e-4


def test_the_declared_precision_works(made: Made, own_cache: None) -> None:
    """The six are declared in bf16: decoding from slots against one plain pass over the same forced answer."""
    backbone = load(made.job("full_cache", "backbone.dtype=bfloat16").backbone)
    prompt = Renderer(backbone.tokenizer, backbone.chat_template).render(SHORT)
    forced = backbone.tokenizer(" the number of the house is 1234567", add_special_tokens=False).input_ids
    policies = [preset("full_cache"), *(preset(name, tokens=12) for name in ("inertiakv", "tova_decode"))]
    full, *evicting = generate(
        backbone.model,
        TokensPrompt(torch.tensor([prompt.ids]), forced_tokens=forced),
        policies,
        len(forced),
        observe=Observation(logits=True),
    )
    plain = backbone.model(torch.tensor([[*prompt.ids, *forced[:-1]]])).logits[0, len(prompt.ids) - 1 :].float()
    assert (full.logits - plain).norm() < 0.05 * plain.norm()
    for each in evicting:
        assert each.retained_tokens == 12 and each.logits.isfinite().all()
        assert (each.logits[-1] - full.logits[-1]).norm() > 0.05 * full.logits[-1].norm()


@pytest.mark.parametrize("made", ["mistral-7b-v0.3"], indirect=True)
def test_an_installed_package_does_not_choose_the_tokenizer(made: Made, monkeypatch, tmp_path: Path) -> None:
    folder = tmp_path / "with-tekken"
    shutil.copytree(made.folder, folder)
    (folder / "tekken.json").write_text("{}")
    # What transformers would find if mistral-common were installed.
    from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

    monkeypatch.setitem(TOKENIZER_MAPPING_NAMES, "mistral", "MistralCommonBackend")
    monkeypatch.setattr("transformers.integrations.mistral.tokenizer.is_mistral_common_available", lambda: True)
    monkeypatch.setenv("INERTIA_CACHE", str(tmp_path / "cache"))
    tokenizer = load_tokenizer(Made(made.family, folder).job("full_cache").backbone)
    assert tokenizer.is_fast and tokenizer("a").input_ids[0] == made_ids(made)["<s>"]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "bos"), [("smollm2-135m", ("<|im_start|>", 3)), ("gemma3-270m", ("<bos>", 1))])
def test_embedded_models_run_ruler(name: str, bos: tuple[str, int], results: Path) -> None:
    if not embedded.is_ready(name):
        pytest.skip(f"{name} is not in the cache; run: python -m inertia.backbones fetch {name}")
    # Longer than Gemma's window of 512 tokens.
    task = (f"backbone={name}", "benchmark.tasks=[niah_single_1]", "benchmark.lengths=[1024]", "benchmark.examples=1")
    jobs = [compose_run(*task, f"method={method}") for method in ("full_cache", "inertiakv")]
    outcomes = harness.run(jobs)
    assert [outcome.problem for outcome in outcomes] == [None, None]
    frame = read_samples(results / "runs").set_index("cell_id")
    full, cut = (frame.loc[outcome.cell.id] for outcome in outcomes)
    backbone, (prompt,) = load(jobs[0].backbone), prompts(jobs[0]).values()
    assert prompt.ids.count(backbone.tokenizer.convert_tokens_to_ids(bos[0])) == bos[1]
    assert backbone.tokenizer.decode(prompt.ids[:1]) == bos[0]
    assert full["prompt_sha256"] == cut["prompt_sha256"] == prompt.sha256
    assert list(full["tokens"]) == greedy(backbone.model, prompt.ids, 128, backbone.eos_token_ids)
    config = backbone.model.config.to_dict()
    tokens = full["prompt_tokens"] + full["new_tokens"] - 1
    assert full["retained_tokens"] == tokens > 512
    # What is allocated ahead of an answer that ends early counts.
    assert full["cache_bytes"] == slots_bytes(config, backbone.eligible_layers, full["prompt_tokens"] + 127)
    assert cut["retained_tokens"] == cut["budget_tokens"] == full["prompt_tokens"] // 10
    assert cut["cache_bytes"] == slots_bytes(config, backbone.eligible_layers, cut["budget_tokens"] + 1)
    assert full["score"] == 1.0
