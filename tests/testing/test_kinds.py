"""Checks of stressors, executors, boards and trackers can fail too: each finds a broken plugin, and says what to do."""

import os
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from fcilbench.api import BaseBoard, Board, Column, Group, Report, SomeClients, Stressor, Tracker
from fcilbench.execution.local import LocalExecutor
from fcilbench.registry.entrypoints import PluginRef, find
from fcilbench.testing import CHECKS, Case, case
from fcilbench.testing import executors as executor_checks
from fcilbench.testing.cells import PluginSubject
from fcilbench.testing.stressors import StressorSubject

MODULES = {"executors": "execution.local", "boards": "boards.build", "trackers": "tracking.mlflow"}
REF = {kind: PluginRef(kind, "acme", "1", "x", f"fcilbench.{module}:X") for kind, module in MODULES.items()}


def status(kind, id_, cls):
    (check,) = [check for check in CHECKS[kind] if check.id == id_]
    subject = StressorSubject(cls) if kind == "stressors" else PluginSubject(REF[kind], cls, {})
    found = Case(kind, [subject]).run(check)
    assert found.status != "failed" or found.fix
    return found.status, found.found


# ---------------------------------------------------------------- stressors


def negated(message):
    return {name: -value if value.is_floating_point() else value for name, value in message.items()}


class Negates(SomeClients):
    def upload(self, message, random):
        return negated(message)


class Unregistered(Negates):  # names a client that does not exist
    def affected(self, clients, random):
        return [clients]


class Idle(SomeClients):  # affects a client, and does nothing to it
    pass


class Leaks(Negates):  # moves the global generator's numbers and labels of others
    def labels(self, labels, task, random):
        labels[:] = labels[::-1]
        return labels


class Remembers(Negates):  # attacks in the rounds that it counts itself
    rounds = 0

    def upload(self, message, random):
        self.rounds += 1
        return negated(message) if self.rounds > 2 else message


class InPlace(SomeClients):  # scales the tensors that it was given
    def upload(self, message, random):
        for tensor in message.values():
            if tensor.is_floating_point():
                tensor.mul_(-2.0)
        return message


class ClaimsAll(Negates):  # says that it changes whole numbers, and leaves them
    def touches(self, name, tensor):
        return True


class NotNeutral(Negates):  # says that it does nothing where it does something
    neutral = {"clients": 1}  # noqa: RUF012


STRESSORS = [
    ("affected-clients", Unregistered),
    ("felt", Idle),
    ("coordinates", Remembers),
    ("arguments-kept", InPlace),
    ("arguments-kept", Leaks),
    ("whole-numbers", ClaimsAll),
    ("neutral", NotNeutral),
]


@pytest.mark.parametrize(("id_", "cls"), STRESSORS)
def test_a_broken_stressor_is_found(id_, cls):
    assert status("stressors", id_, cls)[0] == "failed"
    if cls not in (Unregistered, Idle):
        assert status("stressors", id_, Negates)[0] in ("passed", "skipped")


def test_an_upload_of_a_client_that_is_not_affected_is_compared():
    class Two(Negates):
        def affected(self, clients, random):
            return [0, 1]

    assert status("stressors", "others-untouched", Two) == ("passed", "")
    subject = StressorSubject(Two)
    subject.stressed = replace(subject.stressed, affected=frozenset({0}))  # as if it said one and hit two
    (check,) = [check for check in CHECKS["stressors"] if check.id == "others-untouched"]
    assert Case("stressors", [subject]).run(check).found == "client 1 is not affected, and sends something else"


# ---------------------------------------------------------------- boards


class Good(BaseBoard):
    """A board of seconds."""

    name, title = "seconds", "Seconds"

    def groups(self, members):
        return (Group(key="all", columns=(Column(metric="s", title="s", unit="s", better="lower"),)),)

    def figures(self, members, groups):
        return {"all": {"s": {cell.seed: cell.row.cost.wall_s for cell in members}}}


class Untitled(Good):  # has no title
    title = ""


class NeedsRows(Good):  # takes the first of the rows
    def build(self, rows, planned=None, here=None, reference=None):
        first = next(iter(rows))
        return super().build([first, *rows], planned)


class Deviates(Good):  # needs two seeds
    def figures(self, members, groups):
        found = super().figures(members, groups)
        np.random.default_rng(0).choice(list(found["all"]["s"]), 2, replace=False)
        return found


class ByPosition(Good):  # counts seeds by their place among the rows
    def figures(self, members, groups):
        return {"all": {"s": {place: cell.row.cost.wall_s for place, cell in enumerate(members)}}}


class EveryRow(Good):  # makes a note of how many rows it got
    def build(self, rows, planned=None, here=None, reference=None):
        rows = list(rows)
        return super().build(rows, planned).model_copy(update={"notes": (f"{len(rows)} rows",)})


class Zeros(Good):  # counts a failure as 0
    def build(self, rows, planned=None, here=None, reference=None):
        rows = [row if row.status == "ok" else row.model_copy(update={"status": "ok", "failure": None}) for row in rows]
        return super().build(rows, planned)


class NoBoard(Good):  # returns text
    def build(self, rows, planned=None, here=None, reference=None):
        return "a board"


BOARDS = [
    ("contract", Untitled),
    ("contract", NoBoard),
    ("empty", NeedsRows),
    ("one-row", Deviates),
    ("order-of-rows", ByPosition),
    ("last-row-counts", EveryRow),
    ("figures-of-ok-rows", Zeros),
]


@pytest.mark.parametrize(("id_", "cls"), BOARDS)
def test_a_broken_board_is_found(id_, cls):
    assert status("boards", id_, cls)[0] == "failed"
    assert status("boards", id_, Good) == ("passed", "")
    assert isinstance(Good().build([]), Board)


def test_a_plugin_of_the_torch_free_half_that_imports_torch_is_found(install):
    install("acme-heavy", {"acme_heavy.py": "import torch\nclass B: pass\n"}, {"boards": {"heavy": "acme_heavy:B"}})
    found = {each.check: each for each in case("boards", "heavy").results()}
    assert found["torch-free"].status == "failed"
    assert "importing acme_heavy imports torch" in found["torch-free"].found


# ---------------------------------------------------------------- trackers


class Notes(Tracker):
    """A tracker that keeps rows in a file."""

    version = "1"

    def __init__(self, store, *, uri=None, warn):
        self.path, self.warn, self.report = store.root / "notes.txt", warn, Report()
        self.seen = set(self.path.read_text().split()) if self.path.exists() else set()

    def suite_started(self, suite, facts):
        pass

    def cell_finished(self, row):
        if row.digest in self.seen:
            self.report.present += 1
        else:
            self.report.logged += 1
        self.seen.add(row.digest)

    def suite_finished(self, interrupted=False):
        self.path.write_text("\n".join(self.seen))


class Nameless(Notes):
    version = ""


class LosesInSilence(Notes):  # does not count what it was given
    def cell_finished(self, row):
        pass


class Forgets(Notes):  # writes a row again when it is sent again
    def cell_finished(self, row):
        self.report.logged += 1


class Raises(Notes):  # needs an address that it can reach
    def suite_started(self, suite, facts):
        self.path = self.path if self.uri is None else self.connect()

    def __init__(self, store, *, uri=None, warn):
        super().__init__(store, uri=uri, warn=warn)
        self.uri = uri

    def connect(self):
        raise ConnectionError("no answer")


class Waits(Notes):  # waits although the user interrupted
    def suite_finished(self, interrupted=False):
        time.sleep(0.3 if interrupted else 0.0)
        super().suite_finished()


@pytest.mark.parametrize(
    ("id_", "cls"),
    [
        ("contract", Nameless),
        ("rows-are-logged", LosesInSilence),
        ("rows-sent-twice", Forgets),
        ("dead-address", Raises),
        ("interrupt", Waits),
    ],
)
def test_a_broken_tracker_is_found(id_, cls, monkeypatch):
    monkeypatch.setattr("fcilbench.testing.trackers._HURRY", 0.2)
    assert status("trackers", id_, cls)[0] == "failed"
    assert status("trackers", id_, Notes) == ("passed", "")


# ---------------------------------------------------------------- executors


class Placeless(LocalExecutor):
    def __init__(self, options):
        super().__init__(options)
        self.places = []


class TwoEnds(LocalExecutor):  # reports the last event twice
    def poll(self, timeout):
        found = super().poll(timeout)
        return [*found, *found[-1:]]


class Hopeful(LocalExecutor):  # takes a dead worker for one that is done
    def poll(self, timeout):
        found = super().poll(timeout)
        return [(job, {"event": "finished"} if event["event"] == "died" else event) for job, event in found]


class Strict(LocalExecutor):  # raises where no worker can be started
    def __init__(self, options):
        super().__init__(options)
        if not os.path.exists(options.worker[0]):
            raise FileNotFoundError(options.worker[0])


class Survives(LocalExecutor):  # forgets a job and leaves its process, until the executor itself is gone
    left: ClassVar = []

    def kill(self, job):
        for slot in self._slots:
            if slot.job is job:
                self.left.append(slot.worker)
                slot.job = slot.worker = None

    def close(self):
        self.left.extend(slot.worker for slot in self._slots if slot.worker)


@pytest.fixture(autouse=True)
def _ended():
    yield
    while Survives.left:
        Survives.left.pop().close()


class Spins(LocalExecutor):  # never waits
    def poll(self, timeout):
        return super().poll(0.0)


@pytest.mark.parametrize(
    ("id_", "cls"),
    [
        ("contract", Placeless),
        ("one-end", TwoEnds),
        ("dead-worker", Hopeful),
        ("no-worker", Strict),
        ("kill", Survives),
        ("close", Survives),
        ("quiet-poll", Spins),
    ],
)
def test_a_broken_executor_is_found(id_, cls, monkeypatch):
    monkeypatch.setattr(executor_checks, "_GONE_SECONDS", 1.0)
    assert status("executors", id_, cls)[0] == "failed"


@pytest.mark.parametrize("kind", ["stressors", "executors", "boards", "trackers"])
def test_every_check_has_a_broken_example(kind):
    tried = {
        "stressors": {id_ for id_, _ in STRESSORS} | {"others-untouched", "contract", "params-documented"},
        "boards": {id_ for id_, _ in BOARDS} | {"torch-free"},
        "trackers": {"contract", "torch-free", "rows-are-logged", "rows-sent-twice", "dead-address", "interrupt"},
        "executors": {"contract", "torch-free", "one-end", "dead-worker", "no-worker", "kill", "close", "quiet-poll"},
    }
    assert {check.id for check in CHECKS[kind]} == tried[kind]


# ---------------------------------------------------------------- docs/plugins.md

PAGE = (Path(__file__).parents[2] / "docs" / "plugins.md").read_text()


def test_the_page_names_every_hook_of_stressors_and_every_builtin():
    hooks = set(re.findall(r"^\| `(\w+)\(", PAGE, re.MULTILINE))
    own = {name for name, value in vars(Stressor).items() if name[0] != "_" and callable(value)} - {"Params"}
    assert hooks == own
    named = set(re.findall(r"`([a-z-]+)`", PAGE.split("must be able to touch")[1].split("The kit's laws")[0]))
    assert {ref.short for ref in find("stressors")} - {"none"} <= named


@pytest.mark.parametrize("name", ["Colluding", "Seconds"])
def test_the_examples_of_the_page_pass_the_kit(name):
    (block,) = [each for each in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if f"class {name}" in each]
    names = {"__name__": "example"}
    exec(compile(block, "docs/plugins.md", "exec"), names)
    kind = "stressors" if name == "Colluding" else "boards"
    for check in CHECKS[kind]:
        assert status(kind, check.id, names[name])[0] in ("passed", "skipped"), check.id


def test_the_commands_of_the_page_parse(parse):
    for line in re.findall(r"^(fcilbench .+)$", PAGE, re.MULTILINE):
        parse(line)
