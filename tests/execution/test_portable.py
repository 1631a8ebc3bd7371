"""Cells with portable numbers have workers of their own, and say in row and environment what computed them."""

import pytest

from fcilbench.execution.base import Job, RunOptions, job_environment
from fcilbench.execution.supervisor import run_plan
from fcilbench.results.processor import processor, torch_capability
from fcilbench.spec.protocol import Runtime
from fcilbench.worker.portable import PORTABLE


def portable(cell, wanted=True):
    return cell.model_copy(update={"runtime": cell.runtime.model_copy(update={"portable": wanted})})


def labelled(cell, label):
    return cell.model_copy(update={"aggregator": cell.aggregator.model_copy(update={"label": label})})


def test_a_worker_serves_portable_cells_or_others_and_never_both(trained, kit):
    """One slot trains three cells: with the same code as the others the middle one would have their digest."""
    cells = [labelled(trained(1), "a"), portable(labelled(trained(1), "b")), labelled(trained(1), "c")]
    run_plan(kit.plan(*cells), kit.store, options=RunOptions())
    rows = [kit.row(name) for name in "abc"]
    assert [row.status for row in rows] == ["ok"] * 3
    assert [row.params.runtime["portable"] for row in rows] == [False, True, False]
    found = [kit.store.environment(row.env) for row in rows]
    here = torch_capability(processor())
    assert [record["worker"]["capability"] for record in found] == [here, "DEFAULT", here]
    ways = [record["worker"]["rounding"] for record in found]
    assert ways[0] == ways[2]
    assert (ways[1] == ways[0]) is (here == "DEFAULT")
    assert found[0]["processor"] == {k: v for k, v in processor().items() if k != "name"}
    assert rows[0].env == rows[2].env
    assert rows[0].model_digest == rows[2].model_digest
    if here != "DEFAULT":
        assert rows[0].hardware_digest != rows[1].hardware_digest


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_executor_gets_the_variables_from_the_job(trained, device):
    for wanted in (False, True):
        job = Job(portable(trained(1), wanted).model_dump(mode="json"), "c" * 64, "/nowhere", device, offline=True)
        environment = job_environment(job.request)
        assert (PORTABLE.items() <= environment.items()) is wanted
        assert environment["HF_HUB_OFFLINE"] == "1"
        assert environment.get("CUDA_VISIBLE_DEVICES") == ("" if device == "cpu" else None)


def test_portable_numbers_need_one_thread():
    assert Runtime(portable=True).threads == 1
    with pytest.raises(ValueError, match="portable needs one thread, and threads is 2: set threads: 1"):
        Runtime(portable=True, threads=2)
