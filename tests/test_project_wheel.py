from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("pyproject.toml", "README.md", "LICENSE", "inertia", "hydra_plugins", "configs")


@pytest.mark.slow
def test_the_wheel_carries_configs_and_reference_data_and_finds_them(tmp_path):
    source, unpacked = tmp_path / "source", tmp_path / "site-packages"
    source.mkdir()
    for name in PARTS:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    # No isolation: hatchling is among the development requirements, so the test needs no network.
    command = [
        "-m",
        "pip",
        "wheel",
        "--no-build-isolation",
        "--no-deps",
        "--wheel-dir",
        str(tmp_path),
        str(source),
    ]
    subprocess.run([sys.executable, *command], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("inertia-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(unpacked)
    (unpacked / "configs").mkdir()  # someone else's package of that name
    shipped = {path.relative_to(ROOT / "configs") for path in (ROOT / "configs").rglob("*.yaml")}
    script = (
        "from inertia.paths import config_dir; from inertia.paper.reference import names, reference;"
        "print(config_dir()); print(len(names()), len(reference(5)))"
    )
    env = os.environ | {"PYTHONPATH": str(unpacked)}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
    )
    folder, counts = done.stdout.splitlines()
    assert Path(folder) == unpacked / "inertia" / "configs"
    assert {path.relative_to(folder) for path in Path(folder).rglob("*.yaml")} == shipped
    assert counts == "16 18"
