"""Claims: a rule over one row of a tidy frame, and what it decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from inertia.reports.declaration import Claim, Comparison
from inertia.reports.grid import Column, Grid, Report, Row
from inertia.reports.pivot import lines_of
from inertia.reports.source import Source
from inertia.reports.tidy import tidy_rows

LEVEL = 0.05


def is_positive(row: Mapping[str, Any]) -> str:
    """Decide "the effect is positive": its interval must lie on one side of 0, and p must be below `LEVEL`."""
    if row["low"] is None or row["p"] is None or row["p"] >= LEVEL or row["low"] <= 0 <= row["high"]:
        return "inconclusive"
    return "supported" if row["value"] > 0 else "contradicted"


def decide(claim: Claim, source: Source) -> dict[str, Any]:
    """Return a claim's row of the tidy frame with its `verdict`, and beside it the `printed` effect.

    A claim whose examples are not all there is not decided: its verdict is the row's status.

    Raises:
        ValueError: the claim does not select one row.
    """
    rows = tidy_rows(source, claim.table)
    found = [row for row in rows if all(row.get(name) == value for name, value in claim.where.items())]
    ours = [row for row in found if row["source"] == "ours"]
    printed = [row["value"] for row in found if row["source"] == "paper"]
    if len(ours) != 1:
        raise ValueError(f"claim {claim.name} selects {len(ours)} rows of {claim.table.name}: expected one")
    row = {"value": None, "low": None, "high": None, "p": None} | ours[0]
    verdict = claim.rule(row) if row["status"] == "ok" else row["status"]
    about = {"claim": claim.name, "statement": claim.statement, "verdict": verdict}
    return about | row | {"printed": printed[0] if len(printed) == 1 else None}


def claims_report(decided: Sequence[Mapping[str, Any]], missing: Sequence[str] = ()) -> Report:
    """Return decided claims as one report, which names those that lack records."""
    names = ("claim", "statement", "verdict", "value", "low", "high", "p", "n", "planned", "status", "printed")
    about = ("scale", "backbone", "commit", "recorded", "cells")
    rows = []
    for said in decided:
        printed = () if said["printed"] is None else (f"{said['printed']:+.2f}",)
        scale = f"{said['scale']}, {said['backbone']}"
        effect = lines_of(said, Comparison({}))
        rows.append(Row(said["claim"], (effect, (str(said["n"]),), printed, (scale,), (said["verdict"],))))
    heads = ("effect", "n", "paper's effect", "scale", "verdict")
    notes = (
        *(f"{said['claim']}: {said['statement']}" for said in decided),
        "Effect in points with its 95% interval, over n paired examples. Supported or contradicted: the interval lies "
        f"on one side of 0 and p is below {LEVEL:g}; else inconclusive. At other scales it may be otherwise. Commits, "
        "dates and cells stand in the CSV.",
        *([f"Not decided, for there are no records: {', '.join(missing)}."] if missing else []),
    )
    columns = tuple(Column("", head) for head in heads)
    grid = Grid("The paper's claims, tested on our records", "claim", columns, tuple(rows), notes)
    return Report("claims", pd.DataFrame(decided, columns=[*names, *about]), grid)
