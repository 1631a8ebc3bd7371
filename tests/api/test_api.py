"""The public names, messages and torch-free imports."""

import subprocess
import sys
from typing import ClassVar

import pytest
import torch
from pydantic import ValidationError

from fcilbench import api
from fcilbench.api import Aggregator
from fcilbench.api.message import nbytes, pack_symmetric, unpack_symmetric
from fcilbench.plugins.aggregators.fedavg import FedAvg
from fcilbench.plugins.aggregators.joint import Joint
from fcilbench.plugins.aggregators.ncm import Ncm
from fcilbench.plugins.aggregators.sum import Sum
from fcilbench.spec.params import search_space
from fcilbench.spec.protocol import Partition, Protocol, Seeds


def test_every_public_name_resolves():
    for name in api.__all__:
        assert getattr(api, name) is not None


def test_the_declarative_half_imports_no_torch():
    code = "import sys, fcilbench.data.root; assert 'numpy' not in sys.modules\n"
    code += (
        "import fcilbench.spec.protocol, fcilbench.spec.params, fcilbench.spec.cell; assert 'torch' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_public_names_of_the_torch_free_half_import_no_torch():
    names = "Executor, Job, RunOptions, attempt, BaseBoard, BoardCell, Column, Tracker, Report, Row, Params, UsageError"
    code = f"import sys; from fcilbench.api import {names}; assert 'torch' not in sys.modules\n"
    code += "from fcilbench.api import Aggregator; assert 'torch' in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_help_and_boards_import_no_torch():
    code = "import sys, fcilbench.cli.main, fcilbench.boards.build; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_names_that_are_imported_for_tools_are_the_public_ones():
    assert set(api.__all__) == set(api._homes()) == set(dir(api))
    with pytest.raises(AttributeError, match="no attribute 'Agregator'"):
        _ = api.Agregator


def test_s08_bytes_of_lora_factors_and_of_the_dense_matrix():
    factors = {"A": torch.zeros(4, 768), "B": torch.zeros(768, 4)}
    assert nbytes(factors) == 24_576
    assert nbytes({"dense": torch.zeros(768, 768)}) == 2_359_296


def test_triangle_round_trip():
    matrix = torch.tensor([[1.0, 2.0, 3.0], [2.0, 4.0, 5.0], [3.0, 5.0, 6.0]])
    assert pack_symmetric(matrix).tolist() == [1, 2, 3, 4, 5, 6]
    assert torch.equal(unpack_symmetric(pack_symmetric(matrix), 3), matrix)


def test_partition_shorthands_and_refusals():
    assert Partition.model_validate({"dirichlet": 0.5}).label == "dirichlet-0.5"
    assert Partition.model_validate("iid").label == "iid"
    assert Partition.model_validate({"dirichlet": 0.1, "min_samples": 6}).label == "dirichlet-0.1-min6"
    assert Partition.model_validate({"quantity": 1, "min_samples": 0}).min_samples == 0
    for wrong in ({"kind": "iid", "value": 1.0}, {"kind": "dirichlet"}, {"dirichlet": 0.0}, {"dirichlet": 1, "x": 1}):
        with pytest.raises(ValidationError):
            Partition.model_validate(wrong)


def test_seeds_are_coordinates():
    one, two = Seeds(index=0), Seeds(index=1)
    assert len({one.of("order"), one.of("partition"), one.of("train"), two.of("train")}) == 4
    assert Seeds(index=1, vary=("train",)).of("order") == one.of("order")
    assert Seeds(base=1).of("order") != one.of("order")
    assert all(0 <= Seeds(index=i).of("train") < 2**63 for i in range(50))


def test_protocol_is_closed_and_bounded():
    with pytest.raises(ValueError, match="lrr"):
        Protocol(lrr=1)
    with pytest.raises(ValueError, match="participation"):
        Protocol(participation=0.0)


def test_params_carry_spaces_and_reject_unknown_names():
    assert set(search_space(Sum.Params)) == {"lambda_s", "k_pct"}
    with pytest.raises(ValueError, match="lambda_S"):
        Sum.Params(lambda_S=0.4)


def test_a_role_is_declared_and_not_inherited():
    class Prior(Ncm):
        role: ClassVar = {"none": "control", "oracle": "method"}

    class Misspelt(Ncm):
        role = "contrl"

    everywhere = ("none", "inferred", "oracle")
    assert [each.facts()["roles"] for each in (Aggregator, FedAvg, type("Mine", (FedAvg,), {}), Prior)] == [
        {},
        {"oracle": "control"},
        {},
        {"none": "control"},
    ]
    assert (Ncm.facts()["roles"], Joint.facts()["roles"]) == (
        dict.fromkeys(everywhere, "control"),
        dict.fromkeys(everywhere, "reference"),
    )
    with pytest.raises(ValueError, match=r"'contrl' \(did you mean 'control'"):
        Misspelt.facts()
