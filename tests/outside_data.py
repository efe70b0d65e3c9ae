"""Outside data for the tests: real files where they are at hand, and files written on the spot."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from inertia.benchmarks.sources import Source


def real(*parts: str) -> Path:
    """A file of the real data, or a skip."""
    if "INERTIA_TEST_DATA" not in os.environ:
        pytest.skip("INERTIA_TEST_DATA is not set")
    return Path(os.environ["INERTIA_TEST_DATA"]).joinpath(*parts)


def json_lines(file: Path) -> list[dict[str, Any]]:
    """The rows of a packed file, read without the product."""
    return [json.loads(line) for line in gzip.decompress(file.read_bytes()).split(b"\n") if line]


def here(path: Path | str, **settings: Any) -> Source:
    """A local source."""
    return Source("path", str(path), **settings)


def rows_file(folder: Path, rows: Iterable[Any], name: str = "rows.jsonl") -> Source:
    """A local file with a row a line; text rows are lines as they stand."""
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    (folder / name).write_text("".join(f"{line}\n" for line in lines))
    return here(folder / name)
