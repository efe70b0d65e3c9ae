"""Reports to files: whole or not at all, and the same bytes for the same records."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from inertia.records.atomic import write_atomic
from inertia.reports.markdown import markdown
from inertia.reports.plotting import rendered
from inertia.reports.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

REFERENCE_PROFILE = "laptop"
"""The profile whose reports carry the plain name; those of any other have it in theirs."""


def write_table(table: Table, folder: Path, profile: str) -> list[Path]:
    """Write a table as CSV, Markdown and parquet and return the paths."""
    buffer = io.BytesIO()
    table.frame.to_parquet(buffer, index=False, compression="zstd")
    contents = {
        "csv": table.frame.to_csv(index=False, lineterminator="\n").encode(),
        "md": markdown(table.grid).encode(),
        "parquet": buffer.getvalue(),
    }
    return _write(contents, folder, table.name, profile)


def write_figure(figure: Figure, folder: Path, name: str, profile: str) -> list[Path]:
    """Write a figure as PNG and PDF and return the paths."""
    return _write(rendered(figure), folder, name, profile)


def _write(contents: dict[str, bytes], folder: Path, name: str, profile: str) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    stem = name if profile == REFERENCE_PROFILE else f"{name}.{profile}"
    paths = []
    for suffix, data in contents.items():
        paths.append(folder / f"{stem}.{suffix}")
        write_atomic(paths[-1], data)
    return paths
