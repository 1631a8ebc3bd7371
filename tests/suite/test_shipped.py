"""The suites that are shipped: valid, complete, and with the values of the paper's tables."""

from collections import Counter
from pathlib import Path

import pytest

from fcilbench.registry import catalog
from fcilbench.suite.expand import expand
from fcilbench.suite.load import load_suite

SUITES = Path(__file__).parent.parent.parent / "suites"
NAMES = sorted(path.name for path in SUITES.glob("*.yaml") if path.name != "paper-tuned.yaml")


@pytest.fixture(scope="module", autouse=True)
def one_process():
    """One process answers what all suites ask of plugins: importing them takes seconds."""
    with catalog.session():
        yield


@pytest.mark.parametrize("name", NAMES)
def test_every_suite_is_valid_and_uses_all_its_rules(name):
    found = expand(load_suite(SUITES / name))
    assert found.cells or found.blocked
    assert found.unused == []


@pytest.fixture(scope="module")
def vision():
    found = expand(load_suite(SUITES / "vision.yaml"))
    cells = {}
    for cell in found.cells:
        if cell.seeds.index == 0:
            cells[cell.dataset.label, cell.partition.value, cell.aggregator.label] = cell
    return found, cells


def test_vision_has_six_data_sets_at_three_betas(vision):
    _, cells = vision
    betas = {(dataset, beta) for dataset, beta, method in cells if method == "fedavg"}
    assert Counter(dataset for dataset, _ in betas) == Counter(
        dict.fromkeys(("cifar100", "imagenet-r", "imagenet-a", "eurosat", "cars196", "cub200"), 3)
    )
    assert ("cifar100", 0.05) in betas
    assert ("cub200", 0.2) in betas


def test_training_free_controls_run_at_every_beta_and_joint_at_one(vision):
    _, cells = vision
    betas = {name: {(data, beta) for data, beta, each in cells if each == name} for name in ("fedavg", "ncm", "ridge")}
    assert betas["ncm"] == betas["ridge"] == betas["fedavg"]
    assert {beta for _, beta, method in cells if method == "joint"} == {0.5}


@pytest.mark.parametrize(
    ("dataset", "beta", "method", "lr", "params"),
    [
        ("cifar100", 0.5, "sum", 1e-5, {"lambda_s": 0.4, "k_pct": 0.1}),
        ("cifar100", 0.05, "sum", 1e-5, {"lambda_s": 0.6, "k_pct": 0.05}),
        ("imagenet-r", 0.5, "sum", 1e-5, {"lambda_s": 1.0, "k_pct": 0.05}),
        ("imagenet-a", 1.0, "sum", 4e-5, {"lambda_s": 0.4, "k_pct": 0.05}),
        ("eurosat", 0.2, "sum", 3e-5, {"lambda_s": 0.3, "k_pct": 0.1}),
        ("cars196", 0.5, "sum", 5e-5, {"lambda_s": 0.3, "k_pct": 0.1}),
        ("cub200", 0.5, "sum", 1e-4, {"lambda_s": 0.1, "k_pct": 0.05}),
        ("cub200", 0.2, "sum", 1e-4, {"lambda_s": 0.1, "k_pct": 0.1}),
        ("imagenet-r", 0.05, "lwf", 3e-5, {}),
        ("cars196", 0.2, "lwf", 3e-5, {}),
        ("cars196", 0.5, "lwf", 1e-5, {}),
        ("imagenet-a", 1.0, "fedproto", 3e-5, {}),
        ("imagenet-r", 0.05, "fedproto", 3e-5, {}),
        ("cub200", 1.0, "fedproto", 1e-5, {}),
        ("eurosat", 0.5, "target", 1e-5, {"lambda_kl": 25.0, "g_ep": 30}),
        ("imagenet-r", 0.05, "target", 1e-5, {}),
        ("imagenet-a", 0.2, "target", 1e-4, {}),
        ("cub200", 1.0, "target", 1e-4, {}),
        ("cifar100", 0.1, "fot", 1e-5, {"eps": 0.9, "eps_inc": 0.0}),
        ("imagenet-r", 0.5, "fot", 1e-4, {}),
        ("imagenet-a", 1.0, "fot", 1e-4, {}),
        ("imagenet-a", 0.5, "fot", 1e-5, {}),
        ("cars196", 0.2, "fot", 1e-4, {}),
        ("imagenet-a", 0.5, "l2p", 3e-2, {}),
        ("imagenet-a", 0.2, "l2p", 3e-1, {}),
        ("cub200", 1.0, "l2p", 3e-1, {}),
        ("cifar100", 0.05, "coda-prompt", 1e-3, {}),
        ("imagenet-a", 1.0, "coda-prompt", 1e-2, {}),
        ("cars196", 0.5, "coda-prompt", 3e-2, {}),
        ("cifar100", 0.1, "regmean", 1e-5, {"gamma_backbone": 0.5, "gamma_head": 0.5}),
        ("eurosat", 0.5, "regmean", 1e-5, {"gamma_backbone": 0.1, "gamma_head": 0.1}),
        ("cifar100", 0.5, "lorm", 3e-4, {"rank": 1, "gamma_head": 0.5}),
        ("imagenet-r", 0.1, "lorm", 1e-3, {"rank": 32, "gamma_head": 0.5}),
        ("imagenet-a", 0.5, "pilora", 1e-2, {"lora_rate": 0.01}),
        ("cub200", 0.5, "pilora", 1.0, {"lora_rate": 1e-4}),
        ("cub200", 0.2, "lorm", 3e-2, {"rank": 1, "gamma_head": 0.3}),
    ],
)
def test_values_of_the_papers_tables(vision, dataset, beta, method, lr, params):  # noqa: PLR0917
    _, cells = vision
    cell = cells[dataset, beta, method]
    assert cell.protocol.lr == lr
    assert {name: cell.aggregator.params[name] for name in params} == params


def test_protocol_and_splits_of_the_paper(vision):
    _, cells = vision
    assert cells["cars196", 0.5, "fedavg"].tasks == (19,) * 9 + (25,)
    assert cells["eurosat", 0.5, "fedavg"].tasks == (2,) * 5
    assert cells["imagenet-r", 0.5, "fedavg"].tasks == (20,) * 10
    rounds = {
        dataset: cells[dataset, 0.5, "fedavg"].protocol.rounds for dataset in ("cifar100", "imagenet-a", "cars196")
    }
    assert rounds == {"cifar100": 5, "imagenet-a": 10, "cars196": 10}
    assert cells["cifar100", 0.5, "fedavg"].partition.min_samples == 6
