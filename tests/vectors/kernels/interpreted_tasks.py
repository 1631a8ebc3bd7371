"""Runs the kernels of temporal SUM on CPU tensors in Triton's interpreter, which must be asked for before its import.

    python interpreted_tasks.py INPUTS OUTPUTS

INPUTS is a list of dicts with `vector`, `basis`, `step`, `cuts`, `coefficients` and `unified`, and one of bugs `(file,
right, wrong)`; OUTPUTS gets the passes of each case, the last with the sizes that a GPU gets and the others with small
ones, what the selection did, and what the check said of each bug.
"""

import importlib.util
import os
import sys
import tempfile
import warnings
from pathlib import Path

from interpreter import SMALL, OnGpu  # isort: skip; before Triton

import torch

from fcilbench.vectors import kernels
from fcilbench.vectors.basis import project_out
from fcilbench.vectors.kernels import check_tasks, launch, launch_tasks, tasks
from fcilbench.vectors.kernels.check import MismatchError
from fcilbench.vectors.storage import store
from fcilbench.vectors.topk import cut
from fcilbench.vectors.unify import RULES, Modulators, unify


def passes(case):
    vector, basis, step = case["vector"], case["basis"], case["step"]
    found = {}
    found["inner"], found["norms"] = launch_tasks.products(vector, basis)
    found["refined"], found["again"] = launch_tasks.refine(vector, step, basis)
    found["subtracted"] = launch_tasks.subtract(vector, step, basis)
    for rule in RULES:
        found[f"{rule} sparse"] = launch_tasks.unify(basis, case["cuts"], rule)
        found[f"{rule} whole"] = launch_tasks.unify(basis, None, rule)
    for source, coefficients in (("accumulated", case["coefficients"]), ("refined", None)):
        found[f"size {source}"], found[f"agreed {source}"] = launch_tasks.norms(basis, coefficients, case["unified"])
    return found


def end_of_task(basis, coefficients, vector):
    """What the end of a task asks for, with the selection as it is, and the warnings that came."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        refined, kept = project_out(vector, basis)
        every = [*basis, refined]
        unified = unify(every, [cut(each, 0.2) for each in every], "count", torch.device("cuda"))
        modulators = Modulators(every, [*coefficients, kept], unified)
        scales = modulators.scales()
    plain = {"refined": refined, "kept": kept, "unified": unified, "scales": scales}
    found = {name: value.as_subclass(torch.Tensor) for name, value in plain.items()}
    messages = [str(warning.message) for warning in caught if warning.category is RuntimeWarning]
    return found | {"warnings": messages, "unfused": modulators.unfused}


def refused(basis):
    """What the kernels are not asked to do."""
    wider = torch.randn(len(basis[0]), 2).as_subclass(OnGpu)
    ways = {
        "CPU": [basis[0].as_subclass(torch.Tensor)],
        "float64": [basis[0].double()],
        "not side by side": [wider[:, 0]],
        "other size": [basis[0], basis[1][:-1]],
        "fp16": [store(basis[0], "fp16")],
        "one of them int8": [store(basis[0]), store(basis[1], "int8")],
        "empty": [basis[0][:0]],
        "no basis": [],
    }
    return {name: tasks.usable(way) is None for name, way in ways.items()}


def selection(case):
    """The selection's ways: checked and used; forced off; and off after a kernel is wrong or fails."""
    check_tasks._SIZE = 301
    given = [each.as_subclass(OnGpu) for each in case["basis"]], case["coefficients"], case["vector"].as_subclass(OnGpu)
    found = {"used": end_of_task(*given), "checked": sorted((kind, n) for _, kind, n in kernels.STATE.checked)}
    found["refused"] = refused(given[0])
    found["a view is used"] = tasks.usable([each[1:-1] for each in given[0]]) is not None
    found["stored in full is used"] = tasks.usable([store(each) for each in given[0]]) is not None
    os.environ[kernels.ENVIRONMENT] = "off"
    found["forced"] = tasks.usable(given[0]) is None
    del os.environ[kernels.ENVIRONMENT]
    right = launch_tasks.norms
    for name, wrong in (
        ("mismatch", lambda *some: (right(*some)[0], right(*some)[1] + 1.0)),
        ("failure", lambda *_: 1 // 0),
    ):
        launch_tasks.norms, kernels.STATE = wrong, kernels.State()
        found[name], found[f"{name} again"] = end_of_task(*given), end_of_task(*given)
    kernels.STATE = kernels.State()
    kernels.STATE.checked.add((given[2].device, "tasks", 4))  # as if it broke later, after the check
    found["later"], found["off"] = end_of_task(*given), sorted(kernels.STATE.off)
    launch_tasks.norms, kernels.STATE = right, kernels.State()
    return found


def verdict(file, right, wrong):
    """What the check says when a line of a kernel is wrong; None: nothing."""
    text = Path(getattr(launch_tasks, file).__file__).read_text()
    assert text.count(right) == 1, right
    proper = getattr(launch_tasks, file)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{file}.py"
        path.write_text(text.replace(right, wrong))
        spec = importlib.util.spec_from_file_location(f"wrong_{file}", path)
        buggy = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(buggy)
        setattr(launch_tasks, file, buggy)
        try:
            for count in (4, 8):
                check_tasks.check(torch.device("cpu"), count)
        except MismatchError as error:
            return str(error)
        finally:
            setattr(launch_tasks, file, proper)
    return None


def main():
    torch.set_num_threads(1)
    cases, bugs = torch.load(sys.argv[1], weights_only=False)
    whole = passes(cases[-1])  # before anything is made small
    for name, value in SMALL.items():
        setattr(launch, name, value)
    launch_tasks.LOADS = 8
    found = [passes(case) for case in cases[:-1]]
    again = passes(cases[3])
    same = all(torch.equal(again[name], value) for name, value in found[3].items())
    chosen = selection(cases[3])
    check_tasks._SIZE = 150
    said = [verdict(*bug) for bug in bugs]
    torch.save({"cases": found, "whole": whole, "same": same, "selection": chosen, "verdicts": said}, sys.argv[2])


if __name__ == "__main__":
    main()
