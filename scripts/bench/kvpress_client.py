"""Our end of the line to kvpress, which pins another transformers: an environment and a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from bench.prompt import CachedPrompt

VERSION, TORCH = "0.5.5", "2.13.0"
SCRIPTS = Path(__file__).resolve().parents[1]
ENVIRONMENT = SCRIPTS.parent / "build" / "parity" / "venv"
BENCH = SCRIPTS / "bench" / "kvpress_worker.py"


class KVPressFailed(RuntimeError):
    """kvpress could not do what it was asked."""


def environment(folder: Path | None = None) -> Path:
    """Return the Python of kvpress's environment, made first if it is not there.

    Raises:
        subprocess.CalledProcessError: pip failed.
    """
    folder = folder or ENVIRONMENT
    python = folder / "bin" / "python"
    probe = "from importlib.metadata import version; print(version('kvpress'))"
    if python.is_file():
        found = subprocess.run([python, "-c", probe], capture_output=True, text=True, check=False)
        if found.stdout.strip() == VERSION:
            return python
    print(f"making kvpress {VERSION}'s environment in {folder} (once)", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", folder], check=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python, "install", "--quiet"]
    # torch comes first and by its exact version: kvpress's own range would fetch a build with GPU libraries.
    subprocess.run([*pip, f"torch=={TORCH}"], check=True)
    subprocess.run([*pip, f"kvpress=={VERSION}"], check=True)
    return python


class KVPress:
    """A process that answers commands with kvpress, one at a time, so that its repeats fall between ours."""

    def __init__(self, python: Path, worker: Path, threads: int | None = None) -> None:
        """Start it.

        Args:
            python: of kvpress's environment.
            worker: a script that serves commands.
            threads: of torch; None for all.
        """
        self.process = subprocess.Popen(
            [python, worker],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": str(SCRIPTS),
                "HF_HUB_OFFLINE": "1",
                "TRANSFORMERS_VERBOSITY": "error",
                **({} if threads is None else {"OMP_NUM_THREADS": str(threads)}),
            },
            # Ctrl-C is ours to handle; the worker ends when its input does.
            start_new_session=True,
        )

    def __enter__(self) -> KVPress:
        return self

    def __exit__(self, *problem: object) -> None:
        if self.process.poll() is None:
            self.process.stdin.close()
            try:
                self.process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.process.stdout.close()

    def ask(self, command: str, **details: Any) -> dict[str, Any]:
        """Send one command and return the answer.

        Raises:
            KVPressFailed: the command failed, or the process is gone.
        """
        try:
            self.process.stdin.write(json.dumps({"do": command, **details}) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise KVPressFailed(f"its process ended with status {self.process.wait()}; its last words are above.")
        answer = json.loads(line)
        if "error" in answer:
            raise KVPressFailed(answer["error"])
        return answer

    def load(self, model: PreTrainedModel, prompt: CachedPrompt, threads: int) -> None:
        """Give it the weights, and the keys and values of the longest prompt that will be asked for.

        Raises:
            KVPressFailed: it did not come up.
        """
        from safetensors.torch import save_file

        with tempfile.TemporaryDirectory() as folder:
            at = Path(folder) / "prompt.safetensors"
            model.save_pretrained(folder)
            tensors = {f"keys.{layer}": keys.contiguous() for layer, keys in enumerate(prompt.keys)}
            tensors |= {f"values.{layer}": values.contiguous() for layer, values in enumerate(prompt.values)}
            save_file(tensors, at)
            self.ask(
                "load",
                folder=folder,
                prompt=str(at),
                ids=prompt.ids[0].tolist(),
                device=str(model.device),
                threads=threads,
                layers=len(prompt.keys),
            )
