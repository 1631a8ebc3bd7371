"""FedDyn: paths on quadratics by hand and against a plain second implementation, its state over tasks, its bytes."""

from pathlib import Path
from runpy import run_path

import pytest
import torch

from fcilbench.plugins.aggregators.fedavg import FedAvg
from fcilbench.plugins.aggregators.feddyn import FedDyn
from fcilbench.plugins.aggregators.fedprox import FedProx
from fcilbench.spec.protocol import Partition, Seeds

quadratics = run_path(str(Path(__file__).with_name("quadratics.py")))
train, TWO = quadratics["train"], quadratics["TWO"]
FOUR = ((1.0, 1.0), (3.0, -1.0), (0.5, 4.0), (2.0, -2.0))


def feddyn(**params):
    return FedDyn(FedDyn.Params(**params))


def present(found):
    return [k for k in found if isinstance(k, int)]


def test_three_rounds_by_hand(make_experiment):
    path = train(make_experiment, FedDyn, {"alpha": 0.5})
    assert [each["theta"] for each in path] == pytest.approx([-0.31, -0.540475, -0.647990188], abs=1e-6)
    assert [each["server"]["correction"] for each in path] == pytest.approx(
        [-0.155, -0.1927375, -0.150126344], abs=1e-6
    )
    assert [each[0]["h"] for each in path] == pytest.approx([0.185, 0.4102375, 0.657278406], abs=1e-6)
    assert [each[1]["h"] for each in path] == pytest.approx([-0.495, -0.7957125, -0.957531094], abs=1e-6)


def test_one_client_then_the_other_by_hand(make_experiment):
    """The seed draws client 0 and then client 1; H is a mean over both in either round."""
    changes = {"participation": 0.5, "rounds": 2, "seeds": Seeds(base=0)}
    path = train(make_experiment, FedDyn, {"alpha": 0.5}, **changes)
    assert [present(each) for each in path] == [[0], [1]]
    assert [each["theta"] for each in path] == pytest.approx([0.2775, -0.57854375], abs=1e-6)
    assert [each["server"]["correction"] for each in path] == pytest.approx([0.0925, -0.22368125], abs=1e-6)


@pytest.mark.parametrize(
    ("params", "samples", "limit"),
    [
        ({"alpha": 0.5}, (1, 1), -0.5),
        ({"alpha": 0.5}, (1, 3), -0.5),
        ({"alpha": 0.5, "weighting": "samples"}, (1, 3), -0.8),
    ],
)
def test_limits_of_ten_local_steps(make_experiment, params, samples, limit):
    """The minimum of the plain sum, or of f_1 / 4 + 3 f_2 / 4; there h_k is minus its gradient over alpha_k."""
    path = train(make_experiment, FedDyn, params, samples=samples, steps=10, rounds=40)
    assert path[-1]["theta"] == pytest.approx(limit, abs=1e-4)
    means = {0: limit - 1.0, 1: 3 * (limit + 1.0)}
    share = {0: 0.5 / samples[0], 1: 0.5 / samples[1]} if "weighting" in params else {0: 0.25, 1: 0.25}
    strength = {
        k: params["alpha"] * sum(samples) * share[k] if "weighting" in params else params["alpha"] for k in means
    }
    assert {k: path[-1][k]["h"] for k in means} == pytest.approx(
        {k: -means[k] / strength[k] for k in means}, rel=2e-3, abs=1e-2
    )


def plain(path, curves, alpha, steps, samples=None):
    """A plain implementation; who takes part is read off the run `path`."""
    theta, correction, h, known = 0.0, 0.0, [0.0] * len(curves), {}
    for found in path:
        moved = {}
        for k in present(found):
            a, m = curves[k]
            strength = alpha * sum(known.values()) / len(known) / samples[k] if samples and known else alpha
            y = theta
            for _ in range(steps[k]):
                y -= 0.1 * (a * (y - m) + strength * (y - theta + h[k]))
            moved[k] = y - theta
        for k, move in moved.items():
            h[k] += move
        known |= {k: samples[k] for k in moved} if samples else {}
        correction += sum(moved.values()) / len(curves)
        theta += sum(moved.values()) / len(moved) + correction
        yield theta, correction, list(h)


def test_a_small_alpha_takes_hundreds_of_rounds_to_the_same_limit(make_experiment):
    """The engine follows the plain implementation, which ends at -1/2; h_k = 1.5 / alpha grows by Delta_k a round."""
    both = [{0: {}, 1: {}}] * 2000
    path, expected = train(make_experiment, FedDyn, steps=10, rounds=10), list(plain(both, TWO, 0.01, [10, 10]))
    assert [each["theta"] for each in path] == pytest.approx([theta for theta, _, _ in expected[:10]], abs=1e-5)
    assert expected[-1][0] == pytest.approx(-0.5, abs=2e-5)


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_uneven_clients_some_of_which_rest(make_experiment, weighting):
    """Clients of 25, 75, 50 and 50 samples take one, three, two and two steps, twice; H is the mean of all h_k."""
    samples = (25, 75, 50, 50)
    params = {"alpha": 0.3, "weighting": weighting}
    changes = {"rounds": 8, "participation": 0.5, "batch_size": 25, "curves": FOUR}
    path = train(make_experiment, FedDyn, params, samples=(1, 3, 2, 2), **changes)
    assert len({tuple(present(found)) for found in path}) > 2
    known = dict.fromkeys(range(4), 0.0)
    expected = plain(path, FOUR, 0.3, [2, 6, 4, 4], samples if weighting == "samples" else None)
    for found, (theta, correction, h) in zip(path, expected, strict=True):
        known |= {k: found[k]["h"] for k in present(found)}
        assert found["theta"] == pytest.approx(theta, abs=5e-5)
        assert found["server"]["correction"] == pytest.approx(correction, abs=5e-5)
        assert list(known.values()) == pytest.approx(h, abs=1e-4)
        assert found["server"]["correction"] == pytest.approx(sum(known.values()) / 4, abs=1e-5)


def test_without_its_state_it_is_fedprox_bit_for_bit(play):
    """Two clients of 100 samples each, so that plain means weigh by samples."""
    equal = {"clients": 2, "partition": Partition(kind="iid"), "tasks": (10,), "local_epochs": 2}
    play(feddyn(alpha=0.5, dynamic=False), **equal)
    own = play.vector
    play(FedProx(FedProx.Params(mu=0.5)), **equal)
    assert torch.equal(own, play.vector)
    play(feddyn(alpha=0.5), **equal)
    assert not torch.equal(own, play.vector)


def test_without_state_and_weight_it_is_the_plain_mean_bit_for_bit(play):
    play(feddyn(alpha=0.0, dynamic=False))
    own = play.vector
    play(FedAvg(FedAvg.Params(weighting="uniform")))
    assert torch.equal(own, play.vector)


def test_how_strong_the_correction_is_is_logged(make_experiment):
    """Of both clients in a task's first round H is the mean update itself."""
    logs = []

    class Watched(FedDyn):
        def aggregate(self, updates, server):
            super().aggregate(updates, server)
            logs.append(server.logs["feddyn/correction"])

    path = train(make_experiment, Watched, {"alpha": 0.5}, rounds=2)
    second = path[1]["theta"] - path[0]["theta"] - path[1]["server"]["correction"]
    assert logs == pytest.approx([1.0, abs(path[1]["server"]["correction"] / second)], rel=1e-4)


@pytest.mark.parametrize("memory", ["task", "carry"])
def test_head_rows_of_earlier_tasks_do_not_move(play, memory):
    kept = {}

    class Watched(FedDyn):
        def begin_task(self, server):
            super().begin_task(server)
            kept["correction"] = server.state["correction"].clone()

        def end_task(self, server, statistics):
            kept[server.task.index] = server.vector[server.layout.head].clone()

    play(Watched(FedDyn.Params(memory=memory)), tasks=(4, 6))
    old, new = [torch.arange(start * 16, end * 16) for start, end in ((0, 4), (4, 10))]
    assert torch.equal(kept[0][old], kept[1][old])
    assert torch.equal(kept[0][160:164], kept[1][160:164])
    assert not torch.equal(kept[0][new], kept[1][new])
    assert not bool(kept["correction"][64 * 16 + 16 :].any())
    assert bool(kept["correction"].any()) == (memory == "carry")


@pytest.mark.parametrize(("weighting", "scalars"), [("uniform", 0), ("samples", 1)])
def test_bytes_by_hand(play, weighting, scalars):
    """As FedAvg; by samples a float64 down in each of four second rounds. A client keeps h_k, and n_k as a float64."""
    cost = play(feddyn(weighting=weighting), partition=Partition(kind="iid"), tasks=(3, 2, 3, 2)).cost
    assert cost.bytes_up == 24 * 4 * 1210
    assert cost.bytes_down == 24 * 4 * 1210 + scalars * 3 * 4 * 8
    assert cost.client_state == 4 * 1210 + scalars * 8


def test_buffers_are_averaged_by_samples(play, norm_backbone):
    gaps = []

    class Watched(FedDyn):
        def aggregate(self, updates, server):
            buffers, before = updates.layout.buffers, server.vector.clone()
            super().aggregate(updates, server)
            gaps.append((server.vector - before - updates.mean())[buffers].abs().max())

    play(Watched(), backbone=norm_backbone)
    assert max(gaps) < 1e-6


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_an_interrupted_run_ends_bit_equal(play, norm_backbone, weighting):
    sparse = {"partition": Partition(kind="dirichlet", value=0.05, min_samples=0), "backbone": norm_backbone}
    method = {"memory": "carry", "weighting": weighting}
    whole, resumed = (play(feddyn(**method), stop, **sparse) for stop in (None, 6))
    assert resumed.model_digest == whole.model_digest
    assert resumed.cost.bytes_down == whole.cost.bytes_down
