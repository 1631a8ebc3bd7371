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


def test_the_preset_for_texts_and_that_defaults_stay():
    plain, text = PILoRA.Params(), PILoRA.Params(preset="text")
    assert (text.mu_l1, text.lora_rate) == (0.001, 1.0)
    assert {**text.model_dump(), "preset": "default", "mu_l1": 0.01, "lora_rate": 0.005} == plain.model_dump()
    assert PILoRA.Params(preset="text", mu_l1=0.5).mu_l1 == 0.5


def test_text_values_by_hand():
    """Features (1, 0), prototypes (0, 0) and (1, 2): d = (.7071, 1.4142); clients at 0 and 2 with the means 1 and 2."""
    distance = distances(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 0.0], [1.0, 2.0]]))
    assert distance[0].tolist() == pytest.approx([0.707107, 1.414214], abs=1e-6)
    assert nn.functional.cross_entropy(-distance, torch.tensor([0])).item() == pytest.approx(0.400834, abs=1e-6)
    own, means = torch.tensor([[[0.0]], [[2.0]]]).double(), torch.tensor([[[1.0]], [[2.0]]]).double()
    weights = closeness(own, means, torch.ones(2, 1, dtype=torch.bool), 0.2)
    assert weights.flatten().tolist() == pytest.approx([0.006693, 0.993307], abs=1e-6)
    assert float((weights[:, :, None] * own).sum()) == pytest.approx(1.986614, abs=1e-6)


def test_one_client_keeps_its_prototype_and_a_rotation_changes_nothing():
    one = torch.ones(1, 4, dtype=torch.bool)
    random = torch.Generator().manual_seed(0)
    own, means = torch.randn(3, 4, 5, generator=random).double(), torch.randn(3, 4, 5, generator=random).double()
    assert closeness(own[:1], means[:1], one, 0.2).tolist() == [[1.0] * 4]
    turn = torch.linalg.qr(torch.randn(5, 5, generator=random).double())[0]
    known = one.expand(3, -1)
    assert torch.allclose(
        closeness(own, means, known, 0.2), closeness(own @ turn, means @ turn, known, 0.2), atol=1e-12
    )
    features = torch.randn(6, 5, generator=random).double()
    assert torch.allclose(distances(features, own[0]), distances(features @ turn, own[0] @ turn), atol=1e-12)


def test_bytes_of_t5_small(feature_client):
    """A and B of q and v 8,192 floats, prototypes of 15 classes, means and counts: .064 MB down, .095 up."""
    method, tasks = pilora(preset="text"), (15,) * 10
    with torch.device("meta"):
        config = T5Config(d_model=512, d_kv=64, num_heads=8, d_ff=2048, num_layers=6, vocab_size=100)
        model = flat(method, T5Model(config), 512, tasks, "meta")
    wire = method.wire(SimpleNamespace(task=Task(2, 30, 15)))
    moved = nbytes({p.name: model.vector[p.span] for p in model.layout.select(wire.train)})
    assert moved == 4 * (8_192 + 15 * 512) == 63_488
    client = feature_client(torch.randn(30, 512), torch.arange(30) % 15, Task(0, 0, 15))
    assert moved + nbytes(method.statistics(client)) == 63_488 + 4 * 15 * 512 + 4 * 15


def test_the_draw_of_prototypes_is_scaled_and_the_features_are_logged():
    torch.manual_seed(0)
    small = flat(pilora(rank=1)).network.extractor.prototypes[0].detach().clone()
    torch.manual_seed(0)
    assert torch.allclose(flat(pilora(rank=1, init_scale=3.0)).network.extractor.prototypes[0], 30 * small)
    method = pilora(rank=1)
    model = flat(method)
    server = FederationServer(0 * model.vector, torch.zeros(0), model.layout, TASKS)
    count, delta = torch.ones(1, dtype=torch.int32), torch.zeros(2, len(model.vector))
    messages = (
        {"means": torch.tensor([[3.0, 4.0]]), "counts": count},
        {"means": torch.zeros(0, 2), "counts": 0 * count},
    )
    method.aggregate(Updates(delta, (1, 1), (0, 1), messages, model.layout), server)
    assert server.logs["pilora/feature_scale"] == pytest.approx(5 / 2**0.5)
