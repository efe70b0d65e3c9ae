"""The row of a sample record: one per (cell, example), flat, with a fixed type for every column."""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from inertia.records.canonical import canonical_json

if TYPE_CHECKING:
    import pyarrow

SCHEMA_VERSION = 1

# Column -> (type, may be null). Every reader and writer gets its types from here, never from the data:
# a column that is null in one file and fractional in the next would make a folder unreadable.
COLUMNS: Mapping[str, tuple[str, bool]] = {
    "schema_version": ("int32", False),
    "cell_id": ("text", False),
    "example_id": ("text", False),
    "task": ("text", False),
    "length": ("int64", True),
    "index": ("int64", False),
    "status": ("text", False),
    "error": ("text", True),
    "attempt": ("int32", False),
    "prediction": ("text", True),
    "references": ("texts", False),
    "score": ("float64", True),
    "metrics": ("json", False),
    "prompt_tokens": ("int64", True),
    "new_tokens": ("int64", True),
    "tokens": ("int32s", False),
    "stop": ("text", True),
    "budget_tokens": ("int64", True),
    "retained_tokens": ("float64", True),
    "peak_tokens": ("int64", True),
    "cache_bytes": ("int64", True),
    "evictions": ("int64", True),
    "truncated": ("bool", True),
    "prompt_sha256": ("text", True),
    "group_id": ("text", False),
    "prefill_seconds": ("float64", True),
    "decode_seconds": ("float64", True),
    "batch_rows": ("int32", True),
    "telemetry": ("json", False),
}
_EMPTY: Mapping[str, Any] = {"references": [], "tokens": [], "metrics": "{}", "telemetry": "{}"}
_STOPS = ("eos", "string", "length", None)
_BITS = {"int32": 31, "int64": 63}


class NewerSchema(RuntimeError):
    """A record was written by a newer version of this package than the one that reads it."""


def sample_schema() -> pyarrow.Schema:
    """Return the pyarrow schema of a sample record, with its version in the metadata."""
    import pyarrow as pa

    types = {
        "int32": pa.int32(),
        "int64": pa.int64(),
        "float64": pa.float64(),
        "bool": pa.bool_(),
        "text": pa.string(),
        "json": pa.string(),
        "texts": pa.list_(pa.field("element", pa.string(), nullable=False)),
        "int32s": pa.list_(pa.field("element", pa.int32(), nullable=False)),
    }
    fields = [pa.field(name, types[kind], nullable=optional) for name, (kind, optional) in COLUMNS.items()]
    return pa.schema(fields, metadata={"inertia.schema_version": str(SCHEMA_VERSION)})


def schema_of(columns: Iterable[str]) -> pyarrow.Schema:
    """Return the schema of some columns of the record."""
    import pyarrow as pa

    return pa.schema([sample_schema().field(name) for name in columns])


def check_version(version: Any, where: object) -> None:
    """Accept this schema version and every older one.

    Raises:
        NewerSchema: for a newer one, naming the file and the way out.
        ValueError: for something that is no version.
    """
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise ValueError(f"{where}: schema_version is {version!r}, expected an integer from 1 to {SCHEMA_VERSION}")
    if version > SCHEMA_VERSION:
        raise NewerSchema(
            f"{where}: schema_version {version} is newer than {SCHEMA_VERSION}, the newest this inertia "
            "reads: update inertia"
        )


def make_row(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a complete row in schema order and exact types from the columns in `values`.

    Absent optional columns become null, absent lists and JSON columns empty, `group_id` the example's id;
    JSON columns also take a mapping. Lone surrogates in text become U+FFFD, so that one bad character cannot
    make the table of a whole cell unwritable.

    Raises:
        ValueError: for an unknown or missing column, a number out of range, or an inconsistent row (an ok row
            without prediction and score, a failed one without an error or with a score).
        TypeError: for a value of the wrong type.
    """
    unknown = sorted(set(values) - set(COLUMNS))
    if unknown:
        raise ValueError(f"unknown columns {unknown}: a row has {list(COLUMNS)}; put anything else into 'telemetry'")
    given = {
        "group_id": values.get("example_id"),
        **_EMPTY,
        **{k: v for k, v in values.items() if v is not None},
    }
    row = {}
    for name, (kind, optional) in COLUMNS.items():
        value = given.get(name)
        if value is None and not optional:
            raise ValueError(f"column {name!r} is missing: it may not be null")
        row[name] = None if value is None else _typed(name, kind, value)
    _check_row(row)
    return row


def _typed(name: str, kind: str, value: Any) -> Any:
    match kind:
        case "text":
            return _text(name, value)
        case "json":
            return canonical_json(_json_object(name, value))
        case "texts":
            return [_text(name, item) for item in _items(name, value)]
        case "int32s":
            return [_integer(name, "int32", item) for item in _items(name, value)]
        case "bool":
            if value is not True and value is not False:
                raise TypeError(f"column {name!r} is {value!r}: expected True or False")
            return value
        case "float64":
            return _number(name, value)
        case _:
            return _integer(name, kind, value)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"column {name!r} holds {value!r} of type {type(value).__name__}: expected text")
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _json_object(name: str, value: Any) -> Mapping[str, Any]:
    decoded = json.loads(value) if isinstance(value, str) else value
    if not isinstance(decoded, Mapping):
        raise TypeError(f"column {name!r} is {value!r}: expected a mapping or the text of a JSON object")
    return decoded


def _items(name: str, value: Any) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise TypeError(f"column {name!r} is a {type(value).__name__}: expected a list or tuple")
    return list(value)


def _integer(name: str, kind: str, value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError(f"column {name!r} is {value!r}: a bool is not an integer")
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"column {name!r} is {value!r} of type {type(value).__name__}: expected an integer") from None
    if not -(2 ** _BITS[kind]) <= number < 2 ** _BITS[kind]:
        raise ValueError(f"column {name!r} is {number}: it does not fit {kind}")
    return number


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool | str):
        raise TypeError(f"column {name!r} is {value!r}: expected a number")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"column {name!r} is {number}: expected a finite number, or None where there is none")
    return number


def _check_row(row: Mapping[str, Any]) -> None:
    who = f"row of example {row['example_id']!r}"
    if row["status"] not in ("ok", "failed"):
        raise ValueError(f"{who}: status is {row['status']!r}, expected 'ok' or 'failed'")
    if row["stop"] not in _STOPS:
        raise ValueError(f"{who}: stop is {row['stop']!r}, expected 'eos', 'length' or None")
    if row["attempt"] < 1:
        raise ValueError(f"{who}: attempt is {row['attempt']}, expected 1 or more")
    if row["status"] == "failed" and (row["error"] is None or row["score"] is not None):
        raise ValueError(f"{who}: a failed example has an error and no score, not even 0")
    if row["status"] == "ok" and (row["prediction"] is None or row["score"] is None or row["error"] is not None):
        raise ValueError(f"{who}: an ok example has a prediction, a score and no error; record a failure instead")
    if row["score"] is not None and not 0.0 <= row["score"] <= 1.0:
        raise ValueError(f"{who}: score is {row['score']}, expected a fraction from 0 to 1")
