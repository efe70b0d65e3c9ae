"""The lm-eval model: a backbone that answers under a policy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import cycle
from typing import TYPE_CHECKING, Any

from lm_eval import utils
from lm_eval.api.model import CacheHook, TemplateLM
from tqdm import tqdm

from inertia import backbones
from inertia.benchmarks.render import Renderer
from inertia.decoding.request import Observation, PromptFormat, Stopping, TokensPrompt, before_stop
from inertia.decoding.sampling import Sampling
from inertia.eviction import checks
from inertia.experiments.decode import example_seed
from inertia.lm_eval import gen_kwargs
from inertia.lm_eval.prompts import FittedPrompt, context_chars, encode, fitted, templated
from inertia.lm_eval.settings import ROLLING, check_requests, settings

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

    from inertia.backbones import Backbone
    from inertia.decoding.result import Generation


# Rows of an automatic batch: on two CPU cores 32 give five times the tokens per second of one, more add little.
AUTO = 32


class InertiaLM(TemplateLM):
    """A backbone under a policy, for lm-eval (`--model inertia`).

    The backbone is loaded when the first answer is due: what can be refused before, is. Rows of a batch answer as they
    would alone, up to rounding.

    Attributes:
        settings: what it was made from.
        telemetry: by (task, number of the request's document), what the policy did there; of samples, in the first.

    Deviations: see `inertia.lm_eval.prompts`.
    """

    def __init__(self, batch_size: int | str | None = 1, max_batch_size: int | None = None, **arguments: Any) -> None:
        """Check the settings.

        Args:
            batch_size: prompts that decode together; "auto" for as many as `AUTO`, or fewer as memory allows.
            max_batch_size: in place of `AUTO`.
            **arguments: `--model_args`, see `inertia.lm_eval.settings.settings`.

        Raises:
            ValueError: an unknown setting, or a value that is not allowed.
        """
        super().__init__()
        self.batch_size = rows_of(batch_size, max_batch_size)
        self.settings = settings(**arguments)
        self.telemetry: dict[tuple[str | None, int | None], dict[str, Any]] = {}
        self._rendered: set[str] = set()

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: Mapping[str, Any], additional_config: Mapping[str, Any] | None = None
    ) -> InertiaLM:
        """Return the model of a mapping; what `--model_args` says wins over lm-eval's own flags."""
        flags = {key: value for key, value in (additional_config or {}).items() if value is not None}
        return cls(**{**flags, **arg_dict})

    @classmethod
    def create_from_arg_string(cls, arg_string: str, additional_config: Mapping[str, Any] | None = None) -> InertiaLM:
        """Return the model of a text `key=value,...`."""
        return cls.create_from_arg_obj(utils.simple_parse_args_string(arg_string), additional_config)

    # -------------------------------------------------------------------------------------------- the model

    @cached_property
    def backbone(self) -> Backbone:
        """The backbone, loaded on first use."""
        return backbones.load(self.settings.backbone)

    @cached_property
    def tokenizer(self) -> Any:
        """The backbone's tokenizer, which needs no weights."""
        return backbones.load_tokenizer(self.settings.backbone)

    @property
    def device(self) -> str:
        """Where the model runs."""
        return self.settings.backbone.device

    @property
    def max_length(self) -> int:
        """Tokens of prompt and answer together."""
        return self.settings.backbone.context_window

    @property
    def eot_token_id(self) -> int:
        """The tokenizer's EOS."""
        return self.tokenizer.eos_token_id

    @property
    def prefix_token_id(self) -> int:
        """What stands in front of a text without context: BOS, or EOS where there is none."""
        bos = self.tokenizer.bos_token_id
        return self.eot_token_id if bos is None else bos

    @property
    def tokenizer_name(self) -> str:
        """The backbone's name."""
        return self.settings.backbone.name

    def get_model_info(self) -> dict[str, Any]:
        """Return what lm-eval stores beside its results."""
        told = self.telemetry.values()
        return {
            "inertia": {
                "backbone": backbones.identity(self.settings.backbone),
                "backbone_label": backbones.label(self.settings.backbone),
                "method": self.settings.method,
                "policy": self.settings.policy.describe(),
                "seed": self.settings.seed,
                "answers": len(told),
                "truncated": sum(each["truncated"] for each in told),
                "hit_limit": sum(each["stop"] == "length" for each in told),
            }
        }

    def set_cache_hook(self, cache_hook: CacheHook) -> None:
        """Refuse lm-eval's cache of answers.

        Raises:
            ValueError: always.
        """
        raise ValueError(
            "use_cache is refused: its key has neither model nor policy, so one policy would get another's answers. "
            "Leave it out."
        )

    # -------------------------------------------------------------------------------------------- prompts

    def apply_chat_template(self, chat_history: Sequence[Mapping[str, str]], add_generation_prompt: bool = True) -> str:
        """Return messages as the model's chat template renders them.

        Args:
            chat_history: messages with role and content.
            add_generation_prompt: False where the last message is the start of the assistant's turn, to be continued.

        Raises:
            ValueError: the backbone has no chat template, or it refuses the messages.
        """
        if not self.tokenizer.chat_template:
            raise ValueError(
                f"backbone {self.settings.backbone.name!r} has no chat template; leave out --apply_chat_template."
            )
        text = templated(self.tokenizer, chat_history, add_generation_prompt)
        self._rendered.add(text)
        return text

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Return a text's ids; BOS stands once where the tokenizer adds it, unless `add_special_tokens` says no."""
        if add_special_tokens is False:
            return self.tokenizer(string, add_special_tokens=False, verbose=False)["input_ids"]
        return list(encode(self.tokenizer, string).ids)

    def _fitted(self, request: Instance, text: str, new_tokens: int) -> FittedPrompt:
        context = context_chars(request.doc, text, self.settings.context_field)
        return fitted(self.tokenizer, text, context, self.max_length - new_tokens)

    # -------------------------------------------------------------------------------------------- answers

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Return the answer of each request, cut before its earliest stop string.

        A request that stands there several times, as lm-eval's `repeats` asks, is answered by as many samples that
        share its prefill; greedy decoding answers it once.

        Raises:
            ValueError: a task's generation settings cannot be followed, or its prompts may not be in a template.
        """
        check_requests(self.settings.policy, "generate_until")
        places: dict[int, list[int]] = {}
        for number, request in enumerate(requests):
            places.setdefault(id(request), []).append(number)
        found: dict[int, str] = {}
        groups: dict[Any, list[list[int]]] = {}
        for numbers in places.values():
            request = requests[numbers[0]]
            settings, rendered = self._read(request), request.args[0] in self._rendered
            groups.setdefault((*settings, rendered, len(numbers)), []).append(numbers)
        with tqdm(total=len(requests), disable=disable_tqdm, desc=self.settings.method) as bar:
            for (stop, sampling, _, repeats), members in groups.items():
                sampling = None if sampling is None else replace(sampling, samples=repeats)
                for batch in self._batches(members, requests, 1 if sampling is None else repeats):
                    answers = self._answer([requests[numbers[0]] for numbers in batch], stop, sampling)
                    for numbers, texts in zip(batch, answers, strict=True):
                        found.update(zip(numbers, cycle(texts), strict=False))
                        bar.update(len(numbers))
        return [found[number] for number in range(len(requests))]

    def _read(self, request: Instance) -> tuple[Stopping, Sampling | None]:
        if request.doc.get("kv_bare") and request.args[0] in self._rendered:
            raise ValueError(
                f"task {request.task_name}: its official protocol has no chat template; "
                "run it by itself, without --apply_chat_template."
            )
        try:
            return gen_kwargs.read(request.args[1], self.settings.max_gen_toks)
        except ValueError as error:
            raise ValueError(f"task {request.task_name}: {error}") from error

    def _batches(self, members: list[list[int]], requests: list[Instance], rows: int) -> Iterator[list[list[int]]]:
        """Yield what decodes together, alike in length, each with so many rows; requests by their numbers."""
        if self.batch_size > 1:
            members = sorted(members, key=lambda numbers: len(requests[numbers[0]].args[0]))
        size = max(1, self.batch_size // rows)
        for start in range(0, len(members), size):
            yield members[start : start + size]

    def _answer(self, requests: Sequence[Instance], stop: Stopping, sampling: Sampling | None) -> list[list[str]]:
        prompts = [self._fitted(request, request.args[0], stop.max_new_tokens) for request in requests]
        stop = replace(stop, eos_token_id=self._ends(stop.stop_strings))
        made = self._generate(requests, prompts, stop, sampling=sampling)
        for request, prompt, (first, *_) in zip(requests, prompts, made, strict=True):
            self.telemetry[request.task_name, request.doc_id] = {
                "prompt_hash": utils.hash_string(request.args[0]),
                **telemetry(first, prompt),
                "truncated": prompt.truncated or bool(request.doc.get("kv_truncated")),
            }
        decode = partial(self.tokenizer.decode, skip_special_tokens=True)
        return [[before_stop(decode(each.tokens), stop.stop_strings) for each in rows] for rows in made]

    def _ends(self, until: Sequence[str]) -> tuple[int, ...]:
        """Ids that end an answer: the backbone's, and the stop strings that are special tokens, which have no text."""
        vocabulary, special = self.tokenizer.get_added_vocab(), self.tokenizer.all_special_ids
        named = {vocabulary[text] for text in until if vocabulary.get(text) in special}
        return tuple(sorted(named.union(self.backbone.eos_token_ids)))

    def _generate(
        self,
        requests: Sequence[Instance],
        prompts: Sequence[FittedPrompt],
        stop: Stopping,
        *,
        sampling: Sampling | None = None,
        forced_tokens: Sequence[int] | None = None,
    ) -> list[list[Generation]]:
        import torch

        from inertia.decoding.generation import generate

        def told(request: Instance, prompt: FittedPrompt) -> TokensPrompt:
            name = request.doc.get("kv_id") or f"{request.task_name}/{request.doc_id}"
            ids = torch.tensor([prompt.ids], device=self._input_device)
            return TokensPrompt(ids, prompt.context_end, example_seed(self.settings.seed, name), forced_tokens)

        return generate(
            self.backbone.model,
            [told(*pair) for pair in zip(requests, prompts, strict=True)],
            [self.settings.policy],
            stopping=stop,
            observe=Observation(logits=forced_tokens is not None),
            sampling=sampling,
            prompt_format=PromptFormat(
                self.tokenizer,
                requests[0].args[0] in self._rendered,
                Renderer(self.tokenizer, False).template_variables,
            ),
        )

    @property
    def _input_device(self) -> Any:
        return self.backbone.model.get_input_embeddings().weight.device

    # -------------------------------------------------------------------------------------------- likelihoods

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Return, per request, the log-likelihood of its continuation and whether greedy decoding would give it.

        Raises:
            ValueError: the policy would not act on it (`inertia.lm_eval.settings.check_requests`), or compresses a
                context that the document does not point out.
        """
        check_requests(self.settings.policy, "loglikelihood")
        if self.settings.policy.prefill.compressor is None:
            return super().loglikelihood(requests, disable_tqdm=disable_tqdm)
        return [self._forced(request) for request in tqdm(requests, disable=disable_tqdm, desc=self.settings.method)]

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Return the log-likelihood of each whole text, in disjoint windows.

        Raises:
            ValueError: the policy is not the full cache.
        """
        check_requests(self.settings.policy, ROLLING)
        found = []
        for request in tqdm(requests, disable=disable_tqdm, desc=self.settings.method):
            windows = utils.get_rolling_token_windows(
                self.tok_encode(request.args[0]), self.prefix_token_id, self.max_length, context_len=1
            )
            found.append(sum(self._one_pass(*utils.make_disjoint_window(window))[0] for window in windows))
        return found

    def _loglikelihood_tokens(
        self, requests: list[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False, **_: Any
    ) -> list[tuple[float, bool]]:
        bar = tqdm(requests, disable=disable_tqdm, desc=self.settings.method)
        return [self._one_pass(context, continuation) for _, context, continuation in bar]

    def _one_pass(self, context: Sequence[int], continuation: Sequence[int]) -> tuple[float, bool]:
        """Teacher forcing over the full cache, in one forward pass."""
        import torch

        ids = [*context, *continuation][-(self.max_length + 1) :]
        with torch.inference_mode():
            output = self.backbone.model(
                input_ids=torch.tensor([ids[:-1]], device=self._input_device),
                use_cache=False,
                logits_to_keep=len(continuation),
            )
        return likelihood(output.logits[0], continuation)

    def _forced(self, request: Instance) -> tuple[float, bool]:
        """Teacher forcing behind a compressed context: one prefill, then one decode step per further token."""
        text, answer = request.args
        if not text.strip():
            raise ValueError(f"task {request.task_name}: a request without context leaves nothing to compress.")
        _, continuation = self._encode_pair(text, answer)
        prompt = self._fitted(request, text.rstrip(), len(continuation))
        ((made,),) = self._generate([request], [prompt], Stopping(len(continuation)), forced_tokens=continuation)
        return likelihood(made.logits, continuation)


def rows_of(batch_size: int | str | None, most: int | None = None) -> int:
    """Return how many prompts decode together, from what lm-eval's `--batch_size` says: a count, "auto" or "auto:N".

    Raises:
        ValueError: it says something else.
    """
    if batch_size is None:
        return 1
    if str(batch_size).startswith("auto"):
        return AUTO if most is None else checks.integer("max_batch_size", most, low=1)
    return checks.integer("batch_size", int(batch_size) if str(batch_size).isdecimal() else batch_size, low=1)


def likelihood(logits: Any, tokens: Sequence[int]) -> tuple[float, bool]:
    """Return the summed log-probability of tokens, and whether each is the likeliest.

    Args:
        logits: [tokens, vocabulary].
        tokens: what came.
    """
    import torch

    wanted = torch.tensor(tokens, device=logits.device)
    chosen = logits.float().log_softmax(-1).gather(-1, wanted[:, None])
    return float(chosen.sum()), bool((logits.argmax(-1) == wanted).all())


def telemetry(made: Generation, prompt: FittedPrompt) -> dict[str, Any]:
    """Return what a policy did for one answer, JSON-able."""
    return {
        "prompt_tokens": made.prompt_tokens,
        "context_tokens": prompt.context_end,
        "new_tokens": len(made.tokens),
        "stop": made.stop,
        "budget_tokens": made.budget_tokens,
        "prefill_budget_tokens": made.prefill_budget_tokens,
        "prefill_retained_tokens": made.prefill_retained_tokens,
        "retained_tokens": made.retained_tokens,
        "peak_tokens": made.peak_tokens,
        "evictions": made.evictions,
        "cache_bytes": made.cache_bytes,
        "batch_rows": made.batch_rows,
        "near_ties": made.near_ties,
        "prompt_sha256": prompt.sha256,
        "prefill_seconds": made.prefill_seconds,
        "decode_seconds": made.decode_seconds,
    }
