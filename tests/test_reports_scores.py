"""Any experiment as one table: a row per policy, what was cut, what was kept."""

from __future__ import annotations

import pytest
from reports_data import cell, entry, grid_rows, source_of

from inertia.paper.scores import scores
from inertia.reports import build_table


def columns(task):
    return lambda i: {
        "truncated": task == "vt" and i % 2 == 1,
        "retained_tokens": 100.0 * (i + 1),
        "cache_bytes": 2**20,
    }


@pytest.fixture
def source():
    """Full cache and alpha 0.8 over two tasks, four examples each; half of vt's prompts were cut."""
    values = {
        ("vt", "full_cache"): [1.0, 1.0, 0.5, 0.5],
        ("vt", "inertiakv"): [1.0, 0.0, 0.0, 1.0],
        ("niah_noise_3keys", "full_cache"): [1.0, 1.0, 1.0, 0.0],
        ("niah_noise_3keys", "inertiakv"): [1.0, 0.0, 1.0, 0.0],
    }
    return source_of(
        cell(number, scores, columns=columns(task), task=task, method=method)
        for number, ((task, method), scores) in enumerate(values.items())
    )


def test_scores_and_the_share_of_cut_prompts(source):
    table = build_table(scores("mine"), source)
    rows = grid_rows(table)
    assert list(rows) == ["full_cache", "inertiakv"]
    assert [cell[0] for cell in rows["full_cache"]] == ["75.0", "75.0", "75.0", "250", "1.0"]
    assert [cell[0] for cell in rows["inertiakv"][:3]] == ["50.0", "50.0", "50.0"]
    headers = {column.name: column for column in table.grid.columns}
    assert headers["vt"].details == ("@1024", "n=4", "cut 50%")
    assert headers["niah_noise_3keys"].details == ("@1024 ‡", "n=4")
    notes = " ".join(table.grid.notes)
    assert "cut: share of prompts" in notes
    assert "no official one, in the mean like the others: niah_noise_3keys" in notes
    assert entry(table.frame, policy="inertiakv", quantity="cache_mib")["value"] == 1.0


def test_what_was_kept_is_not_told_of_an_incomplete_policy(source):
    first = source.cells[1]
    failed = source._replace(cells=(*source.cells[:1], type(first)(first.id, first.settings, 5, first.samples)))
    table = build_table(scores("mine"), failed)
    assert grid_rows(table)["inertiakv"] == (("incomplete", "4/5"),) * 4
    assert entry(table.frame, policy="inertiakv", quantity="retained_tokens")["status"] == "incomplete 4/5"
