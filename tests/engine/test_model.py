"""The flat model: views, borrowed vectors, named outputs."""

import pytest
import torch
from torch import nn

from fcilbench.api.backbone import FeatureExtractor
from fcilbench.engine.model import FlatModel, Network

CPU = torch.device("cpu")


def network(seed=0):
    torch.manual_seed(seed)
    return Network(FeatureExtractor(nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.Tanh()), 8), 6)


def test_flat_views_share_memory_and_frozen_parameters_stay_out():
    net = network()
    net.extractor.body[1].bias.requires_grad_(False)
    model = FlatModel(net, CPU)
    assert len(model.vector) == 16 * 8 + 6 * 8 + 6
    assert model.layout.backbone == slice(0, 128)
    assert model.layout.head == slice(128, 182)
    model.vector.zero_()
    assert float(net.head.weight.detach().abs().sum()) == 0.0
    assert float(net.extractor.body[1].bias.detach().abs().sum()) > 0.0
    net.head.bias.grad.fill_(2.0)
    assert model.gradient[-6:].tolist() == [2.0] * 6


def test_a_frozen_head_is_refused():
    net = network()
    net.head.bias.requires_grad_(False)
    with pytest.raises(ValueError, match="head"):
        FlatModel(net, CPU)


def test_another_vector_can_be_borrowed_without_touching_the_resident_one():
    model = FlatModel(network(0), CPU)
    other = FlatModel(network(1), CPU)
    inputs = torch.randn(3, 1, 4, 4)
    before = model.vector.clone()
    model.network.train()
    teacher = model.under(other.vector)
    other.network.eval()
    assert torch.equal(teacher.logits(inputs), other.logits(inputs))
    assert torch.equal(teacher.head(teacher.features(inputs)), other.logits(inputs))
    assert torch.equal(model.vector, before)
    assert model.network.training
    assert not teacher.logits(inputs).requires_grad
    assert torch.equal(teacher.parameters, other.vector)


def test_modules_of_a_borrowed_network_are_in_evaluation_mode_and_then_back_in_their_own():
    body = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Dropout(), nn.Flatten())
    model, during = FlatModel(Network(FeatureExtractor(body, 8), 3), CPU), []
    body[2].register_forward_hook(lambda *_: during.extend(module.training for module in model.network.modules()))
    model.network.train()
    body[1].eval()  # as the trainer does for a batch of one sample
    before = [module.training for module in model.network.modules()]
    model.under(model.vector).logits(torch.randn(3, 1, 4, 4))
    assert not any(during)
    assert [module.training for module in model.network.modules()] == before
    assert set(before) == {True, False}


def test_a_borrowed_batchnorm_network_leaves_running_statistics_alone():
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten())
    model = FlatModel(Network(FeatureExtractor(body, 8), 3), CPU)
    model.network.train()
    before = model.vector.clone()
    model.under(model.vector + 1.0).logits(torch.randn(5, 1, 4, 4))
    assert torch.equal(model.vector, before)
    assert set(model.named(model.vector)) == {
        "extractor.body.0.weight", "extractor.body.0.bias", "extractor.body.1.weight", "extractor.body.1.bias",
        "head.weight", "head.bias", "extractor.body.1.running_mean", "extractor.body.1.running_var",
    }  # fmt: skip


def test_the_layout_tells_where_each_tensor_of_the_vector_is():
    model = FlatModel(network(), CPU)
    layout = [(piece.name, piece.shape, piece.start) for piece in model.layout.pieces]
    assert layout == [
        ("extractor.body.1.weight", (8, 16), 0), ("extractor.body.1.bias", (8,), 128),
        ("head.weight", (6, 8), 136), ("head.bias", (6,), 184),
    ]  # fmt: skip
    piece = model.layout.piece("head.weight")
    assert piece.span == slice(136, 184)
    assert torch.equal(model.vector[piece.span].view(piece.shape), model.network.head.weight)
    with pytest.raises(KeyError, match="no tensor"):
        model.layout.piece("head.wait")


def test_gradients_flow_into_a_borrowed_vector_and_into_inputs():
    """The gradient of the borrowed network equals that of a network that owns the vector."""
    model, other, inputs = FlatModel(network(0), CPU), FlatModel(network(1), CPU), torch.randn(3, 1, 4, 4)
    vector, seen = other.vector.clone().requires_grad_(), inputs.clone().requires_grad_()
    net = model.under(vector)
    loss = net.logits(seen).square().sum() + net.piece("head.weight").sum() + net.parameters.square().sum()
    found = torch.autograd.grad(loss, [vector, seen])
    own = inputs.clone().requires_grad_()
    loss = other.logits(own).square().sum() + other.piece("head.weight").sum() + other.parameters.square().sum()
    loss.backward()
    assert torch.allclose(found[0], other.gradient, atol=1e-5)
    assert torch.allclose(found[1], own.grad, atol=1e-6)
    assert not model.gradient.any()


class Prompted(FeatureExtractor):
    """Adds a prompt that the context picks, and says how far it is from the memo."""

    def __init__(self, body):
        super().__init__(body, 8)
        self.prompt = nn.Parameter(torch.arange(16.0).view(2, 8))

    def outputs(self, inputs, context):
        prompt = self.prompt[context["task"]] if "task" in context else self.prompt.mean(dim=0)
        outputs = {"features": self.body(inputs) + prompt}
        return outputs | ({"pull": (context["memo"] - prompt).square().sum(dim=1)} if "memo" in context else {})


def test_an_extractor_with_outputs_of_its_own_gives_them_in_one_pass():
    net = network()
    net.extractor = Prompted(net.extractor.body)
    model, inputs = FlatModel(net, CPU), torch.randn(3, 1, 4, 4)
    plain = model.network.extractor.body(inputs)
    context = {"task": torch.tensor(1), "memo": torch.zeros(3, 8)}
    for handle in (model, model.under(model.vector.clone())):
        found = handle.outputs(inputs, context)
        assert torch.allclose(found["features"], plain + torch.arange(8.0, 16.0), atol=1e-6)
        assert found["pull"].tolist() == [sum(v * v for v in range(8, 16))] * 3
        assert torch.allclose(handle.features(inputs), plain + torch.arange(4.0, 12.0), atol=1e-6)
        assert torch.allclose(handle.logits(inputs), handle.head(handle.features(inputs)))
    assert set(FlatModel(network(), CPU).outputs(inputs, context)) == {"features"}


def test_pieces_are_views_of_parameters_or_of_the_vector():
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten())
    model = FlatModel(Network(FeatureExtractor(body, 8), 3), CPU)
    model.piece("head.bias").sum().backward()
    assert model.gradient[model.layout.piece("head.bias").span].tolist() == [1.0] * 3
    assert int(model.gradient.count_nonzero()) == 3
    model.vector.fill_(7.0)
    assert model.piece("extractor.body.1.running_mean").tolist() == [7.0, 7.0]
    assert not model.piece("extractor.body.1.running_mean").requires_grad
    vector = torch.full_like(model.vector, 1.0).requires_grad_()  # statistics get no gradient
    model.under(vector).logits(torch.randn(2, 1, 4, 4)).sum().backward()
    assert not vector.grad[model.layout.buffers].any()
    assert vector.grad[model.layout.trainable].any()


def test_edge_9_buffers_of_another_float_type_are_refused():
    """Edge case 9: they became float32 without a word."""
    net = network()
    net.register_buffer("wide", torch.zeros(2, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"buffer 'wide' of Network is torch\.float64: make it float32"):
        FlatModel(net, CPU)


def test_a_table_of_indices_stays_in_the_module_and_is_never_sent():
    """EfficientFormer was refused for its persistent table of relative positions."""
    net = network()
    net.register_buffer("seen", torch.tensor(5))
    net.register_buffer("positions", torch.tensor([[0, 1], [1, 0]]))
    model = FlatModel(net, CPU)
    assert model.counters.tolist() == [5]
    assert "positions" not in {piece.name for piece in model.layout.pieces}
    model.load(torch.zeros_like(model.vector), torch.tensor([6]))
    assert (int(net.seen), net.positions.tolist()) == (6, [[0, 1], [1, 0]])


class Biased(nn.Module):
    """Keeps its biases in evaluation mode, as the attention of timm's LeViT and EfficientFormer does."""

    def __init__(self):
        super().__init__()
        self.biases = nn.Parameter(torch.zeros(16))
        self.attention_bias_cache = {}

    def train(self, mode=True):
        super().train(mode)
        if self.attention_bias_cache:
            self.attention_bias_cache = {}

    def forward(self, inputs):
        if "cpu" not in self.attention_bias_cache:
            self.attention_bias_cache["cpu"] = self.biases[torch.arange(16)]
        return inputs.flatten(1) + self.attention_bias_cache["cpu"]


def test_biases_kept_in_evaluation_mode_are_those_of_the_vector():
    """The second vector was run with the attention biases of the first."""
    model = FlatModel(Network(FeatureExtractor(Biased(), 16), 3), CPU)
    model.network.eval()
    other = model.vector.clone()
    other[model.layout.piece("extractor.body.biases").span] = 2.0
    inputs = torch.zeros(1, 1, 4, 4)
    found = [float(net.features(inputs).detach().sum()) for net in (model, model.under(other), model)]
    assert found == [0.0, 32.0, 0.0]
