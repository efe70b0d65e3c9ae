"""Labels: cells of different identity never share one, and it names what differs."""

from __future__ import annotations

import copy
from functools import cache

import pytest
from hydra import compose, initialize_config_dir
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from inertia.experiments import config as config_module
from inertia.experiments.cells import cells_of
from inertia.experiments.config import IDENTITY, POLICY_PARTS, from_plain, run_config
from inertia.experiments.labels import policy_label
from inertia.methods import METHODS
from inertia.paths import config_dir

SMALL = ("backbone=tiny-random", "benchmark.tasks=[niah_single_1]", "benchmark.lengths=[512]", "benchmark.examples=1")
OTHERS = {
    "scope": ("shared", "per_layer", "per_head"),
    "new_token.on_refresh": ("by_scorer", "zero", "mean"),
    "new_token.when_frozen": ("mean", "protect"),
    "start": ({"_target_": "inertia.eviction.prefill_sums.PrefillSums"},),
    "benchmark.metrics": (["official", "fidelity"], ["fidelity", "official"]),
    "execution.scoring": ("fused", "recompute"),
    "label": ("inertiakv", "h2o", "snapkv", "mine", "my own=2", "inertiakv aggregation.alpha=0.5"),
    "backbone.dtype": ("float32", "bfloat16"),
}


@pytest.fixture(autouse=True, scope="module")
def parts_made_once():
    """Equal settings make equal parts, and Hydra takes milliseconds for each."""
    made, real = {}, config_module.part

    def part(name, settings):
        key = (name, repr(settings))
        if key not in made:
            made[key] = real(name, settings)
        return made[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(config_module, "part", part)
        yield


@cache
def composed(*words):
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        return OmegaConf.to_container(compose("config", overrides=[*SMALL, *words]), resolve=True)


@cache
def methods():
    return {name: composed(f"method={name}") for name in sorted(METHODS)} | {"": composed()}


def leaves(node, above=""):
    for key, value in node.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


@cache
def kinds(part):
    """What the methods have in the place of a part, each once."""
    return list({repr(each[part]): each[part] for each in methods().values()}.values())


def values_for(name, value):
    """Other values of a setting, such as could be mistaken for each other."""
    if name in OTHERS:
        return OTHERS[name]
    if isinstance(value, bool):
        return (not value,)
    if isinstance(value, int | float):
        return (value + 1, value + 2, 0.5, 0.8, 0.123456789, 0.1234567891, 1, 4)
    return ()


def changed(plain, *changes):
    """A config with some settings replaced, or None where it is refused."""
    made = copy.deepcopy(plain)
    for name, value in changes:
        *path, last = name.split(".")
        node = made
        for key in path:
            node = node.get(key) if isinstance(node, dict) else None
        if not isinstance(node, dict) or (path and last not in node):
            return None
        node[last] = copy.deepcopy(value)
    try:
        return from_plain(made)
    except (ValueError, TypeError):
        return None


def varied(plain):
    yield from_plain(plain)
    for name, value in [*leaves(plain), ("start", None)]:
        if name.startswith((*IDENTITY, "backbone.dtype", "backbone.seed", "label")) and not name.endswith("_target_"):
            yield from (changed(plain, (name, other)) for other in values_for(name, value))
    yield from (changed(plain, (part, each)) for part in POLICY_PARTS for each in kinds(part))


def assert_unique(configs):
    by_label, shared = {}, {}
    for config in configs:
        if config is not None:
            (cell,) = cells_of(config, shared)
            assert by_label.setdefault(cell.label, cell.identity) == cell.identity, cell.label
    return by_label


@pytest.mark.parametrize("name", ["", *sorted(METHODS)])
def test_no_two_cells_of_one_place_share_a_label(name):
    """Every method, each of its settings varied by itself, each of its parts replaced by every other method's."""
    assert len(assert_unique(varied(methods()[name]))) > 25


def test_methods_have_labels_of_their_own_and_are_called_by_their_names():
    labels = [policy_label(from_plain(plain)) for name, plain in methods().items() if name]
    assert labels == sorted(METHODS)


@given(st.data())
def test_several_changed_settings_are_told_apart_too(data):
    def draw():
        plain = methods()[data.draw(st.sampled_from(sorted(methods())))]
        names = dict(leaves(plain)) | {part: None for part in POLICY_PARTS}
        changes = []
        for name in data.draw(st.lists(st.sampled_from(sorted(names)), max_size=4, unique=True)):
            swaps = kinds(name) if name in POLICY_PARTS else []
            others = [*values_for(name, names[name]), *swaps]
            if others and name.split(".")[0] in (*POLICY_PARTS, "scope", "seed", "execution", "label"):
                changes.append((name, data.draw(st.sampled_from(others))))
        return changed(plain, *sorted(changes, key=lambda change: change[0].count(".")))

    assert_unique([draw() for _ in range(4)])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), "attention+coupled_ema+every+ratio"),
        (("method=inertiakv",), "inertiakv"),
        (("method=inertiakv", "aggregation.alpha=0.5"), "inertiakv aggregation.alpha=0.5"),
        (("method=inertiakv", "scorer=vnorm"), "inertiakv scorer=vnorm"),
        (("method=inertiakv", "refresh=once"), "inertiakv refresh=once"),
        (("method=h2o", "protect.sinks=4", "protect.recent=8"), "h2o protect.sinks=4 protect.recent=8"),
        (("method=h2o", "new_token.when_frozen=protect", "seed=3"), "h2o new_token.when_frozen=protect seed=3"),
        (("method=snapkv", "prefill.budget.compression_ratio=0.5"), "snapkv prefill.budget.compression_ratio=0.5"),
        (("method=snapkv", "prefill.budget.compression_ratio=0.8"), "snapkv prefill.budget.compression_ratio=0.8"),
        (("method=snapkv", "prefill=none"), "snapkv prefill=null"),
        (("method=h2o", "evict=false"), "h2o budget=unlimited"),
        (("method=full_cache",), "full_cache"),
        (("method=h2o", "execution.scoring=recompute"), "h2o execution.scoring=recompute"),
        (("method=h2o", "benchmark.metrics=[official,fidelity]"), "h2o metrics=fidelity+official"),
        (
            ("label=mine", "scope=per_head", "aggregation=time_ema"),
            "mine aggregation=decoupled aggregation.layers=uniform aggregation.time=ema aggregation.time.alpha=0.8 "
            "scope=per_head",
        ),
    ],
)
def test_a_label_names_the_method_and_what_was_set(words, expected):
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        config = run_config(compose("config", overrides=[*SMALL, *words]))
    assert policy_label(config) == expected


def test_data_and_model_are_part_of_a_cells_label_and_its_place_can_be_read():
    (cell,) = cells_of(from_plain(composed("method=h2o")))
    backbone, policy, place = cell.label.split("__")
    assert (backbone, policy) == ("tiny-random", "h2o") and place.startswith("niah_single_1-512@")
    for words in (("benchmark.seed=7",), ("backbone.seed=1",), ("backbone.context_window=4096",)):
        (other,) = cells_of(from_plain(composed("method=h2o", *words)))
        assert other.label != cell.label and other.label.split("@")[0] == cell.label.split("@")[0]
