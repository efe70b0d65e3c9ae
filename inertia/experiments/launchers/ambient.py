"""What happens to be set in the shell, and must reach neither jobs nor results."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

# Options of a job by environment variable, which beat those in the script; an allocation that we are typed in.
SLURM = ("SLURM_", "SBATCH_", "SRUN_", "SALLOC_", "SUBMITIT_")
# Where the cluster is and who may use it.
KEPT = ("SLURM_CONF", "SLURM_JWT", "SLURM_CLUSTERS", "SBATCH_CLUSTERS")
# They beat what torch is told in the process, and make float32 products on a GPU less exact than recorded.
ROUNDING = ("NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE")

log = logging.getLogger(__name__)


def drop_rounding() -> None:
    """Take `ROUNDING` out of the environment, and say so; before torch is imported."""
    for name in ROUNDING:
        if os.environ.pop(name, None) is not None:
            log.warning("%s is set in this shell and not taken over: it changes what float32 means", name)


@contextmanager
def without(prefixes: Sequence[str], kept: Sequence[str] = ()) -> Iterator[None]:
    """Take variables of these prefixes out of the environment inside the block, and say which."""
    names = [name for name in sorted(os.environ) if name.startswith(tuple(prefixes)) and name not in kept]
    if names:
        log.warning("not passed on to jobs, whose options are those of launcher: %s", ", ".join(names))
    taken = {name: os.environ.pop(name) for name in names}
    try:
        yield
    finally:
        os.environ.update(taken)


@contextmanager
def stderr_in(path: Path) -> Iterator[None]:
    """Send what libraries write to the error stream itself into a file inside the block; ours still goes to stderr."""
    path.parent.mkdir(parents=True, exist_ok=True)
    ours, kept = sys.stderr, os.dup(2)
    handlers = [each for each in logging.getLogger().handlers if getattr(each, "stream", None) is ours]
    with path.open("a", encoding="utf-8") as file, os.fdopen(os.dup(2), "w", buffering=1) as terminal:
        ours.flush()
        os.dup2(file.fileno(), 2)
        sys.stderr = terminal
        for handler in handlers:
            handler.setStream(terminal)
        try:
            yield
        finally:
            terminal.flush()
            sys.stderr = ours
            for handler in handlers:
                handler.setStream(ours)
            os.dup2(kept, 2)
            os.close(kept)
