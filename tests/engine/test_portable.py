"""Portable numbers: what replaces functions of MKL is right, and a process that was not started for them says so."""

import json
import os
import subprocess
import sys

import pytest
import torch

from fcilbench.engine.portable import REPLACED, make_portable
from fcilbench.errors import PrerequisiteError
from fcilbench.worker.portable import PORTABLE

PROGRAM = """
import json, math, torch
from fcilbench.engine.portable import make_portable
make_portable(); make_portable()
x = torch.tensor([4.0, 0.25, -1.0, 0.0], requires_grad=True)
x.sqrt()[:2].sum().backward()
wide = torch.linspace(0.01, 0.99, 1001, dtype=torch.float64)
reference = {"sqrt": math.sqrt, "tan": math.tan, "asin": math.asin, "acos": math.acos, "atan": math.atan,
             "log": math.log, "log10": math.log10}
worst = {
    name: max(abs(a - f(b)) / abs(f(b)) for a, b in zip(getattr(torch, name)(wide).tolist(), wide.tolist()))
    for name, f in reference.items()
}
given, whole = torch.empty(0), torch.tensor([9, 16])
torch.sqrt(torch.tensor([[1.0, 4.0]]), out=given)
strided = torch.arange(6.0).view(2, 3).T
square = torch.tensor([[4.0, 9.0], [16.0, 25.0]])
print(json.dumps({
    "roots": x.sqrt().tolist()[:2] + x.sqrt().tolist()[3:], "nan": bool(x.sqrt()[2].isnan()),
    "gradient": x.grad.tolist()[:2],
    "whole": [str(whole.sqrt().dtype), whole.sqrt().tolist()],
    "half": [str(torch.tensor(4.0).bfloat16().sqrt().dtype), float(torch.tensor(4.0).bfloat16().sqrt())],
    "given": given.tolist(), "in place": square.clone().sqrt_().tolist(),
    "strided": strided.sqrt().square().round().tolist(),
    "vmap": torch.func.vmap(torch.sqrt)(square).tolist(),
    "complex": str(torch.tensor(-4.0 + 0.0j).sqrt().item()),
    "empty": list(torch.empty(0, 3).sqrt().shape),
    "worst": max(worst.values()), "names": sorted(worst),
}))
"""


def test_replaced_functions_are_right_in_every_form():
    """The derivative of a root is 1 / (2 sqrt(x)): 0.25 at 4 and 1 at 0.25."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env={**os.environ, **PORTABLE}, capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    assert found.pop("worst") < 4e-16
    assert found.pop("names") == sorted(REPLACED)
    assert found == {
        "roots": [2.0, 0.5, 0.0],
        "nan": True,
        "gradient": [0.25, 1.0],
        "whole": ["torch.float32", [3.0, 4.0]],
        "half": ["torch.bfloat16", 2.0],
        "given": [[1.0, 2.0]],
        "in place": [[2.0, 3.0], [4.0, 5.0]],
        "strided": [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]],
        "vmap": [[2.0, 3.0], [4.0, 5.0]],
        "complex": "2j",
        "empty": [0, 3],
    }


@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() == "DEFAULT", reason="this processor has no other code")
def test_a_process_that_was_not_started_for_it_is_refused():
    with pytest.raises(PrerequisiteError, match="this worker computes with AVX"):
        make_portable()


def test_portable_numbers_are_of_a_cpu():
    with pytest.raises(PrerequisiteError, match="computed on a CPU") as error:
        make_portable("cuda")
    assert error.value.hint == "add --gpus none"
