"""Cells for tests of the records, written by the real writer."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inertia.records import cell_id, open_cell
from inertia.records.store import files, row_hash


def identity(task: str = "vt", alpha: float | None = 0.8, **changes: Any) -> dict[str, Any]:
    policy = {"aggregation": {"kind": "ema", "alpha": alpha}, "budget": None if alpha is None else {"ratio": 0.9}}
    place = {"name": "ruler", "task": task, "length": 1024}
    return {"backbone": {"source": "tiny"}, "benchmark": place, "policy": policy, "seed": 0, **changes}


def write_cell(
    root: Path,
    about: Mapping[str, Any],
    n: int = 3,
    *,
    done: int | None = None,
    fail: int | None = None,
    label: str = "some",
    config: Mapping[str, Any] | None = None,
    provenance: Mapping[str, Any] | None = None,
    name: str = "local",
    task: str = "vt",
    **columns: Any,
) -> str:
    """Write a cell: sealed, or with `done` of its n examples; the example at `fail` is tried twice.

    Returns:
        The cell's id.
    """
    planned = [f"{task}/{index:04d}" for index in range(n)]
    settings = {"label": label, "config": config or {}, "provenance": provenance or {}, "name": name}
    with open_cell(root, about, planned=planned, **settings) as cell:
        for index, example in enumerate(planned[:done]):
            if example not in cell.missing:
                continue
            if index == fail:
                cell.append_failure(example, index, "out of memory", task=task)
            row = {"example_id": example, "task": task, "index": index, "prediction": "x", "score": 1.0, **columns}
            cell.append({name: value(index) if callable(value) else value for name, value in row.items()})
        if done is None:
            cell.seal()
    return cell_id(about)


def write(
    root: Path, task: str = "vt", alpha: float | None = 0.8, n: int = 3, *, row: Any = None, **changes: Any
) -> str:
    """Write a cell of a grid over tasks and alphas, None for the full cache; returns its id."""
    variant = "full_cache" if alpha is None else f"inertiakv-{alpha}-1-0.9"
    arguments = {key: changes.pop(key) for key in ("done", "fail", "name") if key in changes}
    columns = {
        "length": 1024,
        "prediction": lambda index: f"answer {index}",
        "references": ["a", "b"],
        "score": lambda index: (index % 2) / 2,
        "tokens": lambda index: [1, index],
        "prompt_tokens": 900,
        "budget_tokens": None if alpha is None else 90,
        "retained_tokens": 90.0,
        "decode_seconds": 0.5,
    }
    return write_cell(
        root,
        identity(task, alpha, **changes),
        n,
        label=f"tiny__{variant}__{task}-1024",
        config={
            "backbone": {"name": "tiny"},
            "label": "full_cache" if alpha is None else "inertiakv",
            "experiment_name": "grid",
        },
        provenance={"code": {"commit": "0" * 40}},
        task=task,
        **arguments,
        **{**columns, **(row or {})},
    )


def edit(path: Path, statement: str, *values: Any, table: str | None = None) -> None:
    """Change a store by SQL; with `table` the hashes of its rows are made right again, as no writer of ours would."""
    connection = sqlite3.connect(path)
    with connection:
        assert connection.execute(statement, values).rowcount != 0, "the edit hit nothing"
        for row in connection.execute(f"SELECT * FROM {table}").fetchall() if table else ():
            key = row[-1]
            connection.execute(f"UPDATE {table} SET hash = ? WHERE hash = ?", (row_hash(table, row[:-1]), key))
    connection.close()


def only_file(root: Path) -> Path:
    (path,) = files(root)
    return path
