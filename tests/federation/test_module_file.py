"""Module files: a finished federation's module leaves it, and theta_infer is rebuilt from the file alone."""

import hashlib
from dataclasses import fields

import pytest
import torch
from safetensors.torch import save_file

from fcilbench.errors import UsageError
from fcilbench.federation.experiment import build
from fcilbench.federation.outcome import MODULE, read_module, save_module
from fcilbench.federation.run import run_experiment
from fcilbench.plugins.aggregators.fedavg import FedAvg
from fcilbench.plugins.aggregators.sum import Sum
from fcilbench.spec.protocol import Runtime
from fcilbench.vectors.module import Packed, from_half, to_half

KEEP = Runtime(keep_model=True)


@pytest.fixture
def finished(make_experiment, tmp_path):
    """Returns a finished method, its server, and the initial state vector."""
    method, servers = Sum(Sum.Params(k_pct=0.2)), []
    experiment = make_experiment(watched(method, servers), runtime=KEEP)
    run_experiment(experiment, tmp_path)
    return method, servers[-1], build(experiment).initial


def watched(method, servers):
    """Notes the server of each evaluation."""
    own = method.predictors
    method.predictors = lambda server: servers.append(server) or own(server)
    return method


def rebuilt(tensors, task, pretrained):
    """theta_infer of a task from the file and theta_pre alone: theta_pre + m_k s_k tau_uni, head and buffers."""
    packed = Packed(**{field.name: tensors[field.name] for field in fields(Packed)})
    body = pretrained[: int(packed.shape[0])]
    assert bytes(tensors["pretrained"].tolist()) == hashlib.sha256(body.numpy().data).digest()
    return torch.cat([body + packed.task_vector(task), tensors["head"], tensors["buffers"]])


def test_what_is_deployed_is_kept_only_where_it_is_asked_for(make_experiment, tmp_path):
    digest = run_experiment(make_experiment(runtime=KEEP), tmp_path).model_digest
    kept = read_module(tmp_path / MODULE)
    assert [task.size for task in kept.tasks] == [2] * 5
    assert kept.facts["model"] == digest
    run_experiment(make_experiment(), tmp_path)
    assert not (tmp_path / MODULE).exists()


@pytest.mark.parametrize("method", [FedAvg, Sum])
def test_a_run_that_broke_off_after_its_last_task_keeps_the_same_module(make_experiment, tmp_path, method):
    """As where the disk was full when the module was written: only the checkpoint of the last task is there."""
    experiment, files = make_experiment(method(), runtime=KEEP), []
    for _ in range(2):
        digest = run_experiment(experiment, tmp_path).model_digest
        kept = read_module(tmp_path / MODULE)
        files.append((digest, kept.tasks, kept.facts, {n: t.tolist() for n, t in kept.tensors.items()}))
    assert files[0] == files[1]
    assert len(files[0][1]) == 5


def test_theta_infer_is_rebuilt_from_the_file(finished, tmp_path):
    method, server, initial = finished
    read = read_module(tmp_path / MODULE)
    assert read.tasks == tuple(server.tasks)
    backbone, unified = server.layout.backbone, server.state["unified"]
    half = from_half(*to_half(unified))
    for task, build_module in enumerate(method.predictors(server).modules[f"task-{k}"] for k in range(5)):
        evaluated, again = build_module(), rebuilt(read.tensors, task, initial)
        # Masks, scales, head and buffers as evaluated, to the last bit; tau_uni in fp16.
        active = (evaluated - initial)[backbone] != 0
        scale = float(server.state["scales"][task])
        expected = initial[backbone] + torch.where(active, half * scale, 0.0)
        assert torch.equal(again[backbone], expected)
        assert torch.equal(again[backbone.stop :], evaluated[backbone.stop :])
        moved = (evaluated - initial)[backbone].abs()
        assert ((again - evaluated)[backbone].abs() <= 2**-11 * moved + 1e-6).all()
        assert int(active.sum()) > 0


def test_a_module_that_fits_half_precision_is_equal_bit_for_bit(finished, tmp_path):
    method, server, initial = finished
    server.state["unified"] = from_half(*to_half(server.state["unified"]))
    path = tmp_path / "half.safetensors"
    save_module(path, method.export(server), server, "")
    for task in range(5):
        evaluated = method.predictors(server).modules[f"task-{task}"]()
        assert torch.equal(rebuilt(read_module(path).tensors, task, initial), evaluated)


def test_methods_without_a_module_export_the_global_model(make_experiment, tmp_path):
    servers = []
    run_experiment(make_experiment(watched(FedAvg(), servers), runtime=KEEP), tmp_path)
    found, vector = read_module(tmp_path / MODULE), servers[-1].vector
    assert found.dense_nbytes is None
    assert torch.equal(found.tensors["theta"], vector)


def test_a_damaged_module_is_refused(make_experiment, tmp_path):
    run_experiment(make_experiment(tasks=1, rounds=1, runtime=KEEP), tmp_path)
    damaged = bytearray((tmp_path / MODULE).read_bytes())
    damaged[-9] ^= 1
    (tmp_path / MODULE).write_bytes(damaged)
    with pytest.raises(UsageError, match="is damaged"):
        read_module(tmp_path / MODULE)


def test_other_files_are_refused(tmp_path):
    with pytest.raises(UsageError, match="cannot be read"):
        read_module(tmp_path / "missing.safetensors")
    (tmp_path / "text").write_text("no tensors here")
    with pytest.raises(UsageError, match="cannot be read"):
        read_module(tmp_path / "text")
    save_file({"a": torch.zeros(1)}, tmp_path / "other")
    with pytest.raises(UsageError, match="not a module file"):
        read_module(tmp_path / "other")
