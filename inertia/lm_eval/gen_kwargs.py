"""From a task's generation settings to when its answers end and how tokens are chosen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inertia.decoding.request import Stopping
from inertia.decoding.sampling import Sampling

# They choose among sampled tokens; greedy decoding has none.
OF_SAMPLING = frozenset({"temperature", "top_p", "top_k", "min_p"})
# Settings that would change answers and are not there, with the one value that does not.
NEUTRAL = {"num_beams": 1, "repetition_penalty": 1, "length_penalty": 1, "no_repeat_ngram_size": 0, "typical_p": 1}


def read(given: Mapping[str, Any], default_max_new_tokens: int) -> tuple[Stopping, Sampling | None]:
    """Return what lm-eval's generation settings ask for; EOS is the backbone's to add, how many samples the task's.

    `do_sample: false` wins over any temperature, and a temperature above 0 without `do_sample` asks for sampling, as
    in lm-eval. A temperature of 0 is greedy decoding.

    Args:
        given: the settings of a request; left as they are.
        default_max_new_tokens: where they have none.

    Raises:
        ValueError: they hold a value or setting that cannot be followed.
    """
    from lm_eval.models.utils import normalize_gen_kwargs

    clean = {key: value for key, value in given.items() if value is not None}
    left = dict(normalize_gen_kwargs(clean, default_max_new_tokens))
    sampled = left.pop("do_sample") and given.get("temperature") != 0
    until, limit, least = left.pop("until"), left.pop("max_gen_toks"), left.pop("min_new_tokens", 0)
    if not all(isinstance(text, str) and text for text in until):
        raise ValueError(f"until={until!r} must hold texts, none of them empty.")
    if limit < 1:
        raise ValueError(f"max_gen_toks={limit} is too small; give at least 1.")
    for name, value in left.items():
        if name not in OF_SAMPLING and (name not in NEUTRAL or value != NEUTRAL[name]):
            only = f"; only {NEUTRAL[name]} is allowed" if name in NEUTRAL else ""
            raise ValueError(
                f"generation setting {name}={value!r} is not supported{only}. Known: until, max_gen_toks, "
                f"min_new_tokens, do_sample, {', '.join(sorted(OF_SAMPLING))}."
            )
    stopping = Stopping(limit, None, tuple(until), least)
    return stopping, Sampling(**{name: left[name] for name in OF_SAMPLING & left.keys()}) if sampled else None
