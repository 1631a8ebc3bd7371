"""RanPAC: what its first session trains, the head of all samples under the frozen adapter, lambda, and its bytes."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fcilbench.api import FeatureExtractor, No, insert_lora, unpack_symmetric
from fcilbench.engine.model import Network
from fcilbench.federation.experiment import build
from fcilbench.plugins.aggregators.ranpac import RanPac
from fcilbench.plugins.aggregators.ridge import Ridge
from fcilbench.spec.protocol import Partition
from fcilbench.vectors.ridge import gcv_strength, holdout_errors

IID = {"partition": Partition(kind="iid")}
FACTORS, SESSION = 4 * 64 + 16 * 4, 3 * 16 + 1
"""Numbers of the one layer's factors, and of the cosine head over the three classes of the first task."""
SKEWED = {
    "few classes": {"partition": Partition(kind="dirichlet", value=0.05, min_samples=0)},
    "few clients": {"partition": Partition(kind="quantity", value=0.5), "clients": 7, "participation": 0.3},
}


def method(**params):
    return RanPac(RanPac.Params(**({"random_features": 40} | params)))


class Watched(RanPac):
    """Notes the global model at the end of each task."""

    def __init__(self, params=None):
        super().__init__(params)
        self.ends = []

    def end_task(self, server, statistics):
        super().end_task(server, statistics)
        self.ends.append(server.vector.clone())


def moments(experiment, vector):
    """The Gram and the class sums of all training samples under a model, float64."""
    federation = build(experiment)
    federation.model.load(vector, federation.server.counters)
    federation.model.network.eval()
    with torch.no_grad():
        features = federation.model.features(federation.train.plain(torch.arange(len(federation.train)))).double()
    targets = F.one_hot(federation.train.labels, 10).double()
    return features.T @ features, targets.T @ features


@pytest.mark.parametrize("setting", SKEWED)
def test_the_head_is_that_of_all_samples_under_the_adapter_of_the_first_task(play, make_experiment, setting):
    watched = Watched(RanPac.Params(random_features=40))
    play(watched, **SKEWED[setting])
    first, last = watched.ends[0], watched.ends[-1]
    assert torch.equal(first, last)  # nothing trains after the first task
    gram, sums = moments(make_experiment(method(), tasks=(3, 1, 4, 2)), last)
    assert torch.allclose(plain(gram, sums, gcv_strength(gram, sums, 200)), head(play.server), rtol=0, atol=1e-5)


def plain(gram, sums, strength):
    level = strength * gram.diagonal().mean()
    return torch.linalg.solve(gram + level * torch.eye(len(gram)).double(), sums.T).T


def head(server):
    layout = server.layout
    return server.state["head"][: -layout.classes].view(layout.classes, layout.features).double()


def test_the_first_session_trains_the_adapter_and_nothing_else(play, make_experiment):
    begun = build(make_experiment(method(), tasks=(3, 1, 4, 2))).server.vector
    play(method(), **IID)
    layout = play.server.layout
    moved = {piece.name for piece in layout.pieces if not torch.equal(begun[piece.span], play.vector[piece.span])}
    lora = "extractor.body.body.1.lora_"
    assert moved == {f"{lora}A", f"{lora}B", "extractor.session.weight", "extractor.session.scale"}
    assert layout.backbone.stop == FACTORS + SESSION


def test_without_a_first_session_it_is_ridge_on_random_features(play):
    play(Ridge(Ridge.Params(random_features=40)))
    gram, expected = play.server.state["gram"], play.vector[play.server.layout.head]
    play(method(first_session="none"))
    assert torch.equal(play.server.state["gram"], gram)
    assert torch.allclose(play.server.state["head"], expected, rtol=1e-5, atol=1e-6)  # ridge moves its head by steps


def test_traffic_by_hand(play):
    """Three clients, two rounds: adapter and cosine head in the first task, then one report of 40 features a task."""
    outcome = play(method(), **IID)
    classifier, trained, reports = 10 * 40 + 10, FACTORS + SESSION, 10 * (40 * 8 + 4) + 4 * 820 * 8
    assert outcome.cost.bytes_up == 3 * (2 * 4 * trained + reports)
    # The whole model once, then what the two rounds have changed; later tasks change nothing that clients need.
    assert outcome.cost.bytes_down == 3 * 4 * (classifier + trained + 2 * trained)
    assert outcome.cost.module == 4 * (classifier + trained)
    assert outcome.cost.client_state == 0


def test_held_out_samples_are_reported_apart(play):
    """One client with ten classes of twenty: two Gram matrices, and sums of all classes in both parts."""
    outcome = play(method(ridge="holdout", first_session="none"), clients=1, tasks=(10,), **IID)
    assert outcome.cost.bytes_up == 2 * (10 * (40 * 8 + 4) + 820 * 8)
    assert float(play.server.state["counts"].sum()) == 200


def test_lambda_by_held_out_samples_by_hand():
    """Errors of the levels 0.1, 1 and 10 are 1.177240, 1.055556 and 1.288889."""

    def message(value, label):
        sums = torch.tensor([[value]])
        return {"gram": torch.tensor([value**2]), "sums": sums, "counts": torch.eye(2, dtype=torch.int32)[label]}

    server = SimpleNamespace(layout=SimpleNamespace(features=1), network=nn.Identity())
    fitted, held = [message(1.0, 0), message(2.0, 1)], [message(1.0, 0), message(3.0, 1)]
    assert RanPac()._best_level(fitted, held, server) == 1.0
    nobody = [{**each, "sums": each["sums"][:0], "counts": torch.zeros(2, dtype=torch.int32)} for each in held]
    assert RanPac()._best_level(fitted, nobody, server) is None


def test_lambda_by_held_out_samples_in_a_run(play, make_experiment):
    """The parts that one client sends choose, of 17 levels over the 16 features, that of least error."""
    sent = []

    class Kept(RanPac):
        def statistics(self, client):
            sent.append(super().statistics(client))
            return sent[-1]

    kept = Kept(RanPac.Params(random_features=40, ridge="holdout", first_session="none"))
    play(kept, clients=1, tasks=(10,), **IID)
    fitted, held = ((unpack_symmetric(sent[0][p + "gram"], 40), sent[0][p + "sums"]) for p in ("", "held_"))
    levels = [10.0**power / 16 for power in range(-8, 9)]
    errors = holdout_errors(fitted, held, 40.0, levels)
    level = levels[errors.index(min(errors))]
    gram, sums = fitted[0] + held[0], fitted[1] + held[1]
    expected = torch.linalg.solve(gram + level * torch.eye(40).double(), sums.T).T
    assert torch.allclose(head(play.server), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("stop", [1, 3])
def test_an_interrupted_run_ends_bit_equal(play, stop):
    whole, cut = (play(method(ridge="holdout"), stop=each) for each in (None, stop))
    assert whole.model_digest == cut.model_digest


def test_networks_that_cannot_be_adapted_are_declined():
    request = SimpleNamespace(tasks=(3, 7))
    adapted = Network(FeatureExtractor(nn.Sequential(nn.Linear(4, 4)), 4), 10)
    insert_lora(adapted.extractor, 2, 2.0)
    assert method().prepare(adapted, request).reason.startswith("RanPAC inserts its own LoRA")
    plain_network = Network(FeatureExtractor(nn.Sequential(nn.Conv2d(1, 4, 8), nn.Flatten()), 4), 10)
    assert isinstance(method().prepare(plain_network, request), No)
    assert method(first_session="none").prepare(plain_network, request) is None


def test_the_cosine_head_is_the_loss_of_the_first_task(make_experiment):
    """Logits are s cos(f, w_c): neither the length of f nor that of w_c counts."""
    model = build(make_experiment(method(), tasks=(3, 1, 4, 2))).model
    inputs = torch.randn(4, 1, 8, 8)
    features = model.network.extractor.body(inputs)
    session = model.network.extractor.session
    expected = torch.cosine_similarity(features[:, None], session.weight[None], dim=2)
    assert torch.allclose(model.outputs(inputs)["session"], expected, atol=1e-6)
    assert len(session.weight) == 3


def test_strengths_that_regularise_nothing_are_refused():
    for wrong in (0.0, -1.0, "cv"):
        with pytest.raises(ValueError, match="ridge"):
            RanPac.Params(ridge=wrong)
