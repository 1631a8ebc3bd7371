"""Every built-in method still gives the numbers of its golden runs (`golden_runs.py`), on whatever processor this is.

When a test here fails, a number of the product has moved. Mend it; or, if it moved knowingly, raise `ENGINE_VERSION` in
`fcilbench/spec/identity.py` (a method's own change: that method's `version`) and write the numbers anew.
"""

from __future__ import annotations

import json
import math
import shutil
import warnings
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

spec = spec_from_file_location("golden_runs", Path(__file__).with_name("golden_runs.py"))
golden_runs = module_from_spec(spec)
spec.loader.exec_module(golden_runs)

FIRST_LOSS = 1e-4
"""How far the mean loss of a federation's first round may be off with other libraries, relative to the kept one.

With other code for the same sums it is off by at most 2.9e-6 (`benchmarks/results/portability-2026-11-29.md`, column
"first loss"). Later losses are no measure: there the last bits have grown to 1e-2.
"""
KEPT_VERSIONS = json.loads(golden_runs.VERSIONS.read_text(encoding="utf-8"))
QEMU = shutil.which("qemu-x86_64")


@pytest.fixture(scope="module")
def here():
    """The golden runs of this machine, by method and modality."""
    return golden_runs.computed(sorted(golden_runs.METHODS))


def kept(method: str) -> dict[str, Any]:
    return json.loads((golden_runs.GOLDEN / f"{method}.json").read_text(encoding="utf-8"))


def moved(found: Any, wanted: Any, where: str = "") -> list[str]:
    """Returns where two records differ in any bit."""
    if isinstance(wanted, dict) and isinstance(found, dict) and set(found) == set(wanted):
        return [line for key in wanted for line in moved(found[key], wanted[key], f"{where}/{key}")]
    if isinstance(wanted, list) and isinstance(found, list) and len(found) == len(wanted):
        pairs = enumerate(zip(found, wanted, strict=True))
        return [line for i, (one, two) in pairs for line in moved(one, two, f"{where}/{i}")]
    return [] if found == wanted else [f"{where}: {found}, was {wanted}"]


def moved_from_the_start(found: Any, wanted: Any) -> list[str]:
    """Returns what differs between two records of one modality that other versions of libraries do not explain."""
    if "declined" in wanted or "declined" in found:
        return moved(found, wanted)
    lines = moved(found["bytes"], wanted["bytes"], "/bytes")
    one, two = found["losses"][0], wanted["losses"][0]
    close = one == two or (None not in (one, two) and math.isclose(one, two, rel_tol=FIRST_LOSS))
    return lines if close else [*lines, f"/losses/0: {one}, was {two}"]


@pytest.mark.parametrize("modality", golden_runs.MODALITIES)
@pytest.mark.parametrize("method", sorted(golden_runs.METHODS))
def test_numbers_stay_what_they_are(here, method: str, modality: str) -> None:
    found, wanted, versions = here[method][modality], kept(method)[modality], golden_runs.versions()
    if versions == KEPT_VERSIONS:
        lines = moved(found, wanted)
    else:
        others = ", ".join(f"{name} {versions[name]}" for name in versions if versions[name] != KEPT_VERSIONS[name])
        warnings.warn(f"golden numbers are compared by their first loss and bytes alone: {others}", stacklevel=1)
        lines = moved_from_the_start(found, wanted)
    assert not lines, (
        f"{lines[:5]}: mend it; or raise ENGINE_VERSION (fcilbench/spec/identity.py), or the method's version if the "
        f"method changed, and run: python tests/golden_runs.py --write {method}"
    )


def test_other_versions_are_held_to_the_start_of_training_and_to_all_bytes():
    """The tolerance is 1e-4 of 2.0: 2.0001 is within it, 2.0003 is not; later losses may be anything."""
    wanted = {"losses": [2.0, 1.0], "bytes": [5, 6], "model_digest": "a"}
    assert moved_from_the_start({"losses": [2.0001, 9.0], "bytes": [5, 6], "model_digest": "b"}, wanted) == []
    assert moved_from_the_start({"losses": [2.0003, 1.0], "bytes": [5, 6]}, wanted) == ["/losses/0: 2.0003, was 2.0"]
    assert moved_from_the_start({"losses": [2.0, 1.0], "bytes": [5, 7]}, wanted) == ["/bytes/1: 7, was 6"]
    assert moved_from_the_start({"losses": [None], "bytes": [5, 6]}, wanted) == ["/losses/0: None, was 2.0"]
    assert moved_from_the_start({"declined": "why"}, wanted) == [": {'declined': 'why'}, was " + str(wanted)]


@pytest.mark.slow
@pytest.mark.skipif(QEMU is None, reason="needs qemu-x86_64 (Debian: apt-get install qemu-user)")
def test_a_processor_of_2008_gives_the_same_bits(here):
    """A Nehalem has neither AVX nor fused products. `benchmarks/portability.py` runs every method so."""
    emulated = golden_runs.computed(["sum"], ["text"], [QEMU, "-cpu", "Nehalem"])
    assert emulated["sum"]["text"] == here["sum"]["text"]
