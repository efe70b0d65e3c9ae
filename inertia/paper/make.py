"""From a number in the paper to the written report."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from inertia.paper.claims import CLAIMS
from inertia.paper.figure09 import FIGURE09
from inertia.paper.methods import METHODS
from inertia.paper.ruler13 import RULER13
from inertia.paper.table05 import TABLE05
from inertia.paths import results_dir
from inertia.reports import Figure, Table, build_figure, build_table, load_source
from inertia.reports.claims import claims_report, decide
from inertia.reports.grid import Report
from inertia.reports.source import Origin, the_profile
from inertia.reports.write import place_of, write_figure, write_report

TABLES: Mapping[str, Table] = {"5": TABLE05, "methods": METHODS, "ruler13": RULER13}
FIGURES: Mapping[str, Figure] = {"9": FIGURE09}

Declared = TypeVar("Declared", Table, Figure)


def find(known: Mapping[str, Declared], name: int | str, kind: str) -> Declared:
    """Return the table or figure of a number in the paper (5, "5" or "05"), or of a name.

    Raises:
        KeyError: there is none; the message lists those there are.
    """
    short = str(name).lstrip("0")
    if short not in known:
        raise KeyError(f"no {kind} {name}; allowed: {', '.join(known)}")
    return known[short]


def make_table(
    table: Table | int | str, profile: str | None = None, origin: Origin = "auto", results: Path | None = None
) -> tuple[Report, list[Path]]:
    """Build a table from records, write it, and return it with its paths.

    Args:
        table: its number in the paper, its name, or a declaration.
        profile: the profile that was run; any but "laptop" becomes part of the file names. None: "laptop", or the only
            one there is.
        origin: "runs" (local), "published" (carried by the project), or "auto" (the first that is there). Only
            "published" writes to results/tables; everything else goes to results/local.
        results: the folder of results; `inertia.paths.results_dir` by default.

    Raises:
        KeyError: there is no such table.
        FileNotFoundError: there are no such records.
    """
    table = table if isinstance(table, Table) else find(TABLES, table, "table")
    root = results_dir() if results is None else results
    profile = profile or the_profile(root, table.experiment)
    report = build_table(table, load_source(root, table.experiment, profile, origin))
    return report, write_report(report, place_of(root, origin, "tables"), profile)


def make_figure(
    figure: Figure | int | str, profile: str | None = None, origin: Origin = "auto", results: Path | None = None
) -> list[Path]:
    """Draw a figure from records, write it, and return its paths, PNG first; arguments and errors as `make_table`."""
    figure = figure if isinstance(figure, Figure) else find(FIGURES, figure, "figure")
    root = results_dir() if results is None else results
    profile = profile or the_profile(root, figure.table.experiment)
    drawing = build_figure(figure, load_source(root, figure.table.experiment, profile, origin))
    return write_figure(drawing, place_of(root, origin, "figures"), figure.name, profile)


def make_claims(
    profile: str | None = None, origin: Origin = "auto", results: Path | None = None
) -> tuple[Report, list[Path]]:
    """Decide the claims whose records there are, and return the verdicts with their paths, else as `make_table`."""
    root = results_dir() if results is None else results
    decided, missing = [], {}
    for claim in CLAIMS:
        try:
            decided.append(decide(claim, load_source(root, claim.table.experiment, profile, origin)))
        except FileNotFoundError as error:
            missing[claim.name] = error
    if not decided:
        raise next(iter(missing.values()))
    report = claims_report(decided, list(missing))
    return report, write_report(report, place_of(root, origin, "claims"), profile or the_profile(root, "table05"))
