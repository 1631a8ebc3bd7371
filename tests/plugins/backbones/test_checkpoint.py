from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from fcilbench.errors import PrerequisiteError
from fcilbench.plugins.backbones.checkpoint import load_all, read_safetensors


def test_half_precision_becomes_fp32_and_integers_stay(tmp_path: Path) -> None:
    file = tmp_path / "w.safetensors"
    save_file({"w": torch.tensor([0.5, -2.0], dtype=torch.float16), "n": torch.tensor(7)}, file)
    state = read_safetensors(file)
    assert state["w"].dtype == torch.float32
    assert state["w"].tolist() == [0.5, -2.0]
    assert state["n"].dtype == torch.int64


def test_truncated_file(tmp_path: Path) -> None:
    file = tmp_path / "w.safetensors"
    save_file({"w": torch.zeros(100)}, file)
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(PrerequisiteError, match="is not a complete safetensors file"):
        read_safetensors(file)


def test_one_error_lists_the_first_of_each_kind_and_loads_nothing() -> None:
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(3)))
    before = {key: value.clone() for key, value in model.state_dict().items()}
    state = {"0.weight": torch.zeros(2, 3), "0.bias": torch.zeros(2), "other": torch.zeros(1)}
    with pytest.raises(PrerequisiteError) as caught:
        load_all(model, state, model_name="three", path=Path("w.safetensors"))
    assert caught.value.message == (
        "weights w.safetensors do not fit three: missing: 1.weight, 1.bias, 2.weight, ... (4 in all); "
        "unexpected: other; of another shape: 0.weight [2, 3] for [2, 2]"
    )
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_only_a_head_that_the_model_lacks_is_passed_over() -> None:
    model = nn.Sequential()
    model.add_module("head", nn.Linear(1, 1))
    state = {key: torch.ones(1, 1) for key in ("head.weight", "fc.weight", "fcs.weight")} | {"head.bias": torch.ones(1)}
    with pytest.raises(PrerequisiteError, match=r"unexpected: fcs\.weight$"):
        load_all(model, state, model_name="m", path=Path("f"), classifiers=("head", "fc"))
    del state["fcs.weight"]
    load_all(model, state, model_name="m", path=Path("f"), classifiers=("head", "fc"))
    assert model(torch.ones(1, 1)).item() == 2.0
