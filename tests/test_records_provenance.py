from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from inertia.records import open_cell
from inertia.records.provenance import code_version, collect, environment_sha256, hardware
from inertia.records.redact import redact, redact_text
from inertia.records.store import files

SECRET = "s3cr3t-value-in-the-environment"


def git(root: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=x", "-c", "user.email=x@example.org", *arguments]
    return subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    package = tmp_path / "repo" / "inertia"
    package.mkdir(parents=True)
    (package / "code.py").write_text("a = 1\n")
    git(package.parent, "init", "-q")
    git(package.parent, "add", ".")
    git(package.parent, "commit", "-q", "-m", "first")
    return package


def test_the_commit_is_full_and_a_clean_tree_is_clean(checkout: Path) -> None:
    version = code_version(checkout)
    assert version == {"commit": git(checkout, "rev-parse", "HEAD"), "dirty": False, "diff_sha256": None}
    assert re.fullmatch("[0-9a-f]{40}", version["commit"])


def test_every_uncommitted_change_has_a_hash_of_its_own(checkout: Path) -> None:
    seen = []
    for change in (
        lambda: (checkout / "code.py").write_text("a = 2\n"),
        lambda: (checkout / "code.py").write_text("a = 3\n"),
        lambda: (checkout / "new file.py").write_text("b = 1\n"),
        lambda: (checkout / "new file.py").write_text("b = 2\n"),
        lambda: git(checkout, "add", "new file.py"),
    ):
        change()
        version = code_version(checkout)
        assert version["dirty"] is True and len(version["diff_sha256"]) == 64
        seen.append(version["diff_sha256"])
    assert len(set(seen)) == 5
    (checkout / "code.py").write_text("a = 2\n")
    git(checkout, "rm", "-q", "-f", "new file.py")
    assert code_version(checkout)["diff_sha256"] == seen[0]


def test_results_are_no_code(checkout: Path) -> None:
    (checkout.parent / "results").mkdir()
    (checkout.parent / "results" / "x.json").write_text("{}")
    assert code_version(checkout)["dirty"] is False


def test_an_environment_inside_a_foreign_checkout_is_not_taken_for_ours(checkout: Path) -> None:
    installed = checkout.parent / "venv" / "inertia"
    installed.mkdir(parents=True)
    assert code_version(installed) == {"commit": None, "dirty": None, "diff_sha256": None}


@pytest.mark.parametrize("path", ["", "/nonexistent"])
def test_nothing_fails_without_git(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setenv("PATH", path)
    described = collect(["run"])
    assert described["code"] == {"commit": None, "dirty": None, "diff_sha256": None}
    assert described["hardware"]["gpus"] == []


def test_a_repository_without_a_commit_is_unknown(tmp_path: Path) -> None:
    package = tmp_path / "inertia"
    package.mkdir()
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    git(tmp_path, "init", "-q")
    assert code_version(package)["commit"] is None


def test_provenance_is_complete_and_json() -> None:
    described = collect(["python", "-m", "inertia"])
    assert json.loads(json.dumps(described)) == described
    for name in ("numpy", "pandas", "pyarrow"):
        assert re.match(r"\d+\.", described["packages"][name])
    assert {"torch", "transformers", "datasets", "hydra-core", "lm_eval", "wandb"} <= set(
        described["packages"]
    )
    assert described["argv"] == ["python", "-m", "inertia"]
    found = hardware()
    assert found["cores"] >= found["usable_cores"] >= 1 and found["memory_bytes"] > 2**28 and found["cpu"]
    assert environment_sha256() == environment_sha256() == described["environment_sha256"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", described["time"])


def test_nothing_private_reaches_the_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home" / "someone"
    home.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("HF_TOKEN", SECRET)
    argv = [
        "run.py",
        f"path={home}/models",
        "url=https://me:hunter22@host.org/x",
        f"note={SECRET}",
        "--api-key",
        "abcdef",
    ]
    config = {
        "home": str(home),
        "wandb": {"api_key": "plainkey"},
        "list": [f"{home}/a", "hf_abcdefghijklmnop"],
    }
    with open_cell(
        tmp_path / "runs", {"a": 1}, label="l", planned=["e", "f"], config=config, provenance=collect(argv)
    ) as cell:
        cell.append_failure("e", 0, OSError(f"{home}/models: token={SECRET}"), task="t")
    text = "".join(path.read_bytes().decode("utf-8", "replace") for path in files(tmp_path / "runs"))
    for private in (SECRET, "hunter22", "abcdef", "plainkey", "hf_abc", str(home), "someone"):
        assert private not in text, private
    for kept in ("path=~/models", "https://***@host.org/x", "--api-key", "~/a"):
        assert kept in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("git+ssh://git@github.com/a/b", "git+ssh://***@github.com/a/b"),
        ("https://host/x?token=abc&n=3", "https://host/x?token=***&n=3"),
        ("WANDB_API_KEY=abc run", "WANDB_API_KEY=*** run"),
        ("Authorization: Bearer abc.def", "Authorization: *** ***"),
        ("password: hunter2, next", "password: ***, next"),
        ("policy.budget.tokens=128,256", "policy.budget.tokens=128,256"),
        ("new_token.when_frozen=mean", "new_token.when_frozen=mean"),
        ("tokenizer=fast eos_token=</s>", "tokenizer=fast eos_token=</s>"),
        ("policy.scorer=key_norm", "policy.scorer=key_norm"),
        ("/home/me/a /home/merry /x/home/me file:///home/me", "~/a /home/merry /x/home/me file://~"),
    ],
)
def test_redaction_by_example(text: str, expected: str) -> None:
    assert redact_text(text, {"HOME": "/home/me"}) == expected


def test_redaction_keeps_numbers_and_shapes() -> None:
    value = {"prompt_tokens": 5, "budget": {"tokens": "128"}, "list": (1, None, True), "token": "x", 3: "y"}
    expected = {
        "prompt_tokens": 5,
        "budget": {"tokens": "128"},
        "list": [1, None, True],
        "token": "***",
        3: "y",
    }
    assert redact(value, {}) == expected


def test_a_root_home_does_not_eat_every_slash() -> None:
    assert redact_text("a/b /c", {"HOME": "/"}) == "a/b /c"


def test_a_path_or_number_under_a_secret_name_is_no_secret() -> None:
    assert (
        redact_text("/usr/bin 100000", {"X_AUTH": "/usr/bin", "A_TOKEN": "100000", "HOME": "/h/m"})
        == "/usr/bin 100000"
    )
