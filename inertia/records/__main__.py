"""Look at records and care for them: `python -m inertia.records list`."""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from inertia.paths import results_dir
from inertia.records.facts import Facts, read_facts, survey
from inertia.records.journal import CorruptRecord
from inertia.records.layout import DuplicateCell
from inertia.records.listing import STATUSES, Filter, as_json, as_table, status
from inertia.records.lock import CellLocked
from inertia.records.read import Unsealed
from inertia.records.schema import NewerSchema
from inertia.records.settle import DuplicateRow

OK, DIFFERENT, USAGE = 0, 1, 2
_BAD_RECORDS = (CorruptRecord, DuplicateCell, DuplicateRow, NewerSchema, Unsealed)
_CELL_ID = "c[0-9a-f]*"


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
    except FileNotFoundError as error:
        return _complain(f"{error}{_in_shards()}", USAGE)
    except (Usage, KeyError, CellLocked) as error:
        # str() of a KeyError would put quotes around the message.
        return _complain(error.args[0] if isinstance(error, KeyError) else error, USAGE)
    except _BAD_RECORDS as error:
        return _complain(error, DIFFERENT)
    except (ValueError, OSError) as error:
        return _complain(error, USAGE)
    except KeyboardInterrupt:
        return _complain("interrupted; the same command can be repeated", 130)


def _in_shards() -> str:
    """Return in words where records of shards lie that no whole cell has taken over yet; nothing without any."""
    from inertia.experiments.shards import shard_roots

    roots = [root for root in shard_roots(results_dir()) if any(root.glob("*__c*"))]
    return f"; shards hold cells that are not whole yet: --root {' or '.join(map(str, roots))}" if roots else ""


def _complain(error: object, code: int) -> int:
    print(f"error: {error}", file=sys.stderr)
    return code


def _list(options: argparse.Namespace) -> int:
    chosen = [cell for cell in _watch(survey(options.root), "reading", "cell") if _filter(options)(cell)]
    if options.json:
        for cell in chosen:
            print(as_json(cell))
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        for line in as_table(chosen, options.width if options.width is not None else width):
            print(line)
    counts = {name: sum(status(cell) == name for cell in chosen) for name in STATUSES}
    shown = ", ".join(f"{number} {name}" for name, number in counts.items() if number)
    print(f"{len(chosen)} cells" + (f": {shown}" if shown else f" in {options.root}"), file=sys.stderr)
    return DIFFERENT if counts["damaged"] else OK


def _show(options: argparse.Namespace) -> int:
    from inertia.records.read import read_cell, read_published

    facts = _one(read_facts(options.root), options.id, options.root)
    cell = (
        read_cell(facts.source)
        if facts.source.is_dir()
        else next(cell for cell in read_published(facts.source) if cell.id == facts.id)
    )
    last = cell.manifest["sessions"][-1]
    shown = {
        "cell": cell.id,
        "label": cell.label,
        "source": str(cell.source),
        "progress": cell.progress,
        "summary": cell.summary,
        "failed": {row["example_id"]: row["error"] for row in cell.rows if row["status"] == "failed"},
        "identity": cell.identity,
        "config": cell.manifest["config"],
        "sessions": [
            {key: value for key, value in session.items() if key != "provenance"}
            for session in cell.manifest["sessions"]
        ],
        "provenance": last["provenance"],
        "rows": len(cell.rows),
    }
    if options.rows is not None:
        shown["rows"] = [dict(row) for row in cell.rows[: options.rows]]
    if options.json:
        print(json.dumps(shown))
    else:
        import yaml

        print(yaml.safe_dump(shown, sort_keys=False, allow_unicode=True, width=100), end="")
    return OK


def _verify(options: argparse.Namespace) -> int:
    from inertia.records.verify import places, verify

    found = places(options.root)
    if not found:
        raise Usage(f"no cells below {options.root}: nothing was verified; give the folder of cells with --root")
    counts = {"intact": 0, "incomplete": 0, "damaged": 0}
    for findings in _watch(verify(found, options.jobs), "verifying", "folder", len(found)):
        for finding in findings:
            counts[finding.status] += 1
            if finding.status == "damaged":
                _say(f"damaged     {finding.source}: {finding.detail}")
            elif finding.status == "incomplete":
                _say(f"incomplete  {finding.cell} {finding.detail}  {finding.source}")
    print(", ".join(f"{number} {name}" for name, number in counts.items()))
    return DIFFERENT if counts["damaged"] else OK


def _diff(options: argparse.Namespace) -> int:
    from inertia.records.diff import diff

    places = [Path(options.a).exists(), Path(options.b).exists()]
    if not any(places):
        return _diff_cells(options)
    if not all(places):
        raise Usage(f"{options.b if places[0] else options.a} does not exist: give two paths, or two cell ids")
    found = diff(read_facts(Path(options.a)), read_facts(Path(options.b)))
    for side, name in ((found.only_a, options.a), (found.only_b, options.b)):
        for facts in side:
            _say(f"only in {name}: {facts.id} {facts.manifest['label']} ({facts.progress})")
    differing = 0
    for cell in _watch(found.cells(), "comparing", "cell", len(found.both)):
        if cell is not None:
            differing += 1
            _say(f"differs: {cell.id} {cell.label}: {'; '.join([*cell.reasons, *_about_rows(cell.rows)])}")
    print(
        f"{len(found.both) - differing} equal, {differing} different, {len(found.only_a)} only in the first, "
        f"{len(found.only_b)} only in the second"
    )
    return DIFFERENT if differing or found.only_a or found.only_b else OK


def _diff_cells(options: argparse.Namespace) -> int:
    from inertia.records.columnar import flatten
    from inertia.records.diff import diff_rows
    from inertia.records.read import read_cells
    from inertia.records.settle import TRANSPORT_COLUMNS

    every = read_facts(options.root)
    chosen = [_one(every, name, options.root) for name in (options.a, options.b)]
    a, b = (next(cell for cell in _cells_of(facts, read_cells) if cell.id == facts.id) for facts in chosen)
    identities = [dict(flatten(cell.identity)) for cell in (a, b)]
    settings = [
        f"{key}: {identities[0].get(key, '-')!r} -> {identities[1].get(key, '-')!r}"
        for key in sorted(identities[0].keys() | identities[1].keys())
        if identities[0].get(key) != identities[1].get(key)
    ]
    for line in settings:
        print(f"identity: {line}")
    rows = diff_rows(a.rows, b.rows, (*TRANSPORT_COLUMNS, "cell_id"))
    for line in _about_rows(rows):
        print(line)
    if not settings and rows is None:
        print(f"{a.id} and {b.id} say the same")
    return DIFFERENT if settings or rows is not None else OK


def _cells_of(facts: Facts, read_cells: Any) -> Iterable[Any]:
    from inertia.records.read import read_cell

    return [read_cell(facts.source)] if facts.source.is_dir() else read_cells(facts.source)


def _about_rows(rows: Any) -> list[str]:
    if rows is None:
        return []
    lines = [
        f"{len(names)} examples only in the {side}, such as {names[0]}"
        for side, names in (("first", rows.only_a), ("second", rows.only_b))
        if names
    ]
    if rows.first is not None:
        shown = ", ".join(f"{name} {_short(a)} -> {_short(b)}" for name, (a, b) in rows.columns.items())
        lines.append(f"{len(rows.changed)} examples changed, first {rows.first}: {shown}")
    return lines


def _short(value: Any, length: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= length else text[: length - 3] + "..."


def _compact(options: argparse.Namespace) -> int:
    from inertia.records.compact import compact

    watch = partial(_watch, what="compacting", unit="file")
    done = compact(options.root, options.directory, remove=options.remove, watch=watch)
    for name, reason in done.conflicts.items():
        print(f"conflict  {name}: {reason}; both are kept as they are")
    for name, reason in done.left.items():
        print(f"not removed  {name}: {reason}")
    print(
        f"{options.directory}: {len(done.added)} cells added, {len(done.kept)} there already, "
        f"{len(done.open)} incomplete and left out, {len(done.conflicts)} conflicts, "
        f"{len(done.removed)} folders removed"
    )
    return DIFFERENT if done.conflicts else OK


def _restore(options: argparse.Namespace) -> int:
    from inertia.records.compact import restore

    watch = partial(_watch, what="restoring", unit="file")
    ids = options.ids if options.ids else None
    print(f"{len(restore(options.source, options.root, ids, watch=watch))} cells restored below {options.root}")
    return OK


def _export(options: argparse.Namespace) -> int:
    from inertia.records.read import export

    ids, path = options.what[:-1], Path(options.what[-1])
    if path.suffix != ".parquet":
        raise Usage(f"{path} is no file name for parquet: the last word names the file, such as table05.parquet")
    if (options.experiment is None) == (not ids):
        raise Usage("say what to export: either cell ids or --experiment NAME, then the file")
    if path.exists() and not options.replace:
        raise Usage(f"{path} exists: give another name, or --replace")
    if ids:
        every = read_facts(options.root)
        wanted = [_one(every, name, options.root).id for name in ids]
    else:
        wanted = _experiment(options.root, options.experiment, options.profile)
    export(options.root, wanted, path)
    print(f"{path}: {len(set(wanted))} cells")
    return OK


def _experiment(root: Path, name: str, profile: str | None) -> list[str]:
    folder = root.parent / "experiments"
    there = sorted(path.stem for path in folder.glob("*__*.json"))
    matching = [
        stem for stem in there if stem == f"{name}__{profile}" or (profile is None and stem.startswith(f"{name}__"))
    ]
    if len(matching) != 1:
        problem = "no index" if not matching else f"several profiles ({', '.join(matching)}): add --profile"
        raise Usage(
            f"experiment {name}: {problem}; {folder} has {', '.join(there) if there else 'none'} (name__profile)"
        )
    index = json.loads((folder / f"{matching[0]}.json").read_text(encoding="utf-8"))
    return [cell["cell_id"] for cell in index["cells"]]


def _sync(options: argparse.Namespace) -> int:
    from inertia.records.sync import sync_wandb

    logging.getLogger("inertia.records.wandb_mirror").setLevel(logging.WARNING)
    chosen = [cell for cell in read_facts(options.root) if _filter(options)(cell)]
    if options.ids:
        chosen = [_one(chosen, name, options.root) for name in options.ids]
    done = sync_wandb(
        chosen,
        options.directory,
        mode=options.mode,
        project=options.project,
        group=options.group,
        again=options.again,
        watch=partial(_watch, what="mirroring", unit="cell"),
    )
    incomplete = sum(not cell.sealed for cell in chosen)
    print(
        f"{len(done.written)} runs written below {options.directory}, {len(done.skipped)} mirrored before, "
        f"{incomplete} incomplete and left out, {len(done.failed)} failed"
    )
    return DIFFERENT if done.failed else OK


def _one(cells: Iterable[Facts], name: str, root: Path) -> Facts:
    """Return the cell of an id or of an unambiguous beginning of one."""
    found = [cell for cell in cells if cell.id.startswith(name)]
    if len(found) != 1:
        problem = "no cell" if not found else f"{len(found)} cells"
        raise Usage(
            f"{problem} in {root} with an id that starts with {name!r}: `python -m inertia.records list` has them"
        )
    return found[0]


def _filter(options: argparse.Namespace) -> Filter:
    return Filter(**{key: getattr(options, key, None) for key in Filter.__dataclass_fields__})


def _watch(items: Iterable[Any], what: str, unit: str, total: int | None = None) -> Iterable[Any]:
    """Show a bar on stderr while the items are taken: on a terminal, and only for jobs longer than a second."""
    from tqdm import tqdm

    return tqdm(
        items,
        desc=what,
        unit=unit,
        total=total,
        file=sys.stderr,
        delay=1,
        disable=None,
        leave=False,
        dynamic_ncols=True,
    )


def _say(line: str) -> None:
    """Print a line of findings without tearing the bar."""
    from tqdm import tqdm

    tqdm.write(line, file=sys.stdout)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m inertia.records", description=__doc__)
    verbs = parser.add_subparsers(required=True, metavar="verb")
    rooted = argparse.ArgumentParser(add_help=False)
    rooted.add_argument(
        "--root",
        type=Path,
        default=results_dir() / "runs",
        help="folder of runs, data set or published file (default: %(default)s)",
    )
    named = argparse.ArgumentParser(add_help=False)
    for name in ("backbone", "benchmark", "task", "policy"):
        named.add_argument(f"--{name}", metavar="PATTERN", help=f"only cells whose {name} matches; * and ? are wild")

    verb = verbs.add_parser("list", parents=[rooted, named], help="one line a cell")
    verb.add_argument("--status", choices=STATUSES, help="only cells of this status")
    verb.add_argument("--json", action="store_true", help="one JSON object a line")
    verb.add_argument("--width", type=_count, help="width of the table (default: the terminal's, unlimited in a pipe)")
    verb.set_defaults(run=_list)

    verb = verbs.add_parser("show", parents=[rooted], help="all that is known of one cell")
    verb.add_argument("id", help="cell id, or its beginning")
    verb.add_argument("--rows", type=_count, metavar="N", help="its first N rows too")
    verb.add_argument("--json", action="store_true", help="JSON instead of YAML")
    verb.set_defaults(run=_show)

    verb = verbs.add_parser("verify", parents=[rooted], help="check every hash, seal and identity; 1 if any is wrong")
    verb.add_argument("--jobs", type=_count, default=1, help="processes (default: %(default)s)")
    verb.set_defaults(run=_verify)

    verb = verbs.add_parser("diff", parents=[rooted], help="compare two roots, files or cells; 1 if they differ")
    verb.add_argument("a", help="folder, file, or cell id below --root")
    verb.add_argument("b", help="the same kind")
    verb.set_defaults(run=_diff)

    verb = verbs.add_parser("compact", parents=[rooted], help="gather sealed cells into one parquet data set")
    verb.add_argument("directory", type=Path, nargs="?", default=results_dir() / "dataset", help="default: %(default)s")
    verb.add_argument("--remove", action="store_true", help="then remove the folders whose records it proves to have")
    verb.set_defaults(run=_compact)

    verb = verbs.add_parser("restore", parents=[rooted], help="write cells of a data set back as folders of runs")
    verb.add_argument("source", type=Path, help="data set or published file")
    verb.add_argument("ids", nargs="*", help="cell ids (default: all)")
    verb.set_defaults(run=_restore)

    verb = verbs.add_parser("export", parents=[rooted], help="publish sealed cells as one file that stands alone")
    verb.add_argument("what", nargs="+", metavar="ID... FILE", help="cell ids, unless --experiment; last the file")
    verb.add_argument("--experiment", metavar="NAME", help="the cells of this experiment's index")
    verb.add_argument("--profile", help="its profile, where there are several")
    verb.add_argument("--replace", action="store_true", help="write over an existing file")
    verb.set_defaults(run=_export)

    verb = verbs.add_parser("sync-wandb", parents=[rooted, named], help="replay sealed cells into W&B")
    verb.add_argument("ids", nargs="*", help="cell ids (default: all that match)")
    verb.add_argument("--mode", choices=("offline", "online"), default="offline", help="default: %(default)s")
    verb.add_argument("--project", default="inertia", help="default: %(default)s")
    verb.add_argument("--group", help="default: each cell's own sweep")
    verb.add_argument("--again", action="store_true", help="those mirrored before too, as a new attempt")
    verb.add_argument(
        "--directory", type=Path, default=results_dir() / "wandb", help="where W&B writes (default: %(default)s)"
    )
    verb.set_defaults(run=_sync)
    return parser


def _count(text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return number


if __name__ == "__main__":
    sys.exit(main())
