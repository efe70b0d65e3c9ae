"""A grid in every form: nothing is lost, cut off or taken for markup."""

from __future__ import annotations

import html.parser
import io
import re

import pytest
from reports_data import memory_source, needle_scores
from rich.console import Console

from inertia.paper.table05 import TABLE05
from inertia.reports import build_table
from inertia.reports.grid import Column, Grid, Row
from inertia.reports.render import html_fragment, latex, markdown
from inertia.reports.terminal import blocks, show

TASKS = ("niah_single_1", "niah_multikey_2", "vt", "cwe", "fwe", "own_task")


@pytest.fixture(scope="module")
def grid():
    return build_table(TABLE05, memory_source(needle_scores(TASKS))).grid


def shown(grid, **console) -> str:
    console = Console(file=io.StringIO(), color_system=None, **console)
    show(grid, console)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [80, 100, 140, 200])
def test_the_terminal_table_fits_and_loses_nothing(grid, width):
    text = shown(grid, width=width)
    assert max(len(line) for line in text.splitlines()) <= width
    assert "…" not in text
    assert sorted(index for block in blocks(grid, width) for index in block) == list(range(len(grid.columns)))
    for line in (line for row in grid.rows for cell in row.cells for line in cell):
        assert line in text
    assert text.count("full cache") >= len(blocks(grid, width))


def test_a_terminal_narrower_than_any_column_still_prints_every_column_whole(grid):
    assert blocks(grid, 10) == [[index] for index in range(len(grid.columns))]
    text = shown(grid, width=10)
    assert "…" not in text and "[+25, +98]" not in text
    for line in (line for row in grid.rows for cell in row.cells for line in cell):
        assert line in text


def test_markdown_is_one_table_with_equal_rows(grid):
    lines = [line for line in markdown(grid).splitlines() if line.startswith("|")]
    assert len(lines) == 2 + len(grid.rows)
    assert {line.count("|") for line in lines} == {len(grid.columns) + 2}


ODD = Grid(
    "50% of a_b & <c>",
    "policy",
    (Column("paper", "x_y", ("@1 †", "n=8")),),
    (Row("a|b_c", (("1.0", "[0, 2]"),)), Row("#1 {z} ~^\\", ((),), rule_above=True)),
    ("p < .05 for a_b",),
)


def test_latex_is_booktabs_with_every_sign_escaped():
    text = latex(ODD)
    assert text.count(r"\midrule") == 2 and r"\toprule" in text and r"\bottomrule" in text
    assert r"\caption{50\% of a\_b \& \textless{}c\textgreater{}}" in text
    assert r"paper: x\_y @1 \textdagger{} n=8 \\" in text
    assert r"a\textbar{}b\_c & 1.0 [0, 2] \\" in text
    assert r"\#1 \{z\} \textasciitilde{}\textasciicircum{}\textbackslash{} & - \\" in text
    assert text.index("p \\textless{} .05") < text.index(r"\end{table}")
    # What is left unescaped is the layout's own: one separator per row of two columns.
    assert len(re.findall(r"(?<!\\)&", text)) == 1 + len(ODD.rows)


def test_html_is_a_fragment_with_text_as_text():
    cells, opened = [], []

    class Reader(html.parser.HTMLParser):
        def handle_starttag(self, tag, attrs):
            opened.append(tag)

        def handle_data(self, data):
            cells.append(data)

    Reader().feed(html_fragment(ODD))
    assert opened.count("tr") == 1 + len(ODD.rows) and "html" not in opened and "c" not in opened
    for text in ("50% of a_b & <c>", "a|b_c", "1.0 [0, 2]", "p < .05 for a_b"):
        assert text in cells
