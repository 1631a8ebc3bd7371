"""Statistics of the boards: Student-t intervals, paired tests with Holm's rule, ranks with bootstrap intervals."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from fcilbench.boards.model import Estimate, MeanRank, Pair, Rank

CONFIDENCE = 0.95
_ROUNDING = 1e-12
"""Largest difference, relative to the values, that can come from the order of a sum."""
LEAST_TESTED = 5
"""With fewer seeds in common no test is made: it could not tell methods apart."""
LEAST_SEEDS = 3
"""With fewer seeds in common there is no interval of ranks either."""
_RESAMPLES = 500
_ENUMERATED = 256
"""Up to this number (4 seeds) every resample is taken once, so that the interval is exact."""


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
    # An accuracy is a sum in the order of the tasks, which the seed decides: .7991 may be .7990999999999999.
    alike = not numbers or max(numbers) - min(numbers) <= _ROUNDING * max(1.0, *map(abs, numbers))
    half_width = None
    if mean is not None and not alike:
        quantile = float(stdtrit(n - 1, 0.5 + CONFIDENCE / 2))  # of Student's t
        deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in numbers) / (n - 1))
        half_width = quantile * deviation / math.sqrt(n)
    return Estimate(mean=mean, half_width=half_width, n=n, values=defined, paper=paper)


def paired_p(differences: Any) -> Any:
    """Returns the two-sided p values `[k]` of paired t tests, from the differences `[k, n]` over n seeds.

    Differences that are alike up to rounding (0.1 + 0.2 - 0.3 is 5.6e-17) have no spread: p is then 1 if they are 0,
    and 0 if they are not.
    """
    import numpy as np
    from scipy.special import stdtr

    found = np.asarray(differences, dtype=np.float64)
    n, mean = found.shape[1], found.mean(axis=1)
    alike = np.ptp(found, axis=1) <= _ROUNDING
    spread = np.where(alike, 1.0, found.std(axis=1, ddof=1)) / math.sqrt(n)
    return np.where(alike, np.abs(mean) <= _ROUNDING, 2 * stdtr(n - 1, -np.abs(mean / spread)))


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
    """Tests every pair of methods over their common seeds, with Holm's correction over all pairs."""
    import numpy as np

    values, names = np.array(list(aligned.values())), list(aligned)
    one, other = np.triu_indices(len(names), k=1)
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

    A method's rank is 1 plus the number of methods that beat it with a Holm-corrected p below 0.05. Its interval holds
    the places of its mean in 95 % of the resamples of the seeds. With fewer than `LEAST_TESTED` common seeds there are
    intervals only; with fewer than `LEAST_SEEDS`, or of one method, there is nothing. `samples` has the value of each
    seed, by method.
    """
    seeds, aligned = align(samples)
    if len(samples) < 2 or len(seeds) < LEAST_SEEDS:
        return {}, ()
    tested = len(seeds) >= LEAST_TESTED
    tests = compare(aligned, higher=higher) if tested else ()
    lost = {(pair.first, pair.second) for pair in tests if pair.p < 1 - CONFIDENCE}
    means = {name: statistics.fmean(values) for name, values in aligned.items()}
    best = (max if higher else min)(means, key=lambda name: means[name])
    intervals = place_intervals(list(aligned.values()), higher=higher)
    found = {}
    for name, (low, high) in zip(aligned, intervals, strict=True):
        found[name] = Rank(
            rank=1 + sum(loser == name for _, loser in lost) if tested else None,
            of=len(aligned),
            low=low,
            high=high,
            best=abs(means[name] - means[best]) <= _ROUNDING,
            tied=(best, name) not in lost if tested else low == 1,
        )
    return found, tests


@lru_cache
def _resamples(n: int) -> Any:
    """Returns the weights `[n, B]` of n seeds in each resample: all n ** n of them, or `_RESAMPLES` random ones."""
    import numpy as np

    if n**n <= _ENUMERATED:
        drawn = np.array(list(itertools.product(range(n), repeat=n)))
    else:
        drawn = np.random.default_rng(0).integers(n, size=(_RESAMPLES, n))
    return np.stack([(drawn == seed).sum(axis=1) / n for seed in range(n)])


def _places(values: Any, *, higher: bool) -> Any:
    """Returns the places `[m, B]` of m methods by columns of values; equal ones share the mean of their places."""
    import numpy as np

    gains = (values[:, None] - values[None]) * (-1 if higher else 1)  # above 0 where the second method is better
    rounding = _ROUNDING * max(1.0, float(np.abs(values).max(initial=0.0)))
    return 1 + (gains > rounding).sum(axis=1) + ((np.abs(gains) <= rounding).sum(axis=1) - 1) / 2


def place_intervals(values: Sequence[Sequence[float]], *, higher: bool) -> list[tuple[int, int]]:
    """Returns the best and the worst place of each method's mean in 95 % of the resamples of the seeds."""
    import numpy as np

    places = np.sort(_places(np.array(values) @ _resamples(len(values[0])), higher=higher), axis=1)
    cut = int((1 - CONFIDENCE) / 2 * places.shape[1])
    return [(math.floor(row[cut]), math.ceil(row[-1 - cut])) for row in places]


def mean_ranks(blocks: Sequence[Mapping[str, Sequence[float]]], *, higher: bool) -> tuple[MeanRank, ...]:
    """Returns the mean place of each method over blocks, best first.

    The interval is a bootstrap over blocks and, within each block, over its seeds. A block has the values of the same
    methods as the others, over the block's common seeds.
    """
    import numpy as np

    names, random = list(blocks[0]), np.random.default_rng(0)
    own, drawn = [], []
    for block in blocks:
        values = np.array([block[name] for name in names])
        seeds = random.integers(values.shape[1], size=(_RESAMPLES, values.shape[1]))
        own.append(_places(values.mean(axis=1, keepdims=True), higher=higher)[:, 0])
        drawn.append(_places(values[:, seeds].mean(axis=2), higher=higher).astype(np.float32))
    chosen = random.integers(len(blocks), size=(len(blocks), _RESAMPLES))
    columns = random.integers(_RESAMPLES, size=chosen.shape)  # a block that is drawn twice has its seeds drawn twice
    resampled = np.stack(drawn)[chosen, :, columns].mean(axis=0)  # [B, m]
    low, high = np.quantile(resampled, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=0)
    means = np.mean(own, axis=0)
    return tuple(
        MeanRank(aggregator=names[i], mean=float(means[i]), low=float(low[i]), high=float(high[i]))
        for i in sorted(range(len(names)), key=lambda i: (means[i], names[i]))
    )


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
