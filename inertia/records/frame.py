"""Records as one long pandas table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from inertia.records.columnar import NULL, UNSEALED, check_columns, identity_columns, read_columns
from inertia.records.read import Cell, read_cells, require_sealed
from inertia.records.schema import COLUMNS

if TYPE_CHECKING:
    import pandas
    import pyarrow

    from inertia.records.facts import Facts

__all__ = ["NULL", "read_samples", "samples"]

_NULLABLE = {"int32": "Int32", "int64": "Int64", "float64": "float64", "bool": "boolean"}
_FILLED = {"int32": "int32", "int64": "int64", "float64": "float64", "bool": "bool"}
_CELL_COLUMNS = {"cell_label": "object", "cell_sealed": "bool", "cell_planned": "int64"}


def read_samples(
    source: Path,
    *,
    unsealed: Literal["include", "skip", "refuse"] = "include",
    columns: Sequence[str] | None = None,
    check: bool = True,
) -> pandas.DataFrame:
    """Return all samples of a folder of runs, a data set or a published file, one row per (cell, example).

    Columns: those of the record (fixed dtypes, whatever the data: integers are nullable Int64, text and lists
    are objects, so "0012345" and "None" stay text), then `cell_label`, `cell_sealed`, `cell_planned`, then
    the identity flattened: "policy.aggregation.alpha", with lists as JSON text.

    An identity value that is null, or that a cell does not have at all, is the text "none": `groupby` and
    `pivot_table` drop rows whose key is missing, which would be the full-cache baseline. For a null column of
    the record itself (`budget_tokens`) pass `dropna=False`.

    Args:
        source: folder of cells, a data set made by `compact`, or a file made by `export`.
        unsealed: what to do with incomplete cells. Their rows hold the finished examples and failed ones
            (score NaN); divide by `cell_planned`, or write "incomplete k/n".
        columns: columns of the record to return; None for all.
        check: hold every row against the hash in its seal. Without, the same frame comes many times faster, on
            trust that `python -m inertia.records verify` was run; seals, plans, identities and row counts are
            checked all the same.

    Raises:
        Unsealed: with `unsealed="refuse"`, naming the cells.
        ValueError: for an unknown column.
        FileNotFoundError, CorruptRecord, NewerSchema: as `read_cells`.
    """
    if unsealed not in UNSEALED:
        raise ValueError(f"unsealed is {unsealed!r}: expected 'include', 'skip' or 'refuse'")
    if not check:
        return _from_columns(Path(source), columns, unsealed)
    cells = read_cells(source)
    if unsealed == "refuse":
        require_sealed(cells)
    return samples([cell for cell in cells if cell.sealed or unsealed != "skip"], columns)


def samples(cells: list[Cell], columns: Sequence[str] | None = None) -> pandas.DataFrame:
    """Return the table of `read_samples` for cells that were read already."""
    import numpy as np
    import pandas as pd

    rows = [row for cell in cells for row in cell.rows]
    record = {}
    for name in check_columns(columns):
        kind, optional = COLUMNS[name]
        dtypes = _NULLABLE if optional else _FILLED
        record[name] = pd.Series([row[name] for row in rows], dtype=dtypes.get(kind, "object"))
    place = np.repeat(np.arange(len(cells)), [len(cell.rows) for cell in cells])
    return _frame(record, cells, place)


def _from_columns(source: Path, columns: Sequence[str] | None, unsealed: str) -> pandas.DataFrame:
    import numpy as np
    import pandas as pd

    chosen = check_columns(columns)
    read = read_columns(source, chosen, unsealed)
    # Within a cell every source has its rows in settled order.
    order = np.argsort(read.cell, kind="stable")
    sort = bool((np.diff(read.cell) < 0).any())
    record = {}
    for name in chosen:
        values = _values(name, read.table[name])
        # Without a dtype pandas makes text of an object column its own string type.
        series = pd.Series(values, dtype=values.dtype)
        record[name] = series.take(order).reset_index(drop=True) if sort else series
    return _frame(record, read.cells, read.cell[order])


def _values(name: str, column: pyarrow.ChunkedArray) -> Any:
    """Return a column with the dtype that the record's schema gives it, whatever the data."""
    import numpy as np
    import pandas as pd

    kind, optional = COLUMNS[name]
    dtype = (_NULLABLE if optional else _FILLED).get(kind, "object")
    if dtype in ("Int32", "Int64", "boolean"):
        return pd.array([], dtype=dtype).dtype.__from_arrow__(column)
    if kind in ("texts", "int32s"):
        values = np.empty(len(column), dtype=object)
        values[:] = column.to_pylist()
        return values
    return column.to_numpy().astype(dtype, copy=False)


def _frame(record: dict[str, Any], cells: Sequence[Cell | Facts], place: Any) -> pandas.DataFrame:
    import numpy as np
    import pandas as pd

    about = {
        "cell_label": [cell.label for cell in cells],
        "cell_sealed": [cell.sealed for cell in cells],
        "cell_planned": [len(cell.manifest["planned"]) for cell in cells],
    }
    columns = dict(record)
    for name, dtype in _CELL_COLUMNS.items():
        columns[name] = pd.Series(np.array(about[name], dtype=dtype)[place], dtype=dtype)
    for name, coded in identity_columns(cell.manifest["identity"] for cell in cells).items():
        values = np.empty(len(coded.values), dtype=object)
        values[:] = coded.values
        columns[name] = pd.Series(values[coded.codes[place]], dtype="object")
    return pd.DataFrame(columns)
