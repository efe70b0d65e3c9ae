"""kvpress's side of the bench: runs in kvpress's environment, reads one JSON command a line, answers in one line.

    python inertia/bench/kvpress_worker.py

Of this project it imports only what needs nothing but torch. `load` takes a folder with the weights and a file with
the prompt's keys and values; `run` decodes with a press and answers the seconds of each step, the tokens, the bytes
held and how many tokens were live; `count` answers the most bytes alive in place of the seconds. A command that fails
answers {"error": ...} and the next one is taken.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import torch

from inertia.bench.memory import peak_while_decoding
from inertia.bench.runs import LEAD, Clock


class Side:
    """A model and a prompt, once loaded."""

    def load(self, folder: str, prompt: str, ids: list[int], device: str, threads: int, layers: int) -> dict[str, Any]:
        """Load weights, keys and values; fp32, bf16 or fp16 as they were written."""
        import kvpress
        import transformers
        from safetensors.torch import load_file
        from transformers import AutoModelForCausalLM

        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        torch.set_num_threads(threads)
        self.device, self.ids = device, ids
        model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", attn_implementation="sdpa")
        self.model = model.eval().to(device)
        found = load_file(prompt, device=device)
        self.prompt = [(found[f"keys.{layer}"], found[f"values.{layer}"]) for layer in range(layers)]
        self.presses = {
            "tova": lambda: kvpress.TOVAPress(),
            "keydiff": lambda: kvpress.KeyDiffPress(),
            "key_norm": lambda: kvpress.KnormPress(),
            "adakv_tova": lambda: kvpress.AdaKVPress(kvpress.TOVAPress()),
        }
        return {"transformers": transformers.__version__}

    def run(self, method: str, kept: int, length: int, steps: int, interval: int = 1) -> dict[str, Any]:
        """Decode `steps` timed steps, and LEAD before them, from a prompt of `length` tokens."""
        clock = Clock(self.device)
        found = self._decode(method, kept, length, steps + LEAD, interval, clock)
        return {"seconds": clock.seconds(), **found}

    def count(self, method: str, kept: int, length: int, steps: int, interval: int = 1) -> dict[str, Any]:
        """Decode the same, untimed, and count the most bytes that were alive."""
        found, peak = peak_while_decoding(
            lambda mark: self._decode(method, kept, length, steps + LEAD, interval, mark), self.device, LEAD
        )
        return {"peak": peak, **found}

    def _decode(
        self, method: str, kept: int, length: int, forwards: int, interval: int, mark: Callable[[], None]
    ) -> dict[str, Any]:
        """Decode greedily as kvpress's own pipeline does: true positions, one token at a time, under the press."""
        from kvpress import DecodingPress
        from transformers import DynamicCache

        within = DecodingPress(self.presses[method](), compression_interval=interval, target_size=kept)(self.model)
        modules = [layer.self_attn for layer in self.model.model.layers]
        for module in modules:
            # Masks stay on the modules after a press is left; they are another run's.
            module.masked_key_indices = None
        tokens: list[int] = []
        token = self.ids[length]
        with torch.inference_mode():
            cache = DynamicCache()
            for layer, (keys, values) in enumerate(self.prompt):
                cache.update(keys[:, :, :length], values[:, :, :length], layer)
            with within:
                for step in range(forwards):
                    logits = self.model(
                        input_ids=torch.tensor([[token]], device=self.device),
                        past_key_values=cache,
                        position_ids=torch.tensor([[length + step]], device=self.device),
                    ).logits
                    token = int(logits[0, -1].argmax())
                    tokens.append(token)
                    mark()
        return {
            "tokens": tokens,
            "held": sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers),
            "live": live(cache, [module.masked_key_indices for module in modules]),
        }


def live(cache: Any, masks: list[Any]) -> float:
    """Return the tokens that attention can see, mean over layers and KV heads."""
    seen = []
    for layer, masked in zip(cache.layers, masks, strict=True):
        heads, tokens = layer.keys.shape[1:3]
        gone = 0 if masked is None else len(masked[0]) / heads
        seen.append(tokens - gone)
    return sum(seen) / len(seen)


def main() -> None:
    """Answer commands until there are no more."""
    # Whatever a library prints must not get between the answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    side = Side()
    known = {"load": side.load, "run": side.run, "count": side.count}
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = known[command.pop("do")](**command)
        except Exception as problem:
            answer = {"error": f"{type(problem).__name__}: {problem}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
