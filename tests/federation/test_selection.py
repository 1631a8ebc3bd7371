"""Selectors in a real federation: which task is picked, the answer, what it costs; the method is left as it was."""

import pytest
import torch
from torch.nn.functional import linear

from fcilbench.api import FeatureExtractor, Selector, labelled_features
from fcilbench.errors import PluginError
from fcilbench.federation import run as run_module
from fcilbench.federation.experiment import build
from fcilbench.federation.run import run_experiment
from fcilbench.plugins.aggregators.fedavg import FedAvg
from fcilbench.plugins.aggregators.joint import Joint
from fcilbench.plugins.aggregators.ncm import Ncm
from fcilbench.plugins.aggregators.ridge import Ridge as RidgeMethod
from fcilbench.plugins.aggregators.sum import Sum
from fcilbench.plugins.selectors.confidence import Confidence
from fcilbench.plugins.selectors.energy import Energy
from fcilbench.plugins.selectors.own import Own
from fcilbench.plugins.selectors.prototype import Prototype
from fcilbench.plugins.selectors.ridge import Ridge
from fcilbench.plugins.stressors.clients import Dropout, Gaussian, SignFlip
from fcilbench.spec.protocol import Evaluation
from fcilbench.vectors.ridge import gcv_strength, solve_ridge

UNEVEN = (3, 1, 4, 2)


class TaskMean(Selector):
    """A third party's: the task whose mean feature is nearest, in ten lines."""

    features = "start"

    def statistics(self, client):
        rows = torch.cat([features for features, _ in labelled_features(client)])
        return {"total": rows.sum(dim=0), "count": torch.tensor(len(rows))}

    def fit(self, server, statistics):
        total, count = (sum(each[name] for each in statistics.values()) for name in ("total", "count"))
        server.state.setdefault("means", []).append(total / count)
        return {"means": torch.stack(server.state["means"])}

    def pick(self, fitted, samples, tasks):
        return torch.cdist(samples.features, fitted["means"]).argmin(dim=1)


class LastModel(TaskMean):
    """The same under the global model at the end of each task."""

    features = "model"


@pytest.fixture
def scored(make_experiment, tmp_path):
    """Returns `scored(method, selectors, ...)`: the outcome of a run under selectors, and `own` first."""
    count = 0

    def run(method=None, *selectors, stop=None, **changes):
        nonlocal count
        count += 1
        folder = tmp_path / f"run-{count}"
        folder.mkdir()
        named = {f"inferred:{type(each).__name__.lower()}": each for each in selectors}
        experiment = make_experiment(method, **{"tasks": UNEVEN, "selectors": {"inferred": Own(), **named}, **changes})
        if stop is not None:
            seen = []

            def listen(event):
                seen.append(event)
                if sum(each["event"] == "round" for each in seen) == stop:
                    raise KeyboardInterrupt

            with pytest.raises(KeyboardInterrupt):
                run_experiment(experiment, folder, listen)
        return run_experiment(experiment, folder)

    return run


def test_fedavg_with_ridge_is_the_trial_that_it_was_designed_by(make_experiment, scored):
    """Ridge regression on the frozen features of all training samples picks the task, FedAvg's slice answers."""
    kept = {}

    class Keeping(FedAvg):
        def predictors(self, server):
            kept["vector"] = server.vector.clone()
            return super().predictors(server)

    found = scored(Keeping(), Ridge()).accuracy
    federation = build(make_experiment(tasks=UNEVEN))
    net, train, test = federation.model.under(federation.initial), federation.train, federation.test
    everything = torch.arange(len(train))
    with torch.no_grad():
        features = net.features(train.plain(everything)).double()
        gram, targets = features.T @ features, torch.nn.functional.one_hot(train.labels, 10).double()
        weight = solve_ridge(gram, targets.T @ features, gcv_strength(gram, targets.T @ features, len(train)))
        last = []
        for index in federation.test_index:
            frozen = federation.model.under(federation.initial).features(test.plain(index))
            best = linear(frozen.double(), weight).argmax(dim=1)
            logits = federation.model.under(kept["vector"]).logits(test.plain(index))
            right = 0
            for label, chosen, row in zip(test.labels[index], best, logits, strict=True):
                (own,) = [each for each in federation.stream.tasks if each.offset <= chosen < each.seen]
                right += int(row[own.classes].argmax()) + own.offset == int(label)
            last.append(right / len(index))
    assert found["inferred:ridge"][-1] == last
    assert found["inferred:ridge"][-1] != found["inferred"][-1]


def test_nothing_of_the_method_changes_with_the_selectors(scored):
    pickers = (Confidence(), Energy(), Prototype(), Ridge(), TaskMean(), LastModel())
    for method in (FedAvg, Sum, Ncm):
        plain, chosen = scored(method()), scored(method(), *pickers)
        assert chosen.model_digest == plain.model_digest
        assert {key: chosen.accuracy[key] for key in plain.accuracy} == plain.accuracy
        for name in ("bytes_up", "bytes_down", "module", "server_state", "visits"):
            assert getattr(chosen.cost, name) == getattr(plain.cost, name)
        assert plain.cost.selectors == {}
        assert plain.cost.selection_s == 0.0
        assert [*chosen.accuracy] == [
            *("none", "inferred", "inferred:confidence", "inferred:energy", "inferred:prototype", "inferred:ridge"),
            *("inferred:taskmean", "inferred:lastmodel", "oracle"),
        ]
        assert chosen.metrics["faa/inferred:ridge"].value == pytest.approx(
            sum(chosen.accuracy["inferred:ridge"][-1]) / 4
        )


def test_confidence_is_what_fedavg_and_sum_do_of_their_own_and_ncm_does_not(scored):
    for method in (FedAvg(), Sum()):
        found = scored(method, Confidence()).accuracy
        assert found["inferred:confidence"] == found["inferred"]
    found = scored(Ncm(), Confidence(), Ridge()).accuracy
    assert found["inferred"] == found["none"]
    assert found["inferred:confidence"] != found["inferred"]


def test_ridge_answers_its_own_question_as_the_method_does(scored):
    """The method's best class is in the task that the selector picks, so its oracle answer is that class."""
    found = scored(RidgeMethod(), Ridge()).accuracy
    assert found["inferred:ridge"] == found["inferred"] == found["none"]


class Shifted(FeatureExtractor):
    """What a method inserts that adds to what passes, as prompts do."""

    def __init__(self, plain):
        super().__init__(plain, plain.feature_dim, plain.channels_last)

    def outputs(self, inputs, context):
        features = self(inputs)
        return {"features": features if "bare" in context else features.flip(1) - 3.0}


class Prompted(FedAvg):
    def prepare(self, network, request):
        network.extractor = Shifted(network.extractor)


@pytest.mark.parametrize(("rule", "same"), [(TaskMean, True), (LastModel, False)])
def test_a_selector_on_the_initial_network_reads_the_same_features_for_every_method(scored, rule, same):
    """Without what a method adds to what passes; the features of its own model are the method's."""
    ends, read = [], []

    class Noted(rule):
        def fit(self, server, statistics):
            ends.append(super().fit(server, statistics)["means"])
            return {"means": ends[-1]}

        def pick(self, fitted, samples, tasks):
            read.append(samples.features)
            return super().pick(fitted, samples, tasks)

    for method in (FedAvg(), Prompted()):
        scored(method, Noted(), rounds=1)
    for noted in (ends, read):
        half = len(noted) // 2
        pairs = zip(noted[:half], noted[half:], strict=True)
        assert all(torch.equal(one, other) for one, other in pairs) is same


def test_bytes_of_a_selector_by_hand(make_experiment, scored):
    """Each client with data sends once a task: rows of the classes that it has, int32 counts, ridge a triangle too.

    In float32 for prototypes and float64 for ridge. The initial model came with the first round, so nothing is sent
    back. Deployed is a head, 10 x 16 weights and 10 biases in float32; kept are sums, counts and the triangle in
    float64.
    """
    cost = scored(FedAvg(), Prototype(), Ridge(), Confidence()).cost.selectors
    federation = build(make_experiment(tasks=UNEVEN))
    prototype = ridge = 0
    for phase in federation.schedule.phases:
        for own in phase.clients:
            if len(own):
                classes = len(federation.train.labels[torch.from_numpy(own)].unique())
                prototype += classes * 16 * 4 + 4 * phase.task.size
                ridge += classes * 16 * 8 + 4 * phase.task.size + 8 * 16 * 17 // 2
    assert {*cost} == {"prototype", "ridge"}  # the most confident head asks nobody
    assert vars(cost["prototype"]) == {
        "bytes_up": prototype,
        "bytes_down": 0,
        "state": 8 * (10 * 16 + 10),
        "module": 4 * (10 * 16 + 10),
    }
    assert vars(cost["ridge"]) == {
        "bytes_up": ridge,
        "bytes_down": 0,
        "state": 8 * (10 * 16 + 10 + 16 * 17 // 2),
        "module": 4 * (10 * 16 + 10),
    }


def test_who_missed_the_first_round_is_sent_the_initial_model_once(make_experiment, scored):
    """Of three clients one takes part in a round: two lack the initial model. The global one goes to all, each task."""
    settings = {"participation": 0.34, "rounds": 1}
    cost = scored(FedAvg(), TaskMean(), LastModel(), **settings).cost.selectors
    federation = build(make_experiment(tasks=UNEVEN, **settings))
    visits = [sum(len(own) > 0 for own in phase.clients) for phase in federation.schedule.phases]
    assert visits == [3, 3, 3, 3]
    model = 4 * len(federation.initial)
    assert cost["taskmean"].bytes_down == 2 * model
    assert cost["lastmodel"].bytes_down == 12 * model
    assert cost["taskmean"].bytes_up == cost["lastmodel"].bytes_up == 12 * (4 * 16 + 8)


def test_a_sample_passes_the_module_of_the_picked_task_only(make_experiment, tmp_path, monkeypatch):
    """SUM after 4 tasks of 30, 20, 30 and 20 test samples has 30, 50, 80, 100 to answer: one pass each.

    The frozen features are computed once for each of the 100, and of the training samples (20 a class) for the sums.
    """
    passes = {}

    def built(*arguments):
        federation = build(*arguments)

        def count(_, inputs, __):
            where = "learning" if federation.model.network.training else "counted"
            passes[where] = passes.get(where, 0) + len(inputs[0])

        federation.model.network.extractor.register_forward_hook(count)
        return federation

    monkeypatch.setattr(run_module, "build", built)

    def evaluated(identities, selectors):
        passes.clear()
        changes = {"evaluate": Evaluation(task_identity=identities), "tasks": (3, 2, 3, 2), "selectors": selectors}
        folder = tmp_path / f"{len([*tmp_path.iterdir()])}"
        folder.mkdir()
        run_experiment(make_experiment(Sum(Sum.Params(head="sum")), **changes), folder)
        return passes["counted"]

    one = 30 + 50 + 80 + 100
    assert evaluated(("oracle",), {}) == one
    assert evaluated(("inferred",), {"inferred:ridge": Ridge()}) == one + 100 + 200
    assert evaluated(("inferred",), {"inferred": Own()}) == 30 + 2 * 50 + 3 * 80 + 4 * 100
    both = {"inferred:ridge": Ridge(), "inferred:energy": Energy()}
    assert evaluated(("inferred",), both) == 30 + 2 * 50 + 3 * 80 + 4 * 100 + 100 + 200


@pytest.mark.parametrize("stop", [1, 4, 7])
def test_an_interrupted_run_ends_bit_equal_under_selectors(scored, stop):
    pickers = (Ridge(), TaskMean(), LastModel(), Energy())
    settings = {"participation": 0.67}
    whole = scored(Sum(), *pickers, **settings)
    resumed = scored(Sum(), *pickers, stop=stop, **settings)
    assert resumed.accuracy == whole.accuracy
    assert resumed.cost.selectors == whole.cost.selectors
    assert resumed.model_digest == whole.model_digest


def test_stressors_act_on_what_clients_send_for_a_selector(scored):
    """Flipped signs and noise mislead the selector; a client that does not answer is missing for every selector."""
    clean = scored(FedAvg(), Ridge(), Prototype())
    for stress in (SignFlip(SignFlip.Params(clients=2)), Gaussian(Gaussian.Params(clients=2, sigma=3.0))):
        found = scored(FedAvg(), Ridge(), Prototype(), stressor=stress)
        for key in ("inferred:ridge", "inferred:prototype"):
            assert found.accuracy[key] != clean.accuracy[key]
        assert found.cost.selectors == clean.cost.selectors
    silent = scored(FedAvg(), Ridge(), Prototype(), stressor=Dropout(Dropout.Params(clients=2, rate=1.0)))
    for label in ("ridge", "prototype"):
        assert 0 < silent.cost.selectors[label].bytes_up < clean.cost.selectors[label].bytes_up


def test_statistics_that_are_not_finite_are_left_out(scored):
    class Broken(TaskMean):
        def statistics(self, client):
            message = super().statistics(client)
            return {**message, "total": message["total"] * float("nan")} if client.id == 1 else message

    found = scored(FedAvg(), Broken())
    assert any("selector broken: statistics that were not finite were left out" in each for each in found.warnings)
    assert None not in found.accuracy["inferred:broken"][-1]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda samples: torch.zeros(len(samples.features)), r"pick must return the index of a task, int64 \[30\]"),
        (lambda samples: torch.ones(len(samples.features), dtype=torch.int64), "a task that has not been seen"),
    ],
)
def test_a_rule_that_picks_no_task_is_the_plugins_fault(scored, answer, message):
    class Odd(TaskMean):
        def pick(self, fitted, samples, tasks):
            return answer(samples)

    with pytest.raises(PluginError, match=message):
        scored(FedAvg(), Odd())


def test_what_is_deployed_must_be_finite(scored):
    class Wild(TaskMean):
        def fit(self, server, statistics):
            return {name: each / 0.0 for name, each in super().fit(server, statistics).items()}

    with pytest.raises(PluginError, match="selector wild: what it deploys has values that are not finite"):
        scored(FedAvg(), Wild())


def test_a_centralised_reference_sends_nothing_and_is_scored_at_its_end(scored):
    found = scored(Joint(Joint.Params(epochs=2)), Ridge(), rounds=1)
    assert found.accuracy["inferred:ridge"][:-1] == [[None], [None, None], [None] * 3]
    assert None not in found.accuracy["inferred:ridge"][-1]
    bill = found.cost.selectors["ridge"]
    assert (bill.bytes_up, bill.bytes_down) == (0, 0)
    assert bill.module == 4 * (10 * 16 + 10)


def test_a_restarted_phase_starts_the_selector_anew(scored):
    """Joint training again on all tasks so far reports all samples again: sums of the last phase alone count."""
    once = scored(Joint(Joint.Params(epochs=1)), Prototype(), rounds=1)
    again = scored(Joint(Joint.Params(epochs=1, mode="cumulative")), Prototype(), rounds=1)
    assert again.accuracy["inferred:prototype"][-1] == once.accuracy["inferred:prototype"][-1]
    assert again.accuracy["oracle"][-1] == once.accuracy["oracle"][-1]


def test_a_selector_without_a_rule_is_the_plugins_fault(scored):
    class Mute(Selector):
        pass

    with pytest.raises(PluginError, match="selector mute has no rule: Mute does not override `pick`"):
        scored(FedAvg(), Mute())
