"""Each check can fail: a deliberately broken aggregator fails it, and is told which check and what to do."""

import importlib.util
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from fcilbench.api import Aggregator, Module, No, Predictors, Samples, Wire
from fcilbench.errors import UsageError
from fcilbench.registry.entrypoints import PluginRef
from fcilbench.testing import CHECKS, Case, case
from fcilbench.testing.bench import BENCHES
from fcilbench.testing.check import run_check
from fcilbench.testing.conformance import checked_breaks
from fcilbench.testing.subject import AggregatorSubject

SPEC = importlib.util.spec_from_file_location("broken", Path(__file__).parent / "broken.py")
broken = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(broken)
BY_ID = {each.id: each for each in CHECKS["aggregators"]}
PAIRS = [(id_, cls) for id_, classes in broken.BROKEN.items() for cls in classes]
CONVOLUTION, TRANSFORMER = BENCHES


def on(cls, *benches):
    return [AggregatorSubject(cls, bench=bench) for bench in benches or BENCHES]


def result(id_, cls, *benches):
    return run_check(BY_ID[id_], on(cls, *benches), cls.breaks)


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


def test_a_sketch_from_one_stream_passes_where_there_is_one_layer_and_fails_on_the_transformer():
    assert result("statistics-batch-size", broken.OneStreamForAllLayers, CONVOLUTION).status == "passed"
    found = result("statistics-batch-size", broken.OneStreamForAllLayers)
    assert found.status == "failed"
    assert found.found.endswith("(on the kit's vision transformer)")


def test_attributes_are_searched_in_containers_and_closures():
    paths = [result("attributes", cls).found for cls in (broken.KeepsTheNetwork, broken.KeepsAClosure)]
    assert paths[0].startswith("`self.layers['body'][0]` is a Sequential")
    assert paths[1].startswith("`self.distance (closure 0)` is a Tensor")


# ---------------------------------------------------------------- bytes, counted by hand

CONV, NORM, LINEAR, HEAD, SCALE, STATISTICS = 4 * 9 + 4, 2 * 4, 36 * 16 + 16, 10 * 16 + 10, 1, 2 * 4
PARAMETERS = CONV + NORM + LINEAR + HEAD
MODEL = 4 * (PARAMETERS + SCALE + STATISTICS) + 8  # and one integer counter


def cost_of(cls, **changes):
    """Bytes up and down of two tasks with one round and one client, where the check holds."""
    assert result("measured-bytes", cls).status == "passed"
    (subject,) = on(cls, CONVOLUTION)
    cost = subject.run(clients=1, rounds=1, tasks=(5, 5), **changes).outcome.cost
    return cost.bytes_up, cost.bytes_down


def test_bytes_of_fedavg_with_a_buffer_that_never_changes():
    """In the second task the client is sent all but the constant buffer, which it has."""
    assert cost_of(Aggregator) == (2 * MODEL, MODEL + MODEL - 4 * SCALE)


def test_bytes_of_broadcasts_and_statistics():
    class Talks(Aggregator):
        """Adds 3 floats a round and 5 a task down, 2 float64 up."""

        def broadcast(self, server):
            return {"a": server.vector[:3].clone()}

        def task_broadcast(self, server):
            return {"b": server.vector[:5].clone()}

        def statistics(self, client):
            return {"c": client.net.parameters[:2].detach().double()}

    assert cost_of(Talks) == (2 * (MODEL + 2 * 8), 2 * MODEL - 4 + 2 * (3 * 4 + 5 * 4))


def test_an_anchor_that_is_the_model_that_clients_receive_costs_nothing():
    class Anchored(Aggregator):
        """Broadcasts the global parameters and, once a task, the whole vector."""

        def broadcast(self, server):
            return {"anchor": server.vector[server.layout.trainable].clone()}

        def task_broadcast(self, server):
            return {"teacher": server.vector.clone()}

    assert cost_of(Anchored) == cost_of(Aggregator)


def test_pieces_that_do_not_travel_are_not_billed():
    class HeadOnly(Aggregator):
        """Trains the head, and sends its weight."""

        def wire(self, server):
            return Wire(train=("head.*",), up=("head.weight",))

    assert result("pieces", HeadOnly).status == "passed"
    up, down = cost_of(HeadOnly)
    assert up == 2 * (4 * 160 + 8)
    assert down == MODEL + 4 * 160 + 8  # the counter has moved, and the merged head's weight


def test_a_piece_with_rate_zero_stays():
    class Still(Aggregator):
        """Trains all but the linear layer."""

        def rates(self):
            return {"extractor.body.5.*": 0.0}

    assert result("pieces", Still, CONVOLUTION).status == "passed"


def test_frozen_tensors_of_deployed_modules_do_not_travel():
    class Dense(Aggregator):
        """Deploys a patch embedding that is neither trained nor sent."""

        def predictors(self, server):
            frozen = {"extractor.body.patch_embed.proj.bias": torch.ones(16)}
            return Predictors({"global": lambda: Module(server.vector, frozen)}, super().predictors(server).rules)

    costs = [on(cls, TRANSFORMER)[0].run().outcome.cost for cls in (Dense, Aggregator)]
    assert (costs[0].bytes_up, costs[0].bytes_down) == (costs[1].bytes_up, costs[1].bytes_down)
    assert result("measured-bytes", Dense, TRANSFORMER).status == "passed"


def test_replay_samples_are_drawn_by_the_engine_and_sent_once_a_task():
    class Replays(Aggregator):
        """Trains on eight grey images beside its own."""

        def replay(self, server):
            grey = torch.arange(8 * 64).reshape(8, 8, 8, 1).to(torch.uint8).numpy()
            return Samples(grey, torch.zeros(8, dtype=torch.int64).numpy())

        def loss(self, net, batch, context):
            return super().loss(net, batch, context) + net.logits(batch.extra.inputs)[:, 0].square().mean()

    for id_ in ("replay", "repeatable", "loss-pure", "loss-mask", "resume"):
        assert result(id_, Replays).status == "passed"
    assert cost_of(Replays)[1] > cost_of(Aggregator)[1]


def test_bytes_that_the_runner_does_not_count_fail_the_check():
    """A centralised method sends nothing, although it trains; without a declaration that is a finding."""

    class Centralised(Aggregator):
        """Trains on clients without a network."""

        def build_schedule(self, schedule):
            return type(schedule)(schedule.phases, federated=False)

    found = result("measured-bytes", Centralised)
    assert found.status == "failed"
    assert "counted 0 bytes up and 0 down" in found.found


# ---------------------------------------------------------------- declarations, and one message for one cause


class Declared(Aggregator):
    """Goes half of the way, and says so."""

    breaks: ClassVar = {"one-client": "it is careful", "identical-clients": "it is careful"}

    def aggregate(self, updates, server):
        server.step(0.5 * updates.mean())


def test_a_declared_check_is_shown_to_fail():
    found = result("one-client", Declared)
    assert found.status == "declared"
    assert found.found.startswith("it is careful (the step is 0.5 times")


def test_a_declaration_that_is_not_true_is_a_failure():
    class Boasts(Aggregator):
        """FedAvg that claims to be special."""

        breaks: ClassVar = {"one-client": "I am special"}

    found = result("one-client", Boasts)
    assert found.status == "failed"
    assert "but it passes" in found.found
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
        checked_breaks("acme/x", breaks, CHECKS["aggregators"])
    assert str(info.value) == f"acme/x: {text}"


def results_of(cls):
    ref = PluginRef("aggregators", "acme", "1", "x", "acme:X")
    return {each.check: each for each in Case(ref, on(cls)).results()}


def test_a_prepare_that_raises_is_reported_once():
    found = results_of(broken.CannotPrepare)
    failed = [each for each in found.values() if each.status == "failed"]
    assert [each.check for each in failed] == ["runs"]
    assert "has no attribute 'prompts'" in failed[0].found
    same = [each for each in found.values() if each.found == "fails with the same error as 'runs'"]
    assert len(same) > 20


def test_a_method_that_declines_one_network_is_checked_on_the_other():
    class NeedsTokens(Aggregator):
        """Runs on vision transformers only."""

        def prepare(self, network, request):
            return None if hasattr(network.extractor.body, "blocks") else No("it needs tokens")

    found = results_of(NeedsTokens)
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
