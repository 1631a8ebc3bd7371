"""The weight of gradients in a move of SGD: by hand, and against torch's optimiser."""

import pytest
import torch

from fcilbench.vectors.local_steps import gradient_weight


def test_by_hand():
    assert gradient_weight([0.1, 0.1]) == pytest.approx(0.2)
    assert gradient_weight([0.1, 0.1], 0.9) == pytest.approx(0.29)  # 0.1 + 0.1 (1 + 0.9)
    assert gradient_weight([1.0] * 4, 0.9) == pytest.approx(9.049)
    assert gradient_weight([]) == 0.0


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_a_constant_gradient_moves_torchs_sgd_by_its_weight(momentum):
    rates, theta = [0.3, 0.1, 0.05, 0.2], torch.zeros((), dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.SGD([theta], lr=1.0, momentum=momentum)
    for rate in rates:
        optimiser.param_groups[0]["lr"] = rate
        theta.grad = torch.ones_like(theta)
        optimiser.step()
    closed = sum(lr * (1 - momentum ** (s + 1)) / (1 - momentum) for s, lr in enumerate(rates))
    assert -theta.item() == pytest.approx(gradient_weight(rates, momentum), rel=1e-12)
    assert gradient_weight(rates, momentum) == pytest.approx(closed, rel=1e-12)
