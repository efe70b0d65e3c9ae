"""Where a number comes from: code, packages, machine, command; and nothing private."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from inertia.records.redact import redact

PACKAGES = (
    "torch",
    "transformers",
    "datasets",
    "hydra-core",
    "lm_eval",
    "numpy",
    "pandas",
    "pyarrow",
    "scipy",
    "wandb",
    "tokenizers",
    "safetensors",
)
# Named one by one: a list of what to leave out would forget a secret some day.
ENVIRONMENT = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "CUDA_VISIBLE_DEVICES",
    "CUBLAS_WORKSPACE_CONFIG",
    "PYTHONHASHSEED",
    "HF_HUB_OFFLINE",
    "TRANSFORMERS_OFFLINE",
    "HF_DATASETS_OFFLINE",
    "HF_ENDPOINT",
    "HF_HOME",
    "OPENBLAS_NUM_THREADS",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TORCHDYNAMO_DISABLE",
    "TORCH_COMPILE_DISABLE",
    "SLURM_CPUS_PER_TASK",
    "SLURM_JOB_ID",
    "RAY_ADDRESS",
    "WANDB_MODE",
)
_SECONDS = 10


def collect(argv: Sequence[str] | None = None, *, source: Path | None = None) -> dict[str, Any]:
    """Return the provenance of this process as JSON: command, time, code, packages, hardware, threads.

    Nothing here can fail a run: what cannot be found out (no git, no driver) is null. Host and user names are
    not recorded, secrets and private paths are masked (`redact`), of the environment only `ENVIRONMENT` is
    kept.

    Args:
        argv: the command, `sys.argv` by default.
        source: the package folder whose code is described, this package's by default.
    """
    described = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "argv": list(sys.argv if argv is None else argv),
        "pid": os.getpid(),
        "code": code_version(source if source is not None else Path(__file__).resolve().parents[1]),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in PACKAGES},
        "environment_sha256": environment_sha256(),
        "environment": {name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
        "hardware": hardware(),
    }
    return redact(described)


def code_version(package: Path) -> dict[str, Any]:
    """Return commit, dirty flag and sha256 of the uncommitted changes of the checkout that holds `package`.

    All null when git or the checkout is missing, or when `package` is not at the top of the checkout (an
    environment inside someone else's repository). Results are no code: changes below `results/` do not count.
    """
    unknown = {"commit": None, "dirty": None, "diff_sha256": None}
    top = _run("git", "-C", str(package), "rev-parse", "--show-toplevel")
    if top is None or Path(os.fsdecode(top).rstrip("\n")).resolve() != package.resolve().parent:
        return unknown
    root = package.resolve().parent
    only = ("--", ".", ":(exclude)results")
    commit = _run("git", "-C", str(root), "rev-parse", "--verify", "HEAD")
    status = _run("git", "-C", str(root), "status", "--porcelain", "-z", "--untracked-files=all", *only)
    if commit is None or status is None:
        return unknown
    dirty = bool(status)
    return {
        "commit": commit.decode("ascii").strip(),
        "dirty": dirty,
        "diff_sha256": _diff_sha256(root, only) if dirty else None,
    }


def hardware() -> dict[str, Any]:
    """Return CPU model, cores (all, and those we may use), memory in bytes, threads, GPUs and driver."""
    torch = sys.modules.get("torch")
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": _memory_bytes(),
        "torch_threads": torch.get_num_threads() if torch is not None else None,
        "cuda": torch.version.cuda if torch is not None else None,
        "gpus": _gpus(),
    }


def environment_sha256() -> str:
    """Return the sha256 of all installed distributions, one "name==version" a line, sorted."""
    lines = {f"{item.name}=={item.version}".lower() for item in metadata.distributions() if item.name}
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


def _diff_sha256(root: Path, only: tuple[str, ...]) -> str | None:
    changes = _run("git", "-C", str(root), "diff", "HEAD", "--binary", "--no-ext-diff", "--no-textconv", *only)
    untracked = _run("git", "-C", str(root), "ls-files", "--others", "--exclude-standard", "-z", *only)
    if changes is None or untracked is None:
        return None
    digest = hashlib.sha256(changes)
    for name in sorted(filter(None, untracked.split(b"\0"))):
        path = root / os.fsdecode(name)
        digest.update(b"\0" + name + b"\0")
        if path.is_file():
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _run(*command: str) -> bytes | None:
    environment: Mapping[str, str] = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    try:
        done = subprocess.run(command, capture_output=True, timeout=_SECONDS, env=environment, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout if done.returncode == 0 else None


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.lower().startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine() or None


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return None


def _gpus() -> list[dict[str, str]]:
    listing = _run("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
    rows = [line.split(",") for line in (listing or b"").decode("utf-8", "replace").splitlines()]
    return [
        dict(zip(("name", "memory", "driver"), (cell.strip() for cell in row), strict=True))
        for row in rows
        if len(row) == 3
    ]
