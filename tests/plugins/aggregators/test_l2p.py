"""L2P as a method: selection and pull by hand, what learns from what, bytes."""

import pytest
import torch
from pydantic import ValidationError

from fcilbench.api.client import Batch
from fcilbench.engine.model import FlatModel
from fcilbench.federation.experiment import build
from fcilbench.plugins.aggregators.l2p import L2p, select

QUERY = torch.tensor([[3.0, 4.0]])
KEYS = torch.tensor([[1.0, 0.0], [0.0, 2.0], [-1.0, 0.0], [5.0, 5.0]])


def test_selection_by_hand():
    """Cosines .6, .8, -.6 and 35 / (5 x 7.0711) = .98995; their two largest make the term -.1 x 1.78995."""
    indices, cosines = select(QUERY, KEYS, 2)
    assert indices.tolist() == [[3, 1]]
    assert cosines[0].tolist() == pytest.approx([0.98995, 0.8], abs=1e-5)
    assert -0.1 * cosines.sum().item() == pytest.approx(-0.178995, abs=1e-6)
    assert select(torch.cat([QUERY, -QUERY]), KEYS, 2)[0].tolist() == [[3, 1], [2, 0]]  # each sample for itself
    every, cosines = select(QUERY, KEYS, 4)
    assert every.tolist() == [[3, 1, 0, 2]]
    assert cosines[0].tolist() == pytest.approx([0.98995, 0.8, 0.6, -0.6], abs=1e-5)


def test_selection_needs_directions_alone_and_breaks_ties_by_index():
    scales = torch.tensor([[3.0], [0.01], [1.0], [100.0]])
    assert torch.equal(select(7 * QUERY, scales * KEYS, 2)[0], select(QUERY, KEYS, 2)[0])
    assert select(QUERY, KEYS[[0, 1, 1, 1]], 3)[0].tolist() == [[1, 2, 3]]
    assert select(torch.zeros(1, 2), KEYS, 2)[0].tolist() == [[0, 1]]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(select(QUERY, KEYS, 4)[1], select(QUERY, KEYS, 4)[1].float())
        assert select(QUERY, KEYS, 4)[1][0, 0].item() == pytest.approx(0.98995, abs=1e-5)


@pytest.mark.parametrize("weight", [0.0, 0.1])
def test_the_loss_and_what_learns_from_it(make_experiment, tiny_vit, weight):
    """Keys learn from the pull alone, and only selected ones; prompts from the cross-entropy."""
    method = L2p(L2p.Params(length=2, selected=2, lambda_pull=weight))
    federation = build(make_experiment(method, backbone=tiny_vit()))
    model, train, task = federation.model, federation.train, federation.stream.tasks[0]
    rows = torch.from_numpy(federation.schedule.phases[0].clients[0])[:3]
    mask = torch.tensor([1.0, 1.0, 0.0])
    batch = Batch(train.plain(rows), train.labels[rows], mask, task, train.memo[rows])
    chosen, cosines = select(train.memo[rows], model.piece("extractor.keys"), 2)
    own = model.outputs(batch.inputs, {"memo": batch.memo})
    losses = torch.nn.functional.cross_entropy(
        model.head(own["features"])[:2, task.classes], batch.labels[:2] - task.offset, reduction="none"
    )
    loss = method.loss(model, batch, {})
    torch.testing.assert_close(loss, losses.mean() - weight * cosines[:2].sum(dim=1).mean())
    loss.backward()
    prompts, keys = model.network.extractor.prompts.grad, model.network.extractor.keys.grad
    used = set(chosen[:2].flatten().tolist())
    for index in range(10):
        assert bool(prompts[index].abs().max() > 0) == (index in used)
        assert bool(keys[index].abs().max() > 0) == (index in used and weight > 0)
    assert all(parameter.grad is None for parameter in model.network.extractor.body.parameters())


def test_prompts_that_no_client_trained_stay_and_the_others_are_counted(play, tiny_vit):
    counts, moved = [], []

    class Watched(L2p):
        def aggregate(self, updates, server):
            before = server.vector[server.layout.piece("extractor.prompts").span].view(10, -1).clone()
            super().aggregate(updates, server)
            after = server.vector[server.layout.piece("extractor.prompts").span].view(10, -1)
            counts.append(server.logs["l2p/trained"])
            moved.append(int((before != after).any(dim=1).sum()))

    play(Watched(Watched.Params(length=2, selected=1)), backbone=tiny_vit(), tasks=2)
    assert counts == moved
    assert all(1 <= count < 10 for count in counts)


def test_shape_and_bytes_of_vit_b16(vit_b16):
    """122,980 floats, 0.492 MB; 197 tokens and 5 x 5 prompts."""
    with torch.device("meta"):
        assert L2p().prepare(vit_b16, None) is None
    layout = FlatModel(vit_b16, torch.device("meta")).layout
    assert layout.piece("extractor.prompts").shape == (10, 5, 768)
    assert {piece.name: piece.span.stop - piece.span.start for piece in layout.pieces} == {
        "extractor.prompts": 38_400, "extractor.keys": 7_680, "head.weight": 76_800, "head.bias": 100,
    }  # fmt: skip
    assert layout.buffers.stop == 122_980
    assert 4e-6 * layout.buffers.stop == pytest.approx(0.492, abs=5e-4)
    assert 4e-6 * (layout.buffers.stop + 25 * 768) == pytest.approx(0.57, abs=2e-3)  # Kim and Do 2026: with positions
    shapes = []
    vit_b16.extractor.body.blocks.register_forward_pre_hook(lambda _, inputs: shapes.append(inputs[0].shape))
    images, query = torch.empty(2, 3, 224, 224, device="meta"), torch.empty(2, 768, device="meta")
    assert vit_b16(images, "outputs", {"memo": query})["features"].shape == (2, 768)
    assert shapes == [(2, 222, 768)]


def test_options_that_do_not_fit():
    with pytest.raises(ValidationError, match="set selected to 3"):
        L2p.Params(pool=3)
