"""Reports to files: whole or not at all, and the same bytes for the same records."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from inertia.records.atomic import write_atomic
from inertia.reports.grid import Report
from inertia.reports.plotting import rendered
from inertia.reports.render import html_fragment, latex, markdown
from inertia.reports.source import REFERENCE_PROFILE, Origin

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def place_of(results: Path, origin: Origin, kind: str) -> Path:
    """Return the folder of a kind of report: only what is made of published records alone is committed."""
    return results / kind if origin == "published" else results / "local" / kind


def write_report(report: Report, folder: Path, profile: str) -> list[Path]:
    """Write a table as CSV, Markdown, parquet, LaTeX and HTML and return the paths."""
    buffer = io.BytesIO()
    report.frame.to_parquet(buffer, index=False, compression="zstd")
    contents = {
        "csv": report.frame.to_csv(index=False, lineterminator="\n").encode(),
        "md": markdown(report.grid).encode(),
        "parquet": buffer.getvalue(),
        "tex": latex(report.grid).encode(),
        "html": html_fragment(report.grid).encode(),
    }
    return write(contents, folder, report.name, profile)


def write_figure(figure: Figure, folder: Path, name: str, profile: str) -> list[Path]:
    """Write a figure as PNG and PDF and return the paths."""
    return write(rendered(figure), folder, name, profile)


def write(contents: dict[str, bytes], folder: Path, name: str, profile: str) -> list[Path]:
    """Write contents by suffix; any profile but the reference is part of the name."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = name if profile == REFERENCE_PROFILE else f"{name}.{profile}"
    paths = []
    for suffix, data in contents.items():
        paths.append(folder / f"{stem}.{suffix}")
        write_atomic(paths[-1], data)
    return paths
