"""From every attempt that was recorded to the one row of each example."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from inertia.records.canonical import canonical_json

# Not part of a record's meaning: they differ between two runs that agree on every token. `batch_rows` says
# how the time of a batch was shared, and a resumed run shares other batches.
TRANSPORT_COLUMNS = ("prefill_seconds", "decode_seconds", "batch_rows")


class DuplicateRow(RuntimeError):
    """An example was recorded twice as ok in one cell."""


def settle(rows: Iterable[Mapping[str, Any]], where: object) -> dict[str, dict[str, Any]]:
    """Return example id -> its last attempt, in the order of `index`, then of the id.

    Raises:
        DuplicateRow: when a row follows an ok one of the same example, or an attempt is repeated.
    """
    last: dict[str, dict[str, Any]] = {}
    for row in rows:
        name = row["example_id"]
        before = last.get(name)
        if before is not None and before["status"] == "ok":
            raise DuplicateRow(
                f"{where}: example {name!r} has a row after an ok one (attempt {row['attempt']})"
            )
        if before is not None and row["attempt"] <= before["attempt"]:
            raise DuplicateRow(
                f"{where}: example {name!r} has attempt {row['attempt']} after {before['attempt']}"
            )
        last[name] = dict(row)
    return dict(sorted(last.items(), key=lambda item: (item[1]["index"], item[0])))


def rows_sha256(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the sha256 of rows as a set: any order, timings (`TRANSPORT_COLUMNS`) left out."""
    lines = sorted(
        canonical_json({name: value for name, value in row.items() if name not in TRANSPORT_COLUMNS})
        for row in rows
    )
    return hashlib.sha256("\n".join(lines).encode("ascii")).hexdigest()
