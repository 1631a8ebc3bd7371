"""EMR-Merging: its modules by hand and against a plain streaming program, what it packs, real runs and bytes."""

import pytest
import torch

from fcilbench.api.message import Layout, nbytes
from fcilbench.api.schedule import Task
from fcilbench.federation.server import FederationServer
from fcilbench.plugins.aggregators.emr import Emr
from fcilbench.spec.protocol import Partition
from fcilbench.vectors.module import Packed

MODEL = 64 * 16 + 16 + 10 * 16 + 10


def merged(taus, pre=None, **params):
    """Returns method and server after tasks of one class each, whose vectors are `taus`; head and buffer are 1."""
    size = len(taus[0])
    parts = Layout(slice(0, size), slice(size, size + 4), slice(size + 4, size + 5), classes=2, features=1)
    tasks = tuple(Task(t, t, 1) for t in range(len(taus)))
    start = torch.zeros(size) if pre is None else pre
    host = FederationServer(torch.cat([start, torch.ones(5)]), torch.zeros(0, dtype=torch.int64), parts, tasks)
    method = Emr(Emr.Params(**params))
    method.begin(host)
    for task, tau in zip(tasks, taus, strict=True):
        host.enter(task, task.index)
        method.begin_task(host)
        host.step(torch.as_tensor(tau), parts.backbone)
        method.end_task(host, {})
    return method, host


def modules(taus, **params):
    """Returns the backbones that are deployed for each task, and for none."""
    method, host = merged(taus, **params)
    built = method.predictors(host).modules
    return [built[f"task-{t}"]()[: len(taus[0])].tolist() for t in range(len(taus))], built["unified"]()[
        : len(taus[0])
    ].tolist()


def test_two_tasks_by_hand():
    own, unified = modules([[1.0, -2.0, 3.0, 0.0], [2.0, 1.0, -1.0, -4.0]])
    assert unified == [2.0, -2.0, 3.0, -4.0]
    assert own[0] == pytest.approx([1.714286, -1.714286, 2.571429, 0.0], abs=1e-6)
    assert own[1] == pytest.approx([2.666667, 0.0, 0.0, -5.333333], abs=1e-6)


def test_three_tasks_by_hand():
    """Scales 0.75, 4/3 and 0.7."""
    taus = [[1.0, -2.0, 3.0, 0.0], [2.0, 1.0, -1.0, -4.0], [-1.0, -3.0, 2.0, -1.0]]
    own, unified = modules(taus)
    assert unified == [2.0, -3.0, 3.0, -4.0]
    assert own[0] == pytest.approx([1.5, -2.25, 2.25, 0.0])
    assert own[1] == pytest.approx([8 / 3, 0.0, 0.0, -16 / 3])
    assert own[2] == pytest.approx([0.0, -2.1, 2.1, -2.8])


def test_an_exact_tie_elects_nothing():
    """The public code elects -1 there, and has tau_uni (-1, 3)."""
    own, unified = modules([[1.0, 1.0], [-1.0, 3.0]])
    assert unified == [0.0, 3.0]
    assert own == [[0.0, 2.0], [0.0, 4.0]]


def test_the_switches():
    taus = [[1.0, -2.0, 3.0, 0.0], [2.0, 1.0, -1.0, -4.0]]
    unified = [2.0, -2.0, 3.0, -4.0]
    assert modules(taus, mask="off", rescale="none")[0] == [unified, unified]
    assert modules(taus, rescale="none")[0] == [[2.0, -2.0, 3.0, 0.0], [2.0, 0.0, 0.0, -4.0]]
    own, _ = modules(taus, mask="off")  # ||tau_t||_1 / ||tau_uni||_1 = 6 / 11, 8 / 11
    assert own[0] == pytest.approx([6 / 11 * u for u in unified])
    assert own[1] == pytest.approx([8 / 11 * u for u in unified])
    assert modules(taus, elect="strict")[1] == [2.0, 0.0, 0.0, -4.0]
    three = [[5.0, 1.0], [-1.0, 1.0], [-1.0, 1.0]]
    assert (modules(three)[1], modules(three, elect="count")[1]) == ([5.0, 1.0], [-1.0, 1.0])


def streamed(taus):
    """Sum, largest and smallest entry so far, two sign bits and one norm a task: all that the server would need."""
    total, high, low = (torch.zeros(len(taus[0]), dtype=torch.float64) for _ in range(3))
    signs, norms = [], []
    for tau in taus:
        total, high, low = total + tau, torch.maximum(high, tau), torch.minimum(low, tau)
        signs.append(tau.sign())
        norms.append(tau.abs().sum())
    unified = torch.where(total > 0, high, torch.where(total < 0, low, 0.0))
    kept = [torch.where(sign * unified > 0, unified, 0.0) for sign in signs]
    return unified, [norm / own.abs().sum() * own for norm, own in zip(norms, kept, strict=True)]


@pytest.mark.parametrize("storage", ["fp32", "fp16"])
def test_the_stored_form_is_the_streaming_form_and_keeps_norms(storage):
    taus = [torch.randn(60, generator=torch.Generator().manual_seed(seed)) for seed in range(4)]
    unified, expected = streamed([tau.double() for tau in taus])
    own, found = modules(taus, storage=storage)
    tolerance = 1e-5 if storage == "fp32" else 1e-2
    assert torch.allclose(torch.tensor(found).double(), unified, atol=tolerance)
    for module, plain, tau in zip(own, expected, taus, strict=True):
        assert torch.allclose(torch.tensor(module).double(), plain, atol=tolerance)
        assert float(torch.tensor(module).abs().sum()) == pytest.approx(float(tau.abs().sum()), rel=1e-3)


def test_one_task_is_reproduced_and_a_task_without_a_vector_deploys_theta_pre():
    pre, tau = torch.randn(50), torch.randn(50)
    method, host = merged([tau], pre)
    assert torch.allclose(method.predictors(host).modules["task-0"]()[:50], pre + tau, rtol=1e-6, atol=1e-6)
    own, _ = modules([[1.0, -2.0], [0.0, 0.0]])
    assert own == [[1.0, -2.0], [0.0, 0.0]]


def test_during_a_task_its_present_vector_counts():
    method, host = merged([[1.0, -2.0, 3.0, 0.0]])
    method.begin_task(host)
    host.step(torch.tensor([2.0, 1.0, -1.0, -4.0]), host.layout.backbone)
    built = method.predictors(host).modules
    assert built["unified"]()[:4].tolist() == [2.0, -2.0, 3.0, -4.0]
    assert set(built) == {"unified", "task-0", "task-1"}


def test_head_and_buffers_are_the_present_ones_and_bytes_are_those_of_the_packed_form():
    """40 weights in fp16, two masks of 5 bytes, two scales, four floats of the head and one of the buffers."""
    method, host = merged([torch.randn(40), torch.randn(40)])
    host.step(torch.arange(5.0), slice(40, 45))
    for build in method.predictors(host).modules.values():
        assert build()[40:].tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
    sent = method.export(host)
    assert int(sent["dense_bytes"]) == 2 * 40 + 2 * (5 + 4) + 4 * 5
    packed = Packed(**{name: sent[name] for name in ("support", "values", "masks", "scales", "shape")})
    for task in range(2):
        deployed = method.predictors(host).modules[f"task-{task}"]()[:40]
        assert torch.allclose(packed.task_vector(task), deployed, rtol=1e-3)
    assert nbytes({"pretrained": sent["pretrained"]}) == 32


def test_an_interrupted_run_ends_bit_equal_and_costs_what_fedavg_does(play):
    options = {"partition": Partition(kind="iid"), "clients": 2}
    whole, resumed = play(Emr(), **options), play(Emr(), 5, **options)
    assert resumed.model_digest == whole.model_digest
    assert resumed.accuracy == whole.accuracy
    # As for TIES over tasks: the second task has one class, and its loss 0 leaves the model where it starts.
    assert whole.cost.bytes_up == 2 * 2 * 4 * MODEL * 4
    assert whole.cost.bytes_down == 2 * (2 * 4 - 2) * MODEL * 4
    assert whole.metrics["faa/oracle"].value > 0.35  # chance: 1/3, 1, 1/4, 1/2
