"""How much time a sweep saves by sharing prefills and batches, and whether killing it changes its records.

Runs one sweep three times, each into a results folder of its own: as one command; as one command that is killed twice
and repeated; and cell by cell in one process (which spares it the start of a process for each cell). Prints the times,
their ratio, whether the killed run's records are those of the undisturbed one, and how many answers differ from those
of running alone, beside the near ties that were counted.

    python scripts/sweep_speed.py
    python scripts/sweep_speed.py backbone=tiny-random benchmark.lengths=[512] scorer=attention,vnorm
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SWEEP = (
    "backbone=smollm2-135m",
    "scorer=attention,vnorm,keydiff,key_norm,recency,random",
    "aggregation=ema,single_step,cumulative",
    "budget.compression_ratio=0.9,0.75",
    "benchmark.tasks=[niah_single_1,vt]",
    "benchmark.lengths=[1024]",
    "benchmark.examples=2",
)
QUIET = ("logger=none", "progress=false")


def main() -> int:
    """Measure, print a table and a JSON line; return 1 where records differ."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("overrides", nargs="*", help="changes to the sweep of 36 policies over two RULER tasks")
    parser.add_argument("--kills", type=int, default=2, help="how often the second run is killed (default: 2)")
    parser.add_argument("--alone", metavar="FOLDER", help=argparse.SUPPRESS)
    given = parser.parse_args()
    words = list({word.partition("=")[0]: word for word in (*SWEEP, *given.overrides, *QUIET)}.values())
    if given.alone is not None:
        return one_by_one(words)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        together = timed(sweep(words, root / "together"))
        disturbed = killed(words, root / "killed", together, given.kills)
        alone = timed(child([__file__, "--alone", "", *words], root / "alone"))
        return report(root, together, disturbed, alone)


def sweep(words: list[str], results: Path) -> subprocess.Popen[bytes]:
    """Start the sweep as one command."""
    return child(["-m", "inertia", "-m", *words], results)


def child(arguments: list[str], results: Path) -> subprocess.Popen[bytes]:
    """Start Python with a results folder of its own."""
    environment = {**os.environ, "INERTIA_RESULTS": str(results)}
    return subprocess.Popen([sys.executable, *arguments], env=environment, stdout=subprocess.DEVNULL)


def timed(process: subprocess.Popen[bytes]) -> float:
    """Wait for a process and return how long that took, in seconds.

    Raises:
        SystemExit: it failed.
    """
    started = time.perf_counter()
    if process.wait() != 0:
        raise SystemExit(f"the run ended with exit code {process.returncode}; its messages are above")
    return time.perf_counter() - started


def killed(words: list[str], results: Path, undisturbed: float, kills: int) -> float:
    """Run the sweep, kill it at moments spread over its time, repeat it to its end; return the seconds in all."""
    started = time.perf_counter()
    for number in range(kills):
        process = sweep(words, results)
        try:
            process.wait(timeout=undisturbed * (0.45 + 0.2 * number))
            print(f"run {number + 1} had ended before it was killed", file=sys.stderr)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    timed(sweep(words, results))
    return time.perf_counter() - started


def one_by_one(words: list[str]) -> int:
    """Run each cell of the sweep by itself, in this process."""
    from inertia.experiments.plan.jobs import jobs_of
    from inertia.experiments.run import cells_of, run

    jobs = jobs_of(["-m", *words])
    outcomes = [outcome for config in jobs for cell in cells_of(config) for outcome in run([config], [[cell]])]
    return int(any(outcome.summary is None for outcome in outcomes))


def report(root: Path, together: float, disturbed: float, alone: float) -> int:
    """Print what came out; return 1 where a kill changed the records."""
    from rich.console import Console
    from rich.table import Table

    from inertia.records.frame import read_samples
    from inertia.records.read import canonical_hash

    hashes = {name: canonical_hash(root / name / "runs") for name in ("together", "killed")}
    ours, single = (
        read_samples(root / name / "runs").set_index(["cell_id", "example_id"])["prediction"].sort_index()
        for name in ("together", "alone")
    )
    metrics = read_samples(root / "together" / "runs")["metrics"]
    found = {
        "cells": len(ours.index.unique("cell_id")),
        "answers": len(ours),
        "together_s": round(together, 1),
        "killed_s": round(disturbed, 1),
        "alone_s": round(alone, 1),
        "ratio": round(together / alone, 3),
        "killed_records_identical": hashes["together"] == hashes["killed"],
        "answers_unlike_alone": int((ours != single).sum()),
        "near_ties": int(sum(json.loads(text)["near_ties"] for text in metrics)),
    }
    table = Table(title=f"{found['cells']} cells, {found['answers']} answers", title_justify="left")
    for column in ("run", "seconds", "of one by one"):
        table.add_column(column, justify="left" if column == "run" else "right")
    for name, seconds in (("one command", together), ("the same, killed", disturbed), ("one by one", alone)):
        table.add_row(name, f"{seconds:.1f}", f"{seconds / alone:.2f}")
    console = Console(stderr=True)
    console.print(table)
    console.print(
        f"records after the kills: {'identical' if found['killed_records_identical'] else 'DIFFERENT'}; "
        f"answers unlike alone: {found['answers_unlike_alone']}, near ties counted: {found['near_ties']}",
        highlight=False,
    )
    print(json.dumps(found))
    return int(not found["killed_records_identical"])


if __name__ == "__main__":
    sys.exit(main())
