"""Any experiment measured token by token: how far each policy is from the full cache."""

from __future__ import annotations

from inertia.paper.words import ORDER, TITLES
from inertia.reports.declaration import Quantity, Table

_HINT = "run `python -m inertia -m experiment=EXPERIMENT benchmark.metrics=[official,fidelity]` first"
_SHORT = "answers of the full cache have at most two tokens and do not count"

KL = Quantity(
    "fidelity_kl", "KL", "metrics.fidelity_kl", shown="{:.3g}".format, ends="{:.3g}".format, relative=True,
    absent=_SHORT, hint=_HINT,
)  # fmt: skip
AGREEMENT = Quantity(
    "fidelity_agreement", "top-1 %", "metrics.fidelity_agreement", scale=100.0, ends="{:.1f}".format, share=True,
    relative=True, absent=_SHORT, hint=_HINT,
)  # fmt: skip
NLL_RISE = Quantity(
    "reference_nll_rise", "NLL rise", "metrics.reference_nll_rise", shown="{:+.3g}".format, ends="{:+.3g}".format,
    relative=True, sign_flip=True, absent="reference answers have at most two tokens and do not count", hint=_HINT,
)  # fmt: skip


def fidelity(experiment: str) -> Table:
    """Declare the fidelity of an experiment's policies; every number is paired with the full cache by construction."""
    return Table(
        name=f"fidelity-{experiment}",
        title="{experiment}, fidelity to the full cache, {scale} scale: {backbone}",
        experiment=experiment,
        rows=("policy",),
        quantities=(KL, AGREEMENT, NLL_RISE),
        order=ORDER,
        titles=TITLES,
        same="telemetry.fidelity.followed",
        notes=(
            "Along the full cache's own greedy answer, fed token by token under every policy: KL(full cache || policy) "
            "of the next-token distributions in nats, mean per token, and the share of tokens at which both would "
            "choose the same. NLL rise: negative log-likelihood of the reference answer in nats per token, minus the "
            "full cache's.",
            "Tokens 0 and 1 are left out: every policy that acts while decoding still sees the whole prompt there. An "
            "example counts once, whatever its length; 95% intervals are over examples, within each task for the mean "
            "([-] where values that are no shares are all alike). The full cache is itself by construction.",
        ),
    )
