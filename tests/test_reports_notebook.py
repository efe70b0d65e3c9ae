from __future__ import annotations

import ast
import shutil
from pathlib import Path

import nbformat
import pytest
from reports_data import needle_scores, write_runs

from inertia.reports.publish import publish

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOK = ROOT / "notebooks" / "figures.ipynb"
LOGIC = (
    ast.FunctionDef,
    ast.ClassDef,
    ast.For,
    ast.While,
    ast.If,
    ast.With,
    ast.Try,
    ast.Lambda,
    ast.comprehension,
)


def code_cells():
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    return [cell for cell in cells if cell.cell_type == "code"]


def test_no_outputs_are_stored():
    for cell in code_cells():
        assert cell.outputs == []
        assert cell.execution_count is None


def test_cells_hold_calls_and_no_logic():
    found = code_cells()
    assert found
    for cell in found:
        assert len(cell.source.splitlines()) <= 6
        assert not [node for node in ast.walk(ast.parse(cell.source)) if isinstance(node, LOGIC)]


@pytest.mark.slow
def test_it_draws_figure_9_from_results_alone(tmp_path, monkeypatch):
    from nbclient import NotebookClient

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in ("runtime", "config"):
        monkeypatch.setenv(f"JUPYTER_{name.upper()}_DIR", str(tmp_path / name))
    write_runs(tmp_path / "results", needle_scores(tasks=("vt",), n=4))
    publish(tmp_path / "results", "table05", "laptop")
    shutil.rmtree(tmp_path / "results" / "runs")
    (tmp_path / "notebooks").mkdir()
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    resources = {"metadata": {"path": str(tmp_path / "notebooks")}}
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources=resources).execute()
    pictures = [
        output.data["image/png"]
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if "image/png" in output.get("data", {})
    ]
    assert len(pictures) == 1
    assert (tmp_path / "results" / "local" / "figures" / "figure09.png").is_file()
