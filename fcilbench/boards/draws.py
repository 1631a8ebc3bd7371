"""What tuning bought: the best validation score after each draw, of which the first has the suite's own values.

A study of fewer trials is the beginning of a longer one, so the best score after k draws is what a budget of k buys.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

from fcilbench.boards.records import ResolvedSuite, place_of, tuned_rules
from fcilbench.spec.row import Row


def best_so_far(row: Row, suites: Mapping[str, ResolvedSuite]) -> tuple[float, ...]:
    """Returns the best score after each draw of the study that gave a row its values (0 to 1).

    It is empty if there is no such study, it has a lock file that does not list draws, or its first draw failed.
    """
    study = rules[-1].study if (rules := tuned_rules(row, suites)) else None
    draws = study.draws if study else ()
    if not draws or draws[0].score is None:
        return ()
    return tuple(accumulate((-math.inf if each.score is None else each.score for each in draws), max))


def bought_notes(rows: Iterable[Row], suites: Mapping[str, ResolvedSuite]) -> list[str]:
    """Returns a note on each scenario whose rows tell their draws: the points from the own values to the best draw."""
    gains: dict[str, dict[str, float]] = defaultdict(dict)
    for row in rows:
        if best := best_so_far(row, suites):
            gains[" / ".join(place_of(row))][str(row.coords.get("aggregator", ""))] = 100 * (best[-1] - best[0])
    return [_note(place, own) for place, own in gains.items()]


def _note(place: str, gains: Mapping[str, float]) -> str:
    most = max(gains, key=lambda name: gains[name])
    middle = f"{statistics.median(gains.values()):.1f} in the median of {len(gains)} methods, at most "
    return (
        f"{place}: what tuning bought, in points of the validation score that chose the values, from the suite's own "
        f"values to the best draw: {middle if len(gains) > 1 else ''}{gains[most]:.1f} ({most})"
    )


def order_kept(few: Sequence[float], many: Sequence[float]) -> float | None:
    """Returns Kendall's tau-b of the scores of the same methods at two budgets; `None` if either has no order.

    1 says that the larger budget leaves their order as it is, 0 that it tells nothing of it, -1 that it reverses it.
    """
    from scipy.stats import kendalltau

    tau = float(kendalltau(few, many).statistic) if len(few) > 1 else math.nan
    return None if math.isnan(tau) else tau
