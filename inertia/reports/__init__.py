"""Tables and figures, each a pure function of records.

`make_table` and `make_figure` read an experiment's records, build the report and write its files;
`python -m inertia.reports` is the same for the shell.
"""

from inertia.reports.make import make_figure, make_table

__all__ = ["make_figure", "make_table"]
