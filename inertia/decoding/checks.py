"""What `generate` refuses before anything is decoded, naming the value, what is allowed and the fix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from inertia.decoding.request import PromptFormat, Request, TokensPrompt
from inertia.eviction.execution import KERNEL, RECOMPUTE, Execution
from inertia.eviction.keep_sets import Row
from inertia.eviction.layers import layers_of
from inertia.eviction.policy import SHARED, Policy
from inertia.eviction.support import check_ids, check_length, check_model, check_observed, check_pieces, context_window

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def check(
    model: PreTrainedModel, prompts: Sequence[TokensPrompt], policies: Sequence[Policy], request: Request
) -> None:
    """Refuse a call that cannot be carried out.

    Raises:
        ValueError: naming the value, what is allowed and the fix.
    """
    if not prompts:
        raise ValueError("input_ids holds no prompt; give at least one.")
    if not policies:
        raise ValueError("policies is empty; give at least one Policy, such as inertia.preset('full_cache').")
    for policy in policies:
        if not isinstance(policy, Policy):
            raise ValueError(f"policies holds {policy!r}; give Policy values, such as inertia.preset('inertiakv').")
    stops = request.stopping.stop_strings
    if stops and (request.prompt_format.tokenizer is None or not all(stops)):
        raise ValueError(
            f"stop_strings={list(stops)} need a tokenizer and may not be empty; "
            "give prompt_format=PromptFormat(tokenizer) and no empty string."
        )
    check_model(model)
    check_execution(model, request.execution)
    for prompt in prompts:
        if not isinstance(prompt.ids, torch.Tensor):
            raise ValueError(f"input_ids holds {prompt.ids!r}; give LongTensors [1, L0], as torch.tensor([[1]]).")
        check_prompt(model, prompt, request.stopping.max_new_tokens, request.execution.prefill_chunk)
        for policy in policies:
            check_policy(model, policy, prompt, request.prompt_format, request.execution)


def check_prompt(model: PreTrainedModel, prompt: TokensPrompt, new_tokens: int, chunk: int | None) -> None:
    """Refuse ids that are none of the model's, and a prompt that does not fit its window.

    Raises:
        ValueError: naming the value, what is allowed and the fix.
    """
    ids, forced = prompt.ids, prompt.forced_tokens
    if ids.ndim != 2 or ids.shape[0] != 1 or ids.shape[1] < 1:
        raise ValueError(
            f"input_ids has shape {list(ids.shape)}; give one prompt as [1, L0] with L0 >= 1, several as a list."
        )
    if forced is not None and len(forced) < new_tokens:
        raise ValueError(
            f"forced_tokens has {len(forced)} tokens but max_new_tokens={new_tokens}; "
            "give as many tokens as are to be forced."
        )
    check_ids(model, ids)
    if forced:
        check_ids(model, torch.tensor(list(forced)))
    window = context_window(model.config)
    length = ids.shape[1]
    if window is not None and length + new_tokens > window:
        raise ValueError(
            f"prompt of {length} + {new_tokens} new tokens = {length + new_tokens} exceeds the model's window "
            f"of {window} tokens; shorten the prompt or max_new_tokens."
        )
    check_length(model.config, length, new_tokens, min(chunk or length, length))
    if chunk is not None and chunk < length:
        check_pieces(model.config, chunk)


def check_execution(model: PreTrainedModel, execution: Execution) -> None:
    """Refuse ways of computing that this model or device does not allow.

    Raises:
        ValueError: naming the value, what is allowed and the fix.
    """
    capped = getattr(model.config.get_text_config(), "attn_logit_softcapping", None)
    if execution.scoring == RECOMPUTE and capped is not None:
        raise ValueError(
            "execution.scoring='recompute' uses the library's attention, which cannot cap its logits as this model "
            f"does (at {capped}); set execution.scoring=fused."
        )
    if execution.scoring == KERNEL:
        from inertia.eviction.kernels import available

        device = model.get_input_embeddings().weight.device
        if not available(device):
            raise ValueError(
                f"execution.scoring='kernel' needs a CUDA device and triton, but the model lies on {device}; install "
                "the extra 'gpu' and set backbone.device=cuda, or set execution.scoring=fused."
            )


def check_policy(
    model: PreTrainedModel, policy: Policy, prompt: TokensPrompt, prompt_format: PromptFormat, execution: Execution
) -> None:
    """Refuse a policy that this prompt or model does not allow.

    Raises:
        ValueError: naming the value, what is allowed and the fix.
    """
    length = prompt.ids.shape[1]
    Row(policy, length, 0, length, prompt.context_end).protection()
    if policy.evicts:
        if hasattr(policy.scorer, "check"):
            policy.scorer.check(model.config)
        rule = policy.aggregation
        _ = rule.linear(len(layers_of(model.config).eligible)) if policy.scope == SHARED else rule.unit()
    compressor = policy.prefill.compressor
    observer = compressor or (policy.start if policy.evicts else None)
    prefills, chunk = model.config._attn_implementation, execution.prefill_chunk
    if observer is not None and prefills != "sdpa":
        raise ValueError(
            f"the model prefills with attention {prefills!r}, but prompts are observed with 'sdpa' only; set "
            "backbone.prefill_attention=sdpa, or take a policy that neither compresses nor starts from the prompt."
        )
    if observer is not None and chunk is not None and chunk < length:
        raise ValueError(
            f"execution.prefill_chunk={chunk} reads the prompt in pieces, but {observer.kind!r} of a policy must "
            "observe it whole; set execution.prefill_chunk=null."
        )
    if observer is not None and compressor is None:
        check_observed(model.config, whole=True, again=False)
    if compressor is not None:
        part = policy.prefill.part(length, prompt.context_end)
        check_observed(model.config, whole=part == length, again=compressor.replay)
        compressor.check(part, policy.prefill.budget.tokens(part, part))
        if compressor.replay and prompt_format.tokenizer is None:
            raise ValueError(
                f"prefill={compressor.kind} words requests of its own and needs a tokenizer; give "
                "prompt_format=PromptFormat(tokenizer), or take another compressor."
            )
