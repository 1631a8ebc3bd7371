"""Runs the kernels on CPU tensors in Triton's interpreter, which must be asked for before Triton is imported.

    python interpreted.py INPUTS OUTPUTS

INPUTS is a list of `(rows, mean, reach, weights)`; OUTPUTS gets the passes of each, the last with the sizes that a GPU
gets and the others with small ones, and what the selection did.
"""

import os
import sys
import warnings

from interpreter import SMALL, OnGpu  # isort: skip; before Triton

import torch

from fcilbench.vectors import kernels
from fcilbench.vectors.kernels import check, launch
from fcilbench.vectors.surgery import gram, merge
from fcilbench.vectors.trim import Trimmed


def passes(rows, mean, reach, weights):
    found = {}
    found["mean"], found["sigma"] = launch.statistics(rows)
    found["gram"], found["zeroed"] = launch.gram(rows, mean, reach)
    found["merged"], found["turned"], found["zeroed_again"] = launch.merge(weights, rows, mean, reach)
    return found


def round_of(rows):
    """What a round of SUM asks for, with the selection as it is, and the warnings that came."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        vectors = Trimmed(rows, 2.0)
        products, zeroed = gram(vectors), int(vectors.zeroed)
        merged, flips = merge(torch.linspace(-1, 1, len(rows)), vectors)
    messages = [str(warning.message) for warning in caught if warning.category is RuntimeWarning]
    plain = [torch.Tensor(each).as_subclass(torch.Tensor) for each in (products, merged)]
    return {"gram": plain[0], "merged": plain[1], "flips": flips, "zeroed": zeroed, "warnings": messages}


def selection():
    """The selection's ways: checked and used; forced off; and off after a kernel is wrong or fails."""
    check._SIZE = 2003
    rows = torch.randn(3, 500, generator=torch.Generator().manual_seed(3)).as_subclass(OnGpu)
    found = {"rows": rows.as_subclass(torch.Tensor), "used": round_of(rows)}
    found["checked"] = sorted((kind, count) for _, kind, count in kernels.STATE.checked)
    os.environ[kernels.ENVIRONMENT] = "off"
    found["forced"] = kernels.usable(rows)
    del os.environ[kernels.ENVIRONMENT]
    right = launch.gram
    for name, wrong in (
        ("mismatch", lambda *given: (right(*given)[0] + 1.0, right(*given)[1])),
        ("failure", lambda *_: 1 // 0),
    ):
        launch.gram = wrong
        kernels.STATE = kernels.State()
        found[name] = round_of(rows)
        found[f"{name} again"] = round_of(rows)
    launch.gram, kernels.STATE = right, kernels.State()
    kernels.STATE.checked.add((rows.device, "clients", 3))  # as if it broke later, after the check
    launch.merge = lambda *_: 1 // 0
    found["later"] = round_of(rows)
    return found


def main():
    torch.set_num_threads(1)
    cases = torch.load(sys.argv[1])
    whole = passes(*cases[-1])  # before anything is made small
    for name, value in SMALL.items():
        setattr(launch, name, value)
    found = [passes(*case) for case in cases[:-1]]
    again = passes(*cases[3])
    same = all(torch.equal(again[name], value) for name, value in found[3].items())
    torch.save({"cases": found, "whole": whole, "same": same, "selection": selection()}, sys.argv[2])


if __name__ == "__main__":
    main()
