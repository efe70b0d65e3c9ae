"""From a number in the paper to the written report."""

from __future__ import annotations

from pathlib import Path

from inertia.paths import results_dir
from inertia.reports.plotting import house_style
from inertia.reports.registry import figure_report, table_report
from inertia.reports.source import Origin, load_source
from inertia.reports.table import Table
from inertia.reports.write import REFERENCE_PROFILE, write_figure, write_table


def make_table(
    number: int, profile: str = REFERENCE_PROFILE, origin: Origin = "auto", results: Path | None = None
) -> tuple[Table, list[Path]]:
    """Build a table of the paper from records, write it below results/tables, return it with its paths.

    Args:
        number: The paper's number of the table.
        profile: The profile that was run; any but "laptop" becomes part of the file names.
        origin: "runs" (local), "published" (carried by the project), or "auto" (the first that is there).
        results: The folder of results; `inertia.paths.results_dir` by default.

    Raises:
        KeyError: There is no such table.
        FileNotFoundError: There are no such records.
    """
    root = results_dir() if results is None else results
    report = table_report(number)
    table = report.build(load_source(root, report.experiment, profile, origin))
    return table, write_table(table, root / "tables", profile)


def make_figure(
    number: int, profile: str = REFERENCE_PROFILE, origin: Origin = "auto", results: Path | None = None
) -> list[Path]:
    """Draw a figure of the paper from records, write it below results/figures, return its paths, PNG first.

    Arguments and errors are those of `make_table`.
    """
    root = results_dir() if results is None else results
    report = figure_report(number)
    source = load_source(root, report.experiment, profile, origin)
    with house_style():
        figure = report.build(source)
    return write_figure(figure, root / "figures", f"figure{number:02d}", profile)
