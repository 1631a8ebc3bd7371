"""signSGD: votes and packing by hand, bytes, momentum over tasks, real rounds."""

from types import SimpleNamespace

import pytest
import torch
from pydantic import ValidationError

from fcilbench.api.message import Layout, Piece, nbytes
from fcilbench.api.schedule import Task
from fcilbench.api.server import Updates
from fcilbench.federation.server import FederationServer
from fcilbench.plugins.aggregators.signsgd import SignSgd, pack, unpack
from fcilbench.spec.protocol import Partition

ROWS = [[0.2, -0.1, 0, 0.5], [-0.4, -0.3, 0, 0.1], [0.1, 0.2, 0, -0.9]]
PIECES = (
    Piece("extractor.w", (2, 2), 0),
    Piece("head.weight", (2, 1), 4),
    Piece("head.bias", (2,), 6),
    Piece("norm.running_var", (1,), 8),
)
PARTS = Layout(slice(0, 4), slice(4, 8), slice(8, 9), 2, 1, PIECES)
TASK = Task(1, 1, 1)  # of the head class 1
SPARSE = {"clients": 5, "partition": Partition(kind="dirichlet", value=0.05, min_samples=0)}
IID = {"partition": Partition(kind="iid")}
PARAMETERS = 64 * 16 + 16 + 10 * 16 + 10


def made(**params):
    return SignSgd(SignSgd.Params(**params))


def client():
    return SimpleNamespace(net=SimpleNamespace(layout=PARTS), task=TASK, state={})


def named(row):
    return {piece.name: row[piece.span].view(piece.shape) for piece in PIECES}


def merged(method, rows, samples=None, *, clients=None, heads=None, variance=1.0):
    """The server at 0 after one round of clients whose backbones have these updates."""
    count = len(rows)
    host = FederationServer(torch.zeros(9), torch.zeros(0, dtype=torch.int64), PARTS, (TASK,))
    rows = torch.tensor(rows, dtype=torch.float32)
    heads = torch.zeros(count, 4) if heads is None else torch.tensor(heads)
    whole = torch.cat([rows, heads, variance * torch.arange(1.0, count + 1)[:, None]], dim=1)
    clients = clients or [client() for _ in rows]
    decoded = []
    for row, each in zip(whole, clients, strict=True):
        message = method.decode(method.encode(named(row), each), host)
        decoded.append(torch.cat([message[piece.name].flatten() for piece in PIECES]))
    samples = samples or (1,) * count
    method.aggregate(Updates(torch.stack(decoded), samples, tuple(range(count)), ({},) * count, PARTS), host)
    return host


@pytest.mark.parametrize("packing", ["int8", "base3", "bits2"])
@pytest.mark.parametrize(
    ("rows", "samples", "weighting", "votes"),
    [
        (ROWS, (1, 3, 1), "uniform", [1, -1, 0, 1]),
        (ROWS[:2], (1, 3), "uniform", [0, -1, 0, 1]),
        (ROWS, (1, 3, 1), "samples", [-1, -1, 0, 1]),
        (ROWS, (2, 3, 1), "samples", [0, -1, 0, 1]),  # 2 - 3 + 1 is a tie, which shares of 6 may miss
        (ROWS[:1], (7,), "uniform", [1, -1, 0, 1]),
    ],
)
def test_votes_by_hand(rows, samples, weighting, votes, packing):
    host = merged(made(server_lr=0.01, weighting=weighting, pack=packing), rows, samples)
    assert host.vector[:4].tolist() == pytest.approx([0.01 * vote for vote in votes])
    assert host.vector[4:8].tolist() == [0.0] * 4
    live = 4 + 2  # the backbone, a weight and a bias of class 1
    assert host.logs["signsgd/moved"] == pytest.approx(sum(map(abs, votes)) / live)


def test_a_vote_is_on_live_entries_alone_and_buffers_are_averaged():
    """Honest clients leave class 0 alone; one that does not moves nothing there. Variances: (1 * 1 + 3 * 2) / 4."""
    host = merged(made(server_lr=0.5), ROWS[:2], (1, 3), heads=[[9.0, 2.0, 9.0, -1.0], [9.0, 3.0, 9.0, -2.0]])
    assert host.vector[4:8].tolist() == [0, 0.5, 0, -0.5]
    assert host.vector[8].item() == pytest.approx(1.75)
    assert merged(made(), ROWS[:1], variance=-0.5).vector[8].item() == -0.5


def test_packing_by_hand_and_back():
    votes = torch.tensor([1, -1, 0, 0, 1], dtype=torch.int8)
    assert pack(votes, 3, 5).tolist() == [2 + 0 + 9 + 27 + 162]
    assert pack(votes, 4, 4).tolist() == [2 + 0 + 16 + 64, 2]
    torch.manual_seed(0)
    for size in (1, 4, 5, 999, 1000):
        many = torch.randint(-1, 2, (size,), dtype=torch.int8)
        for base, count in ((3, 5), (4, 4)):
            packed = pack(many, base, count)
            assert (packed.dtype, len(packed)) == (torch.uint8, -(-size // count))
            assert torch.equal(unpack(packed, base, count)[:size], many)
    every = torch.cartesian_prod(*[torch.tensor([-1, 0, 1], dtype=torch.int8)] * 5)
    assert sorted(pack(every.flatten(), 3, 5).tolist()) == list(range(243))


def test_bytes_of_a_vision_transformer(vit_b16):
    """Five votes a byte, the last byte not full."""
    size = sum(parameter.numel() for parameter in vit_b16.parameters())
    assert size == 85_875_556
    votes = torch.zeros(size, dtype=torch.int8)
    assert {"votes": len(votes), "base3": len(pack(votes, 3, 5)), "bits2": len(pack(votes, 4, 4))} == {
        "votes": 85_875_556,
        "base3": 17_175_112,
        "bits2": 21_468_889,
    }


def test_scale_does_not_matter_and_many_votes_do_not_overflow():
    rows = torch.tensor(ROWS)
    scaled = (rows * torch.tensor([[3.0], [1e-20], [1e20]])).tolist()
    assert torch.equal(merged(made(), scaled).vector, merged(made(), ROWS).vector)
    assert merged(made(server_lr=1.0), [[1.0, -1, 0, 1]] * 300).vector[:4].tolist() == [1, -1, 0, 1]
    assert merged(made(server_lr=1.0), [[1.0, -1, 0, 1]] * 150 + [[-1.0, 1, 0, -1]] * 151).vector[:4].tolist() == [
        -1,
        1,
        0,
        -1,
    ]


def test_momentum_by_hand():
    """b = 0.9: m = 0.1 Delta, then 0.09 Delta + 0.1 Delta'. A small reversal turns no vote, a larger one does."""
    method, own = made(momentum=0.9, server_lr=1.0), [client()]
    assert merged(method, [[1.0, -1.0, 0.0, 2.0]], clients=own).vector[:4].tolist() == [1, -1, 0, 1]
    assert own[0].state["momentum"][:4].tolist() == pytest.approx([0.1, -0.1, 0, 0.2])
    host = merged(method, [[-0.8, 1.0, -1.0, 0.0]], clients=own, heads=[[5.0, 5.0, 5.0, 5.0]])
    assert host.vector[:4].tolist() == [1, 1, -1, 1]
    assert own[0].state["momentum"].tolist() == pytest.approx([0.01, 0.01, -0.1, 0.18, 0, 0.5, 0, 0.5])
    assert merged(made(preset="original"), ROWS).vector.count_nonzero() > 0
    assert made(preset="original").params.momentum == 0.9
    with pytest.raises(ValidationError, match="needs a momentum"):
        SignSgd.Params(memory="carry")


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9}, {"momentum": 0.9, "memory": "carry"}])
def test_rows_of_an_old_task_do_not_move(play, options):
    heads, states = [], []

    class Watching(SignSgd):
        def begin_client_task(self, client):
            super().begin_client_task(client)
            states.append("momentum" in client.state)

        def end_task(self, server, statistics):
            head = server.vector[server.layout.head]
            heads.append(torch.cat([head[:-10].view(10, -1), head[-10:, None]], dim=1))

    play(Watching(SignSgd.Params(**options)), tasks=(3, 7), **IID)
    assert torch.equal(heads[0][:3], heads[1][:3])
    assert not torch.equal(heads[0][3:], heads[1][3:])
    assert states == [False] * 3 + [options.get("memory") == "carry"] * 3


def test_a_weight_moves_by_eta_or_not_at_all(make_experiment, one_round):
    from fcilbench.federation.experiment import build

    federation = build(make_experiment(made(server_lr=2**-8), **IID))
    before = federation.server.vector.clone()
    one_round(federation)
    moved = (federation.server.vector.double() - before.double()).abs()
    assert 0.5 < (moved > 0).double().mean() < 1.0
    assert torch.allclose(moved[moved > 0], torch.tensor(2**-8, dtype=torch.float64), atol=1e-7)


@pytest.mark.parametrize(
    ("packing", "size"), [("int8", PARAMETERS), ("base3", PARAMETERS // 5), ("bits2", PARAMETERS // 4 + 1)]
)
def test_bytes_by_hand(play, packing, size):
    """3 clients in 4 tasks of 2 rounds: 1210 votes; the task of one class changes nothing."""
    cost = play(made(pack=packing), **IID).cost
    assert (cost.bytes_up, cost.bytes_down) == (3 * 8 * size, 3 * 6 * 4 * PARAMETERS)
    assert cost.server_state == cost.client_state == 0


def test_packings_give_one_model_and_buffers_are_counted(play, norm_backbone):
    """Four weights and biases, and 8 running statistics of 4 bytes and a counter of 8 for each visit."""
    size = 4 * 9 + 4 + 4 + 4 + 36 * 16 + 16 + 10 * 16 + 10
    found = [play(made(pack=packing), backbone=norm_backbone, **IID) for packing in ("int8", "base3")]
    assert found[0].model_digest == found[1].model_digest
    assert [one.cost.bytes_up for one in found] == [24 * (size + 32 + 8), 24 * (-(-size // 5) + 32 + 8)]
    assert (
        nbytes({"momentum": torch.zeros(size)})
        == play(made(momentum=0.5), backbone=norm_backbone, **IID).cost.client_state
    )


@pytest.mark.parametrize("options", [{}, {"preset": "original", "memory": "carry", "pack": "base3"}])
def test_an_interrupted_run_ends_bit_equal(play, norm_backbone, options):
    """Clients without samples and of one class, tasks of unequal size, a network with buffers."""
    whole, resumed = (play(made(**options), stop, backbone=norm_backbone, **SPARSE) for stop in (None, 3))
    assert resumed.model_digest == whole.model_digest
    assert resumed.accuracy == whole.accuracy
    assert (resumed.cost.bytes_up, resumed.cost.client_state) == (whole.cost.bytes_up, whole.cost.client_state)
