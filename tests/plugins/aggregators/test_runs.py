"""Real rounds of methods with other options: resumes on clients with few samples, and settings that leave FedAvg."""

import pytest
import torch

from fcilbench.plugins.aggregators.ccvr import Ccvr
from fcilbench.plugins.aggregators.ewc import Ewc
from fcilbench.plugins.aggregators.fedavg import FedAvg
from fcilbench.plugins.aggregators.fedproto import FedProto
from fcilbench.plugins.aggregators.fot import Fot
from fcilbench.plugins.aggregators.lwf import Lwf
from fcilbench.plugins.aggregators.regmean import RegMean
from fcilbench.plugins.aggregators.ridge import Ridge
from fcilbench.plugins.aggregators.sum import Sum
from fcilbench.plugins.aggregators.target import Target
from fcilbench.spec.protocol import Partition

FULL = {"storage": "int8", "trim": "tensor", "max_basis": 2, "max_clients": 1}
CASES = {
    "ccvr-original": (Ccvr, {"preset": "original"}, 4),
    "ewc-original": (Ewc, {"preset": "original"}, 5),
    "fedproto-original": (FedProto, {"preset": "original"}, 3),
    "fot-original": (Fot, {"preset": "original"}, 5),
    "lwf-original": (Lwf, {"preset": "original"}, 4),
    "regmean-original": (RegMean, {"preset": "original"}, 2),
    "ridge-projection": (Ridge, {"random_features": 40, "ridge": 0.1}, 2),
    "sum-full": (Sum, FULL, 5),
    "sum-topk": (Sum, {"storage": "topk", "head": "sum"}, 5),
}
"""Method, options, and the round after which the run is interrupted; the kit does the same with default options."""


@pytest.mark.parametrize("name", CASES)
def test_an_interrupted_run_ends_bit_equal(play, norm_backbone, name):
    """On uneven tasks with clients that have no sample or one class, and a network with buffers."""
    method, options, stop = CASES[name]
    sparse = {"partition": Partition(kind="dirichlet", value=0.05, min_samples=0), "backbone": norm_backbone}
    whole = play(method(method.Params(**options)), **sparse)
    resumed = play(method(method.Params(**options)), stop, **sparse)
    assert resumed.model_digest == whole.model_digest
    assert resumed.accuracy == whole.accuracy
    assert (resumed.cost.bytes_up, resumed.cost.bytes_down) == (whole.cost.bytes_up, whole.cost.bytes_down)
    assert whole.metrics["faa/oracle"].value > 0.35  # chance: 1/3, 1, 1/4, 1/2


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        (Ccvr(Ccvr.Params(samples=0)), {}),
        (Ewc(Ewc.Params(lambda_ewc=0.0)), {}),
        (FedProto(FedProto.Params(lambda_proto=0.0)), {}),
        (FedProto(FedProto.Params(lambda_proto=5.0)), {"rounds": 1}),  # a task's first round knows no prototype
        (Fot(Fot.Params(eps=0.0)), {}),
        (Fot(), {"tasks": (10,)}),
        (Lwf(Lwf.Params(alpha=0.0)), {}),
        (Lwf(), {"tasks": (10,)}),
        (Target(Target.Params(lambda_kl=0.0)), {}),
        (Target(), {"tasks": (10,)}),
    ],
)
def test_settings_that_leave_fedavg_bit_for_bit(play, method, changes):
    play(method, **changes)
    own = play.vector
    play(FedAvg(), **changes)
    assert torch.equal(own, play.vector)
