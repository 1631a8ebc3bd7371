"""CODA-Prompt as a method: weights, penalty and orthogonal components by hand, frozen components, bytes."""

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from timm.models.vision_transformer import ParallelScalingBlock

from fcilbench.api.aggregator import Request
from fcilbench.api.client import Batch
from fcilbench.engine.model import FlatModel, Network
from fcilbench.federation.experiment import build
from fcilbench.federation.visit import uploaded
from fcilbench.plugins.aggregators.codap import (
    PARTS,
    CodaPrompt,
    ComponentViT,
    component_weights,
    orthogonality,
    orthonormal_rows,
    with_prefix,
)
from fcilbench.spec.protocol import Partition, Protocol

QUERY = torch.tensor([[1.0, 2.0, 2.0]])
ONES = torch.ones(1, 2, 3)
KEYS = torch.tensor([[[3.0, 0.0, 0.0], [0.0, 5.0, 0.0]]])


def method(**params):
    return CodaPrompt(CodaPrompt.Params(components=8, length=4, **params))


# ---------------------------------------------------------------- weights and prefixes


def test_weights_and_prefix_by_hand(tiny_vit):
    """||q|| = 3, so alpha = (1/3, 2/3), and p = (1/3)(3, 0) + (2/3)(0, 3) = (1, 2)."""
    assert component_weights(QUERY, ONES, KEYS)[0, 0].tolist() == pytest.approx([1 / 3, 2 / 3])
    extractor = tiny_vit(embed_dim=3, depth=1, num_heads=1).build()
    prompted = ComponentViT(extractor, tasks=1, count=2, length=2)
    with torch.no_grad():
        prompted.tasks[0].attention.copy_(ONES)
        prompted.tasks[0].keys.copy_(KEYS)
        prompted.tasks[0].prompts[0, 0, :, 0] = prompted.tasks[0].prompts[0, 1, :, 1] = 3.0
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = prompted.prefixes(QUERY)[0, 0]
    assert torch.allclose(found, torch.tensor([1.0, 2.0, 0.0]).expand(2, 3))


def test_weights_need_directions_alone_and_zero_rows_have_none():
    attention = torch.tensor([[[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]]])
    found = component_weights(QUERY, attention, KEYS)
    assert found[0, 0, 1] == 0.0
    assert torch.allclose(component_weights(5 * QUERY, 0.1 * attention, 7 * KEYS), found)
    assert float(component_weights(-QUERY, ONES, KEYS)[0, 0, 0]) == pytest.approx(-1 / 3)
    zeros = torch.zeros(1, 2, 3, requires_grad=True)
    weights = component_weights(QUERY, zeros, zeros)
    weights.sum().backward()
    assert weights.tolist() == [[[0.0, 0.0]]]
    assert bool(torch.isfinite(zeros.grad).all())


@torch.no_grad()
def test_a_prefix_that_repeats_every_key_and_value_changes_nothing(tiny_vit):
    body = tiny_vit(init_values=0.1).build().body.eval()
    tokens = torch.randn(3, 5, 16)
    for block in body.blocks:
        _, keys, values = block.attn.qkv(block.norm1(tokens)).chunk(3, dim=2)
        torch.testing.assert_close(with_prefix(block, tokens, torch.cat([keys, values], dim=1)), block(tokens))
        assert not torch.allclose(with_prefix(block, tokens, torch.cat([keys, keys], dim=1)), block(tokens), atol=1e-4)


# ---------------------------------------------------------------- orthogonality


def test_penalty_by_hand():
    """Rows e1, e1: two entries of 1 among four. Rows e1, 2 e2: one entry of (4 - 1)^2 = 9."""
    for rows, mean, total in (([[1, 0], [0, 1]], 0, 0), ([[1, 0], [1, 0]], 0.5, 2), ([[1, 0], [0, 2]], 2.25, 9)):
        one = torch.tensor([rows], dtype=torch.float32)
        assert (orthogonality(one, "mean").item(), orthogonality(one, "sum").item()) == (mean, total)
        assert orthogonality(torch.cat([one, one]), "sum").item() == 2 * total


def plain_gram_schmidt(old, random):
    """Each random row minus its least-squares fit by the rows before it, divided by its norm."""
    rows = list(old)
    for row in random:
        basis = np.array(rows).reshape(len(rows), len(row)).T
        rest = row - basis @ np.linalg.lstsq(basis, row, rcond=None)[0] if rows else row
        rows.append(rest / np.linalg.norm(rest))
    return np.array(rows[len(old) :])


@pytest.mark.parametrize("case", ["none", "trained", "dependent"])
def test_new_rows_are_those_of_gram_schmidt(case):
    random = np.random.default_rng(0)
    old = random.standard_normal((0 if case == "none" else 4, 12))
    if case == "dependent":
        old[3] = old[0] - 2 * old[1]
    fresh = random.standard_normal((3, 12))
    found = orthonormal_rows(torch.from_numpy(old)[None], torch.from_numpy(fresh)[None])[0].numpy()
    assert np.abs(found @ old.T).max(initial=0.0) < 1e-12
    np.testing.assert_allclose(found @ found.T, np.eye(3), atol=1e-12)
    if case != "dependent":
        np.testing.assert_allclose(found, plain_gram_schmidt(old, fresh), atol=1e-12)


def test_the_penalty_covers_the_components_up_to_the_current_task(make_experiment, tiny_vit):
    federation = build(make_experiment(method(), backbone=tiny_vit(), tasks=(5, 5)))
    server, model, train = federation.server, federation.model, federation.train
    for task in federation.stream.tasks:
        server.enter(task, task.index)
        method().begin_task(server)
        server.vector[server.layout.piece(f"extractor.tasks.{task.index}.keys").span] *= 1.5
        model.load(server.vector, server.counters)
        rows = torch.from_numpy(federation.schedule.phases[task.index].clients[0])[:4]
        batch = Batch(train.plain(rows), train.labels[rows], torch.ones(len(rows)), task, train.memo[rows])
        plain, mean, total = (
            method(mu=mu, penalty=kind).loss(model, batch, {}).item()
            for mu, kind in ((0.0, "mean"), (0.1, "mean"), (0.1, "sum"))
        )
        seen = 4 * (task.index + 1)
        omega = 2 * seen * (1.5**2 - 1) ** 2  # two blocks of `seen` keys of norm 1.5; prompts and attention have norm 1
        assert total - plain == pytest.approx(0.1 * omega, rel=1e-4)
        assert mean - plain == pytest.approx(0.1 * omega / seen**2, rel=1e-3)


# ---------------------------------------------------------------- tasks


class Watched(CodaPrompt):
    """Keeps the global vector as each task begins and as it ends."""

    def begin_task(self, server):
        super().begin_task(server)
        self.layout, self.began = server.layout, [*getattr(self, "began", []), server.vector.clone()]

    def end_task(self, server, statistics):
        self.ended = [*getattr(self, "ended", []), server.vector.clone()]

    def rows(self, vector, task, part):
        piece = self.layout.piece(f"extractor.tasks.{task}.{part}")
        return vector[piece.span].view(*piece.shape[:2], -1)


def test_components_are_orthogonal_at_first_and_stay_bit_for_bit_after_their_task(play, tiny_vit):
    own = Watched(method().params)
    play(own, backbone=tiny_vit(), weight_decay=0.1, lr=0.05)
    assert len(own.began) == len(own.ended) == 4
    for task in range(4):
        for part in PARTS:
            new = own.rows(own.began[task], task, part)
            assert torch.allclose(new @ new.mT, torch.eye(2).expand(2, 2, 2), atol=1e-6)
            for old in range(task):
                kept = own.rows(own.ended[old], old, part)
                assert float((new @ torch.nn.functional.normalize(kept, dim=2).mT).abs().max()) < 1e-6
            assert not torch.equal(own.rows(own.ended[task], task, part), new)
            assert all(
                torch.equal(own.rows(v, task, part), own.rows(own.ended[task], task, part)) for v in own.ended[task:]
            )
            assert not any(own.rows(v, task, part).any() for v in own.ended[:task])


def test_only_the_current_tasks_components_and_head_rows_travel(play, tiny_vit):
    """Up: two components of 4 x 16 + 2 x 16 numbers in two blocks, and the task's rows. Down: all once, then changes.

    After the first download a client gets what the seven rounds before its other seven downloads have moved, and the
    components that are drawn at the start of three tasks.
    """
    settings = {"clients": 2, "partition": Partition(kind="iid"), "backbone": tiny_vit(), "tasks": (3, 3, 2, 2)}
    cost = play(method(), **settings).cost
    components, row = 2 * 2 * (4 * 16 + 16 + 16) * 4, (16 + 1) * 4
    assert cost.bytes_up == 2 * 2 * (4 * components + 10 * row)
    moved = (4 * 2 - 1) * components + (2 * 10 - 2) * row  # the last round's result is never sent
    assert cost.bytes_down == 2 * (4 * components + 10 * row + moved + 3 * components)


def prepared(network, tasks, **params):
    """Returns the answer of `prepare`."""
    with torch.device("meta"):
        request = Request("vision", sum(tasks), tasks, 10, Protocol(), {})
        return CodaPrompt(CodaPrompt.Params(**params)).prepare(network, request)


def test_bytes_of_vit_b16(vit_b16):
    """5 x 768,000 floats and the head: 15.668 MB; one of ten tasks' components and rows go up: 1.567 MB."""
    assert prepared(vit_b16, (10,) * 10) is None
    layout = FlatModel(vit_b16, torch.device("meta")).layout
    sizes = {part: sum(p.span.stop - p.span.start for p in layout.select([f"*.{part}"])) for part in PARTS}
    assert sizes == {"prompts": 5 * 614_400, "keys": 5 * 76_800, "attention": 5 * 76_800}
    assert layout.buffers.stop == 3_916_900
    assert 4e-6 * layout.buffers.stop == pytest.approx(15.66, abs=0.01)  # Kim and Do 2026

    class Server:
        task = type("Task", (), {"index": 3})

    sent = uploaded(CodaPrompt().wire(Server()), layout)
    assert 4 * sum(piece.span.stop - piece.span.start for piece in sent) == 4 * (384_000 + 7_690) == 1_566_760


def test_tasks_that_do_not_divide_the_pool_and_pools_that_do_not_fit(vit_b16):
    for components in (9, 770):
        assert "set components to 10 .. 760" in prepared(vit_b16, (10,) * 10, components=components).reason
    assert prepared(vit_b16, (20,) * 3 + (10,) * 4) is None
    assert vit_b16.extractor.tasks[0].keys.shape == (5, 14, 768)  # two are left over
    with pytest.raises(ValidationError, match="multiple of 2"):
        CodaPrompt.Params(length=5)


def test_attention_that_takes_no_prefix_is_declined(tiny_vit):
    extractor = tiny_vit().build()
    extractor.body.blocks[1] = ParallelScalingBlock(16, 2)
    answer = method().prepare(Network(extractor, 10), Request("vision", 10, (5, 5), 3, Protocol(), {}))
    assert "timm's plain attention" in answer.reason
