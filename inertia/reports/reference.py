"""Printed numbers as rows of the tidy frame."""

from __future__ import annotations

from typing import Any

from inertia.reports.declaration import Reference, Table

_SETTINGS = ("backbone", "benchmark", "task", "length", "method", "alpha", "compression_ratio", "question_visible")
_WHOLE = ("all", "subset")  # how printed tables call a mean over tasks


def printed(table: Table) -> list[dict[str, Any]]:
    """Return the printed numbers of a table's references, each with the settings that are said of it."""
    return [row for reference in table.references for row in read(reference)]


def read(reference: Reference) -> list[dict[str, Any]]:
    """Return one reference's numbers, each with its `format`; a file with a column per quantity is made long."""
    frame = reference.load().rename(columns={"metric": "quantity", **reference.rename})
    for name, value in reference.where.items():
        frame = frame[frame[name] == value]
    if "value" not in frame:
        frame = frame.melt([name for name in frame if name in _SETTINGS], var_name="quantity")
    rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
    about = {"source": "paper", "scale": "paper", "status": "as printed", "note": reference.note}
    for row in rows:
        row.setdefault("quantity", "difference")
        row["task"] = "mean" if row.get("task", "all") in _WHOLE else row["task"]
        row["format"] = reference.formats.get(row["quantity"], ".2f")
    return [row | about for row in rows]
