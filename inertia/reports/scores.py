"""The scores of one experiment, cell by cell, taken out of its sample records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from inertia.records.frame import NULL
from inertia.reports.index import Cell, Index

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class CellScores:
    """One cell's finished examples: ``values`` maps example id to its official score in [0, 1]."""

    cell: Cell
    values: Mapping[str, float]

    @property
    def complete(self) -> bool:
        """True when every planned example has a score; a mean over fewer would be a mean over survivors."""
        return len(self.values) == self.cell.planned


def cell_scores(samples: DataFrame, index: Index) -> tuple[CellScores, ...]:
    """Return the scores of every cell of the index, in its order; a cell without records has no values.

    Only examples below the planned count enter: a cell may have been extended for another experiment, and the
    answer here must not depend on that.

    Raises:
        ValueError: A record's task or alpha is not what the index claims for its cell, or the records are of
            several score versions.
    """
    versions = samples["score_version"].unique().tolist() if "score_version" in samples else []
    if len(versions) > 1:
        raise ValueError(f"score versions {versions} cannot share a report; run the older cells again")
    groups = dict(tuple(samples.groupby("cell_id", sort=False)))
    empty = samples.iloc[:0]
    return tuple(_one(groups.get(cell.cell_id, empty), cell) for cell in index.cells)


def _one(rows: DataFrame, cell: Cell) -> CellScores:
    _check(rows, cell, "task", cell.task)
    # The full cache has no alpha of its own, whatever was swept along with it.
    alpha = None if cell.axes["method"] == "full_cache" else cell.axes.get("alpha")
    _check(rows, cell, "policy.aggregation.alpha", alpha)
    done = rows[(rows["index"] < cell.planned) & (rows["status"] == "ok")].sort_values("index")
    return CellScores(cell, dict(zip(done["example_id"], done["score"].astype(float), strict=True)))


def _check(rows: DataFrame, cell: Cell, column: str, expected: object) -> None:
    if expected is None or column not in rows:
        return
    found = rows[column].unique().tolist()
    if any(value not in (expected, NULL) for value in found):
        raise ValueError(
            f"cell {cell.cell_id} is listed with {column} = {expected!r} but its records say {found}; "
            "run the experiment again to rewrite its index"
        )
