"""The built-in selectors on numbers worked out by hand."""

import pytest
import torch

from fcilbench.api.message import Layout
from fcilbench.api.predict import MostConfident
from fcilbench.api.schedule import Task
from fcilbench.api.selector import Selector, SelectorServer, TestSamples, task_of
from fcilbench.plugins.selectors.confidence import Confidence
from fcilbench.plugins.selectors.energy import Energy
from fcilbench.plugins.selectors.own import Own
from fcilbench.plugins.selectors.prototype import Prototype
from fcilbench.plugins.selectors.ridge import Ridge

TASKS = (Task(0, 0, 2), Task(1, 2, 1), Task(2, 3, 2))
PARTS = Layout(slice(0, 40), slice(40, 40 + 5 * 2 + 5), slice(55, 55), classes=5, features=2)


def heads(*rows):
    """What each task's module says of one sample."""
    return TestSamples(torch.zeros(1, 0), [torch.tensor([row]) for row in rows])


def learned(selector, messages):
    """Fits a selector to one message a task, each of one client."""
    state, fitted = {}, {}
    for task, message in zip(TASKS, messages, strict=False):
        server = SelectorServer(PARTS, torch.device("cpu"), task, TASKS[: task.index + 1], state)
        fitted = selector.fit(server, {0: message})
    return fitted


def sums(rows, counts, dtype, gram=None):
    message = {"sums": torch.tensor(rows, dtype=dtype), "counts": torch.tensor(counts, dtype=torch.int32)}
    return message if gram is None else {**message, "gram": torch.tensor(gram, dtype=torch.float64)}


def test_energy_takes_the_slice_with_the_largest_logsumexp():
    """Slices: (1, 1) has 1.69, (1.5) has 1.5, (0, 1.6) has 1.78; outside its slice a module is not read."""
    first, second, third = [1.0, 1.0, 9.0, 9.0, 9.0], [9.0, 9.0, 1.5, 9.0, 9.0], [9.0, 9.0, 9.0, 0.0, 1.6]
    assert Energy().pick({}, heads(first, second, third), TASKS).tolist() == [2]
    assert Energy().pick({}, heads(first, [9.0, 9.0, 2.0, 9.0, 9.0], third), TASKS).tolist() == [1]


def test_confidence_takes_the_most_certain_slice_and_a_single_class_competes_with_all():
    """0.5 in the slice (1, 1); exp(1.5) / (exp(1.5) + 4) = 0.53 among all classes; 0.8 or 0.5 in the last slice."""
    first, second, third = [1.0, 1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1.5, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0, 1.4]
    assert Confidence().pick({}, heads(first, second, third), TASKS).tolist() == [2]
    assert Confidence().pick({}, heads(first, second, [0.0] * 5), TASKS).tolist() == [1]


def test_slices_that_are_certain_beyond_the_last_digit_do_not_tie():
    """Margins of 20, 0 and 30: the probabilities of the first and the last slice are rounded to 1."""
    first, last = [20.0, 0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 30.0, 0.0]
    assert torch.tensor([first, last]).softmax(dim=1).amax(dim=1).tolist() == [1.0, 1.0]
    samples = heads(first, [0.0] * 5, last)
    assert Confidence().pick({}, samples, TASKS).tolist() == [2]
    own = dict(enumerate(samples.logits))
    assert MostConfident("{}")({str(k): each for k, each in own.items()}, TASKS, None).tolist() == [3]


def test_confidence_is_the_rule_that_methods_have_of_their_own():
    given = [torch.randn(200, 5, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    own = MostConfident("task-{}")({f"task-{k}": each for k, each in enumerate(given)}, TASKS, None)
    picked = Confidence().pick({}, TestSamples(torch.zeros(200, 0), given), TASKS)
    assert picked.tolist() == task_of(own, TASKS).tolist()


def test_the_nearest_class_mean_tells_the_task():
    """Means (2, 0), (0, 2); (-2, 0); (0, -2), and class 4 has no sample: it is never the nearest, not even at 0."""
    messages = [
        sums([[4.0, 0.0], [0.0, 6.0]], [2, 3], torch.float32),
        sums([[-2.0, 0.0]], [1], torch.float32),
        sums([[0.0, -4.0]], [2, 0], torch.float32),
    ]
    fitted = learned(Prototype(), messages)
    samples = TestSamples(torch.tensor([[3.0, 1.0], [1.0, 3.0], [-1.5, -1.0], [-1.0, -1.5], [0.0, -0.1]]))
    assert Prototype().pick(fitted, samples, TASKS).tolist() == [0, 0, 1, 2, 2]
    assert {name: list(each.shape) for name, each in fitted.items()} == {"weight": [5, 2], "bias": [5]}
    early = learned(Prototype(), messages[:1])
    assert Prototype().pick(early, samples, TASKS[:1]).tolist() == [0] * 5


def test_ridge_by_hand():
    """Features (1, 0), (1, 0) of class 0; (0, 1), (0, 1) of class 1; (-1, 0), (0, -1) of class 2, of two tasks.

    G = 3 I and S = [[2, 0], [0, 2], [-1, -1]], so W = S / (3 + lambda): class 2 has the largest logit
    for f = (-1, -0.5) once it has samples.
    """
    messages = [
        sums([[2.0, 0.0], [0.0, 2.0]], [2, 2], torch.float64, [2.0, 0.0, 2.0]),
        sums([[-1.0, -1.0]], [2], torch.float64, [1.0, 0.0, 1.0]),
    ]
    fitted = learned(Ridge(), messages)
    weight = fitted["weight"]
    assert torch.allclose(2 * weight / weight[0, 0], torch.tensor([[2.0, 0.0], [0.0, 2.0], [-1.0, -1.0]]), atol=1e-6)
    samples = TestSamples(torch.tensor([[-1.0, -0.5], [1.0, 0.5]]))
    assert Ridge().pick(fitted, samples, TASKS[:2]).tolist() == [1, 0]


def test_what_did_not_arrive_is_no_class():
    """No client answered in the second task: its class is never picked, and the first task's sums are kept."""
    for selector in (Prototype(), Ridge()):
        gram = [2.0, 0.0, 2.0] if isinstance(selector, Ridge) else None
        state = {}
        first = SelectorServer(PARTS, torch.device("cpu"), TASKS[0], TASKS[:1], state)
        selector.fit(first, {3: sums([[2.0, 0.0], [0.0, 2.0]], [2, 2], torch.float64, gram)})
        fitted = selector.fit(SelectorServer(PARTS, torch.device("cpu"), TASKS[1], TASKS[:2], state), {})
        samples = TestSamples(torch.randn(50, 2, generator=torch.Generator().manual_seed(0)))
        assert selector.pick(fitted, samples, TASKS[:2]).tolist() == [0] * 50


@pytest.mark.parametrize(
    "selector", [Confidence(), Energy(), Prototype(), Ridge()], ids=lambda each: type(each).__name__
)
def test_picks_do_not_depend_on_the_batch(selector):
    generator = torch.Generator().manual_seed(0)
    fitted = {"weight": torch.randn(5, 2, generator=generator), "bias": torch.randn(5, generator=generator)}
    features = torch.randn(64, 2, generator=generator)
    logits = [torch.randn(64, 5, generator=generator) for _ in TASKS]
    together = selector.pick(fitted, TestSamples(features, logits), TASKS)
    alone = [
        int(selector.pick(fitted, TestSamples(features[i : i + 1], [own[i : i + 1] for own in logits]), TASKS))
        for i in range(64)
    ]
    assert together.tolist() == alone
    assert len({*alone}) > 1


def test_what_a_selector_declares():
    assert [each.facts() for each in (Own, Confidence, Ridge)] == [
        {"features": "none", "heads": False, "learns": False},
        {"features": "none", "heads": True, "learns": False},
        {"features": "start", "heads": False, "learns": True},
    ]
    assert not Own.picks()
    assert not Selector.picks()
    assert Ridge.picks()
