"""The diagonal Fisher: four cases by hand (f1 to f4), and batches against a loop in float64."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fcilbench.api.backbone import FeatureExtractor
from fcilbench.api.client import Batch
from fcilbench.api.schedule import Task
from fcilbench.engine import fisher as fisher_module
from fcilbench.engine.fisher import fisher_diagonal
from fcilbench.engine.model import Network

KINDS = ("exact", "sampled", "empirical", "label_prob")


def names(network):
    return [name for name, parameter in network.named_parameters() if parameter.requires_grad]


def batch(x, y, task, mask=None):
    return Batch(x, y, torch.ones(len(y), dtype=x.dtype) if mask is None else mask, task)


def pairs(x, y, task, size, seed=0):
    uniform = torch.rand(len(y), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return [(batch(a, b, task), u) for a, b, u in zip(x.split(size), y.split(size), uniform.split(size), strict=True)]


def by_hand(weight, x, y, kind):
    """The Fisher of a linear head `weight` without bias, both classes one task."""
    head = nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=torch.float64)
    head.weight.data.copy_(weight)
    return fisher_diagonal(head.eval(), ["weight"], pairs(x.double(), y, Task(0, 0, 2), len(y)), kind).view(
        weight.shape
    )


def loop(network, data, task, kind, uniform):
    """One backward pass per sample and class, nothing shared with the module."""
    total = 0.0
    for (x, y), u in zip(data, uniform, strict=True):
        p = F.softmax(network(x[None])[0, task.classes], dim=0).detach()
        label = int(y) - task.offset
        if kind == "exact":
            terms = [(c, p[c]) for c in range(task.size)]
        elif kind == "sampled":
            terms = [(next(c for c in range(task.size) if float(p[: c + 1].sum()) > float(u)), 1.0)]
        else:
            terms = [(label, p[label] if kind == "label_prob" else 1.0)]
        for c, weight in terms:
            network.zero_grad()
            F.log_softmax(network(x[None])[0, task.classes], dim=0)[c].backward()
            flat = [torch.zeros(q.numel()).double() if q.grad is None else q.grad.flatten() for q in trainable(network)]
            total = total + weight * torch.cat(flat) ** 2
    return total / len(data)


def trainable(network):
    return [parameter for parameter in network.parameters() if parameter.requires_grad]


# ---------------------------------------------------------------- F1 to F4


def test_f1_two_classes_at_zero():
    x, y, zero = torch.tensor([[1.0, 2.0]]), torch.tensor([0]), torch.zeros(2, 2)
    full = [[0.25, 1.0], [0.25, 1.0]]
    for kind in ("exact", "empirical", "sampled"):  # both labels give the same squares
        assert torch.allclose(by_hand(zero, x, y, kind), torch.tensor(full).double(), rtol=1e-12)
    half = torch.tensor([[0.125, 0.5], [0.125, 0.5]]).double()
    assert torch.allclose(by_hand(zero, x, y, "label_prob"), half, rtol=1e-12)


@pytest.mark.parametrize(
    ("kind", "label", "expected"),
    [("empirical", 0, 0.0625), ("empirical", 1, 0.5625), ("exact", 0, 0.1875), ("label_prob", 0, 0.046875)],
)
def test_f2_three_to_one(kind, label, expected):
    weight = math.log(3) * torch.eye(2, dtype=torch.float64)
    found = by_hand(weight, torch.tensor([[1.0, 0.0]]), torch.tensor([label]), kind)
    assert found[:, 0].tolist() == pytest.approx([expected, expected], rel=1e-12)
    assert found[:, 1].tolist() == [0.0, 0.0]


def test_f2_sampled_labels_follow_the_model():
    """p = (.75, .25): the mean over many draws is the exact Fisher, .1875."""
    weight = math.log(3) * torch.eye(2, dtype=torch.float64)
    x, y = torch.tensor([[1.0, 0.0]]).expand(4000, -1), torch.zeros(4000, dtype=torch.int64)
    found = by_hand(weight, x, y, "sampled")[0, 0]
    assert float(found) == pytest.approx(0.1875, abs=4 * 0.2165 / math.sqrt(4000))  # 4 standard errors
    assert float(found) != pytest.approx(0.0625, abs=0.05)  # all labels 0


def test_f3_gradients_that_cancel_are_squared_one_by_one():
    x, y = torch.tensor([[1.0], [1.0]]), torch.tensor([0, 1])
    assert by_hand(torch.zeros(2, 1), x, y, "empirical").tolist() == [[0.25], [0.25]]


def test_f4_a_linear_head_is_an_outer_product():
    torch.manual_seed(0)
    task, x, y = Task(1, 2, 3), torch.randn(7, 4, dtype=torch.float64), torch.randint(2, 5, (7,))
    head = nn.Linear(4, 6, dtype=torch.float64).eval()
    p = F.softmax(head(x)[:, 2:5], dim=1).detach()
    onehot = F.one_hot(y - 2, 3).double()
    for kind, middle in (("empirical", (onehot - p) ** 2), ("exact", p * (1 - p))):
        found = fisher_diagonal(head, ["weight", "bias"], pairs(x, y, task, 3), kind)
        weight, bias = found[:24].view(6, 4), found[24:]
        assert torch.allclose(7 * weight[2:5], middle.T @ x**2, rtol=0, atol=1e-12)
        assert torch.allclose(7 * bias[2:5], middle.sum(0), rtol=0, atol=1e-12)
        for rows in (weight[:2], weight[5:], bias[:2], bias[5:]):
            assert bool((rows == 0).all())  # exactly: rows outside the task


@pytest.mark.parametrize(("task", "classes"), [(Task(9, 171, 25), 196), (Task(2, 4, 2), 6), (Task(1, 3, 1), 6)])
def test_labels_of_uneven_tasks_count_from_their_offset(task, classes):
    """9 x 19 + 25 and [3, 1, 2]: `y % size` would name other classes (171 % 25 = 21)."""
    torch.manual_seed(7)
    x, y = torch.randn(30, 4, dtype=torch.float64), task.offset + torch.arange(30) % task.size
    head = nn.Linear(4, classes, dtype=torch.float64).eval()
    p = F.softmax(head(x)[:, task.classes], dim=1).detach()
    residual = (F.one_hot(y - task.offset, task.size) - p) ** 2
    found = fisher_diagonal(head, ["weight"], pairs(x, y, task, 8), "empirical").view(classes, 4)
    assert torch.allclose(30 * found[task.classes], residual.T @ x**2, rtol=0, atol=1e-12)
    assert int((found != 0).any(dim=1).sum()) == (task.size if task.size > 1 else 0)


# ---------------------------------------------------------------- real networks


def vit():
    import timm

    small = {"img_size": 8, "patch_size": 4, "in_chans": 1, "embed_dim": 16, "depth": 2, "num_heads": 2}
    return timm.create_model("vit_tiny_patch16_224", num_classes=6, **small)


class Shared(nn.Module):
    """One linear layer twice, one with a parameter of its own beside it, one never; an activation in place."""

    def __init__(self):
        super().__init__()
        self.once, self.twice, self.never = nn.Linear(64, 8), nn.Linear(8, 8), nn.Linear(3, 3)
        self.scale, self.act, self.head = nn.Parameter(torch.ones(8)), nn.ReLU(inplace=True), nn.Linear(8, 6)

    def forward(self, x):
        x = self.act(self.once(x.flatten(1))) * self.scale
        return self.head(self.twice(torch.tanh(self.twice(x))))


def convolutional():
    body = (nn.Conv2d(1, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3, groups=4, padding=1))
    return nn.Sequential(*body, nn.Flatten(), nn.Linear(36, 8), nn.LayerNorm(8), nn.Linear(8, 6))


@pytest.mark.parametrize("build", [vit, Shared, convolutional])
@pytest.mark.parametrize("kind", KINDS)
def test_batches_equal_a_loop_of_single_samples_in_float64(build, kind):
    torch.manual_seed(1)
    network = build().eval()
    if build is convolutional:
        network[1].running_var.uniform_(0.5, 2.0)
    task, x, y = Task(1, 2, 3), torch.randn(7, 1, 8, 8), torch.randint(2, 5, (7,))
    data = pairs(x, y, task, 3)
    found = fisher_diagonal(network, names(network), data, kind)
    assert found.dtype == torch.float32
    uniform = torch.cat([u for _, u in data])
    wide = network.double()
    expected = loop(wide, list(zip(x.double(), y, strict=True)), task, kind, uniform)
    assert torch.allclose(found.double(), expected, rtol=1e-4, atol=1e-5 * float(expected.max()))
    exact = fisher_diagonal(wide, names(wide), pairs(x.double(), y, task, 3), kind)
    assert torch.allclose(exact, expected, rtol=1e-9, atol=1e-15)


def encoder():
    from transformers import BertConfig, BertModel

    from fcilbench.plugins.backbones.text import EncoderFeatures

    size = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    return EncoderFeatures(BertModel(BertConfig(vocab_size=20, **size), add_pooling_layer=False), 0, "mean")


def decoder():
    from transformers import T5Config, T5Model

    from fcilbench.plugins.backbones.text import DecoderTokenFeatures

    return DecoderTokenFeatures(
        T5Model(T5Config(vocab_size=20, d_model=8, d_kv=4, d_ff=16, num_layers=1, num_heads=2)), 0, 1
    )


@pytest.mark.parametrize("build", [encoder, decoder])
def test_texts_equal_a_loop_of_single_samples(build):
    torch.manual_seed(6)
    network, task = Network(FeatureExtractor(build(), 8), 4).double().eval(), Task(0, 0, 4)
    x, y = torch.randint(2, 9, (6, 6)), torch.randint(0, 4, (6,))  # few tokens, so they repeat
    x[0, 4:] = 0  # padding
    x[1, 2] = 1  # the decoder's start token
    data = pairs(x, y, task, 3)
    found = fisher_diagonal(network, names(network), data, "empirical")
    expected = loop(network, list(zip(x, y, strict=True)), task, "empirical", torch.zeros(6))
    assert torch.allclose(found, expected, rtol=1e-9, atol=1e-15)


def test_frozen_parameters_are_left_out_and_small_budgets_change_nothing(monkeypatch):
    torch.manual_seed(2)
    network = vit().double().eval()
    network.blocks[0].attn.qkv.weight.requires_grad_(False)  # its bias stays
    network.blocks[1].mlp.fc1.requires_grad_(False)
    task, x, y = Task(0, 0, 6), torch.randn(5, 1, 8, 8, dtype=torch.float64), torch.randint(0, 6, (5,))
    found = fisher_diagonal(network, names(network), pairs(x, y, task, 5), "empirical")
    expected = loop(network, list(zip(x, y, strict=True)), task, "empirical", torch.zeros(5))
    assert torch.allclose(found, expected, rtol=1e-9, atol=1e-15)
    monkeypatch.setattr(fisher_module, "_ENTRIES", {"cpu": 1, "cuda": 1})
    again = fisher_diagonal(network, names(network), pairs(x, y, task, 2), "empirical")
    assert torch.allclose(again, found, rtol=1e-9, atol=1e-15)


def test_padding_rows_count_for_nothing():
    torch.manual_seed(3)
    head, x, y = nn.Linear(4, 3).eval(), torch.randn(5, 4), torch.randint(0, 3, (5,))
    task, mask = Task(0, 0, 3), torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0])
    padded = fisher_diagonal(head, names(head), [(batch(x, y, task, mask), torch.zeros(5))], "empirical")
    plain = fisher_diagonal(head, names(head), [(batch(x[:3], y[:3], task), torch.zeros(3))], "empirical")
    assert torch.allclose(padded, plain, rtol=1e-6, atol=0)


def test_one_class_a_task():
    head = nn.Linear(4, 3).eval()
    one = pairs(torch.randn(2, 4), torch.tensor([1, 1]), Task(1, 1, 1), 2)
    for kind in KINDS:
        assert bool((fisher_diagonal(head, names(head), one, kind) == 0).all())  # log p is 0 whatever x


def test_no_gradient_is_left_behind_and_no_gradient_mode_is_needed():
    torch.manual_seed(4)
    network, data = vit().eval(), pairs(torch.randn(2, 1, 8, 8), torch.tensor([0, 1]), Task(0, 0, 6), 2)
    found = fisher_diagonal(network, names(network), data, "exact")
    with torch.no_grad():
        assert torch.equal(fisher_diagonal(network, names(network), data, "exact"), found)
    assert not found.requires_grad
    assert all(parameter.grad is None for parameter in network.parameters())
