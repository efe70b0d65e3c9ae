"""From every attempt that was recorded to the one row of each example that counts."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from inertia.records.canonical import canonical_json

# Not part of a record's meaning: they differ between two runs that agree on every token. `batch_rows` says
# how the time of a batch was shared, and a resumed run shares other batches.
TRANSPORT_COLUMNS = ("prefill_seconds", "decode_seconds", "batch_rows")
# Exact on canonical JSON: within a text every quote is escaped, and none of these keys is a row's first.
_TIMINGS = re.compile(rf',"(?:{"|".join(TRANSPORT_COLUMNS)})":[^,}}]*')


class DuplicateRow(RuntimeError):
    """An example was recorded twice as ok in one cell, and the two rows do not say the same."""


def last_attempts(parts: Iterable[tuple[object, Iterable[Mapping[str, Any]]]]) -> dict[str, dict[str, Any]]:
    """Return example id -> the row that counts: the ok one, else the last failed one; ordered by `index`, then id.

    Args:
        parts: where rows were found, and the rows in the order of their attempts.

    Raises:
        DuplicateRow: when two ok rows of an example differ in more than their timings, or are in one place.
    """
    kept: dict[str, tuple[object, Mapping[str, Any]]] = {}
    for where, rows in parts:
        for row in rows:
            name = row["example_id"]
            other, before = kept.get(name, (None, None))
            if before is not None and before["status"] == "ok":
                if other == where or (row["status"] == "ok" and meaning(before) != meaning(row)):
                    raise DuplicateRow(f"example {name!r} is recorded twice, and once as ok: in {other} and in {where}")
            elif before is None or row["status"] == "ok" or row["attempt"] > before["attempt"]:
                kept[name] = (where, row)
    found = sorted((dict(row) for _, row in kept.values()), key=lambda row: (row["index"], row["example_id"]))
    return {row["example_id"]: row for row in found}


def meaning(row: Mapping[str, Any] | str) -> str:
    """Return the canonical JSON of a row, or of its canonical JSON, without its timings (`TRANSPORT_COLUMNS`)."""
    return _TIMINGS.sub("", row if isinstance(row, str) else canonical_json(row))


def rows_sha256(rows: Iterable[Mapping[str, Any] | str]) -> str:
    """Return the sha256 of rows, or of their canonical JSON, as a set: any order, timings left out."""
    return hashlib.sha256("\n".join(sorted(map(meaning, rows))).encode("ascii")).hexdigest()
