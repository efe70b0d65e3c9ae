"""A copy of records in Weights & Biases: a mirror that can be made again, and never the job's problem."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from inertia.records.read import Cell, read_cell
from inertia.records.summary import summarise

_log = logging.getLogger(__name__)
_TEXT_LENGTH = 500
_TAG_LENGTH = 64
_NAME_LENGTH = 128
_COLUMNS = (
    "example_id",
    "index",
    "status",
    "error",
    "prediction",
    "references",
    "score",
    "prompt_tokens",
    "new_tokens",
    "stop",
)
_FOLDERS = ("WANDB_DIR", "WANDB_DATA_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_ARTIFACT_DIR")


def mirror(
    cell: Path | Cell,
    *,
    mode: Literal["offline", "online", "disabled"] = "offline",
    project: str = "inertia",
    directory: Path,
    group: str | None = None,
    job_type: str = "eval",
    tags: Sequence[str] = (),
    attempt: int = 1,
    max_examples: int = 100,
) -> str | None:
    """Write one W&B run for a cell and finish it; return the run's id, or None when nothing was written.

    Whatever goes wrong (no package, no disk, no network) is logged as a warning and the job goes on: the
    records are the truth, and this can be called for them again at any time. The run's id is the cell's id
    (with "-a2", "-a3" for later attempts), so that a repeated upload makes no second run. "online" without a
    key is offline. Config is the nested identity, with the run's config and provenance beside it; summary
    keys read "benchmark/task/metric"; a table shows at most `max_examples` examples, without contexts, texts
    cut short.

    Args:
        cell: a cell's folder, or one that was read.
        mode: "disabled" does nothing at all.
        project: W&B project.
        directory: folder for every file W&B writes (run, data, cache, config).
        group: the sweep.
        job_type: kind of run.
        tags: cut to 64 characters each.
        attempt: raise it to upload a cell anew after its run was deleted, for W&B never gives an id out
            twice.
        max_examples: rows of the table.
    """
    if mode == "disabled":
        return None
    try:
        read = cell if isinstance(cell, Cell) else read_cell(cell)
        name = read.id if attempt == 1 else f"{read.id}-a{attempt}"
        with _kept_below(Path(directory)):
            _write(read, name, mode, project, Path(directory), group, job_type, tags, max_examples)
        return name
    except Exception as error:
        _log.warning(
            "W&B mirror of %s failed (%s: %s); the records are complete, mirror it again later",
            cell.id if isinstance(cell, Cell) else cell,
            type(error).__name__,
            error,
        )
        return None


def run_config(cell: Cell) -> dict[str, Any]:
    """Return the config of the mirrored run: identity at the top, "run" and "provenance" beside it."""
    sessions = cell.manifest["sessions"]
    about = {"run": cell.manifest["config"], "provenance": sessions[-1]["provenance"], "cell_id": cell.id}
    return _text_keys({**cell.identity, **about})


def run_summary(cell: Cell) -> dict[str, Any]:
    """Return the summary of the mirrored run: "benchmark/task/metric" -> number."""
    summary = (
        cell.summary if cell.summary is not None else summarise(cell.manifest, cell.rows, len(cell.rows))
    )
    benchmark = cell.identity.get("benchmark")
    fields = benchmark if isinstance(benchmark, Mapping) else {"name": benchmark}
    words = [str(fields[key]) for key in ("name", "task") if fields.get(key) is not None]
    prefix = "/".join(word.replace("/", "-") for word in words) if words else "cell"
    score = summary["score"] if summary["score"] is not None else {}
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
        **{
            key: value["mean"]
            for key, value in (summary["metrics"] if summary["metrics"] is not None else {}).items()
        },
    }
    return {f"{prefix}/{key}": value for key, value in named.items() if value is not None}


def clean_tags(tags: Sequence[str]) -> list[str]:
    """Return tags W&B takes: one line, plain characters, 1 to 64 of them, none twice."""
    cleaned = (_plain_text(tag, _TAG_LENGTH) for tag in tags)
    return list(dict.fromkeys(tag for tag in cleaned if tag))


def _write(
    cell: Cell,
    name: str,
    mode: Literal["offline", "online"],
    project: str,
    directory: Path,
    group: str | None,
    job_type: str,
    tags: Sequence[str],
    max_examples: int,
) -> None:
    import wandb

    # A Settings object of its own every time: a reused one carries the last run's id into the next cell.
    settings = wandb.Settings(
        console="off",
        host="",
        silent=True,
        disable_git=True,
        save_code=False,
        x_disable_stats=True,
        x_disable_meta=True,
        x_disable_machine_info=True,
        x_save_requirements=False,
        init_timeout=60,
    )
    run = wandb.init(
        project=_plain_text(project, _NAME_LENGTH),
        dir=str(directory),
        id=name,
        name=_plain_text(cell.label, _NAME_LENGTH),
        group=None if group is None else _plain_text(group, _NAME_LENGTH),
        job_type=_plain_text(job_type, _TAG_LENGTH),
        tags=clean_tags(tags),
        config=run_config(cell),
        mode="online" if mode == "online" and _has_key(wandb) else "offline",
        resume=None,
        # The job may have a run of its own; ours neither ends nor joins it.
        reinit="create_new",
        settings=settings,
    )
    try:
        rows = [[_cell_text(row[column]) for column in _COLUMNS] for row in cell.rows[:max_examples]]
        run.log({"examples": wandb.Table(columns=list(_COLUMNS), data=rows, allow_mixed_types=True)})
        run.summary.update(run_summary(cell))
    except BaseException:
        run.finish(exit_code=1)
        raise
    run.finish(exit_code=0)


def _has_key(wandb: Any) -> bool:
    found = wandb.api.api_key is not None
    if not found:
        _log.warning("W&B has no key: writing offline; `wandb sync` uploads it later")
    return found


@contextmanager
def _kept_below(directory: Path) -> Iterator[None]:
    """Point every folder W&B chooses by environment below `directory`, and put the environment back."""
    directory.mkdir(parents=True, exist_ok=True)
    before = {name: os.environ.get(name) for name in _FOLDERS}
    places = {
        name: directory / name.removeprefix("WANDB_").removesuffix("_DIR").lower() for name in _FOLDERS[1:]
    }
    os.environ.update({"WANDB_DIR": str(directory), **{name: str(place) for name, place in places.items()}})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _cell_text(value: Any) -> Any:
    if isinstance(value, list):
        return _cell_text(" | ".join(value))
    if isinstance(value, str) and len(value) > _TEXT_LENGTH:
        return value[:_TEXT_LENGTH] + "..."
    return value


def _plain_text(text: str, length: int) -> str:
    return re.sub(r"[^A-Za-z0-9 ._=+-]+", "-", str(text)).strip(" -")[:length].strip(" -")


def _text_keys(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _text_keys(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_text_keys(item) for item in value]
    return value
