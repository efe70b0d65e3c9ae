"""ROUGE-L as LongBench computes it, with the cases in which the package gives up."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import NamedTuple

# CPython's default, under which the published numbers were made.
_RECURSION_LIMIT = 1000


class RougeL(NamedTuple):
    """A score and why it is 0, if the package gave up.

    Attributes:
        f: F measure in [0, 1].
        failure: None; `empty` (a text of nothing but full stops); or `recursion` (two sentences too long for
            the package's recursion).
    """

    f: float
    failure: str | None = None


# A score and its diagnostics ask for the same pair, and a long summary takes the package 0.2 seconds.
@lru_cache(maxsize=16)
def rouge_l(prediction: str, reference: str) -> RougeL:
    """Return ROUGE-L F of the package `rouge`, 0 where the package raises, as the official code has it.

    The package counts different words only, so a repetition loop costs next to nothing: read it beside
    `inertia.benchmarks.text_metrics.rouge_l_f`.

    Source: LongBench `metrics.py` with rouge 1.0.1.

    Deviations: only the errors known of that package count as 0, any other is raised. The computation runs on
    a stack of its own under Python's default recursion limit, so that the score depends on the two texts
    alone and not on who asks.
    """
    with ThreadPoolExecutor(max_workers=1) as fresh_stack:
        return fresh_stack.submit(_rouge_l, prediction, reference).result()


def _rouge_l(prediction: str, reference: str) -> RougeL:
    from rouge import Rouge

    limit = sys.getrecursionlimit()
    try:
        if limit != _RECURSION_LIMIT:
            sys.setrecursionlimit(_RECURSION_LIMIT)
        scores = Rouge(metrics=["rouge-l"]).get_scores([prediction], [reference], avg=True)
    except RecursionError:
        return RougeL(0.0, "recursion")
    except ValueError:
        return RougeL(0.0, "empty")
    finally:
        if limit != _RECURSION_LIMIT:
            sys.setrecursionlimit(limit)
    return RougeL(scores["rouge-l"]["f"])
