"""Intervals, paired tests and corrections: functions of their arguments.

From scipy: quantiles, and the exact binomial test behind McNemar. Own code where scipy lacks what we need: Wilson for
scores that are no counts, paired intervals, sign flips with ties, Holm; the tests compare each with scipy where they
meet, and simulate how often the intervals cover.
"""

from inertia.statistics.corrections import holm
from inertia.statistics.interval import Interval, format_interval, interval, macro_mean, wilson
from inertia.statistics.paired import PairedDifference, mcnemar, paired_difference, sign_flip

__all__ = [
    "Interval",
    "PairedDifference",
    "format_interval",
    "holm",
    "interval",
    "macro_mean",
    "mcnemar",
    "paired_difference",
    "sign_flip",
    "wilson",
]
