"""How much the gradients of a client's local steps weigh in what it has moved, for solvers that are linear in them."""

from __future__ import annotations

from collections.abc import Sequence


def gradient_weight(rates: Sequence[float], momentum: float = 0.0) -> float:
    """Returns the total weight of the gradients g_0 .. g_(K-1) in the move theta_r - theta of K steps of SGD.

    With u_s = rho u_(s-1) + g_s and theta_(s+1) = theta_s - lr_s u_s the move is linear in the gradients, and their
    weights add up to `sum_s lr_s (1 - rho^(s+1)) / (1 - rho)`: the sum of the rates without momentum. The move divided
    by it is a weighted mean of the gradients.

    Example:
        >>> round(gradient_weight([0.1, 0.1], momentum=0.9), 12)
        0.29
    """
    total = velocity = 0.0
    for rate in rates:
        velocity = momentum * velocity + 1.0
        total += rate * velocity
    return total
