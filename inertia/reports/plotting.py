"""What all figures share: a look free of the user's settings, and files free of the day they were made on."""

from __future__ import annotations

import io
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLORS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F")
"""Okabe and Ito's palette, safe with the common kinds of colour blindness; markers repeat the distinction."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")

_METADATA = {
    "png": {"Software": None},
    "pdf": {"Creator": None, "Producer": None, "CreationDate": None},
}
"""Per file format, the fields that would carry a date or a version, emptied."""


def house_style() -> AbstractContextManager[None]:
    """Return a context in which matplotlib's own defaults hold, whatever settings file the user has."""
    import matplotlib.style

    return matplotlib.style.context("default")


def new_figure(*, width: float, height: float) -> Figure:
    """Return an empty figure of the given size in inches; it belongs to no window and is drawn by Agg."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def rendered(figure: Figure) -> dict[str, bytes]:
    """Return the figure as file contents by format ("png", "pdf"); equal figures give equal bytes."""
    contents = {}
    for format, metadata in _METADATA.items():
        buffer = io.BytesIO()
        with house_style():
            figure.savefig(buffer, format=format, dpi=160, metadata=metadata)
        contents[format] = buffer.getvalue()
    return contents
