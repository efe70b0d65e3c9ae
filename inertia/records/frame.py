"""Records as one long table, for pandas or for anything that reads Arrow."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from inertia.records.canonical import canonical_json
from inertia.records.names import names
from inertia.records.read import Cell, refuse, require_sealed
from inertia.records.rows import Rows, load
from inertia.records.schema import COLUMNS

if TYPE_CHECKING:
    import pandas
    import pyarrow

NULL = "none"
_NULLABLE = {"int32": "Int32", "int64": "Int64", "float64": "float64", "bool": "boolean"}
_FILLED = {"int32": "int32", "int64": "int64", "float64": "float64", "bool": "bool"}
Unsealed = Literal["include", "skip", "refuse"]


def read_samples(
    source: Path,
    *,
    unsealed: Unsealed = "include",
    columns: Sequence[str] | None = None,
    check: bool = True,
    cells: Collection[str] | None = None,
) -> pandas.DataFrame:
    """Return all samples of a results root or of published files, one row per (cell, example).

    Columns: those of the record (fixed dtypes, whatever the data: integers are nullable Int64, text and lists
    are objects, so "0012345" and "None" stay text), then `cell_label`, `cell_sealed`, `cell_planned`, then
    the identity flattened: "policy.aggregation.alpha", with lists as JSON text.

    An identity value that is null, or that a cell does not have at all, is the text "none": `groupby` and
    `pivot_table` drop rows whose key is missing, which would be the full-cache baseline. For a null column of
    the record itself (`budget_tokens`) pass `dropna=False`.

    Args:
        source: results root, file made by `export` or at the end of a run, or folder of such files.
        unsealed: what to do with incomplete cells. Their rows hold the finished examples and failed ones
            (score NaN); divide by `cell_planned`, or write "incomplete k/n".
        columns: columns of the record to return; None for all.
        check: hold every row against its hash and seal. Without, the same frame comes several times faster, on trust
            that `python -m inertia.records verify` was run; plans and row counts are checked all the same.
        cells: ids of the wanted cells; None for all.

    Raises:
        Unsealed: with `unsealed="refuse"`, naming the cells.
        ValueError: for an unknown column, or an identity field with the name of a record's column.
        FileNotFoundError, OldRecords, CorruptRecord: as `read_cells`.
    """
    import numpy as np
    import pandas as pd

    rows = _chosen(source, columns, unsealed, check, cells)
    frame = {name: _series(name, rows.table[name]) for name in rows.table.column_names}
    dtypes = {"cell_sealed": "bool", "cell_planned": "int64"}
    for name, per_cell in {**_about(rows.cells), **_identity_columns(rows.cells)}.items():
        values = np.empty(len(per_cell), dtype=object)
        values[:] = per_cell
        frame[name] = pd.Series(values[rows.place], dtype="object").astype(dtypes.get(name, "object"))
    return pd.DataFrame(frame)


def sample_table(
    source: Path, *, columns: Sequence[str] | None = None, unsealed: Unsealed = "include", check: bool = False
) -> pyarrow.Table:
    """Return all samples as an Arrow table for DuckDB and others; arguments and errors as `read_samples`.

    Columns: the chosen ones of the record, then those of `with_cell_columns`.
    """
    return with_cell_columns(_chosen(source, columns, unsealed, check, None))


def with_cell_columns(rows: Rows) -> pyarrow.Table:
    """Return rows with what their cells are beside them.

    Added are `backbone`, `benchmark`, `policy` (its label with its settings), `cell_label`, `cell_sealed`,
    `cell_planned`, then the identity flattened: "policy.aggregation.alpha". Each has one type: numbers where every
    cell's value is a number, then null where there is none; else text, then "none".
    """
    import pyarrow as pa

    named = [names(cell.manifest) for cell in rows.cells]
    called = {name: [getattr(each, name) for each in named] for name in ("backbone", "benchmark", "policy")}
    table, place = rows.table, pa.array(rows.place)
    for name, per_cell in {**called, **_about(rows.cells), **_identity_columns(rows.cells)}.items():
        table = table.append_column(name, _one_type(per_cell).take(place))
    return table


def flatten(identity: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Yield ("a.b.c", value) for every leaf; null becomes "none", a list its JSON text."""
    for key, value in identity.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{key}.")
        elif value is None:
            yield prefix + key, NULL
        else:
            yield prefix + key, value if isinstance(value, bool | int | float | str) else canonical_json(value)


def _chosen(
    source: Path, columns: Sequence[str] | None, unsealed: Unsealed, check: bool, ids: Collection[str] | None
) -> Rows:
    import numpy as np

    if unsealed not in ("include", "skip", "refuse"):
        raise ValueError(f"unsealed is {unsealed!r}: expected 'include', 'skip' or 'refuse'")
    rows = load(source, columns, ids, check=check)
    refuse(rows.damages, rows.cells, ids)
    if unsealed == "refuse":
        require_sealed(rows.cells)
    sealed = np.array([cell.sealed or unsealed == "include" for cell in rows.cells], dtype=bool)
    kept = sealed[rows.place]
    cells = [cell for cell, keep in zip(rows.cells, sealed, strict=True) if keep]
    return Rows(cells, rows.table.filter(kept), (np.cumsum(sealed) - 1)[rows.place[kept]], [])


def _about(cells: Sequence[Cell]) -> dict[str, list[Any]]:
    return {
        "cell_label": [cell.label for cell in cells],
        "cell_sealed": [cell.sealed for cell in cells],
        "cell_planned": [len(cell.manifest["planned"]) for cell in cells],
    }


def _identity_columns(cells: Sequence[Cell]) -> dict[str, list[Any]]:
    flat = [dict(flatten(cell.identity)) for cell in cells]
    found = sorted({name for identity in flat for name in identity})
    for name in found:
        if name in COLUMNS:
            raise ValueError(f"identity field {name!r} has the name of a record column: nest it, as 'benchmark.task'")
    return {name: [identity.get(name, NULL) for identity in flat] for name in found}


def _series(name: str, column: pyarrow.ChunkedArray) -> pandas.Series:
    """Return a column with the dtype that the record's schema gives it, whatever the data."""
    import numpy as np
    import pandas as pd

    kind, optional = COLUMNS[name]
    dtype = (_NULLABLE if optional else _FILLED).get(kind, "object")
    if dtype in ("Int32", "Int64", "boolean"):
        return pd.Series(pd.array([], dtype=dtype).dtype.__from_arrow__(column))
    if kind in ("texts", "int32s"):
        values = np.empty(len(column), dtype=object)
        values[:] = column.to_pylist()
    else:
        values = column.to_numpy().astype(dtype, copy=False)
    # Without a dtype pandas makes text of an object column its own string type.
    return pd.Series(values, dtype=values.dtype)


def _one_type(values: Sequence[Any]) -> pyarrow.Array:
    import pyarrow as pa

    kinds = {type(value) for value in values if value != NULL}
    for allowed, kind in (({bool}, pa.bool_()), ({int}, pa.int64()), ({int, float}, pa.float64())):
        if kinds and kinds <= allowed:
            return pa.array([None if value == NULL else value for value in values], kind)
    return pa.array([value if isinstance(value, str) else canonical_json(value) for value in values], pa.string())
