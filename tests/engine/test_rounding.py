"""How a process rounds, told by the bits of its sums: in real processes, since libraries read their variables once."""

import os
import subprocess
import sys

import pytest
import torch

from fcilbench.engine.rounding import rounding

PRINT = "from fcilbench.engine.rounding import rounding; print(rounding())"


def elsewhere(**variables):
    """Returns how another process rounds that starts with these variables."""
    done = subprocess.run(
        [sys.executable, "-c", PRINT], env={**os.environ, **variables}, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_every_process_of_a_machine_has_the_same_digits_whatever_its_threads():
    assert len(rounding()) == 12
    assert {elsewhere(), elsewhere(OMP_NUM_THREADS="1"), elsewhere(OMP_NUM_THREADS="3")} == {rounding()}


@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() == "DEFAULT", reason="this processor has no other code")
def test_other_code_for_the_same_processor_has_other_digits():
    """torch's own kernels and MKL's products are chosen one by one, and no version or name of them tells."""
    ways = [elsewhere(ATEN_CPU_CAPABILITY="default"), rounding()]
    if torch.backends.mkl.is_available():
        ways.append(elsewhere(MKL_CBWR="COMPATIBLE"))
    assert len({*ways}) == len(ways)


def test_autocast_and_threads_of_the_process_are_left_alone():
    threads = torch.get_num_threads()
    rounding.cache_clear()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = rounding()
        assert torch.is_autocast_enabled("cpu")
    rounding.cache_clear()
    assert inside == rounding()
    assert torch.get_num_threads() == threads
