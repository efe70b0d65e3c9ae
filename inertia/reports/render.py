"""A grid as text: GitHub-flavoured Markdown, LaTeX (booktabs) and an HTML fragment."""

from __future__ import annotations

import html

import pandas as pd

from inertia.reports.grid import Column, Grid

_LATEX = str.maketrans(
    {sign: f"\\{sign}" for sign in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "|": r"\textbar{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "†": r"\textdagger{}", "‡": r"\textdaggerdbl{}"}
)


def markdown(grid: Grid) -> str:
    """Return the grid as Markdown text: heading, one table, one list of notes; it ends in a newline."""

    def escaped(text: str) -> str:
        # A pipe would open a new column; underscores in task names must not turn into emphasis.
        return text.replace("|", "\\|").replace("_", "\\_")

    rows = [headers(grid), ["---", *("---:" for _ in grid.columns)], *body(grid)]
    table = ["| " + " | ".join(map(escaped, fields)) + " |" for fields in rows]
    notes = [f"- {escaped(note)}" for note in grid.notes]
    return "\n".join([f"# {grid.title}", "", *table, "", *notes]) + "\n"


def latex(grid: Grid) -> str:
    """Return the grid as a LaTeX table, which needs the package booktabs; notes stand under it."""
    rows = [[field.translate(_LATEX) for field in fields] for fields in body(grid)]
    for row, fields in zip(grid.rows, rows, strict=True):
        fields[0] = "\\midrule\n" + fields[0] if row.rule_above else fields[0]
    frame = pd.DataFrame(rows, columns=[head.translate(_LATEX) for head in headers(grid)])
    kinds = "l" + "r" * len(grid.columns)
    table = frame.to_latex(index=False, escape=False, caption=grid.title.translate(_LATEX), column_format=kinds)
    notes = "".join(rf"\par\footnotesize {note.translate(_LATEX)}" + "\n" for note in grid.notes)
    return table.replace(r"\end{table}", notes + r"\end{table}")


def html_fragment(grid: Grid) -> str:
    """Return the grid as an HTML fragment: heading, one table, one list of notes."""
    table = pd.DataFrame(body(grid), columns=headers(grid)).to_html(index=False, border=0)
    notes = [f"<li>{html.escape(note)}</li>" for note in grid.notes]
    return "\n".join([f"<h2>{html.escape(grid.title)}</h2>", table, "<ul>", *notes, "</ul>"]) + "\n"


def headers(grid: Grid) -> list[str]:
    """Return the header of each column on one line, that of the row labels first."""
    return [grid.stub, *map(header, grid.columns)]


def header(column: Column) -> str:
    """Return a column's header on one line."""
    return ": ".join(part for part in (column.group, " ".join((column.name, *column.details))) if part)


def body(grid: Grid) -> list[list[str]]:
    """Return the fields of each row, the label first."""
    return [[row.label, *(" ".join(cell) or "-" for cell in row.cells)] for row in grid.rows]
