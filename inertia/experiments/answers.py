"""How one example is answered under several policies: decoded freely, in two calls, or by a forced choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from inertia.benchmarks.example import Example
from inertia.benchmarks.registry import Benchmark

if TYPE_CHECKING:
    from inertia.backbones import Backbone
    from inertia.benchmarks.render import Prompt, Renderer
    from inertia.decoding.generation import Generation
    from inertia.eviction.execution import Execution
    from inertia.eviction.policy import Policy


@dataclass(frozen=True)
class Answer:
    """One example answered under one policy.

    Attributes:
        generation: the call that gave the answer.
        prompt: what that call read.
        prediction: the answer's text.
        telemetry: facts about the way there, JSON-able.
        metrics: numbers beside the benchmark's own; None where an answer is too short for one.
    """

    generation: Generation
    prompt: Prompt
    prediction: str
    telemetry: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Asker:
    """Everything that stays the same while examples of one task are answered."""

    backbone: Backbone
    renderer: Renderer
    benchmark: Benchmark
    execution: Execution | None = None

    def answers(self, example: Example, policies: Sequence[Policy], seed: int) -> list[Answer]:
        """Answer one example under every policy, as the task's protocol says."""
        ways = {"generate": self.free, "two_calls": self.two_calls, "forced_choice": self.forced_choice}
        return ways[self.benchmark.protocol(example.task)](example, policies, seed)

    def free(self, example: Example, policies: Sequence[Policy], seed: int) -> list[Answer]:
        """Decode freely to EOS, a stop string or the limit."""
        prompt = self.renderer.render(example)
        stops = tuple(example.metadata.get("stop", ()))
        generations = self.generate(
            prompt,
            policies,
            example.max_new_tokens,
            seed,
            stop_strings=stops,
            min_new_tokens=example.metadata.get("min_new_tokens", 0) or 0,
        )
        return [Answer(each, prompt, self.text(each.tokens, stops)) for each in generations]

    def two_calls(self, example: Example, policies: Sequence[Policy], seed: int) -> list[Answer]:
        """Let the model reason over the document, then answer from question and reasoning, without the document.

        The second prompt depends on the policy's own reasoning, so every policy makes its second call alone.
        """
        found = []
        for policy, first in zip(policies, self.free(example, policies, seed), strict=True):
            second = self.benchmark.module.follow_up(example, first.prediction)
            (answer,) = self.free(second, [policy], seed)
            facts = {
                "reasoning": first.prediction,
                "reasoning_tokens": len(first.generation.tokens),
                "reasoning_stop": first.generation.stop,
                "document_prompt_tokens": first.generation.prompt_tokens,
                "document_retained_tokens": first.generation.retained_tokens,
                "document_evictions": first.generation.evictions,
                "document_truncated": first.prompt.truncated,
            }
            found.append(Answer(answer.generation, answer.prompt, answer.prediction, facts))
        return found

    def forced_choice(self, example: Example, policies: Sequence[Policy], seed: int) -> list[Answer]:
        """Feed the fixed start of an answer token by token, with eviction on, and compare the letters' logits.

        Deviations: ours; a log-likelihood of the whole answer in one forward would never evict.
        """
        prompt = self.renderer.render(example)
        stem, letters = self.choices(example.metadata["stem"], example.metadata["options"])
        # One more token is fed than the stem has, so that the logits behind the stem's last token exist.
        forced = [*stem, next(iter(letters.values()))]
        generations = self.generate(prompt, policies, len(forced), seed, forced_tokens=forced, return_logits=True)
        found = []
        for each in generations:
            values = {letter: float(each.logits[len(stem), token]) for letter, token in letters.items()}
            chosen = self.benchmark.module.choose(values)
            found.append(Answer(each, prompt, chosen, {"letter_logits": values}))
        return found

    def choices(self, stem: str, options: Sequence[str]) -> tuple[list[int], dict[str, int]]:
        """Return the ids of the stem and, per option, the id that follows them when option is put after the stem."""
        encode = self.backbone.tokenizer
        whole = {option: encode(stem + option, add_special_tokens=False)["input_ids"] for option in options}
        ids = encode(stem, add_special_tokens=False)["input_ids"]
        shared = len(ids)
        while any(each[:shared] != ids[:shared] for each in whole.values()):
            shared -= 1
        return ids[:shared], {option: each[shared] for option, each in whole.items()}

    def generate(
        self, prompt: Prompt, policies: Sequence[Policy], max_new_tokens: int, seed: int, **arguments: Any
    ) -> list[Generation]:
        """Decode a prompt under several policies in one call."""
        import torch

        from inertia.decoding.generation import generate

        device = self.backbone.model.get_input_embeddings().weight.device
        return generate(
            self.backbone.model,
            torch.tensor([prompt.ids], device=device),
            list(policies),
            max_new_tokens,
            eos_token_id=self.backbone.eos_token_ids,
            seed=seed,
            context_end=prompt.context_end,
            tokenizer=self.backbone.tokenizer,
            chat_template=self.renderer.chat_template,
            template_arguments=self.renderer.template_variables,
            execution=self.execution,
            **arguments,
        )

    def text(self, tokens: Sequence[int], stops: Sequence[str] = ()) -> str:
        """Return an answer's text, cut before the earliest stop string."""
        from inertia.decoding.generation import before_stop

        return before_stop(self.backbone.tokenizer.decode(list(tokens), skip_special_tokens=True), stops)
