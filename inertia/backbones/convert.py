"""GGUF to safetensors: dequantise once, so that every later load takes seconds."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Raise it whenever `convert` would write other weights or another tokenizer than before.
CONVERSION = 1

TRICKY = (
    "",
    " ",
    "The capital of France is",
    "  two spaces,\ttab,\r\nnewlines\n\n\nend \n",
    "1. first 2. second\n\n12345 007 3.14 1,000  42",
    "don't can't I'LL it's",
    "<|im_start|>user\nhi<|im_end|>\n<bos> x <eos></s><start_of_turn>",
    "caf\u00e9 cafe\u0301 \ufb01ne \u65e5\u672c\u8a9e \U0001f600 \u200b\u00a0\u2028",
    "def f(x):\n    return {'a': [1, 2]}  # \\n",
)


def conversion_key() -> dict[str, Any]:
    """Return what the converted files depend on besides the GGUF."""
    return {"version": CONVERSION, "transformers": version("transformers")}


def convert(gguf: Path, target: Path, individual_digits: bool) -> None:
    """Write the model (fp32 safetensors) and the tokenizer of a GGUF file into the new folder `target`.

    Args:
        gguf: the file, alone in its folder or beside files that transformers does not read.
        target: created; holds config, weights, tokenizer and chat template.
        individual_digits: restore the digit splitter that the GGUF names but transformers leaves out.

    Raises:
        RuntimeError: the saved tokenizer reloads as another class or gives other ids.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    folder = str(gguf.parent)
    model = AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=gguf.name, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32
    )
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=gguf.name)
    if individual_digits:
        split_digits(tokenizer)
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    check_round_trip(tokenizer, AutoTokenizer.from_pretrained(target, local_files_only=True))


def split_digits(tokenizer: PreTrainedTokenizerBase) -> None:
    """Put a splitter of single digits in front of the tokenizer's own pre-tokenizer, in place.

    Without it, whitespace before a number is cut elsewhere: a blank line before "12" gives two tokens for
    one.
    """
    from tokenizers import pre_tokenizers

    backend = tokenizer.backend_tokenizer
    digits = pre_tokenizers.Digits(individual_digits=True)
    backend.pre_tokenizer = pre_tokenizers.Sequence([digits, backend.pre_tokenizer])


def check_round_trip(saved: PreTrainedTokenizerBase, reloaded: PreTrainedTokenizerBase) -> None:
    """Check that a reloaded tokenizer is the saved one: class, special tokens, template, ids.

    Raises:
        RuntimeError: it differs; the message says where.
    """
    pairs = {
        "class": (type(saved).__name__, type(reloaded).__name__),
        "special tokens": (saved.special_tokens_map, reloaded.special_tokens_map),
        "chat template": (saved.chat_template, reloaded.chat_template),
        **{f"ids of {text!r}": (saved(text).input_ids, reloaded(text).input_ids) for text in TRICKY},
    }
    for what, (before, after) in pairs.items():
        if before != after:
            raise RuntimeError(
                f"the tokenizer changed when it was saved and reloaded: {what} was {before}, is {after}; "
                f"transformers {version('transformers')} cannot hold this "
                "tokenizer, use the version in constraints.txt"
            )
