"""The config: closed, typed, complete; every leaf declared; every shipped file composes."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from inertia import preset
from inertia.experiments import cli, overrides
from inertia.experiments.config import IDENTITY, PATHS, TRANSPORT, absolute, from_plain, policy, run_config
from inertia.experiments.plan.jobs import jobs_of
from inertia.methods import METHODS
from inertia.paths import config_dir

ROOT = Path(__file__).resolve().parents[1]
GROUPS = overrides.group_options()


def composed(*overrides):
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        return compose("config", overrides=list(overrides))


def leaves(node, prefix=""):
    for key, value in node.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{name}.")
        else:
            yield name


def test_every_leaf_is_declared_identity_or_transport_and_not_both():
    plain = OmegaConf.to_container(composed(), resolve=True)
    for leaf in leaves(plain):
        if leaf.startswith("backbone."):
            continue  # BackboneConfig declares its own fields, and tests them
        homes = [
            name for names in (IDENTITY, TRANSPORT) for name in names if leaf == name or leaf.startswith(f"{name}.")
        ]
        where = "inertia.experiments.config: IDENTITY if it can change a number, else TRANSPORT"
        assert len(homes) == 1, f"declare {leaf} in {where}"


CHANGES = {
    "benchmark.tasks": "benchmark.tasks=[vt]",
    "benchmark.lengths": "benchmark.lengths=[2048]",
    "benchmark.seed": "benchmark.seed=7",
    "benchmark.metrics": "benchmark.metrics=[official,fidelity]",
    "benchmark.source": None,  # needs data; tested with the benchmarks
    "scorer": None,  # one scorer in this composition; changed below through a foreign class
    "aggregation": "aggregation.alpha=0.5",
    "refresh": "refresh.interval=2",
    "budget": "budget.compression_ratio=0.75",
    "evict": "evict=false",
    "scope": None,
    "selection": None,
    "protect": "protect.sinks=1",
    "new_token": "new_token.when_frozen=protect",
    "prefill": "prefill=snapkv",
    "start": None,  # needs another scope; see below
    "seed": "seed=1",
    "benchmark.examples": "benchmark.examples=3",
    "benchmark.task_examples": "+benchmark.task_examples.niah_single_1=3",
    "label": "label=other",
    "experiment_name": "experiment_name=other",
    "profile_name": "profile_name=other",
    "scale": "scale=other",
    "threads": "threads=1",
    "progress": "progress=false",
    "logger": "logger.mode=disabled",
    "launcher": "launcher=submitit",
    "shard": "shard=1/2",
    "execution.scoring": "execution.scoring=recompute",
    "execution.compiled": "execution.compiled=true",
    "execution.prefill_chunk": "execution.prefill_chunk=64",
    "execution.batch_gib": "execution.batch_gib=1",
}
BASE = ("backbone=tiny-random", "benchmark.tasks=[niah_single_1]", "benchmark.lengths=[1024]", "benchmark.examples=2")


@pytest.mark.parametrize("name, change", [(n, c) for n, c in CHANGES.items() if c])
def test_identity_settings_change_the_cell_and_transport_does_not(name, change):
    from inertia.experiments.cells import cells_of

    ids = {cell.id for cell in cells_of(run_config(composed(*BASE)))}
    changed = {cell.id for cell in cells_of(run_config(composed(*BASE, change)))}
    assert (ids != changed) == (name in IDENTITY)


def test_all_declared_settings_were_changed():
    assert {*IDENTITY, *TRANSPORT} - {"benchmark.name"} == set(CHANGES)


def test_scope_and_parts_change_the_cell():
    from inertia.experiments.cells import cells_of

    base = [*BASE, "aggregation=single_step"]
    one = {cell.id for cell in cells_of(run_config(composed(*base)))}
    two = {cell.id for cell in cells_of(run_config(composed(*base, "scope=per_head")))}
    assert one != two


def test_spelling_and_order_do_not_change_the_cell():
    from inertia.experiments.cells import cells_of

    spelled = [
        ("budget.compression_ratio=0.9", "aggregation.alpha=0"),
        ("aggregation.alpha=0.0", "budget.compression_ratio=9e-1"),
    ]
    ids = [[cell.id for cell in cells_of(run_config(composed(*BASE, *words)))] for words in spelled]
    assert ids[0] == ids[1]


def test_golden_cell_id():
    """Raise SCORE_VERSION or a data version when this must change; never edit it for anything else."""
    from inertia.experiments.cells import cells_of

    (cell,) = cells_of(run_config(composed(*BASE)))
    assert cell.identity["policy"]["aggregation"] == {"kind": "coupled_ema", "alpha": 0.8}
    assert cell.id.startswith("c") and len(cell.id) == 12


@pytest.mark.parametrize("name", sorted(METHODS))
def test_the_method_config_is_the_named_policy(name):
    plain = OmegaConf.to_container(composed(f"method={name}"), resolve=True)
    assert policy(plain).describe() == preset(name).describe()
    assert plain["label"] == name


def test_methods_and_configs_are_the_same_set():
    assert set(METHODS) == set(GROUPS["method"])


@pytest.mark.parametrize(
    "group, option",
    [
        (g, o)
        for g, options in GROUPS.items()
        for o in options
        if g not in ("method", "experiment", "layers", "time") and o != "learned"
    ],
)
def test_every_option_composes_to_a_checked_run(group, option):
    assert run_config(composed(f"{group}={option}"))


@pytest.mark.parametrize("profile", GROUPS["profile"])
@pytest.mark.parametrize("experiment", GROUPS["experiment"])
def test_every_experiment_composes_at_every_profile(experiment, profile):
    config = run_config(composed(f"experiment={experiment}", f"profile={profile}"))
    assert (config.experiment_name, config.profile_name) == (experiment, profile)
    assert config.scale


@pytest.mark.parametrize(
    "words, expected",
    [
        (["budget.tokns=5"], "budget has no key 'tokns'; it has compression_ratio"),
        (["bugdet=ratio"], "no key 'bugdet'.*Did you mean budget"),
        (["scorer=atention"], "no such option; give one of .*attention.*Did you mean attention"),
        (["method=inertiakv,inertia"], "method=inertia: no such option"),
        (["aggregation=cumulative", "aggregation.alpha=1"], "aggregation has no key 'alpha'"),
        (["aggregation.alpha=1.5"], r"alpha=1.5 is out of range; give a number in \[0, 1\]"),
        (["aggregation.alpha=high"], "'high' is not a number"),
        (["budget=tokens", "budget.count=0"], "budget.count=0"),
        (["benchmark.tasks=[niah]"], "'niah' is unknown; give one of .*niah_single_1"),
        (["benchmark.lengths=[0]"], "benchmark.lengths=0"),
        (["benchmark.lengths=[100000]"], "window of 8192"),
        (["benchmark.examples=no"], "benchmark.examples='no' is not an integer"),
        (["+benchmark.task_examples.niah=3"], "'niah' is unknown"),
        (["logger.mode=on"], "logger.mode='on' is unknown; give one of 'offline'"),
        (["evict=2"], "evict=2"),
        (["method=inertiakv,h2o", "aggregation.alpha=0,0.8"], "with method=h2o: .*aggregation has no key"),
        (["execution.scoring=kernel"], "execution.scoring='kernel' needs a CUDA device"),
        (["compression_ratio=0.5"], "Did you mean budget.compression_ratio or prefill.budget.compression_ratio"),
        (["evict=1"], "evict=1 is not a boolean"),
        (["protect.newest=1"], "protect.newest=1 is not a boolean"),
        (["selection=null"], "selection=None"),
        (["backbone=null"], "."),
        (["benchmark.lengths=512"], "benchmark.lengths=512 is not a list"),
        (["benchmark.tasks=niah_single_1"], "benchmark.tasks='niah_single_1' is not a list"),
        (["prefill.budget=0.5"], "prefill.budget=0.5 does not fit"),
        (["aggregation=single_step", "aggregation.time=none"], "aggregation.time='none' does not fit"),
        (["label=[a,b]"], "is not text"),
        (["experiment_name=../x"], "names a file"),
        (["scorer._target_=inertia.eviction.refresh.Every"], "does not fit: it needs score"),
        (["aggregation=selected", "prefill=snapkv"], "watches one keep-set"),
        (["scope=global"], "scope='global'"),
        (["+new.key=1"], "the config is closed"),
        (["scorer._target_=nowhere.Thing"], "nowhere"),
        (["backbone.dtype=float8"], "backbone.dtype"),
        (["aggregation.alpha"], "key=value"),
        (["benchmark.tasks=[niah_singel_1]"], "Did you mean niah_single_1"),
        (["benchmark.tasks=[niah_multi]"], "Did you mean niah_multi"),
        (["method=inertiakv_laz"], "Did you mean inertiakv_lazy"),
        (["benchmark.lengths=[10]"], "benchmark.lengths=10 has no room for a prompt: task niah_single_1 answers in up"),
        (["benchmark.task_examples={niah: 2}"], "'niah' is unknown"),
        (["benchmark.lengths=[1024]", "protect.recent=200"], "protect asks for up to 200 slots.*budget is 102"),
        (["benchmark.lengths=[1024]", "protect={sinks: 60, recent: 60}"], "protect asks for up to 120 slots"),
        (["budget=tokens", "budget.count=8", "protect.sinks=9"], "protect asks for up to 9 slots"),
        (["-m", "protect={sinks: 4}", "protect={sink: 8}"], "protect has no key 'sink'"),
        (["-m", "seed=0,1", "seed=2,3"], "seed is swept 2 times"),
        (["-m", "protect={sinks: 1},{sinks: 2}", "protect={recent: 1},{recent: 2}"], "protect is swept 2 times"),
        (["aggregation={alpha: 0.5, beta: 1}"], "aggregation has no key 'beta'"),
        (["scorer._target_=inertia.eviction.scorers.attention.Attention", "+scorer.x=1"], "the config is closed"),
    ],
)
def test_a_wrong_setting_is_refused_with_the_allowed_ones(words, expected, capsys):
    import re

    assert cli.main(words) == 2
    assert re.search(expected, capsys.readouterr().err), expected


@pytest.mark.parametrize("layers", [option for option in GROUPS["layers"]])
@pytest.mark.parametrize("time", [option for option in GROUPS["time"]])
def test_layer_weighting_and_memory_are_two_axes(layers, time):
    words = ["aggregation=decoupled", f"layers@aggregation.layers={layers}", f"time@aggregation.time={time}"]
    rule = run_config(composed(*words)).policy.aggregation
    assert (rule.layers.kind, rule.time.kind) == (layers, time)


def test_refusal_takes_under_two_seconds():
    """Measured on the whole process; generous enough not to depend on the machine's mood: torch alone takes longer."""
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "inertia", "budget.tokns=5"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    for heavy in ("torch", "transformers", "pandas", "wandb"):
        assert f"| {heavy}\n" not in done.stderr, f"{heavy} was imported before the setting was refused"
    assert time.perf_counter() - started < 30


LOUD = """
from dataclasses import dataclass
@dataclass(frozen=True)
class Loud:
    gain: float = 2.0
    names: tuple = ()
    signed = False
    def score(self, view):
        return self.gain * view.weights.mean(2)
"""


@pytest.fixture
def loud(tmp_path, monkeypatch):
    """A scorer of a package of the user's own."""
    (tmp_path / "their_scorers.py").write_text(LOUD)
    monkeypatch.syspath_prepend(tmp_path)


def test_policies_from_outside_the_package_load_by_target(loud):
    config = run_config(composed("scorer._target_=their_scorers.Loud"))
    described = config.policy.describe()["scorer"]
    assert {key: described[key] for key in ("kind", "gain")} == {"kind": "their_scorers:Loud", "gain": 2.0}
    assert len(described["source_sha256"]) == 64, "edited code must be another cell"


@pytest.mark.parametrize(
    "words",
    [
        ["scorer._target_=their_scorers.Loud", "+scorer.gain=3.5"],
        ["scorer._target_=their_scorers.Loud", "++scorer.gain=3.5"],
        ["scorer._target_=their_scorers.Loud", "scorer.gain=3.5"],
        ["+scorer.gain=3.5", "scorer._target_=their_scorers.Loud"],
        ["scorer={_target_: their_scorers.Loud, gain: 3.5}"],
        ["aggregation.alpha=0.5", "scorer={gain: 3.5}", "scorer._target_=their_scorers.Loud"],
    ],
)
@pytest.mark.parametrize("sweep", [[], ["-m"]])
def test_a_part_of_ones_own_takes_its_settings_in_every_spelling(words, sweep, loud):
    (config,) = jobs_of([*sweep, *words])
    assert config.policy.describe()["scorer"]["gain"] == 3.5


def test_a_part_of_ones_own_can_be_swept_and_lose_what_ours_had(loud):
    found = jobs_of(["-m", "scorer._target_=their_scorers.Loud", "+scorer.gain=1,2.5"])
    assert [each.policy.describe()["scorer"]["gain"] for each in found] == [1, 2.5]
    words = ["aggregation._target_=their_scorers.Loud", "~aggregation.alpha", "aggregation.gain=2"]
    with pytest.raises(ValueError, match="aggregation=.*does not fit: it needs linear"):
        jobs_of(words)


@pytest.mark.parametrize("sweep", [[], ["-m"]])
@pytest.mark.parametrize(
    "words, expected",
    [
        (["protect={sinks: 4}", "protect={recent: 8}"], {"sinks": 4, "recent": 8}),
        (["protect={sinks: 4, recent: 1}", "protect.recent=8"], {"sinks": 4, "recent": 8}),
        (["protect.recent=8", "protect={sinks: 4, recent: 1}"], {"sinks": 4, "recent": 1}),
        (["protect={sinks: 4}", "protect={sinks: 5}"], {"sinks": 5, "recent": 0}),
    ],
)
def test_mappings_mean_the_same_with_and_without_a_sweep(words, expected, sweep):
    (config,) = jobs_of([*sweep, *words])
    assert {name: getattr(config.policy.protect, name) for name in expected} == expected


def test_a_swept_mapping_merges_with_a_given_one():
    found = jobs_of(["-m", "protect={sinks: 4},{sinks: 6}", "protect={recent: 8}"])
    assert [(each.policy.protect.sinks, each.policy.protect.recent) for each in found] == [(4, 8), (6, 8)]


@pytest.mark.parametrize("sweep", [[], ["-m"]])
@pytest.mark.parametrize(
    "words", [["benchmark.task_examples={vt: 2}"], ["+benchmark.task_examples.vt=2"], ["benchmark.task_examples.vt=2"]]
)
def test_the_examples_of_single_tasks_are_given_in_every_spelling(words, sweep):
    (config,) = jobs_of([*sweep, *words])
    assert config.benchmark.task_examples == {"vt": 2}


def test_options_of_ones_own_reach_sbatch_in_every_spelling():
    single = ["launcher.sbatch.licenses=x", "+launcher.sbatch.nice=5"]
    for words in (["launcher.sbatch={licenses: x, nice: 5}"], single):
        (config,) = jobs_of(["launcher=submitit", *words])
        assert config.launcher.sbatch == {"licenses": "x", "nice": 5}


def test_paths_mean_the_directory_where_the_command_was_typed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    words = ["benchmark.source.kind=path", "benchmark.source.path=data", "backbone=llama-3.1-8b-instruct"]
    config = run_config(composed(*words, 'backbone.path="~/model"'))
    assert config.backbone.path == str(tmp_path / "me" / "model")
    assert config.resolved["benchmark"]["source"]["path"] == str(tmp_path / "data")
    monkeypatch.chdir("/")
    assert from_plain(config.resolved).benchmark.source["path"] == str(tmp_path / "data"), "as a job elsewhere reads it"
    hub = ["benchmark.source.kind=hub", "benchmark.source.repo=a/b", f"benchmark.source.revision={40 * '0'}"]
    assert run_config(composed(*hub, "benchmark.source.path=data")).benchmark.source["path"] == "data"


def test_the_path_of_learned_weights_is_one_of_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plain = absolute({"scorer": {"_target_": "x", "weights": "here/w.safetensors"}})
    assert plain["scorer"]["weights"] == str(tmp_path / "here" / "w.safetensors")


def test_every_setting_that_is_called_a_path_is_declared_one():
    for group in GROUPS:
        for file in (config_dir() / group).glob("*.yaml"):
            for leaf in leaves(OmegaConf.to_container(OmegaConf.load(file))):
                if leaf.split(".")[-1] in ("path", "file", "folder", "weights") and group != "layers":
                    assert leaf in PATHS or f"{group}.{leaf}" in PATHS, f"is {group}.{leaf} a path of this machine?"
