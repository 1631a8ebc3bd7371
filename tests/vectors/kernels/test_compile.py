"""Compiles the kernels for an H100 without having one: ptxas comes with Triton."""

import importlib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

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
}


class Recorder:
    """Stands in for a kernel and remembers the constants it is launched with."""

    def __getitem__(self, grid):
        self.grid = grid
        return self.launch

    def launch(self, *_, num_warps, **constants):
        self.num_warps, self.constants = num_warps, constants


def kernel_named(name):
    file = "pairs" if name == "gram" else "passes"
    return getattr(importlib.import_module(f"fcilbench.vectors.kernels.{file}"), name)


def launched(name, count, monkeypatch):
    """What `launch` passes for N rows."""
    launch = importlib.import_module("fcilbench.vectors.kernels.launch")
    recorder = Recorder()
    for each in ("fold", name):
        monkeypatch.setattr(
            launch.pairs if each == "gram" else launch.passes, each, recorder if each == name else Recorder()
        )
    rows, zeros = torch.zeros(count, 2000), torch.zeros(count)
    given = {"statistics": (rows,), "gram": (rows, zeros, zeros), "merge": (zeros, rows, zeros, zeros)}
    given["fold"] = (torch.zeros(4, 2, dtype=torch.float64),)
    getattr(launch, "_fold" if name == "fold" else name)(*given[name])
    monkeypatch.undo()
    return recorder


def compiled(name, count, monkeypatch, folder):
    found = launched(name, count, monkeypatch)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder))
    kernel = kernel_named(name)
    pointers = {"rows": "*fp32", **POINTERS[name]}
    names = [parameter.name for parameter in kernel.params if parameter.name not in found.constants]
    signature = {each: pointers.get(each, "i64") for each in names}
    signature |= dict.fromkeys(found.constants, "constexpr")
    source = triton.compiler.ASTSource(kernel, signature=signature, constexprs=found.constants)
    target = triton.backends.compiler.GPUTarget("cuda", 90, 32)
    return triton.compile(source, target=target, options={"num_warps": found.num_warps})


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("statistics", 1),
        ("fold", 1),
        *(("gram", count) for count in (1, 2, 10, 12, 13, 64)),
        ("merge", 1),
        ("merge", 10),
        ("merge", 64),
    ],
)
def test_a_kernel_compiles_for_an_h100(name, count, monkeypatch, tmp_path):
    found = compiled(name, count, monkeypatch, tmp_path)
    code = found.asm["ptx"]
    assert not re.search(r"\b(atom|red)\.", code)  # floats are never added in the order of arrival
    assert "mma" not in code  # and no tensor core rounds them
    assert (".f64" in code) is (name != "merge")
    if name == "merge":
        assert "fma.rn.f32" in code  # as torch's own kernel contracts `out + alpha * row`
    cubin = tmp_path / "kernel.cubin"
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
            if parameter.name in ("stride", "size", "programs"):
                assert parameter.annotation_type == "i64"
                assert parameter.do_not_specialize
            elif not parameter.is_constexpr:
                assert parameter.do_not_specialize_on_alignment


def test_a_run_on_a_cpu_imports_neither_triton_nor_the_kernels():
    script = (
        "import sys, torch\n"
        "from fcilbench.vectors.surgery import gram, merge\n"
        "from fcilbench.vectors.trim import Trimmed\n"
        "vectors = Trimmed(torch.randn(3, 100), 2.0)\n"
        "gram(vectors), merge(torch.ones(3), vectors)\n"
        "print([name for name in sys.modules if name.startswith(('triton', 'fcilbench.vectors.kernels'))])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
