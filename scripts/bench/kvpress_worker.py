"""kvpress's side of the bench: runs in kvpress's environment, reads one JSON command a line, answers in one line.

Of this project it imports only what needs nothing but torch. `load` takes a folder with the weights and a file with
the prompt's keys and values; `run` decodes with a press and answers the seconds of each step, the tokens, the bytes
held and how many tokens were live; `count` answers the most bytes alive in place of the seconds. A command that fails
answers {"error": ...} and the next one is taken.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch

from bench.timing import LEAD, Mark, peak_while_decoding, timed


class Side:
    """A model and a prompt, once loaded."""

    def load(self, folder: str, prompt: str, ids: list[int], device: str, threads: int, layers: int) -> dict[str, Any]:
        """Load weights, keys and values; fp32, bf16 or fp16 as they were written."""
        import kvpress
        import transformers
        from safetensors.torch import load_file

        transformers.utils.logging.disable_progress_bar()
        torch.set_num_threads(threads)
        self.device, self.ids = device, ids
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="auto", attn_implementation="sdpa")
        self.model = model.eval().to(device)
        found = load_file(prompt, device=device)
        self.prompt = [(found[f"keys.{layer}"], found[f"values.{layer}"]) for layer in range(layers)]
        self.presses = {
            "tova": kvpress.TOVAPress,
            "keydiff": kvpress.KeyDiffPress,
            "key_norm": kvpress.KnormPress,
            "adakv_tova": lambda: kvpress.AdaKVPress(kvpress.TOVAPress()),
        }
        return {"transformers": transformers.__version__}

    def run(self, steps: int, **asked: Any) -> dict[str, Any]:
        """Decode `steps` timed steps, and LEAD before them."""
        seconds, found = timed(lambda mark: self._decode(mark, steps + LEAD, **asked), self.device)
        return {"seconds": seconds, **found}

    def count(self, steps: int, **asked: Any) -> dict[str, Any]:
        """Decode the same, untimed, and count the most bytes that were alive."""
        found, peak = peak_while_decoding(lambda mark: self._decode(mark, steps + LEAD, **asked), self.device)
        return {"peak": peak, **found}

    def _decode(
        self, mark: Mark, forwards: int, method: str, kept: int, length: int, interval: int = 1
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
        seen.append(tokens - (0 if masked is None else len(masked[0]) / heads))
    return sum(seen) / len(seen)


def serve(commands: Mapping[str, Callable[..., dict[str, Any]]]) -> None:
    """Answer commands until there are no more."""
    # Whatever a library prints must not get between the answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = commands[command.pop("do")](**command)
        except Exception as problem:
            answer = {"error": f"{type(problem).__name__}: {problem}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    side = Side()
    serve({"load": side.load, "run": side.run, "count": side.count})
