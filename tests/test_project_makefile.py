from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def make(*arguments: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    # A make of the outside must not hand its flags (-n, -j) down to the one under test.
    import os

    env = {
        name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")
    }
    return subprocess.run(
        ["make", *arguments], cwd=folder, env=env, capture_output=True, text=True, check=False
    )


@pytest.fixture
def checkout(tmp_path) -> Path:
    """The files that set-up reads, and the names of the configs, without an environment."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    for name in ("experiment/table05", "experiment/table12", "profile/smoke", "profile/laptop"):
        path = tmp_path / "configs" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return tmp_path


def stamp(checkout: Path) -> Path:
    """Mark the environment as ready, as set-up does at its end."""
    (name,) = set(re.findall(r"\.venv/\.ready-\d+", make("-n", "setup", folder=checkout).stdout))
    (checkout / ".venv").mkdir(exist_ok=True)
    (checkout / name).touch()
    return checkout / name


def test_help_is_the_default_and_names_every_target():
    listed = set(re.findall(r"^  ([a-z-]+) ", make().stdout, flags=re.MULTILINE))
    declared = set(
        re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)[1].split()
    )
    assert listed == declared - {"check-profile"}
    assert make().stdout == make("help").stdout


def test_setup_installs_torch_first_and_by_its_exact_version(checkout):
    lines = [line for line in make("-n", "setup", folder=checkout).stdout.splitlines() if " -m pip " in line]
    installs = [line for line in lines if " install " in line and "--python" not in line]
    assert len(installs) == 2
    assert re.search(r'install "torch==\d+\.\d+\.\d+"', installs[0])
    assert "-c constraints.txt" in installs[1]


def test_a_ready_environment_asks_nothing_of_the_network(checkout):
    stamp(checkout)
    assert "pip" not in make("-n", "setup", folder=checkout).stdout
    for name in ("pyproject.toml", "constraints.txt", "Makefile"):
        (checkout / name).touch()  # a clone or a checkout gives new dates to the same content
    assert "pip" not in make("-n", "test", folder=checkout).stdout


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_changed_requirements_are_installed(checkout, name):
    stamp(checkout)
    with (checkout / name).open("a") as file:
        file.write("# changed\n")
    assert "-c constraints.txt" in make("-n", "setup", folder=checkout).stdout


@pytest.mark.parametrize("python", ["no-such-python", "./old-python"])
def test_a_missing_or_old_python_is_refused_by_name(checkout, python):
    old = checkout / "old-python"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    done = make("setup", f"PYTHON={python}", folder=checkout)
    assert done.returncode != 0
    assert f"{python} is missing or older than Python 3.11" in done.stderr
    assert not (checkout / ".venv").exists()


def test_unknown_tables_and_profiles_list_the_allowed_ones_before_any_setup(checkout):
    table = make("reproduce-table", "TABLE=99", folder=checkout)
    assert table.returncode != 0
    assert "no experiment for table '99'; allowed: 5 12" in table.stderr
    profile = make("reproduce-table", "PROFILE=phone", folder=checkout)
    assert profile.returncode != 0
    assert "no profile 'phone'; allowed: laptop smoke" in profile.stderr
    assert not (checkout / ".venv").exists()


@pytest.mark.parametrize(("number", "experiment"), [("5", "table05"), ("05", "table05"), ("12", "table12")])
def test_a_table_is_its_experiment_and_its_report(checkout, number, experiment):
    stamp(checkout)
    planned = make("-n", "reproduce-table", f"TABLE={number}", "PROFILE=smoke", folder=checkout).stdout
    steps = [
        line.partition(" -m ")[2] for line in planned.splitlines() if line.startswith(".venv/bin/python -m ")
    ]
    assert steps == [
        "inertia.backbones fetch smollm2-135m",
        f"inertia -m experiment={experiment} profile=smoke",
        f"inertia.report table {number} --profile smoke --source runs",
    ]


@pytest.mark.parametrize(
    "target", ["fetch", "reproduce-figure", "tables", "figures", "claims", "test", "test-slow", "lint", "clean"]
)
def test_every_target_can_be_planned(checkout, target):
    stamp(checkout)
    done = make("-n", target, folder=checkout)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
