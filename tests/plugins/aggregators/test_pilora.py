"""PILoRA: loss and merge by hand, bytes, what trains in which task, networks."""

from types import SimpleNamespace

import pytest
import timm
import torch
from torch import nn
from transformers import BertConfig, BertModel, T5Config, T5Model

from fcilbench.api.backbone import FeatureExtractor
from fcilbench.api.client import Batch
from fcilbench.api.message import nbytes
from fcilbench.api.schedule import Task
from fcilbench.api.server import Updates
from fcilbench.engine.model import FlatModel, Network
from fcilbench.federation.run import run_experiment
from fcilbench.federation.server import FederationServer
from fcilbench.plugins.aggregators.pilora import PILoRA, closeness, distances, query_and_value
from fcilbench.testing.bench import SmallViT

TASKS = (Task(0, 0, 1), Task(1, 1, 1))


class Attention(nn.Module):
    """Query and value of four numbers; the features are the first two of the query."""

    def __init__(self):
        super().__init__()
        self.query, self.value = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        nn.init.eye_(self.query.weight)

    def forward(self, x):
        return self.query(x)[:, :2] + 0 * self.value(x)[:, :2]


def flat(method, body=None, features=2, tasks=(1, 1), device="cpu"):
    network = Network(FeatureExtractor(body or Attention(), features), sum(tasks))
    assert method.prepare(network, SimpleNamespace(tasks=tasks)) is None
    return FlatModel(network, torch.device(device))


def pilora(**params):
    return PILoRA(PILoRA.Params(**params))


def put(model, name, value):
    model.vector[model.layout.piece(name).span] = torch.as_tensor(value).flatten()


def loss(task, a_new=None, **params):
    """Features (1, 0) of class 0, prototypes (1, 1) and (-1, 0), and earlier A with rows e1 and e2."""
    method = pilora(**{"rank": 2, "lambda_pl": 0.0, "gamma_ort": 0.0, "mu_l1": 0.0, **params})
    model = flat(method)
    put(model, "extractor.prototypes.0", [1.0, 1.0])
    put(model, "extractor.prototypes.1", [-1.0, 0.0])
    put(model, "extractor.body.query.lora_A_0", torch.eye(4)[:2])
    put(model, "extractor.body.value.lora_A_0", torch.eye(4)[:2])
    put(model, "extractor.body.value.lora_A_1", torch.eye(4)[2:])
    put(model, "extractor.body.query.lora_A_1", torch.eye(4)[2:] if a_new is None else a_new)
    batch = Batch(
        torch.tensor([[1.0, 0, 0, 0]] * 2), torch.zeros(2, dtype=torch.int64), torch.tensor([1.0, 0.0]), TASKS[task]
    )
    return method.loss(model, batch, {})


def test_distances_and_the_loss_over_them():
    """d = (0.7071, 1.4142): log(1 + exp(-0.7071)) = 0.4008; over the seen or the task's classes there is one: 0."""
    features, prototypes = torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 1.0], [-1.0, 0.0]])
    assert distances(features, prototypes)[0].tolist() == pytest.approx([0.5**0.5, 2**0.5])
    assert loss(0).item() == pytest.approx(0.4008, abs=1e-4)
    assert loss(0, softmax_over="seen").item() == loss(0, softmax_over="current").item() == 0.0
    assert (loss(0, lambda_pl=0.1) - loss(0)).item() == pytest.approx(0.0707, abs=1e-4)


def test_penalties_on_a():
    """Rows e3 and 0.5 e1 + e4 against e1 and e2: 0.5; entries of query and value: 2.5 + 2."""
    slanted = [[0.0, 0, 1, 0], [0.5, 0, 0, 1]]
    assert (loss(1, slanted, gamma_ort=0.5) - loss(1, slanted)).item() == pytest.approx(0.25)
    assert (loss(1, gamma_ort=0.5) - loss(1)).item() == 0.0
    assert (loss(1, slanted, mu_l1=0.01) - loss(1, slanted)).item() == pytest.approx(0.045)


def test_the_gradient_at_distance_zero_is_zero():
    prototypes = torch.ones(2, 3, requires_grad=True)
    distances(torch.ones(1, 3), prototypes).sum().backward()
    assert prototypes.grad.abs().sum() == 0.0


OWN = torch.tensor([[0.0, 0.0], [2.0, 0.0], [4.0, 0.0]])[:, None]
MEANS = torch.tensor([[0.0, 0.0], [1.0, 0.0], [9.0, 9.0]])[:, None]


@pytest.mark.parametrize(
    ("known", "expected"), [((1, 1, 0), (0.9735, 0.0199, 0.0066)), ((0, 0, 0), (1 / 3,) * 3), ((1, 0, 0), None)]
)
def test_prototypes_that_are_close_to_the_means_weigh_more(known, expected):
    """S = (1, 3, 7), so q = (1, 0.2222, 0) scaled."""
    weights = closeness(OWN, MEANS, torch.tensor(known).bool()[:, None], 0.2)[:, 0]
    assert weights.sum() == pytest.approx(1.0)
    if expected is not None:
        assert weights.tolist() == pytest.approx(expected, abs=5e-5)


def test_rounding_is_no_difference():
    own = OWN[:1].repeat(2, 1, 1) + torch.tensor([[[0.0]], [[1e-12]]]).double()
    assert closeness(own, MEANS[1:].double(), torch.ones(2, 1, dtype=torch.bool), 0.2).flatten().tolist() == [0.5, 0.5]


def test_the_server_averages_lora_by_samples_and_prototypes_by_closeness():
    method = pilora(rank=1)
    model = flat(method)
    server = FederationServer(0 * model.vector, torch.zeros(0), model.layout, TASKS)
    delta = torch.zeros(3, len(model.vector))
    prototype, a = (model.layout.piece(f"extractor.{name}").span for name in ("prototypes.0", "body.query.lora_A_0"))
    delta[:, prototype], delta[:, a] = OWN[:, 0], torch.tensor([[4.0], [0.0], [0.0]])
    count = torch.ones(1, dtype=torch.int32)
    messages = [{"means": MEANS[0], "counts": count}, {"means": MEANS[1], "counts": count}]
    messages.append({"means": MEANS[2][:0], "counts": 0 * count})
    method.aggregate(Updates(delta, (1, 1, 2), (0, 1, 2), tuple(messages), model.layout), server)
    assert server.vector[prototype].tolist() == pytest.approx([0.0661, 0.0], abs=1e-4)
    assert server.vector[a].tolist() == [1.0] * 4


def test_means_of_classes_with_enough_visits(feature_client):
    """Class 0 is visited 2 x 3 times, class 1 once times 3."""
    client = feature_client([[1.0, 2.0], [3.0, 4.0], [9.0, 9.0]], [0, 0, 1], Task(0, 0, 2))
    sent = pilora().statistics(client)
    assert (sent["counts"].tolist(), sent["means"].tolist()) == ([2, 0], [[2.0, 3.0]])
    assert pilora(preset="original").statistics(client)["counts"].tolist() == [2, 1]


def test_bytes_of_vit_b16(feature_client, vit_b16):
    """0.0492 MB of LoRA and 0.0307 of prototypes each way, 0.0307 of means and 40 bytes of counts up: 0.1106."""
    method, tasks = pilora(), (10,) * 10
    with torch.device("meta"):
        model = flat(method, vit_b16.extractor.body, 768, tasks, "meta")
    wire = method.wire(SimpleNamespace(task=Task(9, 90, 10)))
    moved = nbytes({p.name: model.vector[p.span] for p in model.layout.select(wire.train)})
    assert moved == 4 * (12_288 + 10 * 768)
    client = feature_client(torch.randn(20, 768), torch.arange(20) % 10, Task(0, 0, 10))
    assert (moved + nbytes(method.statistics(client))) / 1e6 == pytest.approx(0.1106, abs=1e-4)
    held = nbytes({p.name: model.vector[p.span] for p in model.layout.select(["*.lora_*", "*prototypes*"])})
    assert held / 1e6 == pytest.approx(0.7987, abs=1e-4)


def test_only_the_current_task_trains_and_a_fresh_one_changes_no_output(make_experiment, tmp_path):
    method, seen = pilora(lora_rate=1.0), []
    aggregate = method.aggregate

    def record(updates, server):
        before = server.net.features(images)
        aggregate(updates, server)
        seen.append((server.task.index, server.vector.clone(), before, server.net.features(images), server.layout))

    method.aggregate, images = record, torch.randn(3, 1, 8, 8)
    run_experiment(make_experiment(method, backbone=SmallViT(), tasks=(4, 6)), tmp_path)
    (_, _, _, last, _), (_, new, fresh, _, layout) = seen[1], seen[2]
    old = seen[1][1]
    assert torch.equal(last, fresh)  # task 1 begins with B = 0: the model that task 0 ended with
    assert not torch.equal(seen[0][2], last)
    moved = {p.name for p in layout.pieces if not torch.equal(old[p.span], new[p.span])}
    assert moved == {p.name for p in layout.select(["*.lora_*_1", "*.prototypes.1"])}


def test_the_first_attention_layer_of_networks():
    with torch.device("meta"):
        models = {
            "blocks.0.attn.q": timm.create_model("vit_tiny_patch16_224"),
            "encoder.block.0.layer.0.SelfAttention.q": T5Model(T5Config()),
            "encoder.layer.0.attention.self.query": BertModel(BertConfig()),
        }
        network = Network(FeatureExtractor(timm.create_model("convnext_atto", num_classes=0), 320), 10)
    assert [query_and_value(model)[0] for model in models.values()] == list(models)
    assert "attention" in pilora().prepare(network, SimpleNamespace(tasks=(10,))).reason
