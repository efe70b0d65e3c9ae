"""How much time a sweep saves by sharing prefills and batches, and whether killing it changes its records.

Runs one sweep three times, each into a results folder of its own: as one command; as one command that is killed twice
and repeated; and cell by cell in one process (which spares it the start of a process for each cell). Prints the times,
their ratio, whether the killed run's records are those of the undisturbed one, and how many answers differ from those
of running alone, beside the near ties that were counted.

    python scripts/sweep_speed.py
    python scripts/sweep_speed.py backbone=tiny-random benchmark.lengths=[768] scorer=attention,vnorm
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

from bench.show import show

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
    """Measure, print a table and a JSON line; return 1 where a kill changed the records."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("overrides", nargs="*", help="changes to the sweep of 36 policies over two RULER tasks")
    parser.add_argument("--kills", type=int, default=2, help="how often the second run is killed (default: 2)")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    words = list({word.partition("=")[0]: word for word in (*SWEEP, *given.overrides, *QUIET)}.values())
    if given.alone:
        return one_by_one(words)
    with tempfile.TemporaryDirectory() as folder:
        root, sweep = Path(folder), ["-m", "inertia", "-m", *words]
        together = run(sweep, root / "together")
        # At moments spread over its time.
        kills = [together * (0.45 + 0.2 * number) for number in range(given.kills)]
        killed = sum(run(sweep, root / "killed", limit) for limit in (*kills, None))
        alone = run([__file__, "--alone", "--", *words], root / "alone")
        return report(root, together, killed, alone)


def run(arguments: list[str], results: Path, limit: float | None = None) -> float:
    """Run Python with a results folder of its own, kill it after `limit` seconds; return the seconds that it ran.

    Raises:
        SystemExit: it failed.
    """
    environment = {**os.environ, "INERTIA_RESULTS": str(results)}
    command, started = [sys.executable, *arguments], time.perf_counter()
    try:
        done = subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=False, timeout=limit)
        if done.returncode:
            raise SystemExit(f"the run ended with exit code {done.returncode}; its messages are above")
        if limit is not None:
            print("the run had ended before it was killed", file=sys.stderr)
    except subprocess.TimeoutExpired:
        pass
    return time.perf_counter() - started


def one_by_one(words: list[str]) -> int:
    """Run each cell of the sweep by itself, in this process."""
    from inertia.experiments.plan.jobs import jobs_of
    from inertia.experiments.run import cells_of, run

    jobs = jobs_of(["-m", *words])
    outcomes = [outcome for config in jobs for cell in cells_of(config) for outcome in run([config], [[cell]])]
    return int(any(outcome.summary is None for outcome in outcomes))


def report(root: Path, together: float, killed: float, alone: float) -> int:
    """Print what came out; return 1 where a kill changed the records."""
    from inertia.records import canonical_hash, read_samples

    undisturbed, repeated = (canonical_hash(root / name / "runs") for name in ("together", "killed"))
    ours, single = (
        read_samples(root / name / "runs").set_index(["cell_id", "example_id"]).sort_index()
        for name in ("together", "alone")
    )
    found = {
        "cells": len(ours.index.unique("cell_id")),
        "answers": len(ours),
        "together_s": round(together, 1),
        "killed_s": round(killed, 1),
        "alone_s": round(alone, 1),
        "ratio": round(together / alone, 3),
        "killed_records_identical": undisturbed == repeated,
        "answers_unlike_alone": int((ours["prediction"] != single["prediction"]).sum()),
        "near_ties": int(sum(json.loads(text)["near_ties"] for text in ours["metrics"])),
    }
    times = {"one command": together, "the same, killed": killed, "one by one": alone}
    rows = [(name, f"{seconds:.1f}", f"{seconds / alone:.2f}") for name, seconds in times.items()]
    show(rows, f"{found['cells']} cells, {found['answers']} answers", ("run", "seconds", "of one by one"))
    print(
        f"records after the kills: {'identical' if found['killed_records_identical'] else 'DIFFERENT'}; "
        f"answers unlike alone: {found['answers_unlike_alone']}, near ties counted: {found['near_ties']}",
        file=sys.stderr,
    )
    print(json.dumps(found))
    return int(not found["killed_records_identical"])


if __name__ == "__main__":
    sys.exit(main())
