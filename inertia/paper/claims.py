"""The paper's claims, each a rule over a tidy frame; the rules were written before the data."""

from __future__ import annotations

from dataclasses import replace

from inertia.paper.table05 import TABLE05
from inertia.reports.claims import is_positive
from inertia.reports.declaration import Claim, Comparison

_MEAN = {"task": "mean", "benchmark": "ruler", "quantity": "difference"}

CLAIMS = (
    Claim("C1", "On RULER, coupled EMA at alpha 0.8 beats alpha 0, the last layer alone.", TABLE05, _MEAN, is_positive),
    Claim(
        "C6",
        "On RULER, a larger alpha helps further: 0.95 beats 0.8.",
        replace(
            TABLE05,
            comparisons=(Comparison({"method": "inertiakv", "alpha": 0.8}, {"method": "inertiakv", "alpha": 0.95}),),
        ),
        _MEAN,
        is_positive,
    ),
)
