"""The paper's tables, figures and claims as declarations, and its own numbers as data (`inertia.paper.reference`)."""

from inertia.paper.make import CLAIMS, FIGURES, TABLES, make_claims, make_figure, make_table

__all__ = ["CLAIMS", "FIGURES", "TABLES", "make_claims", "make_figure", "make_table"]
