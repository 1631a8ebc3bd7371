"""Statistics of the boards: Student-t intervals, paired tests with Holm's rule, and the ranks that they leave open."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from fcilbench.boards.model import Column, Entry, Estimate, MeanRank, Pair, Rank

CONFIDENCE = 0.95
_ROUNDING = 1e-12
"""Largest difference, relative to the values, that can come from the order of a sum."""
LEAST_SEEDS = 3
"""With fewer seeds in common there are no tests and no ranks."""


def estimate(values: Mapping[int, float | None], paper: float | None = None) -> Estimate:
    """Returns mean and 95 % confidence interval of one metric over seeds; `None` is undefined and left out.

    Equal values have no interval: what the varied seeds cannot influence says nothing of the spread.

    Example:
        >>> round(estimate({0: 0.5, 1: 0.6, 2: 0.7}).half_width, 6)
        0.248414
    """
    from scipy.special import stdtrit

    defined = {seed: value for seed, value in sorted(values.items()) if value is not None}
    numbers = list(defined.values())
    n = len(numbers)
    mean = statistics.fmean(numbers) if numbers else None
    half_width = None
    if mean is not None and not alike(numbers):
        quantile = float(stdtrit(n - 1, 0.5 + CONFIDENCE / 2))  # of Student's t
        deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in numbers) / (n - 1))
        half_width = quantile * deviation / math.sqrt(n)
    return Estimate(mean=mean, half_width=half_width, n=n, values=defined, paper=paper)


def alike(values: Sequence[float]) -> bool:
    """Says whether values are equal up to rounding, as those of no or one value are.

    An accuracy is a sum in the order of the tasks, which the seed decides: .7991 may be .7990999999999999.
    """
    return not values or max(values) - min(values) <= _ROUNDING * max(1.0, *map(abs, values))


def difference(one: Estimate, other: Estimate) -> Estimate:
    """Returns the paired difference of two methods over the seeds that both have, with its interval.

    Example:
        >>> difference(estimate({0: 0.5, 1: 0.75}), estimate({1: 0.25, 2: 0.5})).values
        {1: 0.5}
    """
    seeds, values = align({"one": one.values, "other": other.values})
    pairs = zip(seeds, values["one"], values["other"], strict=True)
    return estimate({seed: first - second for seed, first, second in pairs})


def paired_p(differences: Any) -> Any:
    """Returns the two-sided p values `[k]` of paired t tests, from the differences `[k, n]` over n seeds.

    Differences that are alike up to rounding (0.1 + 0.2 - 0.3 is 5.6e-17) have no spread: p is then 1 if they are 0,
    and 0 if they are not.
    """
    import numpy as np
    from scipy.special import stdtr

    found = np.asarray(differences, dtype=np.float64)
    n, mean = found.shape[1], found.mean(axis=1)
    equal = np.ptp(found, axis=1) <= _ROUNDING
    spread = np.where(equal, 1.0, found.std(axis=1, ddof=1)) / math.sqrt(n)
    return np.where(equal, np.abs(mean) <= _ROUNDING, 2 * stdtr(n - 1, -np.abs(mean / spread)))


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


def compare(aligned: Mapping[str, Sequence[float]], *, higher: bool) -> tuple[Pair, ...]:
    """Tests every pair of methods over their common seeds, with Holm's correction over all pairs.

    A method that is equal in all seeds is a constant, against which the seeds of another one are tested. Of two
    constants the seeds say nothing, so there is no test between them.
    """
    import numpy as np

    values, names = np.array(list(aligned.values())), list(aligned)
    constant = np.array([alike(own) for own in aligned.values()])
    one, other = np.triu_indices(len(names), k=1)
    tested = ~(constant[one] & constant[other])
    one, other = one[tested], other[tested]
    if not len(one):
        return ()
    differences = values[one] - values[other]
    # A large unit (bytes) must not turn rounding into a difference.
    p_values = holm(paired_p(differences / max(1.0, float(np.abs(values).max()))).tolist())
    found = []
    for a, b, gain, p in zip(one.tolist(), other.tolist(), differences.mean(axis=1).tolist(), p_values, strict=True):
        first, second = (a, b) if (gain >= 0) == higher else (b, a)
        found.append(Pair(names[first], names[second], gain if first == a else -gain, p))
    return tuple(found)


def ranks(
    samples: Mapping[str, Mapping[int, float]], *, higher: bool = True
) -> tuple[dict[str, Rank], tuple[Pair, ...]]:
    """Ranks methods over their common seeds; returns ranks and the tests behind them.

    The rank of a method is the range of places that the tests leave open: from 1 plus the number of methods that are
    significantly better (Holm-corrected p below 0.05) to the number of all but those that are significantly worse. With
    fewer than `LEAST_SEEDS` common seeds, of one method, or of methods that are all equal in all seeds, there is
    nothing. `samples` has the value of each seed, by method.
    """
    seeds, aligned = align(samples)
    if len(samples) < 2 or len(seeds) < LEAST_SEEDS:
        return {}, ()
    tests = compare(aligned, higher=higher)
    if not tests:
        return {}, ()
    apart = [(pair.first, pair.second) for pair in tests if pair.p < 1 - CONFIDENCE]
    wins, losses = Counter(winner for winner, _ in apart), Counter(loser for _, loser in apart)
    means = {name: statistics.fmean(values) for name, values in aligned.items()}
    best = (max if higher else min)(means, key=lambda name: means[name])
    found = {
        name: Rank(
            low=1 + losses[name],
            high=len(means) - wins[name],
            of=len(means),
            best=abs(mean - means[best]) <= _ROUNDING,
            tied=(best, name) not in apart,
        )
        for name, mean in means.items()
    }
    return found, tests


def rank_entries(entries: Iterable[Entry], key: str, column: Column) -> tuple[dict[str, Rank], tuple[Pair, ...]]:
    """Ranks the methods of a scenario in one column of a group, over the seeds that they share; see `ranks`.

    The reference does not compete, and a method with fewer than `LEAST_SEEDS` seeds would leave the others too few.
    """
    found = {each.aggregator: each.estimates[key][column.metric] for each in entries if not each.reference}
    enough = {name: each.values for name, each in found.items() if each.n >= LEAST_SEEDS}
    return ranks(enough, higher=column.better == "higher")


def mean_ranks(blocks: Sequence[Mapping[str, float]], *, higher: bool) -> tuple[MeanRank, ...]:
    """Returns the mean place over blocks of each method, best first; equal values share the mean of their places.

    A block has a value of each method.
    """
    import numpy as np
    from scipy.stats import rankdata

    names = list(blocks[0])
    values = np.array([[block[name] for name in names] for block in blocks])
    # The order of a sum must not decide a place.
    rounded = np.round(values / max(1.0, float(np.abs(values).max())), 12)
    means = rankdata(-rounded if higher else rounded, axis=1).mean(axis=0).tolist()
    found = [MeanRank(aggregator=name, mean=mean) for name, mean in zip(names, means, strict=True)]
    return tuple(sorted(found, key=lambda each: (each.mean, each.aggregator)))


@lru_cache
def critical_difference(methods: int, blocks: int) -> float:
    """Returns Nemenyi's critical difference of mean ranks at 5 % (Demšar 2006): q sqrt(k (k + 1) / (6 N)).

    Example:
        >>> round(critical_difference(3, 10), 3)
        1.048
    """
    from scipy.stats import studentized_range

    quantile = studentized_range.ppf(CONFIDENCE, methods, math.inf) / math.sqrt(2)
    return float(quantile * math.sqrt(methods * (methods + 1) / (6 * blocks)))


def tie_groups(ranked: Sequence[tuple[str, float]], difference: float) -> list[list[str]]:
    """Returns the largest groups of neighbours whose mean ranks differ by at most `difference`; none of one method.

    `ranked` are methods with their mean ranks, best first.
    """
    groups: list[list[str]] = []
    for start, (_, rank) in enumerate(ranked):
        group = [name for name, other in ranked[start:] if other - rank <= difference]
        if len(group) > 1 and not (groups and group[-1] in groups[-1]):
            groups.append(group)
    return groups
