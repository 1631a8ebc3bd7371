"""Each law can fail: a deliberately broken aggregator breaks it, and is told which law and a way out."""

import importlib.util
from pathlib import Path
from typing import ClassVar

import pytest

from fcilbench.api import Aggregator
from fcilbench.testing import case, imports
from fcilbench.testing.law import judge, unknown_laws
from fcilbench.testing.laws.aggregator import LAWS
from fcilbench.testing.subject import AggregatorSubject

SPEC = importlib.util.spec_from_file_location("broken", Path(__file__).parent / "broken.py")
broken = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(broken)
BY_ID = {law.id: law for law in LAWS}
PAIRS = [(id_, cls) for id_, classes in broken.BROKEN.items() for cls in classes]


def verdict(id_, cls, module=None):
    return judge(BY_ID[id_], AggregatorSubject(cls, module or cls.__module__), cls.breaks)


@pytest.mark.parametrize(("id_", "cls"), PAIRS, ids=lambda value: getattr(value, "__name__", value))
def test_a_broken_aggregator_is_found(id_, cls):
    found = verdict(id_, cls)
    assert found.status == "broken", found
    assert found.law == id_
    assert found.fix == BY_ID[id_].fix
    assert str(found).startswith(f"law {id_}: ")
    assert "\n  way out: " in str(found)


def test_every_law_but_those_of_the_machine_and_the_wire_has_a_broken_example():
    assert set(BY_ID) - set(broken.BROKEN) == {"import-time", "measured-bytes", "cpu-gpu"}


def test_laws_have_unique_ids_one_line_statements_and_a_fix():
    assert len(BY_ID) == len(LAWS)
    for law in LAWS:
        assert "\n" not in law.statement
        assert len(law.statement) < 130
        assert len(law.fix) > 20


def test_a_slow_module_breaks_the_law_of_import_time(tmp_path, monkeypatch):
    (tmp_path / "slow_plugin.py").write_text("import time\ntime.sleep(1.1)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(imports, "_TRIES", 1)
    monkeypatch.setattr(imports, "_PLAIN", ("json",))
    found = verdict("import-time", Aggregator, "slow_plugin")
    assert found.status == "broken"
    assert "importing slow_plugin took 1.1" in found.found


def test_bytes_that_the_runner_does_not_count_break_the_law_of_bytes():
    """A centralised method sends nothing, although it trains; without a declaration that is a finding."""

    class Centralised(Aggregator):
        """Trains on clients without a network."""

        def build_schedule(self, schedule):
            return type(schedule)(schedule.phases, federated=False)

    found = verdict("measured-bytes", Centralised)
    assert found.status == "broken"
    assert "counted 0 bytes up and 0 down" in found.found


def test_bytes_by_hand():
    """Two tasks of one round, one client: per task a model of 830 floats and a counter each way, and what is added."""

    class Talks(Aggregator):
        """Adds 3 floats a round and 5 a task down, 2 float64 up."""

        def broadcast(self, server):
            return {"a": server.vector[:3].clone()}

        def task_broadcast(self, server):
            return {"b": server.vector[:5].clone()}

        def statistics(self, client):
            return {"c": client.net.parameters[:2].detach().double()}

    subject = AggregatorSubject(Talks, __name__)
    assert judge(BY_ID["measured-bytes"], subject, {}).status == "holds"
    cost = subject.run(clients=1, rounds=1, tasks=(5, 5)).outcome.cost
    # conv 4*9+4, BatchNorm 2*4, linear 36*16+16, head 10*16+10, running statistics 2*4; one counter of 8 bytes
    model = (40 + 8 + 592 + 170 + 8) * 4 + 8
    assert cost.bytes_up == 2 * (model + 2 * 8)
    assert cost.bytes_down == 2 * (model + 3 * 4 + 5 * 4)


class Declared(Aggregator):
    """Goes half of the way, and says so."""

    breaks: ClassVar = {"one-client": "it is careful", "identical-clients": "it is careful"}

    def aggregate(self, updates, server):
        server.step(0.5 * updates.mean())


def test_a_declared_law_is_shown_to_be_broken():
    found = verdict("one-client", Declared)
    assert found.status == "declared"
    assert found.found.startswith("it is careful (the step is 0.5 times")


def test_a_declaration_that_is_not_true_is_a_finding():
    class Boasts(Aggregator):
        """FedAvg that claims to be special."""

        breaks: ClassVar = {"one-client": "I am special"}

    found = verdict("one-client", Boasts)
    assert found.status == "broken"
    assert "but it holds" in found.found
    assert found.fix == "remove 'one-client' from `breaks`"


def test_a_declaration_speaks_of_the_default_hyperparameters():
    """Joint declares an incomplete matrix of accuracies; in its other mode the matrix is complete."""
    matrix = BY_ID["accuracy-matrix"]
    assert case("aggregators", "joint").judge(matrix).status == "declared"
    assert case("aggregators", "joint", {"mode": "cumulative"}).judge(matrix).status == "holds"


def test_a_crash_is_no_declared_break():
    class Crashes(Aggregator):
        """Raises."""

        breaks: ClassVar = {"nan-client": "it is fragile"}

        def aggregate(self, updates, server):
            raise ValueError("shape")

    found = verdict("nan-client", Crashes)
    assert (found.status, found.found) == ("broken", "ValueError: shape")
    assert "in aggregate" in found.trace


def test_declarations_are_checked_themselves():
    wrong = unknown_laws({"one-cleint": "x", "permutation": " ", "finite": "y"}, LAWS)
    assert wrong == ["no law is called 'one-cleint'", "'permutation' has no reason"]
