"""FFA-LoRA: merged products by hand, A that nobody trains or sends, tasks of their own, bytes, and what exists."""

from dataclasses import replace

import pytest
import torch

from fcilbench.api.lora import Lora, lora_layers
from fcilbench.api.message import Layout, Piece
from fcilbench.api.schedule import Task
from fcilbench.api.server import Updates
from fcilbench.federation.experiment import Unsupported
from fcilbench.federation.server import FederationServer
from fcilbench.plugins.aggregators.fedavg import FedAvg
from fcilbench.plugins.aggregators.ffa_lora import FfaLora
from fcilbench.spec.protocol import Partition

RANK = 2
B = 2 * (48 + 16 + 64 + 16) * RANK
"""Floats of B in two blocks of width 16: the fused projection, the output projection, and both layers of the MLP."""
HEAD = 10 * 16 + 10


class Watched(FfaLora):
    """Keeps the network, and each round's updates with the vector before and after."""

    def prepare(self, network, request):
        answer = super().prepare(network, request)
        self.network, self.rounds, self.starts = network, [], []
        self.first = {name: value.clone() for name, value in network.state_dict().items()}
        return answer

    def begin_task(self, server):
        super().begin_task(server)
        self.starts.append(server.vector.clone())

    def aggregate(self, updates, server):
        before = server.vector.clone()
        super().aggregate(updates, server)
        kept = replace(updates, delta=updates.delta.clone())  # the engine uses the rows again
        self.rounds.append((kept, before, server.vector.clone()))


def method(cls=FfaLora, **params):
    return cls(cls.Params(rank=RANK, alpha=3.0, **params))


def test_the_merged_product_is_the_mean_of_products_by_hand():
    """A = [1, 2], B = (1, 0) and (0, 2), n = (1, 3): B = (.25, 1.5), and B A = sum p_k B_k A."""
    piece = Piece("extractor.layer.lora_B", (2, 1), 0)
    parts = Layout(slice(0, 2), slice(2, 4), slice(4, 4), classes=1, features=1, pieces=(piece,))
    host = FederationServer(torch.zeros(4), torch.zeros(0, dtype=torch.int64), parts, (Task(0, 0, 1),))
    delta = torch.tensor([[1.0, 0.0, 4.0, 0.0], [0.0, 2.0, 0.0, 8.0]])
    FfaLora().aggregate(Updates(delta, (1, 3), (0, 1), ({}, {}), parts), host)
    assert host.vector.tolist() == [0.25, 1.5, 1.0, 6.0]
    a = torch.tensor([[1.0, 2.0]])
    assert (host.vector[:2, None] @ a).tolist() == [[0.25, 0.5], [1.5, 3.0]]


def test_a_real_round_merges_products_exactly(play, tiny_vit):
    watched = method(Watched)
    play(watched, backbone=tiny_vit(), tasks=(10,), rounds=2)
    for updates, before, after in watched.rounds:
        weights = updates.weights.double()
        for name, layer in lora_layers(watched.network).items():
            piece = updates.layout.piece(f"{name}.lora_B")
            own = (before + updates.delta)[:, piece.span].view(-1, *piece.shape).double()
            a = layer.lora_A.detach().double()
            mean = torch.einsum("n,nij->ij", weights, own @ a)
            assert torch.allclose(after[piece.span].view(piece.shape).double() @ a, mean, atol=1e-7)
            assert float(mean.norm()) > 1e-4


@pytest.mark.parametrize("tasks", ["shared", "sum"])
def test_a_is_no_parameter_and_stays_as_drawn(play, tiny_vit, tasks):
    watched = method(Watched, tasks=tasks)
    play(watched, backbone=tiny_vit(), weight_decay=0.1)
    layout = watched.rounds[0][0].layout
    assert {piece.name.rpartition(".")[2].split("_")[1] for piece in layout.select(["*lora*"])} == {"B"}
    now = watched.network.state_dict()
    drawn = [name for name in watched.first if ".lora_A" in name]
    assert len(drawn) == 8 * (1 if tasks == "shared" else 4)
    assert all(torch.equal(now[name], watched.first[name]) for name in drawn)
    assert all(bool(now[name].any()) for name in drawn)
    assert len({float(now[name].sum()) for name in drawn}) == len(drawn)


def test_shared_is_fedavg_on_the_backbones_own_adapter(play, tiny_vit):
    """The same A is drawn before the head in one and after it in the other, so both start from one state here."""
    starts = {}

    class Same(FedAvg):
        def prepare(self, network, request):
            for name, value in network.state_dict().items():
                value.copy_(starts[name])

    watched = method(Watched)
    play(watched, backbone=tiny_vit())
    starts, own = watched.first, play.vector
    adapter = Lora(use="ffa-lora", rank=RANK, alpha=3.0)
    for merge in ("factors", "products"):
        play(Same(Same.Params(lora_merge=merge)), backbone=tiny_vit(adapter))
        assert torch.equal(play.vector, own)


@pytest.mark.parametrize(("tasks", "scale"), [("sum", 1.0), ("mean", 1 / 3)])
def test_each_task_starts_from_the_pretrained_model_and_all_are_deployed(play, tiny_vit, tasks, scale):
    """The loss of the last task, of one class, is 0, which leaves its B at 0: of four tasks three count."""
    watched = method(Watched, tasks=tasks)
    play(watched, backbone=tiny_vit(), tasks=(3, 2, 4, 1))
    server = play.server
    for start in watched.starts:
        for piece in server.layout.select(["*.lora_B_*"]):
            assert not bool(start[piece.span].any())
    deployed = watched.predictors(server).modules["global"]()
    for task in range(4):
        last = [after for updates, _, after in watched.rounds][2 * task + 1]
        for piece in server.layout.select([f"*.lora_B_{task}"]):
            assert torch.allclose(deployed[piece.span], scale * last[piece.span], rtol=1e-6)
            assert bool(last[piece.span].any()) is (task < 3)
    assert torch.equal(deployed[server.layout.head], server.vector[server.layout.head])
    assert torch.equal(watched.export(server)["theta"], deployed)


def test_the_deployed_layer_is_the_sum_of_the_tasks_products(play, tiny_vit):
    """(alpha / r) sum_s B_s A_s by a plain product of matrices, from what was trained in each task."""
    watched = method(Watched, tasks="sum")
    play(watched, backbone=tiny_vit(), tasks=(5, 5))
    server, expected = play.server, {}
    for task in range(2):
        after = watched.rounds[2 * task + 1][2]
        for name, layer in lora_layers(watched.network).items():
            piece = server.layout.piece(f"{name}.lora_B_{task}")
            product = after[piece.span].view(piece.shape).double() @ getattr(layer, f"lora_A_{task}").detach().double()
            expected[name] = expected.get(name, 0.0) + 1.5 * product
    server.step(watched.predictors(server).modules["global"]() - server.vector)
    for name, layer in lora_layers(server.network).items():
        assert torch.allclose(layer.product().double(), expected[name], atol=1e-6)


@pytest.mark.parametrize("tasks", ["shared", "mean"])
def test_bytes(play, tiny_vit, tasks):
    """B of the task and the head go both ways; at first a client gets the zeros of all tasks, and at a task's start
    those that take the place of the last one's B."""
    options = {"partition": Partition(kind="iid"), "clients": 2, "tasks": (5, 5)}
    cost = play(method(tasks=tasks), backbone=tiny_vit(), **options).cost
    assert cost.bytes_up == 2 * 2 * 2 * 4 * (B + HEAD)
    extra = 0 if tasks == "shared" else B
    assert cost.bytes_down == 2 * 4 * (2 * 2 * (B + HEAD) + extra)


@pytest.mark.parametrize("tasks", ["mean", "sum"])
def test_an_interrupted_run_ends_bit_equal(play, tiny_vit, tasks):
    sparse = {"partition": Partition(kind="dirichlet", value=0.05, min_samples=0), "backbone": tiny_vit()}
    whole, resumed = play(method(tasks=tasks), **sparse), play(method(tasks=tasks), 5, **sparse)
    assert resumed.model_digest == whole.model_digest
    assert resumed.accuracy == whole.accuracy


def test_it_declines_what_it_cannot_adapt(play, tiny_vit):
    with pytest.raises(Unsupported, match="leave out the backbone's option `adapter`"):
        play(method(), backbone=tiny_vit(Lora(use="lora")))
