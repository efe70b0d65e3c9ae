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
    from inertia.decoding.request import Observation, Stopping
    from inertia.decoding.result import Generation
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
class TaskRunner:
    """Answers the examples of one task under several policies."""

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
        least = example.metadata.get("min_new_tokens", 0) or 0
        generations = self.generate(prompt, policies, seed, self.stopping(example.max_new_tokens, stops, least))
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
        from inertia.decoding.request import Observation

        prompt = self.renderer.render(example)
        stem, letters = self.choices(example.metadata["stem"], example.metadata["options"])
        # One more token is fed than the stem has, so that the logits behind the stem's last token exist.
        forced = [*stem, next(iter(letters.values()))]
        generations = self.generate(
            prompt, policies, seed, self.stopping(len(forced)), Observation(logits=True), forced_tokens=forced
        )
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
        self,
        prompt: Prompt,
        policies: Sequence[Policy],
        seed: int,
        stopping: Stopping,
        observe: Observation | None = None,
        forced_tokens: Sequence[int] | None = None,
    ) -> list[Generation]:
        """Decode a prompt under several policies in one call."""
        import torch

        from inertia.decoding.generation import generate
        from inertia.decoding.request import PromptFormat, TokensPrompt

        device = self.backbone.model.get_input_embeddings().weight.device
        return generate(
            self.backbone.model,
            TokensPrompt(torch.tensor([prompt.ids], device=device), prompt.context_end, seed, forced_tokens),
            list(policies),
            stopping=stopping,
            observe=observe,
            prompt_format=PromptFormat(
                self.backbone.tokenizer, self.renderer.chat_template, self.renderer.template_variables
            ),
            execution=self.execution,
        )

    def stopping(self, max_new_tokens: int, stop_strings: Sequence[str] = (), min_new_tokens: int = 0) -> Stopping:
        """Return when an answer of this backbone ends."""
        from inertia.decoding.request import Stopping

        return Stopping(max_new_tokens, self.backbone.eos_token_ids, stop_strings, min_new_tokens)

    def text(self, tokens: Sequence[int], stops: Sequence[str] = ()) -> str:
        """Return an answer's text, cut before the earliest stop string."""
        from inertia.decoding.request import before_stop

        return before_stop(self.backbone.tokenizer.decode(list(tokens), skip_special_tokens=True), stops)
