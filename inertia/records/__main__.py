"""Look at records and care for them: `python -m inertia.records list`."""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from inertia.paths import results_dir
from inertia.records.attempts import TRANSPORT_COLUMNS
from inertia.records.diff import diff, diff_rows
from inertia.records.export import export
from inertia.records.frame import flatten
from inertia.records.listing import STATUSES, Filter, as_json, as_table, listed, status
from inertia.records.lock import CellLocked
from inertia.records.read import Cell, Unsealed, survey
from inertia.records.rows import read_cells
from inertia.records.store import CorruptRecord
from inertia.records.verify import verify

OK, DIFFERENT, USAGE = 0, 1, 2


class Usage(ValueError):
    """A request that cannot be met as it was made."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit status: 0, 1 for a difference or damage, 2 for a wrong request."""
    logging.basicConfig(format="records: %(message)s", level=logging.ERROR)
    options = _parser().parse_args(arguments)
    if hasattr(sys.stdout, "reconfigure"):
        # A terminal that lacks a letter of a name must not end the command.
        sys.stdout.reconfigure(errors="replace")
    try:
        return options.run(options)
    except BrokenPipeError:
        # The reader (head, less) has seen enough. What Python flushes at exit must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except (CorruptRecord, Unsealed) as error:
        return _complain(error, DIFFERENT)
    except (ValueError, KeyError, OSError, CellLocked) as error:
        # str() of a KeyError would put quotes around the message.
        return _complain(error.args[0] if isinstance(error, KeyError) else error, USAGE)
    except KeyboardInterrupt:
        return _complain("interrupted; the same command can be repeated", 130)


def _complain(error: object, code: int) -> int:
    print(f"error: {error}", file=sys.stderr)
    return code


def _list(options: argparse.Namespace) -> int:
    cells, damages = survey(options.root)
    chosen = [cell for cell in (*cells, *damages) if _filter(options)(cell)]
    if options.json:
        lines = map(as_json, chosen)
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        lines = as_table(chosen, options.width if options.width is not None else width)
    for line in lines:
        print(line)
    counts = {name: sum(status(cell) == name for cell in chosen) for name in STATUSES}
    shown = ", ".join(f"{number} {name}" for name, number in counts.items() if number)
    print(f"{len(chosen)} cells" + (f": {shown}" if shown else f" in {options.root}"), file=sys.stderr)
    return DIFFERENT if counts["damaged"] else OK


def _show(options: argparse.Namespace) -> int:
    cell = _read(options.root, options.id)
    sessions = cell.manifest["sessions"]
    shown = {
        "cell": cell.id,
        "label": cell.label,
        "sources": [str(path) for path in cell.sources],
        "progress": cell.progress,
        "summary": cell.summary,
        "failed": {row["example_id"]: row["error"] for row in cell.rows if row["status"] == "failed"},
        "identity": cell.identity,
        "config": cell.manifest["config"],
        "sessions": [{key: value for key, value in each.items() if key != "provenance"} for each in sessions],
        "provenance": sessions[-1]["provenance"],
        "rows": len(cell.rows) if options.rows is None else [dict(row) for row in cell.rows[: options.rows]],
    }
    if options.json:
        print(json.dumps(shown))
    else:
        import yaml

        print(yaml.safe_dump(shown, sort_keys=False, allow_unicode=True, width=100), end="")
    return OK


def _verify(options: argparse.Namespace) -> int:
    cells, damages = verify(options.root)
    if not cells and not damages:
        raise Usage(f"no cells below {options.root}: nothing was verified; give the folder of records with --root")
    for damage in damages:
        print(f"damaged     {damage.reason}")
    incomplete = [cell for cell in cells if not cell.sealed]
    for cell in incomplete:
        print(f"incomplete  {cell.id} {cell.progress}  {cell.label}")
    print(f"{len(cells) - len(incomplete)} intact, {len(incomplete)} incomplete, {len(damages)} damaged")
    return DIFFERENT if damages else OK


def _diff(options: argparse.Namespace) -> int:
    places = [Path(options.a).exists(), Path(options.b).exists()]
    if not any(places):
        return _diff_cells(options)
    if not all(places):
        raise Usage(f"{options.b if places[0] else options.a} does not exist: give two paths, or two cell ids")
    found = diff(Path(options.a), Path(options.b))
    for side, name in ((found.only_a, options.a), (found.only_b, options.b)):
        for cell in side:
            print(f"only in {name}: {cell.id} {cell.label} ({cell.progress})")
    for name, reasons in found.changed.items():
        print(f"differs: {name}: {'; '.join(reasons)}")
    print(
        f"{found.equal} equal, {len(found.changed)} different, {len(found.only_a)} only in the first, "
        f"{len(found.only_b)} only in the second"
    )
    return DIFFERENT if found.changed or found.only_a or found.only_b else OK


def _diff_cells(options: argparse.Namespace) -> int:
    a, b = (_read(options.root, name) for name in (options.a, options.b))
    settings = [dict(flatten(cell.identity)) for cell in (a, b)]
    lines = [
        f"identity: {key}: {settings[0].get(key, '-')!r} -> {settings[1].get(key, '-')!r}"
        for key in sorted(settings[0].keys() | settings[1].keys())
        if settings[0].get(key) != settings[1].get(key)
    ]
    rows = diff_rows(a.rows, b.rows, (*TRANSPORT_COLUMNS, "cell_id"))
    lines += [] if rows is None else rows.lines()
    for line in lines or [f"{a.id} and {b.id} say the same"]:
        print(line)
    return DIFFERENT if lines else OK


def _export(options: argparse.Namespace) -> int:
    ids, path = options.what[:-1], Path(options.what[-1])
    if path.suffix != ".parquet":
        raise Usage(f"{path} is no file name for parquet: the last word names the file, such as table05.parquet")
    if (options.experiment is None) == (not ids):
        raise Usage("say what to export: either cell ids or --experiment NAME, then the file")
    if path.exists() and not options.replace:
        raise Usage(f"{path} exists: give another name, or --replace")
    if ids:
        cells, _ = survey(options.root)
        wanted = [_one(cells, name, options.root).id for name in ids]
    else:
        wanted = _experiment(options.root, options.experiment, options.profile)
    export(options.root, wanted, path)
    print(f"{path}: {len(set(wanted))} cells")
    return OK


def _experiment(root: Path, name: str, profile: str | None) -> list[str]:
    there = listed(root)
    matching = [key for key in there if key[0] == name and profile in (None, key[1])]
    if len(matching) != 1:
        known = ", ".join(sorted(" ".join(key) for key in there))
        several = ", ".join(key[1] for key in matching)
        problem = f"several profiles ({several}): add --profile" if matching else "unknown"
        raise Usage(f"experiment {name}: {problem}; {root} has {known if known else 'none'}")
    return [entry["cell_id"] for entry in there[matching[0]]]


def _sync(options: argparse.Namespace) -> int:
    from tqdm import tqdm

    from inertia.records.wandb_mirror import Mirrored, mirror, mirrored, plain_project, possible_mode

    logging.getLogger("inertia.records.wandb_mirror").setLevel(logging.WARNING)
    cells, damages = survey(options.root)
    chosen = [cell for cell in cells if _filter(options)(cell)]
    if options.ids:
        chosen = [_one(chosen, name, options.root) for name in options.ids]
    settings = {"mode": possible_mode(options.mode), "project": plain_project(options.project)}
    there = {each._replace(run="") for each in mirrored(options.directory)}
    sealed = [cell for cell in chosen if cell.sealed]
    todo = [
        cell
        for cell in sealed
        if options.again or Mirrored(cell.id, cell.summary["rows_sha256"], **settings, run="") not in there
    ]
    more = {"directory": options.directory, "group": options.group, "again": options.again}
    bar = tqdm(todo, "mirroring", unit="cell", file=sys.stderr, delay=1, disable=None, leave=False, dynamic_ncols=True)
    runs = [mirror(read_cells(options.root, [cell.id])[0], **settings, **more) for cell in bar]
    failed = runs.count(None)
    print(
        f"{len(runs) - failed} runs written below {options.directory}, {len(sealed) - len(todo)} mirrored before, "
        f"{len(chosen) - len(sealed)} incomplete and left out, {failed} failed"
    )
    for damage in damages:
        _complain(damage.reason, DIFFERENT)
    return DIFFERENT if failed or damages else OK


def _read(root: Path, name: str) -> Cell:
    cells, _ = survey(root)
    wanted = _one(cells, name, root).id
    return read_cells(root, [wanted])[0]


def _one(cells: Iterable[Cell], name: str, root: Path) -> Cell:
    """Return the cell of an id or of an unambiguous beginning of one."""
    found = [cell for cell in cells if cell.id.startswith(name)]
    if len(found) != 1:
        problem = "no cell" if not found else f"{len(found)} cells"
        raise Usage(
            f"{problem} in {root} with an id that starts with {name!r}: `python -m inertia.records list` has them"
        )
    return found[0]


def _filter(options: argparse.Namespace) -> Filter:
    return Filter(**{field.name: getattr(options, field.name, None) for field in fields(Filter)})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m inertia.records", description=__doc__)
    verbs = parser.add_subparsers(required=True, metavar="verb")
    rooted = argparse.ArgumentParser(add_help=False)
    rooted.add_argument(
        "--root",
        type=Path,
        default=results_dir() / "runs",
        help="folder of records, published file or folder of such files (default: %(default)s)",
    )
    named = argparse.ArgumentParser(add_help=False)
    for name in ("backbone", "benchmark", "task", "policy"):
        named.add_argument(f"--{name}", metavar="PATTERN", help=f"only cells whose {name} matches; * and ? are wild")

    def add(name: str, run: Any, about: str, *parents: argparse.ArgumentParser) -> argparse.ArgumentParser:
        verb = verbs.add_parser(name, parents=[rooted, *parents], help=about)
        verb.set_defaults(run=run)
        return verb

    verb = add("list", _list, "one line a cell", named)
    verb.add_argument("--status", choices=STATUSES, help="only cells of this status")
    verb.add_argument("--json", action="store_true", help="one JSON object a line")
    verb.add_argument("--width", type=_count, help="width of the table (default: the terminal's, unlimited in a pipe)")
    verb = add("show", _show, "all that is known of one cell")
    verb.add_argument("id", help="cell id, or its beginning")
    verb.add_argument("--rows", type=_count, metavar="N", help="its first N rows too")
    verb.add_argument("--json", action="store_true", help="JSON instead of YAML")
    add("verify", _verify, "check every stored byte: hashes, seals, identities; 1 if any is wrong")
    verb = add("diff", _diff, "compare two roots, files or cells; 1 if they differ")
    verb.add_argument("a", help="folder, file, or cell id below --root")
    verb.add_argument("b", help="the same kind")
    verb = add("export", _export, "publish sealed cells as one parquet file that stands alone")
    verb.add_argument("what", nargs="+", metavar="ID... FILE", help="cell ids, unless --experiment; last the file")
    verb.add_argument("--experiment", metavar="NAME", help="the cells that were run under this experiment_name")
    verb.add_argument("--profile", help="its profile, where there are several")
    verb.add_argument("--replace", action="store_true", help="write over an existing file")
    verb = add("sync-wandb", _sync, "replay sealed cells into W&B", named)
    verb.add_argument("ids", nargs="*", help="cell ids (default: all that match)")
    verb.add_argument("--mode", choices=("offline", "online"), default="offline", help="default: %(default)s")
    verb.add_argument("--project", default="inertia", help="default: %(default)s")
    verb.add_argument("--group", help="default: each cell's own sweep")
    verb.add_argument("--again", action="store_true", help="those mirrored before too, as a new attempt")
    verb.add_argument(
        "--directory", type=Path, default=results_dir() / "wandb", help="where W&B writes (default: %(default)s)"
    )
    return parser


def _count(text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return number


if __name__ == "__main__":
    sys.exit(main())
