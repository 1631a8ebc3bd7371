"""Compiles the kernels for an H100 without having one: ptxas comes with Triton."""

import importlib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fcilbench.vectors.unify import RULES

triton = pytest.importorskip("triton", reason="needs Triton")
pytestmark = pytest.mark.slow

POINTERS = {
    "statistics": {"counts": "*fp64", "means": "*fp64", "squares": "*fp64"},
    "fold": {"partial": "*fp64", "total": "*fp64"},
    "gram": {"mean": "*fp32", "reach": "*fp32", "products": "*fp64", "zeroed": "*i64"},
    "merge": {
        **{"mean": "*fp32", "reach": "*fp32", "weights": "*fp32", "merged": "*fp32"},
        **{"flips": "*i64", "zeroed": "*i64"},
    },
    "products": {"table": "*i64", "vector": "*fp32", "partial": "*fp64"},
    "refine": {"table": "*i64", "step": "*fp64", "vector": "*fp32", "refined": "*fp32", "partial": "*fp64"},
    "subtract": {"table": "*i64", "step": "*fp64", "vector": "*fp32", "refined": "*fp32"},
    "unify": {"table": "*i64", "magnitudes": "*i32", "lasts": "*i64", "unified": "*fp32"},
    "norms": {"table": "*i64", "coefficients": "*fp32", "unified": "*fp32", "partial": "*fp64"},
}
FILES = {"gram": "pairs", "unify": "module", "norms": "module"}
FILES |= dict.fromkeys(("statistics", "fold", "merge"), "passes")
FILES |= dict.fromkeys(("products", "refine", "subtract"), "projection")


class Recorder:
    """Stands in for a kernel and remembers the constants it is launched with."""

    def __getitem__(self, grid):
        self.grid = grid
        return self.launch

    def launch(self, *_, num_warps, maxnreg=None, **constants):
        self.options, self.constants = {"num_warps": num_warps, "maxnreg": maxnreg}, constants


def kernel_named(name):
    return getattr(importlib.import_module(f"fcilbench.vectors.kernels.{FILES[name]}"), name)


def launched(name, count, monkeypatch, rule="count"):
    """What is passed for N or T rows."""
    launch = importlib.import_module("fcilbench.vectors.kernels.launch")
    launch_tasks = importlib.import_module("fcilbench.vectors.kernels.launch_tasks")
    recorder = Recorder()
    for each in ("fold", name):
        file = importlib.import_module(f"fcilbench.vectors.kernels.{FILES[each]}")
        monkeypatch.setattr(file, each, recorder if each == name else Recorder())
    rows, zeros = torch.zeros(count, 2000), torch.zeros(count)
    given = {"statistics": (rows,), "gram": (rows, zeros, zeros), "merge": (zeros, rows, zeros, zeros)}
    given |= {"fold": (torch.zeros(4, 2, dtype=torch.float64),), "products": (rows[0], rows)}
    given |= dict.fromkeys(("refine", "subtract"), (rows[0], zeros, rows))
    given |= {"unify": (rows, None, rule), "norms": (rows, None, rows[0])}
    getattr(launch if hasattr(launch, name) else launch_tasks, name)(*given[name])
    monkeypatch.undo()
    return recorder


def compiled(name, count, monkeypatch, folder, rule="count"):
    found = launched(name, count, monkeypatch, rule)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder))
    kernel = kernel_named(name)
    pointers = {"rows": "*fp32", **POINTERS[name]}
    names = [parameter.name for parameter in kernel.params if parameter.name not in found.constants]
    signature = {each: pointers.get(each, "i64") for each in names}
    signature |= dict.fromkeys(found.constants, "constexpr")
    source = triton.compiler.ASTSource(kernel, signature=signature, constexprs=found.constants)
    target = triton.backends.compiler.GPUTarget("cuda", 90, 32)
    return triton.compile(source, target=target, options=found.options)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("statistics", 1),
        ("fold", 1),
        *(("gram", count) for count in (1, 2, 10, 12, 13, 64)),
        ("merge", 1),
        ("merge", 10),
        ("merge", 64),
        *((name, count) for name in ("products", "refine", "norms") for count in (4, 8, 12)),
        *(("products", 30), ("norms", 30), ("subtract", 10)),
    ],
)
def test_a_kernel_compiles_for_an_h100(name, count, monkeypatch, tmp_path):
    check_code(name, compiled(name, count, monkeypatch, tmp_path), tmp_path)


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_of_the_election_compiles(rule, monkeypatch, tmp_path):
    check_code(f"unify {rule}", compiled("unify", 10, monkeypatch, tmp_path, rule), tmp_path)


def check_code(name, found, folder):
    code = found.asm["ptx"]
    assert not re.search(r"\b(atom|red)\.", code)  # floats are never added in the order of arrival
    assert "mma" not in code  # and no tensor core rounds them
    assert (".f64" in code) is (name not in {"merge", "unify count", "unify strict"})
    if name in {"merge", "norms"}:
        assert "fma.rn.f32" in code  # as torch's own kernel contracts `out + alpha * row`
    cubin = folder / "kernel.cubin"
    cubin.write_bytes(found.asm["cubin"])
    tool = Path(importlib.util.find_spec("triton").origin).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    if not tool.exists():
        pytest.skip("no cuobjdump to count registers with")
    usage = subprocess.run([tool, "--dump-resource-usage", cubin], capture_output=True, text=True, check=True).stdout
    assert "STACK:0 " in usage  # nothing spills out of the registers
    assert int(re.search(r"REG:(\d+)", usage)[1]) < 255


def test_one_binary_serves_all_strides_and_alignments():
    for name in POINTERS:
        for parameter in kernel_named(name).params:
            if parameter.name in ("stride", "size", "programs", "tasks"):
                assert parameter.annotation_type == "i64"
                assert parameter.do_not_specialize
            elif not parameter.is_constexpr:
                assert parameter.do_not_specialize_on_alignment


def test_a_run_on_a_cpu_imports_neither_triton_nor_the_kernels():
    script = (
        "import sys, torch\n"
        "from fcilbench.vectors.surgery import gram, merge\n"
        "from fcilbench.vectors.trim import Trimmed\n"
        "from fcilbench.vectors.basis import project_out\n"
        "from fcilbench.vectors.unify import Modulators, unify\n"
        "vectors = Trimmed(torch.randn(3, 100), 2.0)\n"
        "gram(vectors), merge(torch.ones(3), vectors)\n"
        "basis = [torch.randn(100)]\n"
        "project_out(torch.randn(100), basis)\n"
        "unified = unify(basis, None, 'count', torch.device('cpu'))\n"
        "Modulators(basis, [torch.zeros(0)], unified).scales()\n"
        "print([name for name in sys.modules if name.startswith(('triton', 'fcilbench.vectors.kernels'))])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
