"""Clients in stacks: the same round up to rounding, for every method that trains, and plain where it must be."""

import pytest
import torch

from fcilbench.api.aggregator import Aggregator
from fcilbench.engine.meters import Stopwatch
from fcilbench.federation.build import build
from fcilbench.federation.round import Traffic, run_round, update_rows
from fcilbench.federation.run import run_experiment
from fcilbench.federation.turn import Turn
from fcilbench.plugins.aggregators.fedavg import FedAvg
from fcilbench.plugins.aggregators.sum import Sum
from fcilbench.spec.protocol import Runtime

TOLERANCE = 5e-5
"""Largest difference of a weight after two rounds of some ten steps at learning rate 1e-2."""


def two_rounds(experiment):
    federation = build(experiment)
    experiment.aggregator.begin(federation.server)
    phase = federation.schedule.phases[0]
    federation.server.enter(phase.task, phase.after)
    traffic, rows = Traffic(), update_rows(federation)
    losses = [
        run_round(federation, Turn(phase, number), rows, Stopwatch(torch.device("cpu")), traffic) for number in (0, 1)
    ]
    return federation.server, losses, (traffic.up, traffic.down)


@pytest.mark.parametrize("stack", [2, 3, 8])
@pytest.mark.parametrize("method", [FedAvg, Sum])
def test_stacked_rounds_equal_rounds_one_by_one(make_experiment, method, stack):
    """Two rounds with five clients; a stack of 2 leaves one over, who is trained alone."""
    plain, losses, traffic = two_rounds(make_experiment(method(), clients=5))
    stacked, same_losses, same_traffic = two_rounds(make_experiment(method(), clients=5, runtime=Runtime(stack=stack)))
    assert stacked.warnings == plain.warnings
    assert float((stacked.vector - plain.vector).abs().max()) < TOLERANCE
    assert not torch.equal(stacked.vector, plain.vector)  # it was another way
    assert same_losses == pytest.approx(losses, rel=1e-4)
    assert same_traffic == traffic


def test_what_cannot_be_stacked_runs_plainly_and_says_so(make_experiment, norm_backbone, tmp_path):
    folders = [tmp_path / name for name in ("plain", "tried")]
    for folder in folders:
        folder.mkdir()
    plain = run_experiment(make_experiment(backbone=norm_backbone), folders[0])
    tried = run_experiment(make_experiment(backbone=norm_backbone, runtime=Runtime(stack=4)), folders[1])
    assert tried.accuracy == plain.accuracy
    assert "clients are not stacked: the model has buffers that change in training" in tried.warnings


class Branching(Aggregator):
    def loss(self, net, batch, context):
        loss = super().loss(net, batch, context)
        return loss * 2 if loss.item() > 100 else loss


def test_a_loss_that_branches_on_values_gives_the_bits_of_the_plain_run(make_experiment):
    plain, _, _ = two_rounds(make_experiment(Branching()))
    tried, _, _ = two_rounds(make_experiment(Branching(), runtime=Runtime(stack=3)))
    assert torch.equal(tried.vector, plain.vector)
    assert [text for text in tried.warnings if text.startswith("clients are not stacked")]
