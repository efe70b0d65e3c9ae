"""Print and write tables, figures and claims: `python -m inertia.report table 5`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from rich.console import Console

from inertia.paper.fidelity import fidelity
from inertia.paper.make import FIGURES, TABLES, find, make_claims, make_figure, make_table
from inertia.paper.scores import scores
from inertia.paths import results_dir
from inertia.records import CorruptRecord, DuplicateRow, NewerSchema, OldRecords, Unsealed
from inertia.reports.grid import Report
from inertia.reports.publish import publish
from inertia.reports.source import REFERENCE_PROFILE
from inertia.reports.terminal import show

_WRONG = (FileNotFoundError, KeyError, ValueError, CorruptRecord, DuplicateRow, NewerSchema, OldRecords, Unsealed)

Options = argparse.Namespace


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status: 0, or 2 when what it needs is missing or wrong."""
    options = parser().parse_args(arguments)
    if hasattr(sys.stdout, "reconfigure"):
        # A terminal that has no letter for the marks must not end the command.
        sys.stdout.reconfigure(errors="replace")
    try:
        options.run(options)
    except _WRONG as error:
        # str() of a KeyError would put quotes around the message.
        print(f"error: {error.args[0] if isinstance(error, KeyError) else error}", file=sys.stderr)
        return 2
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line; every command sets `run`."""
    made = argparse.ArgumentParser(prog="python -m inertia.report", description=__doc__)
    commands = made.add_subparsers(required=True, metavar="command")
    reading = argparse.ArgumentParser(add_help=False)
    reading.add_argument("--profile", help=f"the profile that was run ({REFERENCE_PROFILE}, or the only one there is)")
    about = "local runs, the published records, or (%(default)s) published where there are any; `published` alone "
    about += "writes committed files, all else results/local"
    reading.add_argument("--source", choices=("runs", "published", "auto"), default="auto", help=about)

    def command(name: str, about: str, run: Callable[[Options], None], *arguments: str) -> None:
        added = commands.add_parser(name, parents=[reading], help=about)
        added.set_defaults(run=run)
        for argument in arguments:
            added.add_argument(argument, choices=("table", "figure") if argument == "kind" else None)

    for kind, known, make in (("table", TABLES, one_table), ("figure", FIGURES, one_figure)):
        numbers = f"one {kind}, by its number in the paper or its name: {', '.join(known)}"
        command(kind, numbers, lambda o, make=make: make(o.name, o), "name")
        every = f"every {kind} whose records there are"
        command(f"{kind}s", every, lambda o, make=make, known=known: each(known, make, o))
    command("claims", "decide every claim", lambda o: print_report(*make_claims(o.profile, o.source)))
    any_scores = "any experiment: a row per policy, a column per task"
    command("scores", any_scores, lambda o: one_table(scores(o.experiment), o), "experiment")
    any_fidelity = "how far each policy is from the full cache (runs with benchmark.metrics=[official,fidelity])"
    command("fidelity", any_fidelity, lambda o: one_table(fidelity(o.experiment), o), "experiment")
    needs = "name the experiment that a table or figure (KIND) is made from"
    command("needs", needs, lambda o: print(needed(o.kind, o.name)), "kind", "name")
    published = "export an experiment's records to results/published"
    command("publish", published, lambda o: print_paths(publish(results_dir(), o.experiment, o.profile)), "experiment")
    return made


def one_table(name: object, options: Options) -> None:
    """Make and print a table."""
    print_report(*make_table(name, options.profile, options.source))


def one_figure(name: object, options: Options) -> None:
    """Make a figure."""
    print_paths(make_figure(name, options.profile, options.source))


def each(names: Iterable[str], make: Callable[[str, Options], None], options: Options) -> None:
    """Make all whose records there are, and say which are left out.

    Raises:
        FileNotFoundError: there are none at all.
    """
    names, missing = list(names), {}
    for name in names:
        try:
            make(name, options)
        except FileNotFoundError as error:
            missing[name] = str(error)
    if len(missing) == len(names):
        raise FileNotFoundError("; ".join(missing.values()))
    for name in missing:
        print(f"left out {name}: no such records", file=sys.stderr)


def needed(kind: str, name: str) -> str:
    """Return the experiment that a table or figure is made from."""
    return find(TABLES, name, kind).experiment if kind == "table" else find(FIGURES, name, kind).table.experiment


def print_report(report: Report, paths: Iterable[Path]) -> None:
    """Print a report and where it was written."""
    show(report.grid, Console())
    print_paths(paths)


def print_paths(paths: Iterable[Path]) -> None:
    """Print where something was written."""
    print("wrote " + " ".join(map(str, paths)))


if __name__ == "__main__":
    sys.exit(main())
