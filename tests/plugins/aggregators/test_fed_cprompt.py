"""Fed-CPrompt as a method: the contrastive loss by hand, both of its forms in a real task, CODA-Prompt without it."""

import pytest
import torch
from pydantic import ValidationError

from fcilbench.api.client import Batch
from fcilbench.federation.experiment import build
from fcilbench.plugins.aggregators.codap import CodaPrompt
from fcilbench.plugins.aggregators.fed_cprompt import FedCPrompt, contrast, hinge
from fcilbench.spec.protocol import Partition

ORIGINAL = {"c2l": "feature", "lambda_c2l": 1000.0, "gamma": 0.01, "alpha": 0.001}
P, RECEIVED = torch.tensor([1.0, 0.0]), torch.zeros(2)
OLD = [torch.tensor([1.0, 2.0]), torch.tensor([4.0, 0.0])]


def cprompt(**params):
    return FedCPrompt(FedCPrompt.Params(**{"components": 8, "length": 4} | params))


# ---------------------------------------------------------------- by hand


@pytest.mark.parametrize(
    ("gamma", "alpha", "expected"), [(1, 0.5, 0.0), (1, 1.5, 0.5), (0.5, 0.5, 0.5), (1, "auto", 1.236068)]
)
def test_contrast_by_hand(gamma, alpha, expected):
    """Distances 1 to the received prompts, 2 and 3 to old ones; from the received ones these are sqrt(5) and 4 away."""
    assert contrast(P, RECEIVED, OLD, gamma, alpha).item() == pytest.approx(expected, abs=1e-6)
    scaled = 7 * alpha if alpha != "auto" else alpha
    seven = contrast(7 * P, 7 * RECEIVED, [7 * old for old in OLD], gamma, scaled)
    assert seven.item() == pytest.approx(7 * expected, abs=1e-5)


def test_the_form_of_the_authors_code_by_hand():
    """relu(1000 x .01 - 10 x 1 + 1) = 1, as 1000 max(.01 - .01 x 1 + .001, 0)."""
    f, near, far = torch.tensor([1.0, 0.0]), torch.tensor([1.0, 0.1]), torch.zeros(2)
    squares = [(f - other).square().sum() for other in (near, far)]
    assert 1000 * hinge(squares[0], squares[1:], 0.01, 0.001).item() == pytest.approx(1.0, abs=1e-4)
    assert 1000 * hinge(squares[0], [], 0.01, 0.001).item() == pytest.approx(10.0, abs=1e-4)


def test_every_round_begins_where_the_distance_has_no_gradient():
    own = RECEIVED.clone().requires_grad_()
    value = contrast(own, RECEIVED, OLD, 1.0, "auto")
    value.backward()
    assert value.item() == 0.0
    expected = OLD[0] / 5**0.5  # away from the nearest old prompts
    torch.testing.assert_close(own.grad, expected)
    own.grad = None
    contrast(own, RECEIVED, [], 1.0, "auto").backward()
    assert own.grad.tolist() == [0.0, 0.0]


def test_with_its_margin_the_term_is_never_negative():
    random = torch.Generator().manual_seed(0)
    for _ in range(50):
        p, received, *old = torch.randn(5, 6, generator=random, dtype=torch.float64)
        assert contrast(p, received, old, 0.9, "auto").item() >= 0


# ---------------------------------------------------------------- in a task


@pytest.fixture
def second_task(make_experiment, tiny_vit):
    """Returns `second_task(method)`: model and received vector in the second task, and a batch with padding."""

    def make(method):
        made = build(make_experiment(method, backbone=tiny_vit(), tasks=(5, 5)))
        for task in made.stream.tasks:
            made.server.enter(task, task.index)
            method.begin_task(made.server)
        model, train, task = made.model, made.train, made.stream.tasks[1]
        received = made.server.vector.clone()
        moved = received.clone()
        span = made.server.layout.piece("extractor.tasks.1.prompts").span
        moved[span] += 0.1 * torch.randn(span.stop - span.start, generator=torch.Generator().manual_seed(1))
        model.load(moved, made.server.counters)
        model.network.eval()
        rows = torch.from_numpy(made.schedule.phases[1].clients[0])[:4]
        mask = torch.tensor([1.0, 1.0, 1.0, 0.0])
        return made, received, Batch(train.plain(rows), train.labels[rows], mask, task, train.memo[rows])

    return make


def plain(name, task):
    return f"extractor.tasks.{task}.{name}"


def test_the_term_is_that_of_the_tasks_prompts(second_task):
    made, received, batch = second_task(cprompt())
    with torch.no_grad():
        base = cprompt(lambda_c2l=0.0).loss(made.model, batch, {"received": received})
        full = cprompt(lambda_c2l=3.0, gamma=0.5).loss(made.model, batch, {"received": received})
        coda = CodaPrompt(CodaPrompt.Params(components=8, length=4)).loss(made.model, batch, {})
    spans = [made.server.layout.piece(plain("prompts", task)).span for task in (0, 1)]
    own, start, old = made.model.vector[spans[1]], received[spans[1]], received[spans[0]]
    expected = (own - start).double().norm() - 0.5 * (own - old).double().norm() + 0.5 * (start - old).double().norm()
    assert torch.equal(base, coda)
    assert float(full - base) == pytest.approx(3 * float(expected), rel=1e-4)


def test_features_are_compared_with_two_models_and_padding_is_left_out(second_task):
    """The final model of the first task has no components of the second one at all, which gives the same features."""
    made, received, batch = second_task(cprompt(**ORIGINAL))
    model = made.model
    with torch.no_grad():
        base = cprompt(lambda_c2l=0.0).loss(model, batch, {"received": received})
        full = cprompt(**ORIGINAL | {"alpha": 20.0}).loss(model, batch, {"received": received})
        before = received.clone()
        for part in ("prompts", "keys", "attention"):
            before[made.server.layout.piece(plain(part, 1)).span] = 0.0
        f, near, far = (
            net.features(batch.inputs[:3]).double() for net in (model, model.under(received), model.under(before))
        )
    squares = [float((f - other).square().sum()) for other in (near, far)]
    assert min(squares) > 1e-6
    assert float(full - base) == pytest.approx(1000 * (squares[0] - 0.01 * squares[1] + 20), rel=1e-4)


def test_only_prompts_learn_from_it(second_task):
    """Keys and attentions are left out, and what earlier tasks have is frozen."""
    made, received, batch = second_task(cprompt())
    gradients = []
    for weight in (0.0, 1.0):
        made.model.gradient.zero_()
        cprompt(lambda_c2l=weight).loss(made.model, batch, {"received": received}).backward()
        gradients.append(made.model.gradient.clone())
    for piece in made.server.layout.pieces:
        if piece.span.stop <= len(gradients[0]) and ".0." not in piece.name:
            same = torch.equal(gradients[0][piece.span], gradients[1][piece.span])
            assert same == (piece.name != plain("prompts", 1))


# ---------------------------------------------------------------- runs


def test_without_the_term_it_is_coda_prompt_bit_for_bit(play, tiny_vit):
    settings = {"backbone": tiny_vit(), "tasks": (5, 5)}
    play(CodaPrompt(CodaPrompt.Params(components=8, length=4)), **settings)
    plain_vector = play.vector
    for options, equal in (({"lambda_c2l": 0.0}, True), ({}, False), (ORIGINAL, False)):
        play(cprompt(**options), **settings)
        assert torch.equal(play.vector, plain_vector) == equal


def test_the_hinge_of_a_fixed_margin_is_logged(play, tiny_vit):
    """New components have norm 1: a small margin leaves the hinge closed, a large one opens it."""
    for alpha, share in ((0.1, 0.0), (20.0, 1.0)):
        shares = []

        class Watched(FedCPrompt):
            def aggregate(self, updates, server, shares=shares):
                super().aggregate(updates, server)
                if server.task.index == 1:
                    shares.append(server.logs["cprompt/active"])

        play(Watched(cprompt(alpha=alpha).params), backbone=tiny_vit(), tasks=(5, 5))
        assert shares == [share, share]


@pytest.mark.parametrize("options", [{}, ORIGINAL])
def test_bytes_are_those_of_coda_prompt(play, tiny_vit, options):
    """Up: two components of 4 x 16 + 2 x 16 numbers in two blocks, and the task's rows; down once more everything."""
    settings = {"clients": 2, "partition": Partition(kind="iid"), "backbone": tiny_vit(), "tasks": (3, 3, 2, 2)}
    cost = play(cprompt(**options), **settings).cost
    components, row = 2 * 2 * (4 * 16 + 16 + 16) * 4, (16 + 1) * 4
    assert cost.bytes_up == 2 * 2 * (4 * components + 10 * row)
    moved = 7 * components + (2 * 10 - 2) * row
    assert cost.bytes_down == 2 * (4 * components + 10 * row + moved + 3 * components)
    assert 4 * (10 * 5 * (8 + 2) * 768 + 7_690) == 1_566_760  # ViT-B/16, ten classes a task


@pytest.mark.parametrize("options", [{}, ORIGINAL])
def test_an_interrupted_run_ends_bit_equal(play, tiny_vit, options):
    settings = {"partition": Partition(kind="dirichlet", value=0.05, min_samples=0), "backbone": tiny_vit()}
    whole = play(cprompt(**options), **settings)
    resumed = play(cprompt(**options), 5, **settings)
    assert (whole.model_digest, whole.accuracy) == (resumed.model_digest, resumed.accuracy)


def test_margins_that_do_not_fit():
    with pytest.raises(ValidationError, match="alpha: auto needs c2l: prompt"):
        FedCPrompt.Params(c2l="feature")
    with pytest.raises(ValidationError, match="at least 0, or auto"):
        FedCPrompt.Params(alpha=-1.0)
    assert FedCPrompt.Params(preset="original").model_dump().items() >= ORIGINAL.items()
