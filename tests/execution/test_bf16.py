"""What is said of bf16 on a processor without instructions for it, by a made-up /proc/cpuinfo."""

import re
from pathlib import Path

import pytest

from fcilbench.execution.bf16 import TIMES_PRODUCT, TIMES_STEP, slow_bf16
from fcilbench.results import processor

EPYC = "processor\t: 0\nflags\t\t: fpu sse2 avx2 {}\nbugs\t\t: spectre_v1\n\nprocessor\t: 1\nflags\t\t: odd\n"
TABLE = Path(__file__).parents[2] / "benchmarks" / "results" / "bf16-2026-11-29.md"


@pytest.fixture
def cpuinfo(tmp_path, monkeypatch):
    """Returns `cpuinfo(text)`, which makes a file of that text this machine's /proc/cpuinfo."""
    path = tmp_path / "cpuinfo"
    monkeypatch.setattr(processor, "CPUINFO", path)
    return path.write_text


def test_only_bf16_on_a_processor_that_is_known_to_lack_it_is_slow(cpuinfo):
    cells = ["fp32", "bf16", "bf16"]
    assert slow_bf16(cells) == ""  # the processor is not known
    for flag in ("avx512_bf16", "amx_bf16"):
        cpuinfo(EPYC.format(flag))
        assert slow_bf16(cells) == ""
    cpuinfo(EPYC.format("avx512f"))
    assert slow_bf16(["fp32"]) == slow_bf16([]) == ""
    assert slow_bf16(cells, ["0"]) == ""  # on a GPU
    for remote in ("ray", "slurm,partition=gpu", "acme/kubernetes"):
        assert slow_bf16(cells, executor=remote) == ""  # the nodes' processors are not known
    assert slow_bf16(cells) == slow_bf16(cells, executor="fcilbench/local")
    assert slow_bf16(cells) == (
        "bf16 is slow here: this processor has no instructions for it. A matrix product takes about 40 times as long "
        "as in fp32, a training step of a small ViT about 10 times (2 cells; with precision: fp32 they are other cells)"
    )
    assert "(1 cell;" in slow_bf16(["bf16"])


def test_the_factors_are_the_measured_ones():
    found = dict(re.findall(r"^\| without \| (\w+) \|.*\| ([\d.]+) \|$", TABLE.read_text(), re.MULTILINE))
    rounded = {work: round(float(factor), -1) for work, factor in found.items()}
    assert rounded == {"product": TIMES_PRODUCT, "step": TIMES_STEP}
