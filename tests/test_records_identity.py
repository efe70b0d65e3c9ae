from __future__ import annotations

import json
import math
import random
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inertia.records import cell_id, identity_sha256
from inertia.records.canonical import canonical_json

IDENTITY = {
    "score_version": 1,
    "backbone": {"name": "tiny", "weights_sha256": "0" * 64, "dtype": "float32"},
    "benchmark": {"name": "ruler", "task": "niah_single_1", "length": 1024, "seed": 42},
    "policy": {
        "scorer": {"name": "attention"},
        "aggregation": {"name": "ema", "alpha": 0.8},
        "refresh": {"name": "every", "interval": 1},
        "budget": {"kind": "ratio", "value": 0.9},
        "protect": None,
    },
    "decoding": {"max_new_tokens": 32, "greedy": True},
    "seed": 0,
}

# Never edit: a changed id orphans every record on disk. A change of meaning bumps score_version instead.
GOLDEN = {
    "c44136fa355b": {},
    "c015abd7f5cc": {"a": 1},
    "c1d995b0df09": IDENTITY,
}

KEYS = st.text().filter(lambda key: "." not in key)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text().filter(lambda k: "." not in k), inner, max_size=4)
    ),
    max_leaves=12,
)


@pytest.mark.parametrize("expected", GOLDEN)
def test_golden_ids(expected: str) -> None:
    assert cell_id(GOLDEN[expected]) == expected


def test_an_id_starts_with_a_letter_and_is_the_head_of_the_hash() -> None:
    assert re.fullmatch(r"c[0-9a-f]{11}", cell_id(IDENTITY))
    assert cell_id(IDENTITY)[1:] == identity_sha256(IDENTITY)[:11]
    assert len(identity_sha256(IDENTITY)) == 64


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (512, 512.0),
        (1e-5, 0.00001),
        (0.0, -0.0),
        (0, -0.0),
        (1e22, 10**22),
        ((1, 2.0), [1.0, 2]),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (np.float64(0.25), 0.25),
    ],
)
def test_one_meaning_one_id(one: object, other: object) -> None:
    assert cell_id({"x": {"y": [one]}}) == cell_id({"x": {"y": [other]}})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True),
        (0, False),
        (1, "1"),
        (None, "none"),
        (None, 0),
        ("", None),
        (0.12, 0.125),
        ([], {}),
        (1e-5, "1e-5"),
    ],
)
def test_two_meanings_two_ids(one: object, other: object) -> None:
    assert cell_id({"x": one}) != cell_id({"x": other})


def test_null_and_absent_differ() -> None:
    assert cell_id({"a": 1, "b": None}) != cell_id({"a": 1})


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_no_number_no_identity(value: float) -> None:
    with pytest.raises(ValueError, match=r"identity\.a\[1\] is (nan|inf|-inf)"):
        cell_id({"a": [0, value]})


@pytest.mark.parametrize("value", [{1, 2}, b"x", np.int64(3), object()])
def test_foreign_types_are_refused_with_the_place(value: object) -> None:
    with pytest.raises(TypeError, match=r"identity\.a\.b is a"):
        cell_id({"a": {"b": value}})


def test_keys_are_text_without_dots() -> None:
    with pytest.raises(TypeError, match="key 1 of type int"):
        cell_id({1: "a"})
    with pytest.raises(ValueError, match=r"'a\.b'"):
        cell_id({"a.b": 1})


@given(VALUES)
def test_canonical_json_is_a_fixed_point_and_ascii(value: object) -> None:
    text = canonical_json({"v": value})
    assert text.isascii()
    assert canonical_json(json.loads(text)) == text


@given(
    st.dictionaries(st.text().filter(lambda k: "." not in k), VALUES, max_size=6),
    st.randoms(use_true_random=False),
)
def test_key_order_does_not_matter(value: dict, shuffler: random.Random) -> None:
    items = list(value.items())
    shuffler.shuffle(items)
    assert cell_id(dict(items)) == cell_id(value)


def test_lone_surrogates_hash() -> None:
    assert cell_id({"a": "\ud800"}) != cell_id({"a": "?"})


def test_ids_do_not_depend_on_the_hash_seed() -> None:
    code = "from tests.test_records_identity import IDENTITY, cell_id; print(cell_id(IDENTITY))"
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            cwd=Path(__file__).parents[1],
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert found == {cell_id(IDENTITY)}


def test_every_leaf_changes_the_id() -> None:
    def leaves(value: object, path: tuple[str, ...] = ()):
        if isinstance(value, dict):
            for key, item in value.items():
                yield from leaves(item, (*path, key))
        else:
            yield path

    ids = {cell_id(IDENTITY)}
    paths = list(leaves(IDENTITY))
    for path in paths:
        changed = json.loads(json.dumps(IDENTITY))
        target = changed
        for key in path[:-1]:
            target = target[key]
        target[path[-1]] = "changed"
        ids.add(cell_id(changed))
    assert len(ids) == len(paths) + 1
