"""Any experiment as one table: a row per policy, what was cut, what was kept, and nothing beyond the plan."""

from __future__ import annotations

from dataclasses import replace

import pytest
import reports_data

from inertia.reports.score_table import score_table
from inertia.reports.source import the_profile


@pytest.fixture
def source():
    """Full cache and alpha 0.8 over two tasks, four examples each; half of vt's prompts were cut."""
    scores = {
        ("vt", None): [1.0, 1.0, 0.5, 0.5],
        ("vt", 0.8): [1.0, 0.0, 0.0, 1.0],
        ("niah_noise_3keys", None): [1.0, 1.0, 1.0, 0.0],
        ("niah_noise_3keys", 0.8): [1.0, 0.0, 1.0, 0.0],
    }
    made = reports_data.memory_source(scores)
    samples = made.samples
    samples["truncated"] = (samples["task"] == "vt") & (samples["index"] % 2 == 1)
    samples["retained_tokens"] = 100.0 * (samples["index"] + 1)
    samples["cache_bytes"] = 2**20
    return made._replace(samples=samples)


def columns(table):
    return {column.name: column for column in table.grid.columns}


def test_scores_and_the_share_of_cut_prompts(source):
    table = score_table(source)
    rows = {row.label: row.cells for row in table.grid.rows}
    assert list(rows) == ["full_cache", "inertiakv"]
    assert [cell[0] for cell in rows["full_cache"][:3]] == ["75.0", "75.0", "75.0"]
    assert [cell[0] for cell in rows["inertiakv"][:3]] == ["50.0", "50.0", "50.0"]
    assert columns(table)["vt"].details == ("@1024", "n=4", "cut 50%")
    assert columns(table)["niah_noise_3keys"].details == ("@1024", "n=4")
    notes = " ".join(table.grid.notes)
    assert "cut: share of prompts" in notes and "niah_noise_3keys is no official task" in notes


def test_examples_beyond_the_plan_change_nothing(source):
    short = replace(source.index, cells=tuple(replace(cell, planned=2) for cell in source.index.cells))
    extended = score_table(source._replace(index=short))
    own = score_table(source._replace(index=short, samples=source.samples[source.samples["index"] < 2]))
    assert extended.grid == own.grid
    assert extended.grid.rows[0].cells[3] == ("150",)  # tokens kept: 100 and 200


def test_the_profile_is_the_only_one_there_is_else_the_reference(tmp_path):
    assert the_profile(tmp_path, "table05") == "laptop"
    reports_data.write_runs(tmp_path, {("vt", None): [1.0]}, profile="custom")
    assert the_profile(tmp_path, "table05") == "custom"
    reports_data.write_runs(tmp_path, {("vt", None): [1.0]}, profile="smoke")
    assert the_profile(tmp_path, "table05") == "laptop"
