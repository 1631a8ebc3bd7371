import json
import math
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import jsonschema
import pytest
from pydantic import ValidationError

from fcilbench.results.row import code_digest, metric_values
from fcilbench.spec.outcome import SelectorCost
from fcilbench.spec.protocol import Seeds
from fcilbench.spec.row import Failure, parse_row, row_schema

GOLDEN = Path(__file__).parent / "golden"


def test_an_ok_row_carries_result_params_and_provenance(make_cell, make_row):
    row = make_row(make_cell("sum", 3, lambda_s=0.4), {"faa/none": 0.7})
    assert (row.status, row.seed, row.suite) == ("ok", 3, "demo")
    assert row.coords == {
        "dataset": "digits",
        "backbone": "vit",
        "partition": "dirichlet-0.5",
        "aggregator": "sum",
        "stress": "none",
        "seed": 3,
    }
    assert row.params.aggregator == {"lambda_s": 0.4}
    assert row.params.protocol["rounds"] == 2
    assert row.params.partition == {"kind": "dirichlet", "value": 0.5, "min_samples": 1}
    assert row.params.tasks == [5, 5]
    assert row.params.seeds == {"base": 0, "vary": ["order", "partition", "train"]}
    assert row.plugins["aggregator"].name == "fcilbench/sum"
    assert row.metrics["faa/none"].value == 0.7
    assert row.seeds == {"order": 11, "partition": 12, "train": 13}
    assert row.data.fingerprint == "sha256:data"
    assert (row.code.git_sha, row.code.dirty) == ("c" * 40, False)
    assert row.cost.bytes_down == 160


def test_a_row_without_a_result_keeps_derived_seeds_and_declared_data(make_cell, make_row):
    row = make_row(make_cell(seed=2), "failed")
    assert row.failure == Failure(kind="plugin", type="ValueError", message="bad shape")
    assert row.seeds == {role: Seeds(index=2).of(role) for role in ("order", "partition", "train")}
    assert row.metrics == {}
    assert (row.data.fingerprint, row.data.declared) == (None, "sha256:data")


def test_metrics_are_those_of_the_matrix_where_there_is_one(make_cell, make_row):
    """Accuracies 0.9, then 0.6 and 0.8: FAA is 0.7, whatever was recorded; a recorded AUROC stays."""
    recorded = {"faa/none": 0.1, "faa/oracle": 0.9, "oos_auroc/none": 0.8, "bwt/none": 0.3}
    row = make_row(make_cell(), recorded, accuracy={"none": [[0.9], [0.6, 0.8]]})
    found = {name: value.value for name, value in metric_values(row, ("faa", "oos_auroc")).items()}
    assert found == {"faa/none": pytest.approx(0.7), "faa/oracle": 0.9, "oos_auroc/none": 0.8}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_metric_that_is_no_number_is_undefined_and_said_so(make_cell, make_row, value):
    row = make_row(make_cell(), {"faa/none": value})
    assert row.metrics["faa/none"].value is None
    assert row.warnings == [f"faa/none was {value}: not a number, so undefined here"]


def test_times_are_stored_in_utc(make_cell, make_row):
    start = datetime(2026, 1, 2, 5, 0, tzinfo=timezone(timedelta(hours=2)))
    row = make_row(make_cell(), {}, started=start)
    assert row.started == start
    assert json.loads(row.to_json())["started"] == "2026-01-02T03:00:00Z"
    with pytest.raises(ValidationError):
        make_row(make_cell(), {}, started=datetime(2026, 1, 2))


def test_status_and_content_must_agree(make_cell, make_row):
    cell = make_cell()
    with pytest.raises(ValueError, match="a row of status 'ok' needs an outcome"):
        make_row(cell, "ok")
    with pytest.raises(ValueError, match="needs its `failure`"):
        make_row(cell, "failed", failure=None)
    with pytest.raises(ValueError, match="reason of a skipped cell"):
        make_row(cell, "skipped", skipped=None)
    with pytest.raises(ValueError, match="reason of a skipped cell"):
        make_row(cell, "failed", skipped="why")
    with pytest.raises(ValueError, match="cannot have a `failure`"):
        make_row(cell, {}, failure=Failure(kind="plugin", type="E", message="m"))
    assert make_row(cell, "skipped").skipped == "needs a text backbone"


def test_code_digest_sees_each_plugin(make_cell):
    assert code_digest(make_cell(code="k1")) == code_digest(make_cell(seed=1, code="k1"))
    assert code_digest(make_cell(code="k1")) != code_digest(make_cell(code="k2"))


def test_json_round_trip_keeps_every_field(make_cell, make_row):
    row = make_row(make_cell("sum", lambda_s=0.4), {"faa/none": 0.1 + 0.2, "forgetting/none": None})
    again = parse_row(json.loads(row.to_json()))
    assert again == row
    assert again.digest == row.digest
    assert again.metrics["faa/none"].value == 0.30000000000000004


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5, 6])
def test_golden_rows_of_every_version_are_read_and_stay_of_their_version(version):
    """The files were written by hand and never change; a later schema must still read them."""
    raw = json.loads((GOLDEN / f"row-v{version}.json").read_text())
    row = parse_row(raw)
    assert (row.schema_version, row.identity_version) == (version, min(version, 2))
    assert row.cell_id == "0123456789abcdef" * 4
    assert row.coords["partition"] == "dirichlet-0.1"
    assert row.params.aggregator == {"lambda_s": 0.4}
    assert row.metrics["faa/oracle"].value == 0.612
    assert row.metrics["forgetting/oracle"].value is None
    assert row.accuracy["oracle"] == [[0.9], [0.6, None]]
    assert row.cost.peak_mem == 5123342336
    assert row.started == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert (row.suite_digest, row.code.engine_version) == ((None, None) if version == 1 else ("sha256:" + "5" * 64, 1))
    assert (row.cost.rounds, row.cost.tasks) == ((50, 10) if version >= 3 else (0, 0))
    assert row.cost.visits == (500 if version >= 4 else 0)
    kept = (row.cost.client_state, row.cost.client_state_mean)
    assert kept == ((616_000, 431_200.5) if version >= 5 else (0, 0))
    assert (row.metrics.get("faa/inferred:ridge") is not None) == (version >= 5)
    assert row.cost.saved_s == (1.25 if version >= 6 else 0)
    bill = SelectorCost(bytes_up=47841280, bytes_down=0, state=2979336, module=6152)
    assert row.cost.selectors == ({"ridge": bill} if version >= 5 else {})
    assert [use.place for use in row.uses][4:] == (["selector ridge"] if version >= 5 else [])
    assert row.roles == ({"oracle": "control"} if version >= 5 else {})
    assert json.loads(row.to_json())["schema"] == version


def test_current_rows_and_the_golden_ones_fit_the_exported_schema(make_cell, make_row):
    schema = row_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    check = jsonschema.Draft202012Validator(schema)
    for version in (1, 2, 3, 4, 5, 6):
        golden = json.loads((GOLDEN / f"row-v{version}.json").read_text())
        check.validate(golden)
    check.validate(json.loads(make_row(make_cell(), {"faa/none": None}).to_json()))
    check.validate(json.loads(make_row(make_cell(), "failed").to_json()))
    assert not check.is_valid({**golden, "status": "fine"})
    assert not check.is_valid({**golden, "schema": 7})
    assert not check.is_valid({**golden, "unknown": 1})
    assert not check.is_valid({key: value for key, value in golden.items() if key != "cell_id"})


def test_the_exported_schema_is_the_one_of_version_6():
    """A changed schema needs a new version and a golden file of its own; prose may change."""
    golden = json.loads((GOLDEN / "row-v6.schema.json").read_text())
    assert _without_prose(row_schema()) == _without_prose(golden)


@pytest.mark.parametrize("raw", [None, [], "x", {}, {"schema": "1"}])
def test_what_has_no_schema_version_is_no_row(raw):
    with pytest.raises(ValueError, match="integer `schema`"):
        parse_row(raw)


def _without_prose(schema):
    if isinstance(schema, dict):
        prose = [key for key in ("description", "title") if isinstance(schema.get(key), str)]
        return {key: _without_prose(value) for key, value in schema.items() if key not in prose}
    return [_without_prose(item) for item in schema] if isinstance(schema, list) else schema


def test_the_left_half_imports_nothing_heavy():
    code = (
        "import sys, fcilbench.results.row, fcilbench.results.store, fcilbench.results.merge, "
        "fcilbench.tracking.mlflow, fcilbench.boards.build, fcilbench.boards.render; "
        "print([m for m in ('torch', 'mlflow', 'scipy', 'numpy', 'rich', 'sklearn') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
