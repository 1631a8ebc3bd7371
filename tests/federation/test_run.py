"""Whole experiments: resume, labels of uneven tasks, checkpoints, and two faults known elsewhere.

s13: a training seed that changes the class order too (yaoyao-liu/class-incremental-learning#19). s15: memory that grows
with every round (alibaba/FederatedScope#775).
"""

import gc
import json
import re
import shutil

import numpy as np
import pytest
import torch

from fcilbench.api.aggregator import Aggregator, No
from fcilbench.api.predict import Module, Predictors
from fcilbench.api.stressor import Stressor
from fcilbench.engine.meters import Stopwatch
from fcilbench.engine.rounding import rounding
from fcilbench.errors import DivergedError, PluginError
from fcilbench.federation import checkpoint
from fcilbench.federation.experiment import RoundContext, Unsupported, build
from fcilbench.federation.outcome import model_digest
from fcilbench.federation.round import run_round
from fcilbench.federation.run import run_experiment
from fcilbench.plugins.aggregators.fedavg import FedAvg
from fcilbench.plugins.aggregators.joint import Joint
from fcilbench.plugins.aggregators.sum import Sum
from fcilbench.spec.protocol import Partition, Seeds


def run(experiment, folder, name="work"):
    workdir = folder / name
    workdir.mkdir(exist_ok=True)
    return run_experiment(experiment, workdir)


def comparable(outcome):
    """Everything of an outcome but times and memory."""
    record = outcome.model_dump()
    for name in ("wall_s", "training_s", "aggregation_s", "task_end_s", "evaluation_s", "device_s", "peak_mem"):
        del record["cost"][name]
    return record


def test_an_outcome_is_complete(make_experiment, tmp_path):
    outcome = run(make_experiment(Sum()), tmp_path)
    assert set(outcome.accuracy) == {"none", "inferred", "oracle"}
    assert [len(row) for row in outcome.accuracy["none"]] == [1, 2, 3, 4, 5]
    assert outcome.test_sizes == [20] * 5
    assert sorted(name for task in outcome.classes for name in task) == list("0123456789")
    assert outcome.metrics["faa/none"].value == pytest.approx(sum(outcome.accuracy["none"][-1]) / 5)
    assert outcome.cost.bytes_up > outcome.cost.bytes_down > 0  # SUM sends Grams on top of the model
    curve = [json.loads(line) for line in (tmp_path / "work" / "rounds.jsonl").read_text().splitlines()]
    assert [event["event"] for event in curve] == ["round", "round", "task"] * 5
    assert "sum/coefficient_min" in curve[0]["logs"]
    seeds = Seeds()
    assert outcome.seeds == {role: seeds.of(role) for role in ("order", "partition", "train")}
    assert len(set(outcome.seeds.values())) == 3
    again = run(make_experiment(Sum()), tmp_path)  # from the checkpoint of the finished run
    assert comparable(again) == comparable(outcome)


def test_s13_train_seed_alone_keeps_tasks_and_partition(make_experiment):
    def facts(**seeds):
        federation = build(make_experiment(seeds=Seeds(**seeds)))
        clients = [own.tolist() for phase in federation.schedule.phases for own in phase.clients]
        return federation.stream.order, clients, federation.initial

    runs = [facts(index=index, vary=("train",)) for index in (0, 1, 2)]
    assert runs[0][:2] == runs[1][:2] == runs[2][:2]
    assert not torch.equal(runs[0][2], runs[1][2])
    assert not torch.equal(runs[1][2], runs[2][2])
    other = facts(index=1, vary=("order", "train"))
    assert other[0] != runs[0][0]


def test_methods_share_order_partition_and_initial_model(make_experiment):
    one, two = build(make_experiment(FedAvg())), build(make_experiment(Sum()))
    assert one.stream == two.stream
    assert torch.equal(one.initial, two.initial)
    for a, b in zip(one.schedule.phases, two.schedule.phases, strict=True):
        assert all(np.array_equal(x, y) for x, y in zip(a.clients, b.clients, strict=True))


class CrashError(Exception):
    pass


def interrupted(experiment, folder, stop):
    """Runs up to a round, and returns the checkpoint that is left."""
    folder.mkdir()
    count = 0

    def listen(event):
        nonlocal count
        count += event["event"] == "round"
        if count == stop:
            raise CrashError

    with pytest.raises(CrashError):
        run_experiment(experiment, folder, listen)
    return folder / "checkpoint.pt"


def test_resume_ends_bit_equal(make_experiment, norm_backbone, tmp_path):
    """Stopped in the middle of a task, at its end and later, a run with uneven tasks ends like an uninterrupted one."""
    experiment = make_experiment(Sum(), backbone=norm_backbone, tasks=(3, 1, 4, 2), rounds=2)
    whole = run(experiment, tmp_path, "whole")
    assert [len(names) for names in whole.classes] == [3, 1, 4, 2]
    assert whole.accuracy["oracle"][3][1] == 1.0  # one class, known task
    for stop in (1, 2, 3, 7):
        interrupted(experiment, tmp_path / f"{stop}", stop)
        assert comparable(run(experiment, tmp_path, f"{stop}")) == comparable(whole)
        assert len((tmp_path / f"{stop}" / "rounds.jsonl").read_text().splitlines()) == 12


def flipped(path):
    """One bit of the largest tensor: torch reads it without a word."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 32
    path.write_bytes(bytes(content))


def rewritten(change):
    def spoil(path):
        record = torch.load(path, weights_only=True)
        changed = change(record)
        torch.save(record if changed is None else changed, path)

    return spoil


DAMAGE = {
    "bit": flipped,
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-1000]),
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_bytes(b"hello\n"),
    "list": rewritten(lambda record: [1, 2]),
    "bare": rewritten(lambda record: {"format": checkpoint.FORMAT}),
    "format": rewritten(lambda record: record.update(format=99)),
    "portable": rewritten(lambda record: record.update(portable=True)),
    "key": rewritten(lambda record: record["progress"].update(more=1)),
    "shape": rewritten(lambda record: record.update(vector=torch.zeros(3))),
    "state": rewritten(lambda record: record.pop("state") and None),
    "channel": rewritten(lambda record: record["channel"].pop("held") and None),
}


def test_a_damaged_or_odd_checkpoint_is_not_trained_on(make_experiment, tmp_path):
    experiment = make_experiment(Sum(), tasks=2)
    whole = run(experiment, tmp_path, "whole")
    interrupted(experiment, tmp_path / "stopped", 2)
    for damage, spoil in DAMAGE.items():
        spoil(shutil.copytree(tmp_path / "stopped", tmp_path / damage) / "checkpoint.pt")
        again = run(experiment, tmp_path, damage)
        assert "a checkpoint was ignored, the cell starts over" in again.warnings.pop(0), damage
        assert comparable(again) == comparable(whole), damage


def test_a_cell_that_goes_on_where_sums_are_rounded_otherwise_says_so(make_experiment, tmp_path):
    """On a cluster of different machines it may: nothing but the row tells that no single machine computes it again."""
    experiment = make_experiment(Sum(), tasks=2)
    interrupted(experiment, tmp_path / "stopped", 2)
    rewritten(lambda record: record.update(rounding="0123456789ab"))(tmp_path / "stopped" / "checkpoint.pt")
    (warning,) = run(experiment, tmp_path, "stopped").warnings
    assert warning == f"begun where sums are rounded otherwise (0123456789ab) than where it went on ({rounding()})"


def test_s15_memory_is_constant_from_the_second_round(make_experiment):
    """Bytes of live tensors after each of 5 rounds with 5 of 20 clients: no client leaves anything behind."""
    federation = build(make_experiment(clients=20, participation=0.25, tasks=1))
    rows = torch.empty(5, len(federation.server.vector))
    readings = []
    for index in range(5):
        turn = RoundContext(federation.schedule.phases[0], index)
        run_round(federation, turn, rows, Stopwatch(torch.device("cpu")))
        gc.collect()
        tensors = {id(o): o for o in gc.get_objects() if issubclass(type(o), torch.Tensor)}
        readings.append(sum(t.untyped_storage().nbytes() for t in tensors.values()))
        assert all(tensor.grad_fn is None for tensor in tensors.values())
        del tensors  # or the next reading would count what only this one keeps alive
    assert len(set(readings[1:])) == 1


def test_joint_on_one_client_and_one_task_is_fedavg(make_experiment, tmp_path):
    """With N = 1, T = 1, R = 1 the two are one algorithm: same batch size, data order and seed."""
    common = {"clients": 1, "tasks": 1, "rounds": 1, "local_epochs": 3}
    federated = run(make_experiment(FedAvg(), **common), tmp_path, "a")
    joint = run(make_experiment(Joint(Joint.Params(epochs="match", batch_size=16)), **common), tmp_path, "b")
    assert joint.metrics["faa/none"].value == federated.metrics["faa/none"].value
    assert joint.cost.bytes_up == joint.cost.bytes_down == 0


def test_joint_pools_every_sample_once(make_experiment):
    match = Joint(Joint.Params(epochs="match"))
    federated, joint = build(make_experiment(FedAvg())), build(make_experiment(match))
    union = np.sort(np.concatenate([own for phase in federated.schedule.phases for own in phase.clients]))
    (phase,) = joint.schedule.phases
    assert phase.clients[0].tolist() == union.tolist() == list(range(200))
    assert (phase.rounds, phase.epochs, phase.task.size) == (1, 2, 10)


def test_joint_measures_its_last_row_and_cumulative_all(make_experiment, tmp_path):
    final = run(make_experiment(Joint()), tmp_path, "a")
    assert final.accuracy["none"][0] == [None]
    assert final.metrics["faa/none"].value is not None
    assert final.metrics["forgetting/none"].value is None
    cumulative = run(make_experiment(Joint(Joint.Params(mode="cumulative"))), tmp_path, "b")
    assert all(value is not None for row in cumulative.accuracy["none"] for value in row)
    assert cumulative.accuracy["none"][-1] == final.accuracy["none"][-1]


def test_a_method_may_decline_a_cell(make_experiment, tmp_path):
    class Picky(Aggregator):
        def prepare(self, network, request):
            return No(f"not for {request.classes} classes")

    with pytest.raises(Unsupported, match="not for 10 classes"):
        run(make_experiment(Picky()), tmp_path)


def test_a_text_backbone_declines_images(make_experiment, text_backbone, tmp_path):
    with pytest.raises(Unsupported, match="a backbone for text does not read vision"):
        run(make_experiment(backbone=text_backbone), tmp_path)


def test_task_end_statistics_are_collected_at_the_global_model(make_experiment, tmp_path):
    got = []

    class Means(Aggregator):
        def task_statistics(self, client):
            total = sum(client.net.features(batch.inputs).sum(0) for batch in client.batches())
            return {"sum": total, "count": torch.tensor([client.samples])}

        def end_task(self, server, statistics):
            got.append(sum(int(message["count"]) for message in statistics.values()))
            server.state["mean"] = sum(message["sum"] for message in statistics.values()) / got[-1]

    plain = run(make_experiment(FedAvg()), tmp_path, "a")
    outcome = run(make_experiment(Means()), tmp_path, "b")
    assert got == [40] * 5
    assert outcome.accuracy == plain.accuracy
    assert outcome.cost.server_state == 16 * 4


def test_the_digest_tells_methods_apart_whose_global_models_agree(make_experiment, tmp_path):
    """The storage of SUM's basis changes deployed modules and state, and no global model."""
    ends = {}
    for storage in ("fp32", "int8"):
        method, vectors = Sum(Sum.Params(storage=storage)), []
        method.end_task = lambda server, _, own=method.end_task, seen=vectors: (
            seen.append(server.vector) or own(server, _)
        )
        digest = run(make_experiment(method, tasks=2), tmp_path, storage).model_digest
        assert run(make_experiment(method, tasks=2), tmp_path, f"{storage}-2").model_digest == digest
        ends[storage] = (vectors[-1], digest)
    assert torch.equal(ends["fp32"][0], ends["int8"][0])
    assert ends["fp32"][1] != ends["int8"][1]


def test_the_digest_covers_frozen_tensors_and_state_in_any_order(make_experiment):
    server = build(make_experiment()).server

    class Deploys(Aggregator):
        def predictors(self, server):
            return Predictors({"a": lambda: Module(server.vector, {"w": server.state["w"]})})

    server.state = {"w": torch.ones(2), "more": [1, {"x": torch.tensor(True)}], "t": {2: 0.5, "y": None}}
    first = model_digest(Deploys().predictors(server), server)
    server.state = dict(reversed(server.state.items()))
    assert model_digest(Deploys().predictors(server), server) == first
    for change in ({"w": torch.zeros(2)}, {"more": [1, {"x": torch.tensor(False)}]}, {"t": {2: 0.25, "y": None}}):
        kept, server.state = server.state, server.state | change
        assert model_digest(Deploys().predictors(server), server) != first
        server.state = kept
    assert model_digest(Aggregator().predictors(server), server) != first


def test_a_diagnostic_that_is_not_finite_is_null_in_the_curve(make_experiment, tmp_path):
    class Logs(Aggregator):
        def aggregate(self, updates, server):
            server.log("x", float("nan"))
            server.log("y", float("inf"))
            super().aggregate(updates, server)

    run(make_experiment(Logs(), tasks=1, rounds=1), tmp_path)
    line = (tmp_path / "work" / "rounds.jsonl").read_text().splitlines()[0]
    assert json.loads(line, parse_constant=pytest.fail)["logs"] == {"x": None, "y": None}


def test_edge_10_a_run_that_never_merged_an_update_has_diverged(make_experiment, tmp_path):
    """Edge case 10: with updates that were never finite the initial model was ranked."""

    class Diverging(FedAvg):
        def loss(self, net, batch, context):
            return super().loss(net, batch, context) * float("nan")

    first = r"first not finite was the loss of client 0 in task 1, round 1 \(a lower lr may help\)"
    with pytest.raises(DivergedError, match=f"no update was ever merged: {first}"):
        run_experiment(make_experiment(Diverging(), tasks=2), tmp_path)
    lines = (tmp_path / "rounds.jsonl").read_text().splitlines()
    events = [json.loads(line, parse_constant=pytest.fail) for line in lines]
    assert [(event["event"], event["task"]) for event in events] == [("round", 0), ("round", 0), ("task", 0)]


def test_a_task_in_which_nobody_answered_does_not_end_a_run(make_experiment, tmp_path):
    class Silent(Stressor):
        """Nobody answers in the two rounds of the first task."""

        left = 2 * 3

        def affected(self, clients, random):
            return range(clients)

        def upload(self, message, random):
            self.left -= 1
            return None if self.left >= 0 else message

    outcome = run(make_experiment(stressor=Silent(), partition=Partition(kind="iid"), tasks=2), tmp_path)
    assert [len(row) for row in outcome.accuracy["none"]] == [1, 2]
    assert [text for text in outcome.warnings if text.startswith("task 1")] == [
        "task 1: in a round no client answered; the model was kept"
    ]


@pytest.mark.parametrize(("loss", "got"), [(lambda batch: batch.mask, "shape [16]"), (lambda _: 0.5, "float")])
def test_a_loss_that_is_no_scalar_tensor_is_named(make_experiment, tmp_path, loss, got):
    class Odd(FedAvg):
        def loss(self, net, batch, context):
            return loss(batch)

    with pytest.raises(PluginError, match=re.escape(f"the loss must be a scalar tensor, got {got}")):
        run_experiment(make_experiment(Odd()), tmp_path)
