"""Each check can fail: a deliberately broken aggregator fails it, and is told which check and what to do."""

import importlib.util
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from fcilbench.api import Aggregator, Module, No, Predictors, Samples, Wire, class_balanced, seen_cross_entropy
from fcilbench.errors import UsageError
from fcilbench.testing import CHECKS, Case, case
from fcilbench.testing.bench import BENCHES
from fcilbench.testing.subject import AggregatorSubject

SPEC = importlib.util.spec_from_file_location("broken", Path(__file__).parent / "broken.py")
broken = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(broken)
BY_ID = {each.id: each for each in CHECKS["aggregators"]}
PAIRS = [(id_, cls) for id_, classes in broken.BROKEN.items() for cls in classes]
CONVOLUTION = BENCHES[0]


def on(cls, *benches):
    return [AggregatorSubject(cls, bench=bench) for bench in benches or BENCHES]


def result(id_, cls, *benches):
    return Case("aggregators", on(cls, *benches), cls.breaks).run(BY_ID[id_])


@pytest.mark.parametrize(("id_", "cls"), PAIRS, ids=lambda value: getattr(value, "__name__", value))
def test_a_broken_aggregator_is_found(id_, cls):
    found = result(id_, cls)
    assert found.status == "failed", found
    assert found.check == id_
    assert found.fix == BY_ID[id_].fix
    assert str(found).startswith(f"{id_}: ")
    assert "\n  what to do: " in str(found)


def test_every_check_but_those_of_bytes_and_gpus_has_a_broken_example():
    assert set(BY_ID) - set(broken.BROKEN) == {"measured-bytes", "cpu-gpu"}


@pytest.mark.parametrize("kind", CHECKS)
def test_checks_have_unique_ids_one_line_statements_and_a_fix(kind):
    assert len({each.id for each in CHECKS[kind]}) == len(CHECKS[kind])
    for each in CHECKS[kind]:
        assert "\n" not in each.statement
        assert len(each.statement) < 130
        assert len(each.fix) > 20


def test_a_breach_on_the_transformer_alone_is_found_and_says_so():
    class OnLinearLayers(broken.OneStreamForAllLayers):
        layers = ("*.body.5", "*.blocks.*")  # one layer of the convolution, many of the transformer

    found = result("statistics-batch-size", OnLinearLayers)
    assert found.status == "failed"
    assert found.found.endswith("(on the kit's vision transformer)")


# ---------------------------------------------------------------- hooks used as they are meant, and their bytes


class Talks(Aggregator):
    """Adds the model, which costs nothing, and 3 floats a round and 5 a task down; 2 float64 up."""

    def broadcast(self, server):
        anchor, teacher = server.vector[server.layout.trainable].clone(), server.vector.clone()
        return {"a": server.vector[:3].clone(), "b": server.vector[:5].clone(), "anchor": anchor, "teacher": teacher}

    def statistics(self, client):
        return {"c": client.net.parameters[:2].detach().double()}


class Votes(Aggregator):
    """Sends the sign of each number of its update in one byte."""

    breaks: ClassVar = {"one-client": "it moves by a fixed step", "identical-clients": "it moves by a fixed step"}

    def encode(self, update, client):
        return {name: tensor.sign().to(torch.int8) for name, tensor in update.items()}

    def decode(self, message, server):
        return {name: tensor.float() for name, tensor in message.items()}

    def aggregate(self, updates, server):
        server.step(1e-3 * updates.delta.sum(0).sign())


class VotesAsStatistics(Aggregator):
    """Sends the same votes beside no update, where no stressor can touch them."""

    breaks: ClassVar = Votes.breaks

    def wire(self, server):
        return Wire(up=())

    def statistics(self, client):
        return {"votes": (client.net.vector - client.received_model).sign().to(torch.int8)}

    def aggregate(self, updates, server):
        server.step(1e-3 * torch.stack([message["votes"].float() for message in updates.statistics]).sum(0).sign())


def test_an_int8_method_passes_every_check_and_as_statistics_the_attack_is_declined():
    for cls, felt in ((Votes, "passed"), (VotesAsStatistics, "skipped")):
        found = {each.check: each for each in Case("aggregators", on(cls), cls.breaks).results()}
        assert {each.status for each in found.values()} <= {"passed", "skipped", "declared"}, found
        assert found["attack-felt"].status == felt
        assert found["measured-bytes"].status == "passed"
    assert "cannot touch" in found["attack-felt"].found


class HeadOnly(Aggregator):
    """Trains the head's weight, and sends nothing else; its bias has rate 0."""

    def wire(self, server):
        return Wire(train=("head.*",), up=("head.weight",))

    def rates(self):
        return {"head.bias": 0.0}


class Dense(Aggregator):
    """Deploys a patch embedding that is neither trained nor sent."""

    def prepare(self, network, request):
        return None if hasattr(network.extractor.body, "blocks") else No("it needs tokens")

    def predictors(self, server):
        frozen = {"extractor.body.patch_embed.proj.bias": torch.ones(16)}
        return Predictors({"global": lambda: Module(server.vector, frozen)}, super().predictors(server).rules)

    def export(self, server):
        return {"theta": server.vector, "bias": torch.ones(16)}


class Replays(Aggregator):
    """Trains on eight grey images beside its own."""

    def replay(self, server):
        grey = torch.arange(8 * 64).reshape(8, 8, 8, 1).to(torch.uint8).numpy()
        return Samples(grey, torch.zeros(8, dtype=torch.int64).numpy())

    def loss(self, net, batch, context):
        return super().loss(net, batch, context) + net.logits(batch.extra.inputs)[:, 0].square().mean()


@pytest.mark.parametrize(
    ("cls", "ids"),
    [
        (Talks, "messages measured-bytes statistics-batch-size"),
        (HeadOnly, "measured-bytes resume"),
        (Dense, "runs one-client measured-bytes answers resume"),
        (Replays, "replay repeatable loss-pure loss-mask resume measured-bytes"),
    ],
)
def test_hooks_used_as_they_are_meant_pass(cls, ids):
    assert {id_: result(id_, cls).status for id_ in ids.split()} == dict.fromkeys(ids.split(), "passed")


def test_bytes_that_the_runner_does_not_count_fail_the_check():
    """A centralised method sends nothing, although it trains; without a declaration that is a finding."""

    class Centralised(Aggregator):
        """Trains on clients without a network."""

        def build_schedule(self, schedule):
            return type(schedule)(schedule.phases, federated=False)

    found = result("measured-bytes", Centralised)
    assert found.status == "failed"
    assert "counted 0 bytes up" in found.found


def test_a_method_that_sends_statistics_only_is_told_so():
    """Its update is zero on purpose: there is no client's model to end at."""

    class Votes(Aggregator):
        def wire(self, server):
            return Wire(up=())

        def statistics(self, client):
            return {"signs": (client.net.vector - client.received_model).sign().to(torch.int8)}

        def aggregate(self, updates, server):
            server.step(0.01 * sum(message["signs"].float() for message in updates.statistics).sign())

    for id_ in ("one-client", "identical-clients"):
        found = result(id_, Votes)
        assert found.status == "skipped"
        assert found.found == "clients send no update of the model, so there is no client's model to end at"


def test_a_context_with_nan_is_unchanged_unless_it_changes():
    class Broadcasts(Aggregator):
        def broadcast(self, server):
            return {"unknown": torch.full((2,), torch.nan)}

    class Fills(Broadcasts):
        def loss(self, net, batch, context):
            context["unknown"].zero_()
            return super().loss(net, batch, context)

    assert result("loss-pure", Broadcasts).status == "passed"
    assert result("loss-pure", Fills).found.startswith("the loss changed 'unknown' of its batch or context in place")


class Rehearses(Aggregator):
    """Keeps six samples of earlier tasks, and replays them."""

    def begin_client_task(self, client):
        client.memory = class_balanced(client.memory, client.past, 6, client.random("memory"))

    def loss(self, net, batch, context):
        loss = super().loss(net, batch, context)
        if batch.memory is None:
            return loss
        return loss + seen_cross_entropy(net.logits(batch.memory.inputs), batch.memory)


class Packs(Aggregator):
    """Deploys another model and exports it."""

    def predictors(self, server):
        return Predictors({"global": lambda: 1.5 * server.vector}, super().predictors(server).rules)

    def export(self, server):
        return {"theta": 1.5 * server.vector}


def test_a_method_with_a_memory_passes_every_check():
    results = results_of(Rehearses)
    for found in results.values():
        assert found.status in ("passed", "skipped"), f"{found}\n{found.trace}"
    assert results["client-memory"].status == "passed"


def test_another_rule_alone_needs_no_export():
    class OneScale(Aggregator):
        def predictors(self, server):
            given = super().predictors(server)
            return Predictors(given.modules, {**given.rules, "inferred": given.rules["none"]})

    assert result("deployed", OneScale).status == result("deployed", Packs).status == "passed"


def test_by_name_alone_a_plugin_is_tried_with_its_small_configuration():
    found = case("aggregators", "coda-prompt")
    assert found.params == {"components": 8}
    assert found.run(BY_ID["one-client"]).status == "passed"
    assert case("aggregators", "coda-prompt", {"components": 4}).params == {"components": 4}


# ---------------------------------------------------------------- declarations, and one message for one cause


def test_a_declared_check_must_fail():
    class Declared(Aggregator):
        """Goes half of the way, and says so."""

        breaks: ClassVar = {"one-client": "it is careful", "identical-clients": "it is careful"}

        def aggregate(self, updates, server):
            server.step(0.5 * updates.mean())

    class Boasts(Aggregator):
        """FedAvg that claims to be special."""

        breaks: ClassVar = {"one-client": "I am special"}

    found = result("one-client", Declared)
    assert found.status == "declared"
    assert found.found.startswith("it is careful (the step is 0.5 times")
    found = result("one-client", Boasts)
    assert found.status == "failed"
    assert found.fix == "remove 'one-client' from `breaks`"


def test_a_declaration_is_about_the_default_hyperparameters():
    """Joint declares an incomplete matrix of accuracies; in its other mode the matrix is complete."""
    matrix = BY_ID["accuracy-matrix"]
    assert case("aggregators", "joint").run(matrix).status == "declared"
    assert case("aggregators", "joint", {"mode": "cumulative"}).run(matrix).status == "passed"


def test_a_crash_is_no_declared_failure():
    class Crashes(Aggregator):
        """Raises."""

        breaks: ClassVar = {"faulty-client": "it is fragile"}

        def aggregate(self, updates, server):
            raise ValueError("shape")

    found = result("faulty-client", Crashes)
    assert (found.status, found.found) == ("failed", "ValueError: shape (on the kit's convolution with BatchNorm)")
    assert "in aggregate" in found.trace


@pytest.mark.parametrize(
    ("breaks", "text"),
    [
        ({"one-cleint": "x"}, "`breaks` names 'one-cleint', which is no check (did you mean 'one-client'?)"),
        ({"permutation": " "}, "`breaks` gives no reason for 'permutation'"),
    ],
)
def test_declarations_are_checked_themselves(breaks, text):
    with pytest.raises(UsageError) as info:
        Case("aggregators", [], breaks)
    assert str(info.value) == text


def results_of(cls):
    return {each.check: each for each in Case("aggregators", on(cls)).results()}


def test_a_prepare_that_raises_is_reported_once():
    found = results_of(broken.CannotPrepare)
    failed = [each for each in found.values() if each.status == "failed"]
    assert [each.check for each in failed] == ["runs"]
    assert "has no attribute 'prompts'" in failed[0].found
    same = [each for each in found.values() if each.found == "fails with the same error as 'runs'"]
    assert len(same) > 15


def test_a_method_that_declines_one_network_is_checked_on_the_other():
    found = results_of(Dense)
    assert found["one-client"].status == "passed"
    assert {each.status for each in found.values()} <= {"passed", "skipped"}


def test_a_method_that_declines_both_networks_fails_once():
    class Declines(Aggregator):
        """Runs nowhere."""

        def prepare(self, network, request):
            return No("it is Monday")

    found = results_of(Declines)
    assert [each.check for each in found.values() if each.status == "failed"] == ["runs"]
    assert "it is Monday" in found["runs"].found
