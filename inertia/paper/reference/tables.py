"""Read the paper's tables.

Source: InertiaKV (arXiv 2609.03515), numbers as printed there. The ``metric`` column names the unit of a
value: ``score`` runs from 0 to 100, ``accuracy_0_1`` from 0 to 1.
"""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    from pandas import DataFrame

RULER_TASKS = (
    "niah_single_1",
    "niah_single_2",
    "niah_single_3",
    "niah_multikey_1",
    "niah_multikey_2",
    "niah_multikey_3",
    "niah_multivalue",
    "niah_multiquery",
    "vt",
    "cwe",
    "fwe",
    "qa_1",
    "qa_2",
)
"""The thirteen official RULER tasks, in the benchmark's order; anything else is a relative of our own."""


def names() -> tuple[str, ...]:
    """Return the names of all stored tables, sorted: ``table05_alpha``, ``text_values``, ..."""
    return tuple(sorted(f.name.removesuffix(".csv") for f in _folder().iterdir() if f.name.endswith(".csv")))


def reference(table: int | str) -> DataFrame:
    """Return one of the paper's tables in long form; empty fields are missing values, text stays text.

    Args:
        table: The paper's number (5), its short name ("table05"), or the full stored name ("table05_alpha").

    Raises:
        KeyError: The project holds no such table.
    """
    import pandas as pd

    short = f"table{table:02d}" if isinstance(table, int) else table
    matches = [name for name in names() if name == short or name.startswith(f"{short}_")]
    if len(matches) != 1:
        raise KeyError(f"no reference table {table!r}; allowed: {', '.join(names())}, or a table's number")
    with (_folder() / f"{matches[0]}.csv").open(encoding="utf-8") as file:
        return pd.read_csv(file, keep_default_na=False, na_values=[""])


def _folder() -> Traversable:
    return files("inertia.paper.reference") / "data"
