"""Records as columns, read without making a Python object of every row: a million rows in seconds.

Seals, plans and identities are checked, and that each sealed cell has as many rows of its own as it planned; the
rows are not hashed. `verify` and `read_cells` do that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from inertia.records.canonical import canonical_json
from inertia.records.facts import Facts, names, read_facts
from inertia.records.journal import CorruptRecord
from inertia.records.layout import SAMPLES
from inertia.records.read import read_cell, require_sealed
from inertia.records.schema import COLUMNS, sample_schema

if TYPE_CHECKING:
    import numpy
    import pyarrow

NULL = "none"
UNSEALED = ("include", "skip", "refuse")


class Columns(NamedTuple):
    """Rows as columns, and the cells they belong to.

    Attributes:
        cells: the cells, sorted by id.
        table: the chosen columns of the record, rows in no promised order.
        cell: [rows], the place of each row's cell in `cells`.
    """

    cells: list[Facts]
    table: pyarrow.Table
    cell: numpy.ndarray


class Coded(NamedTuple):
    """One value per cell, as codes into the distinct values.

    Attributes:
        values: the distinct values, in order of appearance.
        codes: [cells], places in `values`.
    """

    values: list[Any]
    codes: numpy.ndarray


def sample_table(source: Path, *, columns: Sequence[str] | None = None, unsealed: str = "include") -> pyarrow.Table:
    """Return all samples as an Arrow table, one row per (cell, example), for pandas, DuckDB, polars.

    Columns: the chosen ones of the record, then `backbone`, `benchmark`, `policy` (its label with its numbers),
    `cell_label`, `cell_sealed`, `cell_planned`, then the identity flattened: "policy.aggregation.alpha". Each
    has one type: numbers where every cell's value is a number, then null where there is none; else text, then
    "none". Rows come in no promised order.

    Args:
        source: folder of runs, data set made by `compact`, or file made by `export`.
        columns: columns of the record; None for all. Leaving out `tokens`, `references`, `prediction`,
            `telemetry` and `metrics` makes it much faster.
        unsealed: what to do with incomplete cells, "include", "skip" or "refuse", as `read_samples`.

    Raises:
        ValueError: for an unknown column.
        Unsealed: with `unsealed="refuse"`, naming the cells.
        FileNotFoundError, CorruptRecord, NewerSchema, DuplicateCell, DuplicateRow: naming the file.
    """
    import pyarrow as pa

    read = read_columns(source, columns, unsealed)
    table = read.table
    identity = identity_columns(cell.manifest["identity"] for cell in read.cells)
    for name, coded in {**_about(read.cells), **identity}.items():
        table = table.append_column(name, _arrow(coded).take(pa.array(coded.codes[read.cell])))
    return table


def read_columns(source: Path, columns: Sequence[str] | None, unsealed: str) -> Columns:
    """Return the chosen record columns of all cells; arguments and errors as `sample_table`."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    chosen = check_columns(columns)
    if unsealed not in UNSEALED:
        raise ValueError(f"unsealed is {unsealed!r}: expected 'include', 'skip' or 'refuse'")
    cells = read_facts(source)
    if unsealed == "refuse":
        require_sealed(cells)
    cells = [cell for cell in cells if cell.sealed or unsealed == "include"]
    wanted = list(dict.fromkeys(["cell_id", *chosen]))
    table = pa.concat_tables([_sealed(cells, wanted), _open(cells, wanted)])
    ids = pa.array([cell.id for cell in cells], pa.string())
    place = pc.index_in(table["cell_id"], value_set=ids).combine_chunks()
    _check_counts(cells, pc.value_counts(table["cell_id"]))
    return Columns(cells, table.select(chosen), np.asarray(place.to_numpy(zero_copy_only=False), dtype=np.int64))


def check_columns(columns: Sequence[str] | None) -> list[str]:
    """Return the chosen columns in schema order.

    Raises:
        ValueError: for an unknown one.
    """
    unknown = sorted(set(columns) - set(COLUMNS)) if columns is not None else []
    if unknown:
        raise ValueError(f"columns {unknown} are none of a record's: choose among {list(COLUMNS)}")
    return [name for name in COLUMNS if columns is None or name in columns]


def identity_columns(identities: Iterable[Mapping[str, Any]]) -> dict[str, Coded]:
    """Return the flattened identities as sorted columns; a value that is null or absent is "none".

    Raises:
        ValueError: for an identity field with the name of a record column.
    """
    flat = [dict(flatten(identity)) for identity in identities]
    found = sorted({name for identity in flat for name in identity})
    for name in found:
        if name in COLUMNS:
            raise ValueError(
                f"identity field {name!r} has the name of a record column: nest it, as in 'benchmark.task'"
            )
    return {name: code([identity.get(name, NULL) for identity in flat]) for name in found}


def code(values: Sequence[Any]) -> Coded:
    """Return the distinct values and where each is; 1, 1.0 and True are three values."""
    import numpy as np

    places: dict[tuple[type, Any], int] = {}
    codes = [places.setdefault((type(value), value), len(places)) for value in values]
    return Coded([value for _, value in places], np.asarray(codes, dtype=np.int64))


def flatten(identity: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Yield ("a.b.c", value) for every leaf; null becomes "none", a list its JSON text."""
    for key, value in identity.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{key}.")
        elif value is None:
            yield prefix + key, NULL
        else:
            yield prefix + key, value if isinstance(value, bool | int | float | str) else canonical_json(value)


def _about(cells: Sequence[Facts]) -> dict[str, Coded]:
    named = [names(cell.manifest) for cell in cells]
    return {
        "backbone": code([found.backbone for found in named]),
        "benchmark": code([found.benchmark for found in named]),
        "policy": code([found.policy for found in named]),
        "cell_label": code([cell.label for cell in cells]),
        "cell_sealed": code([cell.sealed for cell in cells]),
        "cell_planned": code([len(cell.manifest["planned"]) for cell in cells]),
    }


def _arrow(coded: Coded) -> pyarrow.Array:
    """Return the distinct values as one array of one type."""
    import pyarrow as pa

    given = [value for value in coded.values if value != NULL]
    if given and all(isinstance(value, bool) for value in given):
        kind = pa.bool_()
    elif given and all(isinstance(value, int) and not isinstance(value, bool) for value in given):
        kind = pa.int64()
    elif given and all(isinstance(value, int | float) and not isinstance(value, bool) for value in given):
        kind = pa.float64()
    else:
        texts = [value if isinstance(value, str) else canonical_json(value) for value in coded.values]
        return pa.array(texts, pa.string())
    return pa.array([None if value == NULL else value for value in coded.values], kind)


def _sealed(cells: Sequence[Facts], columns: Sequence[str]) -> pyarrow.Table:
    import pyarrow as pa
    import pyarrow.dataset as ds

    sources = dict.fromkeys(cell.source for cell in cells if cell.sealed)
    paths = [str(source / SAMPLES if source.is_dir() else source) for source in sources]
    schema = sample_schema()
    try:
        # Files of a hundred rows: reading ahead costs a fifth of the time.
        options = ds.ParquetFragmentScanOptions(pre_buffer=False)
        parquet = ds.ParquetFileFormat(default_fragment_scan_options=options)
        return ds.dataset(paths, schema=schema, format=parquet).to_table(columns=list(columns))
    except (pa.ArrowInvalid, FileNotFoundError) as error:
        raise CorruptRecord(f"rows of a sealed cell cannot be read ({error}); `verify` names what is wrong") from None


def _open(cells: Sequence[Facts], columns: Sequence[str]) -> pyarrow.Table:
    import pyarrow as pa

    rows = [dict(row) for cell in cells if not cell.sealed for row in read_cell(cell.source).rows]
    return pa.Table.from_pylist(rows, schema=sample_schema()).select(list(columns))


def _check_counts(cells: Sequence[Facts], counts: Any) -> None:
    found = {entry["values"].as_py(): entry["counts"].as_py() for entry in counts}
    for cell in cells:
        planned, rows = len(cell.manifest["planned"]), found.pop(cell.id, 0)
        if cell.sealed and rows != planned:
            raise CorruptRecord(f"{cell.source}: {rows} rows of cell {cell.id}, sealed with {planned}")
    if found:
        raise CorruptRecord(f"rows of cells that nothing describes: {sorted(found)[:5]}; a manifest was edited or lost")
