"""SCAFFOLD: paths on quadratics by hand and against a plain second implementation, its state over tasks, its bytes."""

from pathlib import Path
from runpy import run_path

import pytest
import torch

from fcilbench.federation.experiment import Unsupported
from fcilbench.plugins.aggregators.fedavg import FedAvg
from fcilbench.plugins.aggregators.scaffold import Scaffold
from fcilbench.plugins.stressors.clients import Straggler
from fcilbench.spec.protocol import Partition

quadratics = run_path(str(Path(__file__).with_name("quadratics.py")))
train, TWO = quadratics["train"], quadratics["TWO"]
FOUR = ((1.0, 1.0), (3.0, -1.0), (0.5, 4.0), (2.0, -2.0))
SGD = {"optimizer": "sgd", "lr": 0.1}


def scaffold(**params):
    return Scaffold(Scaffold.Params(**params))


def column(path, name):
    return [each["theta"] if name == "theta" else each[name]["control"] for each in path]


def controls(path):
    """The server's control variate after each round, of clients that all count."""
    return [each["server"]["controls"] / sum(each["server"]["weights"].values()) for each in path]


@pytest.mark.parametrize("preset", ["default", "original"])
def test_option_2_by_hand(make_experiment, preset):
    path = train(make_experiment, Scaffold, {"preset": preset})
    assert column(path, "theta") == pytest.approx([-0.16, -0.2815, -0.360945], abs=1e-6)
    assert controls(path) == pytest.approx([0.8, 0.6075, 0.397225], abs=1e-5)
    assert column(path, 0) == pytest.approx([-0.95, -1.1895, -1.307275], abs=1e-5)
    assert column(path, 1) == pytest.approx([2.55, 2.4045, 2.101725], abs=1e-5)


def test_option_1_by_hand(make_experiment):
    path = train(make_experiment, Scaffold, {"option": "I"})
    assert column(path, "theta") == pytest.approx([-0.16, -0.284, -0.363], abs=1e-6)
    assert controls(path) == pytest.approx([1.0, 0.68, 0.432], abs=1e-5)


def test_fedavg_ends_elsewhere(make_experiment):
    assert column(train(make_experiment, FedAvg), "theta") == pytest.approx([-0.16, -0.264, -0.3316], abs=1e-6)


@pytest.mark.parametrize(
    ("method", "params", "limit"),
    [(Scaffold, {"option": "I"}, -0.5), (Scaffold, {"option": "II"}, -0.5), (FedAvg, {}, -0.197422)],
)
def test_limits_of_ten_local_steps(make_experiment, method, params, limit):
    """At the true minimum no client moves, because c_k is its gradient there; the mean of the clients' is 0."""
    path = train(make_experiment, method, params, steps=10, rounds=25)
    assert path[-1]["theta"] == pytest.approx(limit, abs=2e-5)
    if method is Scaffold:
        assert (path[-1][0]["control"], path[-1][1]["control"]) == pytest.approx((-1.5, 1.5), abs=2e-4)


def test_momentum_by_hand(make_experiment):
    """Two steps of SGD with momentum 0.9 at rate 0.1 weigh their gradients by 0.29 in all."""
    (end,) = train(make_experiment, Scaffold, rounds=1, momentum=0.9)
    assert end["theta"] == pytest.approx(-0.25, abs=1e-6)
    assert (end[0]["control"], end[1]["control"]) == pytest.approx((-0.965517, 2.689655), abs=1e-5)


def test_one_full_step_makes_both_options_equal(make_experiment):
    one, two = (train(make_experiment, Scaffold, {"option": option}, steps=1) for option in ("I", "II"))
    assert column(one, "theta") == pytest.approx(column(two, "theta"), abs=1e-6)
    assert controls(one) == pytest.approx(controls(two), abs=1e-5)


def test_both_options_agree_on_a_real_network_in_one_full_step(play):
    """Without augmentation a step over all samples has the gradient of option I's pass at the received model.

    Half of the clients rest: of all of them the corrections cancel in the mean of one step, and it would be FedAvg.
    """
    changes = {"augment": False, "batch_size": 1000, "rounds": 4, "clients": 4, "participation": 0.5, **SGD}
    ends = []
    for method in (scaffold(option="I"), scaffold(option="II"), FedAvg()):
        play(method, **changes)
        ends.append(play.vector)
    assert torch.allclose(ends[0], ends[1], atol=1e-5)
    assert not torch.allclose(ends[0], ends[2], atol=1e-3)


def test_equal_clients_are_fedavg(make_experiment):
    equal = {"curves": ((3.0, -1.0), (3.0, -1.0))}
    own, plain = train(make_experiment, Scaffold, **equal), train(make_experiment, FedAvg, **equal)
    assert column(own, "theta") == pytest.approx(column(plain, "theta"), abs=1e-6)


def plain(path, curves, samples, steps, *, momentum, eta_g, paper):
    """A plain implementation of option II; who takes part is read off the run `path`."""
    theta, c, own = 0.0, 0.0, {}
    for found in path:
        present, ends, old_c = [k for k in found if isinstance(k, int)], {}, c
        for k in present:
            a, m = curves[k]
            ck = own.get(k, 0.0 if paper else old_c)
            y, u, moved = theta, 0.0, 0.0
            weights = []
            for _ in range(steps[k]):
                weights = [w + 0.1 * momentum ** (len(weights) - i) for i, w in enumerate(weights)] + [0.1]
                u = momentum * u + a * (y - m) - ck + old_c
                y -= 0.1 * u
            moved = theta - y
            ends[k], own[k] = y, ck - old_c + moved / sum(weights)
        n = {k: 1 if paper else samples[k] for k in range(len(curves))}
        theta += eta_g * sum(n[k] * (ends[k] - theta) for k in present) / sum(n[k] for k in present)
        c = sum(n[k] * own[k] for k in own) / (len(curves) if paper else sum(n[k] for k in own))
        yield theta, c, dict(own)


@pytest.mark.parametrize("preset", ["default", "original"])
def test_uneven_clients_some_of_which_rest(make_experiment, preset):
    """Clients of 25, 75, 50 and 50 samples, batches of 25: one, three, two and two steps, twice; half take part."""
    samples = (1, 3, 2, 2)
    changes = {"rounds": 8, "participation": 0.5, "batch_size": 25, "momentum": 0.5}
    params = {"preset": preset, "eta_g": 0.8}
    path = train(make_experiment, Scaffold, params, curves=FOUR, samples=samples, **changes)
    assert len({tuple(k for k in found if isinstance(k, int)) for found in path}) > 2
    paper, known = preset == "original", {}
    expected = plain(path, FOUR, samples, [2 * n for n in samples], momentum=0.5, eta_g=0.8, paper=paper)
    for found, (theta, c, own) in zip(path, expected, strict=True):
        known |= {k: found[k]["control"] for k in found if isinstance(k, int)}
        assert found["theta"] == pytest.approx(theta, abs=2e-5)
        assert known == pytest.approx(own, abs=2e-4)
        state = found["server"]
        total = 4 if paper else sum(state["weights"].values())
        assert state["controls"] / total == pytest.approx(c, abs=1e-4)
        weights = state["weights"]
        invariant = sum(weights[k] * known[k] for k in known)
        assert state["controls"] == pytest.approx(invariant, rel=1e-4, abs=1e-2)


def test_a_slow_client_divides_by_its_own_steps(make_experiment):
    """Client 1 takes one step of four: c_1 = 3 (0 + 1). Client 0 moves by 1 - 0.9^4 in four: c_0 = -0.3439 / 0.4."""

    class Slow(Straggler):
        def affected(self, clients, random):
            return [1]

    (end,) = train(make_experiment, Scaffold, rounds=1, steps=4, stressor=Slow(Slow.Params(done=0.25)))
    assert (end[0]["control"], end[1]["control"]) == pytest.approx((-0.85975, 3.0), abs=1e-5)


def test_one_round_a_task_is_fedavg_bit_for_bit(play, norm_backbone):
    """In a first round c = c_k: nothing is corrected yet."""
    changes = {"rounds": 1, "backbone": norm_backbone, **SGD}
    play(scaffold(), **changes)
    own = play.vector
    play(FedAvg(), **changes)
    assert torch.equal(own, play.vector)
    play(scaffold(), **(changes | {"rounds": 2}))
    own = play.vector
    play(FedAvg(), **(changes | {"rounds": 2}))
    assert not torch.equal(own, play.vector)


@pytest.mark.parametrize("memory", ["task", "carry"])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_head_rows_of_earlier_tasks_do_not_move(play, memory, optimizer):
    kept = {}

    class Watched(Scaffold):
        def end_task(self, server, statistics):
            kept[server.task.index] = server.vector[server.layout.head].clone()
            kept["control"] = server.state["controls"][server.layout.head].clone()

    play(Watched(Scaffold.Params(memory=memory)), tasks=(4, 6), optimizer=optimizer)
    old, new = [torch.arange(start * 16, end * 16).tolist() for start, end in ((0, 4), (4, 10))]
    assert torch.equal(kept[0][old], kept[1][old])
    assert torch.equal(kept[0][160:164], kept[1][160:164])
    assert not torch.equal(kept[0][new], kept[1][new])
    assert not bool(kept["control"][old].any())
    assert bool(kept["control"][new].any())


def test_what_is_carried_is_still_the_weighted_sum(play):
    """Over three tasks with resting clients: each counts as in its first upload, and old head rows are cleared."""
    own, seen = {}, []

    class Watched(Scaffold):
        def statistics(self, client):
            message = super().statistics(client)
            own[client.id] = client.state["control"].clone()
            return message

        def aggregate(self, updates, server):
            super().aggregate(updates, server)
            live = server.layout.live(server.task.classes)
            total = sum(server.state["weights"][k] * own[k] for k in own) * live
            seen.append(float((server.state["controls"] - total).abs().max() / total.abs().max()))

    play(Watched(Scaffold.Params(memory="carry")), tasks=(4, 3, 3), clients=4, participation=0.5, **SGD)
    assert len(seen) == 6
    assert max(seen) < 1e-5


def test_bytes_by_hand(play):
    """1210 floats twice up; c down in the second round of each of four tasks alone. A client keeps c_k and a bool."""
    cost = play(scaffold(), partition=Partition(kind="iid"), tasks=(3, 2, 3, 2), **SGD).cost
    assert cost.bytes_up == 24 * 2 * 4 * 1210
    assert cost.bytes_down == (24 + 12) * 4 * 1210
    assert cost.client_state == 4 * 1210 + 1


def test_buffers_are_averaged_by_samples(play, norm_backbone):
    gaps = []

    class Watched(Scaffold):
        def aggregate(self, updates, server):
            buffers, before = updates.layout.buffers, server.vector.clone()
            super().aggregate(updates, server)
            gaps.append((server.vector - before - updates.mean())[buffers].abs().max())

    play(Watched(Scaffold.Params(preset="original", eta_g=0.5)), backbone=norm_backbone, **SGD)
    assert max(gaps) < 1e-6


@pytest.mark.parametrize(
    ("params", "changes", "reason"),
    [({"option": "II"}, {}, "adamw rescales"), ({}, {**SGD, "clip_norm": 1.0}, "clip_norm has shortened")],
)
def test_option_2_is_declined_where_steps_are_not_linear(make_experiment, play, params, changes, reason):
    with pytest.raises(Unsupported, match=reason):
        play(scaffold(**params), **changes)


@pytest.mark.parametrize("option", ["I", "II"])
def test_an_interrupted_run_ends_bit_equal(play, norm_backbone, option):
    sparse = {"partition": Partition(kind="dirichlet", value=0.05, min_samples=0), "backbone": norm_backbone, **SGD}
    whole, resumed = (play(scaffold(option=option, memory="carry"), stop, **sparse) for stop in (None, 6))
    assert resumed.model_digest == whole.model_digest
    assert (resumed.cost.bytes_up, resumed.cost.bytes_down) == (whole.cost.bytes_up, whole.cost.bytes_down)
