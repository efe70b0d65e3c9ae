"""Without a network a Hub model or data set ends in one line after one try."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
COMMIT = "0e9e39f249a16976918f6564b8830bc894c89659"


def run(tmp_path, *words, port):
    """Run a command against a Hub at a port of this machine, with an empty cache."""
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    environment |= {"HF_ENDPOINT": f"http://127.0.0.1:{port}", "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0"}
    command = [sys.executable, "-m", "inertia", *words, "benchmark.examples=1", "logger=none", "progress=false"]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def hub():
    """A port that refuses to talk: it closes every connection, and counts them (a request may connect twice)."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        tries = []

        def refuse():
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                tries.append(connection)
                connection.close()

        threading.Thread(target=refuse, daemon=True).start()
        yield server.getsockname()[1], tries


@pytest.mark.parametrize(
    "words, said",
    [
        (("backbone=llama-3.1-8b-instruct",), "cannot resolve revision 'main' of meta-llama/Llama-3.1-8B-Instruct"),
        (
            ("backbone=tiny-random", "benchmark=longbench", "benchmark.tasks=[hotpotqa]"),
            "cannot get data.zip of zai-org/LongBench",
        ),
    ],
)
def test_one_line_after_one_try(words, said, hub, tmp_path):
    port, tries = hub
    done = run(tmp_path, *words, port=port)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert said in line and 1 <= len(tries) <= 2


def test_a_pinned_model_that_is_not_cached_fails_its_cells_in_one_line_each(hub, tmp_path):
    port, tries = hub
    words = ("backbone=llama-3.1-8b-instruct", f"backbone.revision={COMMIT}", "benchmark.tasks=[vt]")
    done = run(tmp_path, *words, port=port)
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if "incomplete cell" in line]
    assert "Retrying" not in done.stderr and 1 <= len(tries) <= 2
    assert done.stderr.splitlines()[-1] == line, "a message goes over several lines"
