"""Statistics of the boards: mean with Student-t interval, paired tests over shared seeds, Holm, ranks with ties."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence

from fcilbench.boards.model import Estimate, Rank

CONFIDENCE = 0.95
_ROUNDING = 1e-12
"""Largest difference, relative to the values, that can come from the order of a sum."""
LEAST_SEEDS = 5
"""With fewer seeds in common there is no rank: the tests below could not tell methods apart."""


def estimate(values: Mapping[int, float | None]) -> Estimate:
    """Returns mean and 95 % confidence interval of one metric over seeds; `None` is undefined and left out.

    Equal values have no interval: what the varied seeds cannot influence says nothing of the spread.

    Example:
        >>> round(estimate({0: 0.5, 1: 0.6, 2: 0.7}).half_width, 6)
        0.248414
    """
    defined = {seed: value for seed, value in sorted(values.items()) if value is not None}
    numbers = list(defined.values())
    n = len(numbers)
    if n == 0:
        return Estimate(mean=None, half_width=None, n=0, values={})
    half_width = None if len(set(numbers)) == 1 else t_quantile(n - 1) * statistics.stdev(numbers) / math.sqrt(n)
    return Estimate(mean=statistics.fmean(numbers), half_width=half_width, n=n, values=defined)


def t_quantile(degrees: int) -> float:
    """Returns the two-sided 95 % quantile of Student's t, e.g. 4.302653 for 2 degrees of freedom."""
    from scipy.stats import t

    return float(t.ppf(0.5 + CONFIDENCE / 2, degrees))


def paired_p(first: Sequence[float], second: Sequence[float]) -> float:
    """Returns the two-sided p value of the paired t test of two methods, with values in the order of their seeds.

    Differences that are alike up to rounding (0.1 + 0.2 - 0.3 is 5.6e-17) have no spread: p is then 1 if they are 0,
    and 0 if they are not.
    """
    from scipy.stats import ttest_rel

    differences = [a - b for a, b in zip(first, second, strict=True)]
    rounding = _ROUNDING * max(1.0, *map(abs, first), *map(abs, second))
    if max(differences) - min(differences) <= rounding:
        return 1.0 if abs(statistics.fmean(differences)) <= rounding else 0.0
    return float(ttest_rel(first, second).pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Returns the p values adjusted by Holm's step-down rule, in the given order.

    Example:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    adjusted, worst = [0.0] * len(p_values), 0.0
    for step, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        worst = max(worst, min(1.0, (len(p_values) - step) * p_values[index]))
        adjusted[index] = worst
    return adjusted


def align(samples: Mapping[str, Mapping[int, float]]) -> tuple[list[int], dict[str, list[float]]]:
    """Returns the seeds that all methods have, sorted, and the values of each method in that order."""
    common = sorted(set.intersection(*(set(values) for values in samples.values()))) if samples else []
    return common, {name: [values[seed] for seed in common] for name, values in samples.items()}


def ranks(samples: Mapping[str, Mapping[int, float]], *, higher: bool = True) -> dict[str, Rank]:
    """Ranks methods by paired tests over their common seeds.

    A method's rank is 1 plus the number of methods that beat it with a Holm-corrected p below 0.05; methods that
    cannot be told apart share a rank. There are no ranks with fewer than two methods or `LEAST_SEEDS` common seeds.

    Args:
        samples: Per method the value of each seed.
        higher: Whether a higher value is better.
    """
    seeds, aligned = align(samples)
    if len(samples) < 2 or len(seeds) < LEAST_SEEDS:
        return {}
    pairs = list(itertools.combinations(aligned, 2))
    p_values = holm([paired_p(aligned[a], aligned[b]) for a, b in pairs])
    beaten = dict.fromkeys(aligned, 0)
    for (a, b), p in zip(pairs, p_values, strict=True):
        if p < 1 - CONFIDENCE:
            first_wins = (statistics.fmean(aligned[a]) > statistics.fmean(aligned[b])) == higher
            beaten[b if first_wins else a] += 1
    return {name: Rank(rank=1 + losses, of=len(aligned)) for name, losses in beaten.items()}
