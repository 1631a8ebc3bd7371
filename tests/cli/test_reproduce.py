"""The suite that `reproduce` makes of a row plans that row's cell, whatever the names of its options."""

import json
from pathlib import Path

import pytest

from fcilbench.errors import UsageError
from fcilbench.results.agreement import EQUAL, Expectation
from fcilbench.results.compare import compare
from fcilbench.results.row import row_params
from fcilbench.results.store import Store
from fcilbench.workflow import again
from fcilbench.workflow.again import Reproduction, _sample, suite_of
from fcilbench.workflow.prepare import prepare
from fcilbench.workflow.screen import Screen

_GROWS = ("runtime", "aggregator")
PUBLISHED = Store(Path(__file__).parents[2] / "leaderboards" / "quickstart")


@pytest.mark.parametrize("method", ["joint", "sum"])  # `batch_size` is an option of joint and a field of the protocol
def test_the_suite_of_a_published_row_plans_its_cell(method, tmp_path):
    row = next(row for row in PUBLISHED.scan() if (row.coords["aggregator"], row.seed) == (method, 1))
    (tmp_path / "suite.yaml").write_text(json.dumps(suite_of(row)))
    (item,) = prepare(tmp_path / "suite.yaml", None, tmp_path / "out", only=["seed:1"]).plan.items
    here = row_params(item.cell)
    # Settings and options that came later have their defaults.
    known = {part: {name: getattr(here, part)[name] for name in getattr(row.params, part)} for part in _GROWS}
    assert here.model_copy(update=known) == row.params


def test_what_a_tolerance_let_pass_is_not_called_the_spread_between_instruction_sets(make_cell, make_row):
    one, other = (make_row(make_cell(), {"faa/none": value}) for value in (0.5, 0.51))

    def verdict(expectation, tolerance):
        return Reproduction(one, other, compare(one, other, expectation, tolerance), "").verdict

    assert verdict(EQUAL, {"faa/*": 0.1}) == "within the given tolerance"
    assert verdict(Expectation(False, "another processor"), {}) == "within the measured spread between instruction sets"


def test_a_row_that_cannot_be_trained_again_is_a_problem_and_does_not_end_the_check(monkeypatch, tmp_path):
    def refuse(*_, **__):
        raise UsageError("runtime.threads: 'many' is not a valid integer")

    monkeypatch.setattr(again, "reproduce", refuse)
    found = again.verify(PUBLISHED.root, tmp_path, sample=2)
    assert [text.partition(": ")[2] for _, text in found.problems] == [
        "cannot be trained again: runtime.threads: 'many' is not a valid integer"
    ] * 2


def test_a_row_that_chose_an_option_that_is_gone_is_refused_and_left_out_of_samples(tmp_path):
    """SUM had its own selector; a row that had it at its default is trained again without it, another one is not."""
    row = next(row for row in PUBLISHED.scan() if row.coords["aggregator"] == "sum")
    use, options = row.plugins["aggregator"], {**row.params.aggregator, "selector": "ridge"}
    params = row.params.model_copy(update={"aggregator": options})
    at_default = row.model_copy(update={"params": params})
    assert "aggregator.selector" not in suite_of(at_default)["grid"]["aggregator"][0]
    chosen = use.model_copy(update={"identity": {**use.identity, "selector": "ridge"}, "version": "3"})
    gone = at_default.model_copy(update={"plugins": {**row.plugins, "aggregator": chosen}})
    with pytest.raises(
        UsageError, match=r"sets selector=ridge of fcilbench/sum, which version 4 does not have"
    ) as error:
        suite_of(gone)
    assert error.value.hint == f"train it with commit {row.code.git_sha[:12]}, of which the row is"
    said = []
    rows = {1: gone, 2: row}
    screen = Screen(said.append)
    assert _sample(rows, set(), 2, 0, screen) == [(row.cell_id, 2)]
    assert said == [f"note: {error.value}"]
    assert _sample(rows, {2}, 2, 0, screen) == []
