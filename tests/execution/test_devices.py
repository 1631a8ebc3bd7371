import pytest

from fcilbench.errors import PrerequisiteError, UsageError
from fcilbench.execution.devices import choose_devices, default_jobs
from fcilbench.worker.gpus import find_gpus

ANSWER = """0, GPU-aa11, NVIDIA H100 80GB HBM3, 81559, 81000, 550.54
1, GPU-bb22, NVIDIA H100 80GB HBM3, 81559, 79000, 550.54
"""


@pytest.fixture
def nvidia_smi(tmp_path, monkeypatch):
    """A program of that name, which the tests write."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    script = tmp_path / "nvidia-smi"
    script.touch(0o755)
    return script


@pytest.fixture
def two_gpus(nvidia_smi):
    nvidia_smi.write_text(f"#!/bin/sh\ncat <<END\n{ANSWER}END\n")


@pytest.mark.usefixtures("two_gpus")
def test_gpus_are_read_from_nvidia_smi():
    first, second = find_gpus()
    assert (first.index, first.uuid, first.name) == (0, "GPU-aa11", "NVIDIA H100 80GB HBM3")
    assert (first.memory, first.free) == (81559 * 1024**2, 81000 * 1024**2)
    assert (second.index, second.driver) == (1, "550.54")


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("visible", "indices"),
    [("0,1", [0, 1]), ("1", [1]), ("1,0", [1, 0]), ("", []), ("-1", []), ("GPU-bb", [1]), ("0,7,1", [0])],
)
def test_cuda_visible_devices_is_respected(visible, indices, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [gpu.index for gpu in find_gpus()] == indices
    assert choose_devices("auto") == ([str(index) for index in indices] or [""])


@pytest.mark.usefixtures("two_gpus")
def test_choice_of_devices():
    assert choose_devices("auto") == ["0", "1"]
    assert choose_devices("1") == ["1"]
    assert choose_devices("none") == [""]
    with pytest.raises(PrerequisiteError, match=r"no GPU 3 \(visible here: 0, 1\)"):
        choose_devices("0,3")
    for nonsense in ("all", "0,0", "", "-1"):
        with pytest.raises(UsageError, match="not a list of GPUs"):
            choose_devices(nonsense)


def test_a_failing_nvidia_smi_means_no_gpu(nvidia_smi):
    nvidia_smi.write_text("#!/bin/sh\necho NVIDIA-SMI has failed; exit 9\n")
    assert find_gpus() == []
    assert choose_devices("auto") == [""]
    with pytest.raises(PrerequisiteError, match="visible here: none"):
        choose_devices("0")


def test_default_jobs_fill_a_cpu_and_leave_a_gpu_to_one_cell(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert default_jobs([""], threads=1) == 8
    assert default_jobs([""], threads=3) == 2
    assert default_jobs([""], threads=16) == 1
    assert default_jobs(["0", "1"], threads=1) == 1
