from pathlib import Path

import pytest

from fcilbench.errors import PrerequisiteError, UsageError
from fcilbench.execution.devices import choose_devices, default_jobs, find_gpus

ANSWER = """0, GPU-aa11, NVIDIA H100 80GB HBM3, 81559, 81000, 550.54
1, GPU-bb22, NVIDIA H100 80GB HBM3, 81559, 79000, 550.54
"""


@pytest.fixture
def two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "nvidia-smi"
    script.write_text(f"#!/bin/sh\ncat <<END\n{ANSWER}END\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")


@pytest.fixture
def no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.usefixtures("two_gpus")
def test_gpus_are_read_from_nvidia_smi() -> None:
    first, second = find_gpus({})
    assert (first.index, first.uuid, first.name) == (0, "GPU-aa11", "NVIDIA H100 80GB HBM3")
    assert (first.memory, first.free) == (81559 * 1024**2, 81000 * 1024**2)
    assert (second.index, second.driver) == (1, "550.54")


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("visible", "indices"),
    [("0,1", [0, 1]), ("1", [1]), ("1,0", [1, 0]), ("", []), ("-1", []), ("GPU-bb", [1]), ("0,7,1", [0])],
)
def test_cuda_visible_devices_is_respected(visible: str, indices: list[int]) -> None:
    assert [gpu.index for gpu in find_gpus({"CUDA_VISIBLE_DEVICES": visible})] == indices


@pytest.mark.usefixtures("two_gpus")
def test_choice_of_devices() -> None:
    assert choose_devices("auto", {}) == ["0", "1"]
    assert choose_devices("1", {}) == ["1"]
    assert choose_devices("none", {}) == [""]
    assert choose_devices("auto", {"CUDA_VISIBLE_DEVICES": ""}) == [""]
    with pytest.raises(PrerequisiteError, match=r"no GPU 3 \(visible here: 0, 1\)"):
        choose_devices("0,3", {})
    for nonsense in ("all", "0,0", "", "-1"):
        with pytest.raises(UsageError, match="not a list of GPUs"):
            choose_devices(nonsense, {})


@pytest.mark.usefixtures("no_gpu")
def test_without_gpus_auto_is_the_cpu_and_a_named_gpu_is_missing() -> None:
    assert choose_devices("auto", {}) == [""]
    with pytest.raises(PrerequisiteError, match="visible here: none"):
        choose_devices("0", {})


def test_a_failing_nvidia_smi_means_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "nvidia-smi"
    script.write_text("#!/bin/sh\necho NVIDIA-SMI has failed; exit 9\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert find_gpus({}) == []


def test_default_jobs_fill_a_cpu_and_leave_a_gpu_to_one_cell(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert default_jobs([""], threads=1) == 8
    assert default_jobs([""], threads=3) == 2
    assert default_jobs([""], threads=16) == 1
    assert default_jobs(["0", "1"], threads=1) == 1
