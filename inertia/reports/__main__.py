"""Print and write tables and figures: `python -m inertia.reports table 5`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from inertia.paths import results_dir
from inertia.records import CorruptRecord, DuplicateRow, NewerSchema, OldRecords, Unsealed
from inertia.reports.fidelity_table import fidelity_table
from inertia.reports.make import make_figure, make_table
from inertia.reports.publish import publish
from inertia.reports.registry import FIGURES, TABLES, figure_report, table_report
from inertia.reports.score_table import score_table
from inertia.reports.source import Source, load_source, the_profile
from inertia.reports.table import Table
from inertia.reports.terminal import show
from inertia.reports.write import REFERENCE_PROFILE, write_table

_BAD_RECORDS = (CorruptRecord, DuplicateRow, NewerSchema, OldRecords, Unsealed)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status: 0, or 2 when what it needs is missing or wrong."""
    options = _parser().parse_args(arguments)
    if hasattr(sys.stdout, "reconfigure"):
        # A terminal that has no letter for the marks must not end the command.
        sys.stdout.reconfigure(errors="replace")
    try:
        options.run(options)
    except (FileNotFoundError, KeyError, ValueError, *_BAD_RECORDS) as error:
        # str() of a KeyError would put quotes around the message.
        print(f"error: {error.args[0] if isinstance(error, KeyError) else error}", file=sys.stderr)
        return 2
    return 0


def _tables(numbers: Sequence[int], options: argparse.Namespace) -> None:
    from rich.console import Console

    for number in numbers:
        table, paths = make_table(number, options.profile, options.source)
        show(table.grid, Console())
        print("wrote " + " ".join(str(path) for path in paths))


def _figures(numbers: Sequence[int], options: argparse.Namespace) -> None:
    for number in numbers:
        paths = make_figure(number, options.profile, options.source)
        print("wrote " + " ".join(str(path) for path in paths))


def _experiment(build: Callable[[Source], Table], options: argparse.Namespace) -> None:
    from rich.console import Console

    root = results_dir()
    profile = options.profile or the_profile(root, options.experiment)
    table = build(load_source(root, options.experiment, profile, options.source))
    show(table.grid, Console())
    paths = write_table(table, root / "tables", profile)
    print("wrote " + " ".join(str(path) for path in paths))


def _needs(options: argparse.Namespace) -> None:
    find = table_report if options.kind == "table" else figure_report
    print(find(options.number).experiment)


def _publish(options: argparse.Namespace) -> None:
    paths = publish(results_dir(), options.experiment, options.profile)
    print("wrote " + " ".join(str(path) for path in paths))


def _reading(profile: str | None, about: str) -> argparse.ArgumentParser:
    reading = argparse.ArgumentParser(add_help=False)
    reading.add_argument("--profile", default=profile, help=about)
    reading.add_argument(
        "--source",
        choices=("runs", "published", "auto"),
        default="auto",
        help="local runs, the published records, or published where there are any (%(default)s)",
    )
    return reading


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m inertia.reports", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="command")
    reading = _reading(REFERENCE_PROFILE, "the profile that was run (%(default)s)")
    any_profile = _reading(None, f"the profile that was run ({REFERENCE_PROFILE}, or the only one there is)")
    for kind, known, run in (("table", TABLES, _tables), ("figure", FIGURES, _figures)):
        one = commands.add_parser(kind, parents=[reading], help=f"one {kind}, by its number in the paper")
        one.add_argument("number", type=int, help=", ".join(str(number) for number in sorted(known)))
        one.set_defaults(run=lambda options, run=run: run([options.number], options))
        every = commands.add_parser(f"{kind}s", parents=[reading], help=f"every {kind}")
        every.set_defaults(run=lambda options, run=run, known=known: run(sorted(known), options))
    scores = commands.add_parser(
        "scores", parents=[any_profile], help="any experiment: a row per policy, a column per task"
    )
    scores.add_argument("experiment", help="such as methods")
    scores.set_defaults(run=lambda options: _experiment(score_table, options))
    fidelity = commands.add_parser("fidelity", parents=[any_profile], help="how far each policy is from the full cache")
    fidelity.add_argument("experiment", help="an experiment run with benchmark.metrics=[official,fidelity]")
    fidelity.set_defaults(run=lambda options: _experiment(fidelity_table, options))
    needs = commands.add_parser("needs", help="name the experiment that a table or figure is made from")
    needs.add_argument("kind", choices=("table", "figure"))
    needs.add_argument("number", type=int)
    needs.set_defaults(run=_needs)
    exported = commands.add_parser("publish", help="export an experiment's records to results/published")
    exported.add_argument("experiment", help="such as table05")
    exported.add_argument("--profile", default=REFERENCE_PROFILE, help="the profile that was run (%(default)s)")
    exported.set_defaults(run=_publish)
    return parser


if __name__ == "__main__":
    sys.exit(main())
