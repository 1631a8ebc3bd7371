"""The suite that `reproduce` makes of a row plans that row's cell, whatever the names of its options."""

import json
from pathlib import Path

import pytest

from fcilbench.results.row import row_params
from fcilbench.results.store import Store
from fcilbench.workflow.again import suite_of
from fcilbench.workflow.prepare import prepare

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
