"""`fcilbench plugins test`: what it prints, and its exit codes."""

import json

import pytest
from typer.testing import CliRunner

from fcilbench.cli.main import app
from fcilbench.errors import CELLS_FAILED, PrerequisiteError, UsageError
from fcilbench.plugins.aggregators.joint import Joint


def run(*words):
    return CliRunner().invoke(app, ["plugins", "test", *words], catch_exceptions=False)


@pytest.fixture
def data_root(monkeypatch, tmp_path):
    monkeypatch.setenv("FCILBENCH_DATA", str(tmp_path))  # the command line puts its own there


def test_a_plugin_that_passes(data_root):
    done = run("joint", "--format", "json")
    assert done.exit_code == 0
    body = json.loads(done.stdout)
    assert body["plugin"] == "fcilbench/joint"
    declared = {each["check"] for each in body["checks"] if each["status"] == "declared"}
    assert declared == {"measured-bytes", "accuracy-matrix"}
    assert all(each["statement"] for each in body["checks"])


def test_a_failed_check_is_named_with_what_to_do_and_exits_3(data_root, monkeypatch):
    monkeypatch.setattr(Joint, "breaks", {"measured-bytes": "no network", "permutation": "it has an order"})
    done = run("joint")
    assert done.exit_code == CELLS_FAILED == 3
    assert "\npermutation: the order of the clients does not matter" in done.stdout
    assert "what to do: remove 'permutation' from `breaks`" in done.stdout
    assert "\naccuracy-matrix: " in done.stdout
    assert done.stdout.rstrip().endswith("2 failed")


def test_a_plugin_that_is_missing_is_a_prerequisite_with_the_nearest_name():
    with pytest.raises(PrerequisiteError, match=r"no plugin 'fedagv' among .* \(did you mean 'fedavg'\?\)") as info:
        run("fedagv")
    assert info.value.exit_code == 5


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("accuracy", "--kind", "boards", "--set", "x=1"), "boards take no parameters"),
        (("sum", "--kind", "agregator"), "did you mean 'aggregators'"),
        (("sum", "--set", "lambda_s"), "-s lambda_s: expected path=value"),
        (("sum", "--set", "lambda_s=-1"), "fcilbench/sum: lambda_s: "),
    ],
)
def test_usage_errors(data_root, words, text):
    with pytest.raises(UsageError, match=text):
        run(*words)
