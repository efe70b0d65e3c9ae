"""A copy of records in Weights & Biases: a mirror that can be made again, and never the job's problem."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Literal, NamedTuple

from inertia.records.names import names
from inertia.records.parquet import table_bytes
from inertia.records.read import Cell
from inertia.records.store import CorruptRecord, files, open_store, reading, rows
from inertia.records.summary import summarise

_log = logging.getLogger(__name__)
BUDGET = "budget/tokens"
RATIO = "budget/compression_ratio"
_TEXT_LENGTH = 500
_TAG_LENGTH = 64
_NAME_LENGTH = 128
_COLUMNS = (
    *("example_id", "index", "status", "error", "prediction", "references", "score"),
    *("prompt_tokens", "new_tokens", "stop"),
)
_FOLDERS = ("WANDB_DIR", "WANDB_DATA_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_ARTIFACT_DIR")
# What a sweep, a launch, a job or a shell leaves behind and W&B would put before, or beside, what is passed to it.
_AMBIENT = (
    *("sweep_id", "sweep_param_path", "launch", "launch_config_path", "resume", "resume_from", "fork_from"),
    *("run_id", "run_name", "run_group", "run_job_type", "run_tags", "run_notes", "project", "mode"),
    *("config_paths", "ignore_globs", "sync_tensorboard", "x_label", "x_primary"),
)


class Mirrored(NamedTuple):
    """A finished run: the cell and the hash of the rows that it is a copy of; mode, project and id as W&B has them."""

    cell: str
    rows_sha256: str
    mode: str
    project: str
    run: str

    @property
    def attempt(self) -> int:
        """1 for the cell's first run, counted up for each later one."""
        return int(self.run.partition("-a")[2] or 1)


def mirror(
    cell: Cell,
    *,
    mode: Literal["offline", "online", "disabled"] = "offline",
    project: str = "inertia",
    directory: Path,
    group: str | None = None,
    job_type: str = "eval",
    tags: Sequence[str] | None = None,
    again: bool = False,
    max_examples: int = 100,
) -> str | None:
    """Write one W&B run for a cell and finish it; return the run's id, or None when nothing was written.

    Whatever goes wrong (no package, no disk, no network) is logged as a warning and the job goes on: the
    records are the truth, and this can be called for them again at any time. "online" without a key is offline.
    What is passed wins over `WANDB_RUN_ID`, `WANDB_SWEEP_ID` and their like; a run that W&B confirms under another
    id or project than the one it was asked for is a failure.

    The run's id is the cell's id, with "-a2", "-a3" for later attempts. Records that were mirrored into
    `directory` before keep their id, and are not written twice in one mode and project; records that changed
    since (a cell that was reopened with more examples) get the next attempt, for W&B would take a second run of
    one id for the first.

    Config is the nested identity, with the run's config and provenance beside it. One point is logged, with the
    budget as x axis of every metric, so that W&B draws score against budget over many runs; its keys read
    "benchmark/task/metric" and are the summary's too. A table shows at most `max_examples` examples, without
    contexts, texts cut short. The records themselves, rows as parquet and the summary, are an artifact of type
    "results".

    Args:
        cell: a cell with its rows.
        mode: "disabled" does nothing at all.
        project: W&B project.
        directory: folder for every file W&B writes (run, data, cache, config), and for the note of what it has.
        group: the sweep; None takes what the cell's config says, else its experiment, else "runs".
        job_type: kind of run.
        tags: cut to 64 characters each; None takes backbone, policy, benchmark and task.
        again: upload a cell anew that was mirrored before, as the next attempt, for W&B never gives an id out twice.
        max_examples: rows of the table.
    """
    if mode == "disabled":
        return None
    try:
        asked = {
            "mode": possible_mode(mode),
            "project": plain_project(project),
            "group": _plain_text(group if group is not None else default_group(cell), _NAME_LENGTH),
            "job_type": _plain_text(job_type, _TAG_LENGTH),
            "tags": clean_tags(tags if tags is not None else default_tags(cell)),
        }
        summary = _summary(cell)
        before = [each for each in mirrored(directory, cell.id) if each.rows_sha256 == summary["rows_sha256"]]
        if not again and any((each.mode, each.project) == (asked["mode"], asked["project"]) for each in before):
            return before[-1].run
        name = before[-1].run if before and not again else free_run(directory, cell.id)
        with _kept_below(directory), _nothing_ambient():
            confirmed = _write(cell, {**asked, "id": name}, directory, max_examples)
        with open_store(directory, "mirrored") as store:
            store.write(mirrored=[{"cell": cell.id, "rows_sha256": summary["rows_sha256"], **confirmed}])
        return confirmed["run"]
    except Exception as error:
        _log.warning(
            "W&B mirror of %s failed (%s: %s); the records are as they were, mirror it again later",
            cell.id,
            type(error).__name__,
            error,
        )
        return None


def mirrored(directory: Path, cell: str | None = None) -> list[Mirrored]:
    """Return the finished runs of a cell, of all without one, by attempt; a damaged note is logged and left out."""
    found: set[Mirrored] = set()
    for path in files(directory):
        try:
            with reading(path) as connection:
                notes = rows(connection, "mirrored")
                found.update(Mirrored(*(row[name] for name in Mirrored._fields)) for row in notes)
        except CorruptRecord as error:
            _log.warning("%s: %s; cells may be mirrored again", path, error)
    return sorted(
        (each for each in found if cell in (None, each.cell)), key=lambda each: (each.cell, each.attempt, each)
    )


def free_run(directory: Path, cell: str) -> str:
    """Return the first id for a cell of which there is no run in `directory`, finished or not."""
    noted = {each.run for each in mirrored(directory, cell)}
    ids = (cell if number == 1 else f"{cell}-a{number}" for number in count(1))
    return next(name for name in ids if name not in noted and not any(directory.glob(f"wandb/*run-*-{name}")))


def run_config(cell: Cell) -> dict[str, Any]:
    """Return the config of the mirrored run: identity at the top, "run" and "provenance" beside it."""
    sessions = cell.manifest["sessions"]
    about = {"run": cell.manifest["config"], "provenance": sessions[-1]["provenance"], "cell_id": cell.id}
    # JSON's keys are text, all the way down.
    return json.loads(json.dumps({**cell.identity, **about}))


def run_summary(cell: Cell) -> dict[str, Any]:
    """Return the summary of the mirrored run: "benchmark/task/metric" -> number."""
    summary = _summary(cell)
    score = summary["score"] if summary["score"] is not None else {}
    metrics = summary["metrics"] if summary["metrics"] is not None else {}
    named = {
        "score": score.get("mean"),
        "score_low": score.get("low"),
        "score_high": score.get("high"),
        "n": summary["ok"],
        "planned": summary["planned"],
        "failed": summary["failed"],
        "retained_tokens": summary["mean_retained_tokens"],
        **summary["totals"],
        **summary["maxima"],
        **{key: value["mean"] for key, value in metrics.items()},
    }
    return {f"{_prefix(cell)}/{key}": value for key, value in named.items() if value is not None}


def clean_tags(tags: Sequence[str]) -> list[str]:
    """Return tags W&B takes: one line, plain characters, 1 to 64 of them, none twice."""
    cleaned = (_plain_text(tag, _TAG_LENGTH) for tag in tags)
    return list(dict.fromkeys(tag for tag in cleaned if tag))


def possible_mode(mode: Literal["offline", "online"]) -> Literal["offline", "online"]:
    """Return the mode, or "offline" with a warning where there is no key to be online with."""
    if mode == "online":
        import wandb

        if wandb.api.api_key is None:
            _log.warning("W&B has no key: writing offline; `wandb sync` uploads it later")
            return "offline"
    return mode


def plain_project(project: str) -> str:
    """Return a project's name as W&B takes it."""
    return _plain_text(project, _NAME_LENGTH)


def default_group(cell: Cell) -> str:
    """Return the sweep a cell belongs to, from its config."""
    config = cell.manifest["config"]
    logger = config.get("logger")
    named = logger.get("group") if isinstance(logger, Mapping) else None
    return str(next((value for value in (named, config.get("experiment_name")) if value is not None), "runs"))


def default_tags(cell: Cell) -> list[str]:
    """Return backbone, method, benchmark, and task with length."""
    found = names(cell.manifest)
    place = found.task if found.length is None else f"{found.task}-{found.length}"
    return [found.backbone, found.method, found.benchmark, place]


def budget_point(cell: Cell) -> dict[str, float]:
    """Return the x axes: mean budget in tokens and mean fraction of the prompt that it leaves out.

    A cell without a budget (the full cache) stands at its whole prompt, with nothing left out. Empty where no
    row says how long its prompt is.
    """
    pairs = [
        (row["budget_tokens"] if row["budget_tokens"] is not None else row["prompt_tokens"], row["prompt_tokens"])
        for row in cell.rows
        if row["status"] == "ok" and row["prompt_tokens"]
    ]
    if not pairs:
        return {}
    return {
        BUDGET: sum(budget for budget, _ in pairs) / len(pairs),
        RATIO: sum(max(0.0, 1 - budget / prompt) for budget, prompt in pairs) / len(pairs),
    }


def _write(cell: Cell, asked: Mapping[str, Any], directory: Path, max_examples: int) -> dict[str, str]:
    """Write and finish the run; return its id, mode and project as W&B confirms them."""
    import wandb

    # A Settings object of its own every time: a reused one carries the last run's id into the next cell.
    settings = wandb.Settings(
        console="off",
        host="",
        silent=True,
        disable_git=True,
        sagemaker_disable=True,
        save_code=False,
        x_disable_stats=True,
        x_disable_meta=True,
        x_disable_machine_info=True,
        x_save_requirements=False,
        init_timeout=60,
    )
    run = wandb.init(
        **asked,
        dir=str(directory),
        name=_plain_text(cell.label, _NAME_LENGTH),
        config=run_config(cell),
        resume=None,
        # The job may have a run of its own; ours neither ends nor joins it.
        reinit="create_new",
        settings=settings,
    )
    try:
        confirmed = {"run": run.id, "mode": "offline" if run.offline else "online", "project": run.project}
        wanted = {"run": asked["id"], "mode": asked["mode"], "project": asked["project"]}
        if confirmed != wanted or run.sweep_id is not None or run.resumed:
            raise RuntimeError(f"W&B opened {confirmed} (sweep {run.sweep_id}) where {wanted} was asked for")
        summary, budget = run_summary(cell), budget_point(cell)
        for axis in budget:
            run.define_metric(axis)
        if budget:
            run.define_metric(f"{_prefix(cell)}/*", step_metric=BUDGET)
        data = [[_cell_text(row[column]) for column in _COLUMNS] for row in cell.rows[:max_examples]]
        table = wandb.Table(columns=list(_COLUMNS), data=data, allow_mixed_types=True)
        run.log({**budget, **summary, "examples": table})
        # Said again: a metric that was logged shows up in the summary only when the run is synchronised.
        run.summary.update({**budget, **summary})
        status = "sealed" if cell.sealed else "incomplete"
        run.log_artifact(_results(cell, run.id, directory), aliases=["latest", status, run.id])
    except BaseException:
        run.finish(exit_code=1)
        raise
    run.finish(exit_code=0)
    return confirmed


def _results(cell: Cell, name: str, directory: Path) -> Any:
    """Return the artifact of a cell's records; its files are staged below `directory` for a later `wandb sync`."""
    import wandb

    score = cell.summary["score"]["mean"] if cell.summary is not None else None
    artifact = wandb.Artifact(
        f"results-{cell.id}",
        type="results",
        description=cell.label,
        metadata={"cell_id": cell.id, "progress": cell.progress, "score": score, "rows": len(cell.rows)},
    )
    staged = directory / "results" / name
    staged.mkdir(parents=True, exist_ok=True)
    contents = {
        "samples.parquet": table_bytes(cell.rows),
        "summary.json": _json(cell.summary if cell.summary is not None else {"status": cell.progress}),
        "manifest.json": _json(cell.manifest),
    }
    for file, data in contents.items():
        (staged / file).write_bytes(data)
        # Immutable: W&B uploads from here and makes no second copy.
        artifact.add_file(str(staged / file), name=file, policy="immutable", skip_cache=True)
    return artifact


@contextmanager
def _kept_below(directory: Path) -> Iterator[None]:
    """Point every folder W&B chooses by environment below `directory`, and put the environment back."""
    directory.mkdir(parents=True, exist_ok=True)
    before = {name: os.environ.get(name) for name in _FOLDERS}
    places = {name: directory / name.removeprefix("WANDB_").removesuffix("_DIR").lower() for name in _FOLDERS[1:]}
    os.environ.update({"WANDB_DIR": str(directory), **{name: str(place) for name, place in places.items()}})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _nothing_ambient() -> Iterator[None]:
    """Take back what the environment told this process's W&B of a run, and put it back afterwards.

    W&B reads its environment once a process, when it is set up, and then goes by these settings.
    """
    import wandb

    settings = wandb.setup().settings
    before = {name: getattr(settings, name) for name in _AMBIENT if hasattr(settings, name)}
    try:
        for name in before:
            setattr(settings, name, type(settings).model_fields[name].get_default(call_default_factory=True))
        yield
    finally:
        for name, value in before.items():
            setattr(settings, name, value)


def _summary(cell: Cell) -> Mapping[str, Any]:
    return cell.summary if cell.summary is not None else summarise(cell.manifest, cell.rows, len(cell.rows))


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode("ascii")


def _prefix(cell: Cell) -> str:
    benchmark = cell.identity.get("benchmark")
    fields = benchmark if isinstance(benchmark, Mapping) else {"name": benchmark}
    words = [str(fields[key]) for key in ("name", "task") if fields.get(key) is not None]
    return "/".join(word.replace("/", "-") for word in words) if words else "cell"


def _cell_text(value: Any) -> Any:
    if isinstance(value, list):
        return _cell_text(" | ".join(value))
    if isinstance(value, str) and len(value) > _TEXT_LENGTH:
        return value[:_TEXT_LENGTH] + "..."
    return value


def _plain_text(text: str, length: int) -> str:
    return re.sub(r"[^A-Za-z0-9 ._=+-]+", "-", str(text)).strip(" -")[:length].strip(" -")
