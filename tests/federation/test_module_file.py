"""Module files: a finished federation's module leaves it, and theta_infer is rebuilt from the file alone."""

import pytest
import torch
from safetensors.torch import save_file

from fcilbench.errors import PrerequisiteError, UsageError
from fcilbench.federation.checkpoint import load_final
from fcilbench.federation.experiment import build
from fcilbench.federation.outcome import read_module, write_module
from fcilbench.federation.run import run_experiment
from fcilbench.plugins.aggregators.fedavg import FedAvg
from fcilbench.plugins.aggregators.sum import Sum
from fcilbench.spec.protocol import Runtime
from fcilbench.vectors.module import from_half, to_half

KEEP = Runtime(keep_model=True)
ABOUT = {"cell": "9f2c", "method": "fcilbench/sum", "version": "2"}


@pytest.fixture
def finished(make_experiment, tmp_path):
    """Returns the method, its server as it was kept, and the initial state vector."""
    method = Sum(Sum.Params(k_pct=0.2))
    experiment = make_experiment(method, runtime=KEEP)
    run_experiment(experiment, tmp_path)
    return method, load_final(tmp_path), build(experiment).initial


def test_the_final_state_is_kept_only_where_it_is_asked_for(make_experiment, tmp_path):
    run_experiment(make_experiment(runtime=KEEP), tmp_path)
    kept = load_final(tmp_path)
    assert [task.size for task in kept.tasks] == [2] * 5
    assert kept.layout == build(make_experiment()).server.layout
    run_experiment(make_experiment(), tmp_path)
    with pytest.raises(PrerequisiteError, match="keep_model"):
        load_final(tmp_path)


def test_theta_infer_is_rebuilt_from_the_file(finished, tmp_path):
    method, server, initial = finished
    path = tmp_path / "module.safetensors"
    write_module(path, method.export(server), server, ABOUT)
    read = read_module(path)
    assert read.tasks == tuple(server.tasks)
    backbone, unified = server.layout.backbone, server.state["unified"]
    half = from_half(*to_half(unified))
    for task, build_module in enumerate(method.predictors(server).modules[f"task-{k}"] for k in range(5)):
        evaluated, rebuilt = build_module(), method.restore(read.tensors, task, initial)
        # Masks, scales, head and buffers as evaluated, to the last bit; tau_uni in fp16.
        active = (evaluated - initial)[backbone] != 0
        scale = float(server.state["scales"][task])
        expected = initial[backbone] + torch.where(active, half * scale, 0.0)
        assert torch.equal(rebuilt[backbone], expected)
        assert torch.equal(rebuilt[backbone.stop :], evaluated[backbone.stop :])
        moved = (evaluated - initial)[backbone].abs()
        assert ((rebuilt - evaluated)[backbone].abs() <= 2**-11 * moved + 1e-6).all()
        assert int(active.sum()) > 0


def test_a_module_that_fits_half_precision_is_equal_bit_for_bit_and_no_other_backbone_takes_it(finished, tmp_path):
    method, server, initial = finished
    server.state["unified"] = from_half(*to_half(server.state["unified"]))
    path = tmp_path / "module.safetensors"
    write_module(path, method.export(server), server, ABOUT)
    for task in range(5):
        evaluated = method.predictors(server).modules[f"task-{task}"]()
        assert torch.equal(method.restore(read_module(path).tensors, task, initial), evaluated)
    with pytest.raises(ValueError, match="not the pretrained backbone"):
        method.restore(read_module(path).tensors, 0, initial + 1.0)


def test_methods_without_a_module_export_the_global_model(make_experiment, tmp_path):
    run_experiment(make_experiment(FedAvg(), runtime=KEEP), tmp_path)
    server = load_final(tmp_path)
    path = tmp_path / "global.safetensors"
    write_module(path, FedAvg().export(server), server, ABOUT)
    found = read_module(path)
    assert found.dense_nbytes is None
    assert torch.equal(FedAvg().restore(found.tensors, 0, server.vector), server.vector)


def test_other_files_are_refused(tmp_path):
    with pytest.raises(UsageError, match="cannot be read"):
        read_module(tmp_path / "missing.safetensors")
    (tmp_path / "text").write_text("no tensors here")
    with pytest.raises(UsageError, match="cannot be read"):
        read_module(tmp_path / "text")
    save_file({"a": torch.zeros(1)}, tmp_path / "other")
    with pytest.raises(UsageError, match="not a module file"):
        read_module(tmp_path / "other")
