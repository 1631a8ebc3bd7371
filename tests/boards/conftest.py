"""The rows behind the golden boards. Their figures, worked out by hand:

fedavg/none    FAA 0.5 0.6 0.7: mean 0.6, s 0.1, 4.302653 * 0.1 / sqrt(3) = 0.248414
               AIA 0.6 0.7 0.8: mean 0.7, the same interval
               forgetting 0.1 0.1 0.4: mean 0.2, s = sqrt(0.06 / 2) = 0.1 sqrt(3), 4.302653 * 0.1 = 0.430265
fedavg/oracle  FAA 0.80 0.85 0.90: mean 0.85, s 0.05, half width 0.124207; AIA alike; forgetting undefined
sum            seed 0 ok, seed 1 failed, seed 2 out of memory: figures of one seed, without an interval
joint          under 5 rounds instead of 2: a block of its own
"""

from __future__ import annotations

import pytest

from fcilbench.spec.row import Row

METRICS = ("faa/none", "aia/none", "forgetting/none", "faa/oracle", "aia/oracle", "forgetting/oracle")


@pytest.fixture
def golden_rows(make_cell, make_row) -> list[Row]:
    def metrics(*values: float | None) -> dict[str, float | None]:
        return dict(zip(METRICS, values, strict=True))

    def summed(seed: int):
        return make_cell("sum", seed, lambda_s=0.4, protocol={"lr": 1e-4})

    return [
        make_row(make_cell("fedavg", 0), metrics(0.5, 0.6, 0.1, 0.80, 0.80, None)),
        make_row(summed(1), "failed"),
        make_row(make_cell("fedavg", 1), metrics(0.6, 0.7, 0.1, 0.85, 0.85, None)),
        make_row(make_cell("joint", 0, protocol={"rounds": 5}), metrics(0.9, 0.95, 0.0, 0.92, 0.96, -0.01)),
        make_row(summed(0), metrics(0.75, 0.8, -0.05, 0.9, 0.95, 0.0), warnings=["2 negative coefficients"]),
        make_row(make_cell("fedavg", 2), metrics(0.7, 0.8, 0.4, 0.90, 0.90, None)),
        make_row(summed(2), "oom"),
    ]
