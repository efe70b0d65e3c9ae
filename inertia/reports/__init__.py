"""Tables, figures and claims: records, estimates, a tidy frame, and what is printed or drawn of it.

What is declared lies in `inertia.paper`; `python -m inertia.report` is its command.
"""

from inertia.reports.declaration import Claim, Comparison, Figure, Panel, Quantity, Reference, Table
from inertia.reports.pivot import build_table
from inertia.reports.plotting import build_figure
from inertia.reports.source import Source, load_source

__all__ = [
    "Claim",
    "Comparison",
    "Figure",
    "Panel",
    "Quantity",
    "Reference",
    "Source",
    "Table",
    "build_figure",
    "build_table",
    "load_source",
]
