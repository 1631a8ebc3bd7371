"""DER++: the loss by hand, what is offered to the memory and when, and what it costs."""

import math
from collections import Counter

import pytest
import torch

from fcilbench.api import Batch, Task
from fcilbench.federation.run import run_experiment
from fcilbench.plugins.aggregators.derpp import DerPlusPlus
from fcilbench.plugins.aggregators.fedavg import FedAvg
from fcilbench.spec.protocol import Partition
from fcilbench.vectors.sums import weighted_sum

SECOND = Task(1, 2, 2)
START = (0.5, -0.5, 0.0, 0.2)
DIGIT, LOGITS = 64 + 8, 10 * 4
"""Bytes of a kept digit with its label, and of its logits."""
IID = {"clients": 2, "tasks": (3, 3, 4), "partition": Partition(kind="iid")}


def method(**params):
    return DerPlusPlus(DerPlusPlus.Params(**params))


class Line:
    """Logits z = W x of a number x, with one weight for each of four classes."""

    def __init__(self, weights):
        self.weights = weights

    def logits(self, inputs):
        return inputs[:, None] * self.weights


def samples(inputs, labels, task=SECOND, **others):
    rows = torch.tensor(inputs, dtype=torch.float64), torch.tensor(labels)
    return Batch(*rows, torch.ones(len(labels), dtype=torch.float64), task, **others)


def loss_and_gradient(by, own, kept, task=SECOND):
    """The loss, and its gradient by W: own sample (x, y); kept one (u, v) with its logits."""
    weights = torch.tensor(START, dtype=torch.float64, requires_grad=True)
    fields = {"logits": torch.tensor([kept[2]], dtype=torch.float64)}
    memory = samples([kept[0]], [kept[1]], task, fields=fields)
    loss = by.loss(Line(weights), samples([own[0]], [own[1]], task, memories=(memory,)), {})
    return loss.item(), torch.autograd.grad(loss, weights)[0].tolist()


FIRST, OTHER = ((1.0, 2), (2.0, 0, [2.0, -1.0, 0.0, 0.0])), ((-1.0, 3), (1.0, 1, [-1.0, 1.0, 0.0, 0.0]))


def test_losses_steps_and_merge_by_hand():
    """Tasks {0, 1} and {2, 3}, SGD with lr = 0.1; client 1 has one sample, client 2 three; one draw for both terms."""
    ends = []
    expected = (
        (1.302553, [0.601268, -0.506595, 0.037056, 0.098272]),
        (2.365077, [0.444085, -0.419274, 0.043814, 0.126375]),
    )
    for given, (loss, end) in zip((FIRST, OTHER), expected, strict=True):
        found, gradient = loss_and_gradient(method(match="all", draws=1), *given)
        assert found == pytest.approx(loss, abs=2e-6)
        ends.append([w - 0.1 * g for w, g in zip(START, gradient, strict=True)])
        assert ends[-1] == pytest.approx(end, abs=2e-6)
    merged = weighted_sum(torch.tensor([0.25, 0.75]), torch.tensor(ends))
    assert merged.tolist() == pytest.approx([0.483381, -0.441105, 0.042125, 0.119349], abs=2e-6)


def test_the_parts_of_the_loss_by_hand():
    parts = {
        "own": {"alpha": 0.0, "beta": 0.0},
        "gap": {"alpha": 1.0, "beta": 0.0},
        "kept": {"alpha": 0.0, "beta": 1.0},
    }
    found = {name: loss_and_gradient(method(match="all", **weights), *FIRST)[0] for name, weights in parts.items()}
    assert found["own"] == pytest.approx(0.798139, abs=2e-6)
    assert found["gap"] - found["own"] == pytest.approx(0.29, abs=2e-6)
    assert found["kept"] - found["own"] == pytest.approx(0.718828, abs=2e-6)


def test_which_logits_are_compared_by_hand():
    """Gaps are 1, 0, 0 and 0.4: over the two classes seen when the sample was kept 0.5, over three 1 / 3."""
    own, (u, v, logits) = FIRST
    then = (u, v, [*logits[:2], torch.nan, torch.nan])
    loss, gradient = loss_and_gradient(method(match="seen_then", draws=1), own, then)
    assert loss == pytest.approx(1.407553, abs=2e-6)
    assert all(torch.tensor(gradient).isfinite())
    three = Task(1, 2, 1)
    whole = loss_and_gradient(method(match="all", beta=0.0, alpha=1.0), (1.0, 2), FIRST[1], three)[0]
    seen = loss_and_gradient(method(match="seen", beta=0.0, alpha=1.0), (1.0, 2), FIRST[1], three)[0]
    assert seen - whole == pytest.approx(1 / 3 - 0.29, abs=2e-6)


def test_logits_that_are_as_they_were_pull_nothing():
    own, (u, v, _) = FIRST
    same = (u, v, [u * w for w in START])
    for match in ("all", "seen", "seen_then"):
        with_gap = loss_and_gradient(method(match=match, alpha=1.0, beta=0.0), own, same)
        without = loss_and_gradient(method(alpha=0.0, beta=0.0), own, same)
        assert with_gap[0] == pytest.approx(without[0], abs=1e-12)
        assert with_gap[1] == pytest.approx(without[1], abs=1e-12)


def test_with_one_softmax_own_samples_compete_among_all_seen():
    loss, _ = loss_and_gradient(method(ace=False, alpha=0.0, beta=0.0), *FIRST)
    assert loss == pytest.approx(math.log(sum(math.exp(w) for w in START)) - START[2], abs=2e-6)


class Watched(DerPlusPlus):
    """Notes what is offered, under which purpose, and the batches that the loss sees."""

    def __init__(self, params=None):
        super().__init__(params)
        self.offers, self.batches = [], []

    def _offer(self, client, offered, known, purpose):
        super()._offer(client, offered, known, purpose)
        self.offers.append((client.id, client.task, offered, purpose, client.memory))
        if not len(offered):
            return
        own = torch.isin(client.memory.positions, offered.positions)
        fresh = client.memory.take(own.nonzero()[:, 0].numpy())
        with torch.no_grad():
            logits = [client.net.logits(batch.inputs) for batch in client.batches(fresh)]
        kept = fresh.fields["logits"]
        if logits and self.params.match != "seen_then":
            assert torch.allclose(kept, torch.cat(logits), atol=1e-5)
        elif logits:
            assert torch.allclose(kept[:, :known], torch.cat(logits)[:, :known], atol=1e-5)
            assert bool(kept[:, known:].isnan().all())

    def loss(self, net, batch, context):
        self.batches.append(batch)
        return super().loss(net, batch, context)


def test_without_both_terms_it_is_fedavg_to_the_bit(play):
    digests = {play(each).model_digest for each in (FedAvg(), method(alpha=0.0, beta=0.0))}
    assert len(digests) == 1
    assert play(method()).model_digest not in digests


@pytest.mark.parametrize(("fill", "match", "numbers"), [("round", "seen", 4), ("task_end", "seen_then", 1)])
def test_each_sample_is_offered_once_with_the_logits_of_the_moment(play, fill, match, numbers):
    """Two clients keep 13 digits of 72 bytes with logits of 40; and the numbers of the reservoir and the groups."""
    watched = Watched(DerPlusPlus.Params(memory=13, fill=fill, match=match))
    outcome = play(watched, rounds=3, **IID)
    for client in (0, 1):
        offered = [each for each in watched.offers if each[0] == client]
        counts = Counter(p for _, _, rows, _, _ in offered for p in rows.positions.tolist())
        assert set(counts.values()) == {1}
        assert len(counts) == (100 if fill == "round" else 60)
        if fill == "round":
            sizes = [len(rows) for _, task, rows, purpose, _ in offered if task.index == 0 and purpose == "reservoir"]
            assert len(sizes) == 3
            assert min(sizes) > 0
            assert sum(sizes) == 30
            assert all(len(rows) == 0 for _, _, rows, purpose, _ in offered if purpose == "reservoir-left")
    assert outcome.cost.client_state == outcome.cost.client_state_mean == 13 * (DIGIT + LOGITS) + 8 * numbers
    plain = play(FedAvg(), rounds=3, **IID)
    assert (outcome.cost.bytes_up, outcome.cost.bytes_down) == (plain.cost.bytes_up, plain.cost.bytes_down)


def test_rounds_that_a_client_misses_leave_their_groups_to_its_next_task(play):
    """Half of four clients take part in a round: whoever begins another task has been offered all that ended before."""
    watched = Watched(DerPlusPlus.Params(memory=500))
    play(watched, clients=4, participation=0.5, rounds=3, tasks=(3, 3, 4), partition=Partition(kind="iid"))
    late = 0
    for client in range(4):
        own = [each for each in watched.offers if each[0] == client]
        counts = Counter(p for _, _, rows, _, _ in own for p in rows.positions.tolist())
        assert not counts or set(counts.values()) == {1}
        for _, task, rows, purpose, kept in own:
            if purpose == "reservoir-left":
                late += len(rows)
                assert len(kept) == int((kept.labels < task.offset).sum()) == 5 * task.offset
    assert late > 0


@pytest.mark.parametrize(
    ("params", "draws"), [({}, 2), ({"draws": 1}, 1), ({"alpha": 0.0}, 1), ({"beta": 0.0, "memory": 3}, 1)]
)
def test_the_memory_is_drawn_from_the_second_round_on(play, params, draws):
    watched = Watched(DerPlusPlus.Params(**params))
    play(watched, tasks=(10,), clients=1, rounds=2, partition=Partition(kind="iid"))
    half = len(watched.batches) // 2
    assert all(batch.memories == () for batch in watched.batches[:half])
    assert {len(batch.memories) for batch in watched.batches[half:]} == {draws}
    if draws == 2:
        one, two = watched.batches[-1].memories
        assert not torch.equal(one.inputs, two.inputs)


@pytest.mark.parametrize("fill", ["round", "task_end"])
def test_an_interrupted_run_ends_bit_equal(play, fill):
    settings = {"clients": 4, "participation": 0.6}
    whole, cut = (play(method(memory=9, fill=fill), stop=stop, **settings) for stop in (None, 5))
    assert cut.model_digest == whole.model_digest
    assert cut.cost.client_state == whole.cost.client_state > 0


def test_a_memory_of_one_runs_with_batch_statistics_and_with_texts(play, norm_backbone, golden, tmp_path):
    play(method(memory=1), backbone=norm_backbone)
    assert run_experiment(golden("derpp", "text"), tmp_path).cost.client_state > 0
