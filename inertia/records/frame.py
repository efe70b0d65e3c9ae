"""Records as one long pandas table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from inertia.records.canonical import canonical_json
from inertia.records.read import Cell, read_cells, require_sealed
from inertia.records.schema import COLUMNS

if TYPE_CHECKING:
    import pandas

NULL = "none"
_NULLABLE = {"int32": "Int32", "int64": "Int64", "float64": "float64", "bool": "boolean"}
_FILLED = {"int32": "int32", "int64": "int64", "float64": "float64", "bool": "bool"}
_CELL_COLUMNS = {"cell_label": "object", "cell_sealed": "bool", "cell_planned": "int64"}


def read_samples(
    source: Path, *, unsealed: Literal["include", "skip", "refuse"] = "include"
) -> pandas.DataFrame:
    """Return all samples of a folder of runs or a published .parquet file, one row per (cell, example).

    Columns: those of the record (fixed dtypes, whatever the data: integers are nullable Int64, text and lists
    are objects, so "0012345" and "None" stay text), then `cell_label`, `cell_sealed`, `cell_planned`, then
    the identity flattened: "policy.aggregation.alpha", with lists as JSON text.

    An identity value that is null, or that a cell does not have at all, is the text "none": `groupby` and
    `pivot_table` drop rows whose key is missing, which would be the full-cache baseline. For a null column of
    the record itself (`budget_tokens`) pass `dropna=False`.

    Args:
        source: folder of cells, or a file made by `export`.
        unsealed: what to do with incomplete cells. Their rows hold the finished examples and failed ones
            (score NaN); divide by `cell_planned`, or write "incomplete k/n".

    Raises:
        Unsealed: with `unsealed="refuse"`, naming the cells.
        FileNotFoundError, CorruptRecord, NewerSchema: as `read_cells`.
    """
    if unsealed not in ("include", "skip", "refuse"):
        raise ValueError(f"unsealed is {unsealed!r}: expected 'include', 'skip' or 'refuse'")
    cells = read_cells(source)
    if unsealed == "refuse":
        require_sealed(cells)
    return samples([cell for cell in cells if cell.sealed or unsealed != "skip"])


def samples(cells: list[Cell]) -> pandas.DataFrame:
    """Return the table of `read_samples` for cells that were read already."""
    import pandas as pd

    identities = [dict(flatten(cell.identity)) for cell in cells]
    names = sorted({name for identity in identities for name in identity})
    pairs = [
        (cell, identity, row) for cell, identity in zip(cells, identities, strict=True) for row in cell.rows
    ]
    columns: dict[str, Any] = {}
    for name, (kind, optional) in COLUMNS.items():
        dtypes = _NULLABLE if optional else _FILLED
        columns[name] = pd.Series([row[name] for _, _, row in pairs], dtype=dtypes.get(kind, "object"))
    about = [(cell.label, cell.sealed, len(cell.planned)) for cell, _, _ in pairs]
    for place, (name, dtype) in enumerate(_CELL_COLUMNS.items()):
        columns[name] = pd.Series([values[place] for values in about], dtype=dtype)
    for name in names:
        if name in columns:
            raise ValueError(
                f"identity field {name!r} has the name of a record column: nest it, as in 'benchmark.task'"
            )
        columns[name] = pd.Series([identity.get(name, NULL) for _, identity, _ in pairs], dtype="object")
    return pd.DataFrame(columns)


def flatten(identity: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield ("a.b.c", value) for every leaf; null becomes "none", a list its JSON text."""
    for key, value in identity.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{key}.")
        elif value is None:
            yield prefix + key, NULL
        else:
            yield (
                prefix + key,
                value if isinstance(value, bool | int | float | str) else canonical_json(value),
            )
