"""A whole cell has the same bits, bytes and costs whether the passes before training are made, read, or lost."""

import shutil

import pytest

from fcilbench.federation.run import run_experiment
from fcilbench.files import cache_root
from fcilbench.plugins.aggregators.fedavg import FedAvg
from fcilbench.plugins.aggregators.ncm import Ncm
from fcilbench.plugins.aggregators.ridge import Ridge as RidgeMethod
from fcilbench.plugins.aggregators.slda import Slda
from fcilbench.plugins.selectors.own import Own
from fcilbench.plugins.selectors.prototype import Prototype
from fcilbench.plugins.selectors.ridge import Ridge

SELECTORS = {"inferred": Own(), "inferred:ridge": Ridge(), "inferred:prototype": Prototype()}


@pytest.fixture
def run(make_experiment, tmp_path, monkeypatch):
    monkeypatch.setenv("FCILBENCH_CACHE", str(tmp_path / "cache"))
    count = 0

    def play(method, **changes):
        nonlocal count
        count += 1
        (tmp_path / str(count)).mkdir()
        return run_experiment(make_experiment(method, **changes), tmp_path / str(count))

    return play


def _same(outcome):
    """All of an outcome that is no time and no peak of memory."""
    cost = {name: value for name, value in outcome.cost.figures.items() if not name.endswith(("_s", "peak_mem"))}
    return outcome.model_digest, outcome.metrics, outcome.accuracy, cost, outcome.warnings


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("method", "changes"),
    [(RidgeMethod(), {}), (Ncm(), {}), (FedAvg(), {"selectors": SELECTORS})],
    ids=["ridge", "ncm", "fedavg with selectors"],
)
def test_a_cell_is_the_same_cold_warm_and_with_its_files_removed(run, method, changes, precision):
    cold = run(method, precision=precision, **changes)
    files = cache_root() / "features"
    kept = {path.name: path.read_bytes() for path in files.iterdir()}
    warm = run(method, precision=precision, **changes)
    assert {path.name: path.read_bytes() for path in files.iterdir()} == kept
    shutil.rmtree(files)
    again = run(method, precision=precision, **changes)
    assert _same(cold) == _same(warm) == _same(again)
    assert warm.cost.saved_s > 0
    for outcome in (cold, warm, again):
        cost = outcome.cost
        parts = cost.training_s + cost.aggregation_s + cost.task_end_s + cost.selection_s + cost.evaluation_s
        assert parts <= cost.wall_s + cost.saved_s


def test_methods_of_one_seed_share_passes_and_another_network_does_not(run, norm_backbone):
    run(RidgeMethod())
    files = cache_root() / "features"
    count = len(list(files.iterdir()))
    for method in (Ncm(), Slda()):
        run(method)
    assert len(list(files.iterdir())) == count
    run(RidgeMethod(RidgeMethod.Params(random_features=20)))  # the projection comes after what is kept
    assert len(list(files.iterdir())) == count
    run(FedAvg(), backbone=norm_backbone, selectors=SELECTORS)
    assert len(list(files.iterdir())) > count


def test_a_frozen_batch_norm_shares_passes_with_the_trainable_one(run, norm_backbone):
    run(RidgeMethod(), backbone=norm_backbone)
    files = cache_root() / "features"
    count = len(list(files.iterdir()))
    assert count > 0
    run(FedAvg(), backbone=norm_backbone, selectors={"inferred": Own(), "inferred:ridge": Ridge()})
    assert len(list(files.iterdir())) == count
