"""Our end of the line to kvpress, which lives in an environment and a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from inertia.bench.prompt import CachedPrompt
from inertia.bench.runs import Run

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_WORKER = Path(__file__).with_name("kvpress_worker.py")
_ROOT = Path(__file__).resolve().parents[2]


class KVPressFailed(RuntimeError):
    """kvpress could not do what it was asked."""


class KVPressSide:
    """A process that decodes with kvpress, one request at a time, so that its repeats fall between ours."""

    def __init__(self, python: Path, model: PreTrainedModel, prompt: CachedPrompt, threads: int) -> None:
        """Start it with the same weights, keys and values as ours.

        Args:
            python: of kvpress's environment.
            model: whose weights.
            prompt: the longest one that will be asked for.
            threads: of torch.

        Raises:
            KVPressFailed: it did not come up.
        """
        environment = {
            **os.environ,
            "PYTHONPATH": str(_ROOT),
            "OMP_NUM_THREADS": str(threads),
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_VERBOSITY": "error",
        }
        self.process = subprocess.Popen(
            [python, _WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            # Ctrl-C is ours to handle; the worker ends when its input does.
            start_new_session=True,
        )
        try:
            with tempfile.TemporaryDirectory() as folder:
                model.save_pretrained(folder)
                at = Path(folder) / "prompt.safetensors"
                _save(prompt, at)
                self.ask(
                    "load",
                    folder=folder,
                    prompt=str(at),
                    ids=prompt.ids[0].tolist(),
                    device=str(model.device),
                    threads=threads,
                    layers=len(prompt.keys),
                )
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> KVPressSide:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def ask(self, what: str, **details: Any) -> dict[str, Any]:
        """Send one command and return the answer.

        Raises:
            KVPressFailed: the command failed, or the process is gone.
        """
        try:
            self.process.stdin.write(json.dumps({"do": what, **details}) + "\n")
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

    def run(self, method: str, kept: int, length: int, steps: int, interval: int = 1) -> tuple[list[float], Run]:
        """Return the seconds of each timed step, and what was decoded."""
        found = self.ask("run", method=method, kept=kept, length=length, steps=steps, interval=interval)
        return found["seconds"], _run_of(found)

    def counted(self, method: str, kept: int, length: int, steps: int) -> tuple[Run, int]:
        """Return what was decoded, untimed, and the most bytes that were alive meanwhile."""
        found = self.ask("count", method=method, kept=kept, length=length, steps=steps)
        return _run_of(found), found["peak"]

    def close(self) -> None:
        """End the process."""
        if self.process.poll() is None:
            self.process.stdin.close()
            try:
                self.process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.process.stdout.close()


def _run_of(found: dict[str, Any]) -> Run:
    return Run((tuple(found["tokens"]),), found["held"], (found["live"],))


def _save(prompt: CachedPrompt, path: Path) -> None:
    from safetensors.torch import save_file

    tensors = {f"keys.{layer}": keys.contiguous() for layer, keys in enumerate(prompt.keys)}
    tensors |= {f"values.{layer}": values.contiguous() for layer, values in enumerate(prompt.values)}
    save_file(tensors, path)
