"""One cell opened, filled and sealed by itself, for tests of the records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from inertia.records.writer import Batch, CellPlan, CellWriter, Writer, writing


class OneCell:
    """A `CellWriter`, whose attributes it has, with the writer that records it; each row is a batch of its own."""

    def __init__(self, cell: CellWriter, writer: Writer) -> None:
        self._cell, self._writer = cell, writer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cell, name)

    def append(self, values: Mapping[str, Any]) -> None:
        """Record one finished example."""
        self._record(self._cell.row(values))

    def append_failure(self, *given: Any, **columns: Any) -> None:
        """Record that an example failed; the arguments are those of `failure_row`."""
        self._record(self._cell.failure_row(*given, **columns))

    def seal(self) -> Mapping[str, Any]:
        """Seal the cell and return its summary; raise what `Writer.close` says instead."""
        closed = self._writer.close([self._cell.plan])[self._cell.id]
        if isinstance(closed, Exception):
            raise closed
        return closed.summary

    def _record(self, row: Mapping[str, Any]) -> None:
        self._writer.record(Batch((self._cell.id,), (row["example_id"],)).id, [(self._cell, row)])


@contextmanager
def open_cell(
    root: Path,
    identity: Mapping[str, Any],
    *,
    label: str,
    planned: Sequence[str],
    config: Mapping[str, Any],
    provenance: Mapping[str, Any],
    name: str = "local",
) -> Iterator[OneCell]:
    """Open one cell in a session of its own, or raise what keeps it closed; arguments of `CellPlan` and `writing`."""
    plan = CellPlan(identity, label, tuple(planned), config)
    with writing(root, name, lambda: provenance) as writer, writer.open([plan], plan.id, label) as group:
        if plan.id in group.problems:
            raise group.problems[plan.id]
        yield OneCell(group.cells[plan.id], writer)
