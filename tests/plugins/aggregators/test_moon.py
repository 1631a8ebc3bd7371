"""MOON: the contrastive term by hand and in the authors' form, what clients keep, its bytes."""

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from fcilbench.plugins.aggregators.fedavg import FedAvg
from fcilbench.plugins.aggregators.moon import Moon, contrast
from fcilbench.spec.protocol import Partition


def moon(**params):
    return Moon(Moon.Params(**params))


def terms(z, common, own, tau=0.5):
    z = torch.tensor(z, requires_grad=True)
    values = contrast(z, torch.tensor(common), torch.tensor(own), tau)
    values.sum().backward()
    return values.tolist(), z.grad.tolist()


def test_the_term_by_hand():
    """cos 0.6 and 0: log(1 + e^-1.2) with d/dz_2 = sigmoid(-1.2) (1 - 0.8) / 0.5; cos 0.8 and 1: log(1 + e^0.4)."""
    values, (first, _) = terms([[1.0, 0.0], [0.0, 5.0]], [[3.0, 4.0]] * 2, [[0.0, 2.0]] * 2)
    assert values == pytest.approx([0.263282, 0.913015], abs=1e-6)
    assert sum(values) / 2 == pytest.approx(0.588149, abs=1e-6)
    assert first == pytest.approx([0.0, 0.092590], abs=1e-6)


def test_equal_models_give_log_2_and_exactly_no_gradient():
    torch.manual_seed(0)
    rows = torch.randn(5, 7).tolist()
    values, gradient = terms(torch.randn(5, 7).tolist(), rows, rows)
    assert values == pytest.approx([math.log(2)] * 5)
    assert gradient == [[0.0] * 7] * 5


def test_the_authors_form_has_the_same_value_and_gradient():
    """-log of a softmax over both cosines, the received model's first, in double precision."""
    torch.manual_seed(0)
    z, common, own = torch.randn(3, 20, 8, dtype=torch.float64)
    z.requires_grad_()
    logits = torch.stack([F.cosine_similarity(z, common), F.cosine_similarity(z, own)], dim=1) / 0.25
    expected = F.cross_entropy(logits, torch.zeros(20, dtype=torch.int64), reduction="none")
    (gradient,) = torch.autograd.grad(expected.sum(), z)
    found = contrast(z, common, own, 0.25)
    assert torch.allclose(found.double(), expected, atol=1e-5)
    assert torch.allclose(torch.autograd.grad(found.sum(), z)[0], gradient, atol=1e-5)


def test_lengths_do_not_count():
    torch.manual_seed(0)
    z, common, own = torch.randn(3, 4, 8)
    assert torch.allclose(contrast(z, common, own, 0.5), contrast(3 * z, 0.1 * common, 7 * own, 0.5), atol=1e-6)


def test_a_representation_without_direction_gets_no_gradient():
    values, gradient = terms([[0.0, 0.0]], [[1.0, 0.0]], [[0.0, 1.0]])
    assert values == pytest.approx([math.log(2)])
    assert gradient == [[0.0, 0.0]]


def test_a_first_visit_and_mu_0_are_fedavg_bit_for_bit(play, norm_backbone):
    """One round a task; later tasks only if the previous model is reset. Frozen passes leave BatchNorm alone."""
    once = {"rounds": 1, "backbone": norm_backbone}
    cases = [
        (moon(mu=5.0), once | {"tasks": (10,)}, True),
        (moon(mu=5.0, previous="reset"), once, True),
        (moon(mu=5.0), once, False),
        (moon(mu=0.0), {}, True),
        (moon(mu=5.0), {"tasks": (10,)}, False),
    ]
    for method, changes, equal in cases:
        play(method, **changes)
        own = play.vector
        play(FedAvg(), **changes)
        assert torch.equal(own, play.vector) is equal


def test_what_is_kept_is_the_clients_own_model(play):
    kept, sent = {}, []

    class Watched(Moon):
        def statistics(self, client):
            message = super().statistics(client)
            kept[client.id] = client.state["previous"].clone()
            return message

        def aggregate(self, updates, server):
            for row, client in zip(updates.delta, updates.clients, strict=True):
                sent.append(torch.equal(kept[client] - server.vector, row))
            super().aggregate(updates, server)
            assert all(not torch.equal(model, server.vector) for model in kept.values())

    play(Watched())
    assert sent == [True] * len(sent)
    assert len(sent) > 12


def test_without_mu_no_frozen_model_runs():
    """The network knows no `under`."""
    net = SimpleNamespace(features=lambda inputs: inputs, head=lambda features: features)
    task = SimpleNamespace(classes=slice(0, 2), local=lambda labels: labels)
    batch = SimpleNamespace(inputs=torch.eye(2), labels=torch.tensor([0, 1]), task=task, slices=None, mean=torch.mean)
    assert moon(mu=0.0).loss(net, batch, {}).item() == pytest.approx(math.log(1 + math.exp(-1)))


def test_head_rows_of_earlier_tasks_do_not_move(play):
    kept = {}

    class Watched(Moon):
        def end_task(self, server, statistics):
            kept[server.task.index] = server.vector[server.layout.head].clone()

    play(Watched(), tasks=(4, 6))
    old, new = [torch.arange(start * 16, end * 16) for start, end in ((0, 4), (4, 10))]
    assert torch.equal(kept[0][old], kept[1][old])
    assert torch.equal(kept[0][160:164], kept[1][160:164])
    assert not torch.equal(kept[0][new], kept[1][new])


@pytest.mark.parametrize(
    ("params", "size", "kept"),
    [({}, 1210, 1210), ({"mu": 0.0}, 1210, 0), ({"projection": 8}, 64 * 16 + 16 + 16 * 17 + 8 * 17 + 90, None)],
)
def test_bytes_by_hand(play, params, size, kept):
    """Those of FedAvg; with a projection to 8 the MLP has 16 x 17 + 8 x 17 entries and the head 10 x 9."""
    cost = play(moon(**params), partition=Partition(kind="iid"), tasks=(3, 2, 3, 2)).cost
    assert cost.bytes_up == 24 * 4 * size
    assert cost.bytes_down == 24 * 4 * size
    assert cost.client_state == 4 * (size if kept is None else kept)


def test_the_original_on_vit_b16(vit_b16):
    """86,611,812 entries: the backbone's 85,798,656, an MLP 768 -> 768 -> 256, and a head of 100 rows of 257."""
    moon(preset="original").prepare(vit_b16, None)
    sizes = [parameter.numel() for parameter in vit_b16.parameters()]
    assert sum(sizes) == 86_611_812 == 85_798_656 + 768 * 769 + 256 * 769 + 100 * 257


@pytest.mark.parametrize("params", [{}, {"preset": "original", "projection": 8}])
def test_an_interrupted_run_ends_bit_equal(play, norm_backbone, params):
    sparse = {"partition": Partition(kind="dirichlet", value=0.05, min_samples=0), "backbone": norm_backbone}
    whole, resumed = (play(moon(**params), stop, **sparse) for stop in (None, 6))
    assert resumed.model_digest == whole.model_digest
    assert resumed.cost.client_state == whole.cost.client_state
