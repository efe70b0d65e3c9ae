"""Table 5: the alpha sweep at one compression ratio with the full cache, ours beside the paper's."""

from __future__ import annotations

from inertia.reports.alpha import alpha_sweep
from inertia.reports.alpha_frame import alpha_frame
from inertia.reports.alpha_grid import alpha_grid
from inertia.reports.paper import paper_curves
from inertia.reports.scores import cell_scores
from inertia.reports.source import Source
from inertia.reports.table import Table


def table05(source: Source) -> Table:
    """Return table 5 of an experiment's records; equal records give equal tables.

    Rows are the full cache and each alpha, then alpha 0.8 minus alpha 0, paired by example. Columns are our
    tasks and their mean, then the paper's three benchmarks, each on its own scale.

    Deviations: the paper prints neither intervals nor a full-cache row here; the latter is from its table 4.
    """
    sweep = alpha_sweep(cell_scores(source.samples, source.index))
    curves = paper_curves()
    return Table("table05", alpha_frame(sweep, curves, source), alpha_grid(sweep, curves, source))
