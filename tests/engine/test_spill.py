"""Tensors that do not fit into memory: where they lie, and that no method merges with memory for each client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fcilbench.api import FeatureExtractor, Transformer, Updates
from fcilbench.engine import spill
from fcilbench.registry.entrypoints import find, load
from fcilbench.testing.bench import BENCHES, Bench, ConvNet, Faulty
from fcilbench.testing.check import NotApplicable
from fcilbench.testing.subject import AggregatorSubject

METHODS = {ref.short: ref for ref in find("aggregators") if ref.dist == "fcilbench"}


@pytest.fixture
def nothing_fits(monkeypatch):
    monkeypatch.setattr(spill, "FREE", 2.0)
    monkeypatch.setattr(spill, "SMALL", 0)


def subject_of(name: str, bench: Bench) -> AggregatorSubject:
    """Returns a method with the small options of the conformance kit."""
    plugin = load(METHODS[name])
    return AggregatorSubject(plugin, plugin.kit_params, bench=bench)


def on_a_bench(name: str, use: Any) -> Any:
    """Returns `use(subject)` on the first bench that the method does not decline."""
    for bench in reversed(BENCHES):
        try:
            return use(subject_of(name, bench))
        except NotApplicable as reason:
            declined = reason
    pytest.skip(str(declined))


def test_a_tensor_that_does_not_fit_lies_in_a_file_without_a_name(nothing_fits, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    like = torch.arange(12.0, dtype=torch.float64).view(3, 4)
    for tensor in (spill.empty((3, 4), like).copy_(like), spill.kept(like)):
        assert tensor.untyped_storage().filename.startswith(str(tmp_path))
        assert torch.equal(tensor, like)
    assert list(tmp_path.iterdir()) == []  # no crash leaves anything behind


def test_a_tensor_that_fits_stays_in_memory():
    large = torch.zeros(spill.SMALL)
    assert spill.kept(large) is large
    assert spill.empty((2, spill.SMALL), large).untyped_storage().filename is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_computes_with_what_lies_in_host_memory(nothing_fits):
    like = torch.arange(12.0, device="cuda").view(3, 4)
    tensor, before = spill.kept(like), torch.cuda.memory_allocated()
    large = spill.empty((1 << 20, 4), like)
    assert torch.cuda.memory_allocated() == before
    large[:3] = tensor.add_(1)
    assert torch.equal(large[:3], like + 1)


def test_memory_is_that_of_the_machine_or_less():
    free, total = spill._host_memory()
    physical = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
    assert 0 < free < total <= int(physical.split()[1]) * 1024


@pytest.mark.parametrize("name", METHODS)
def test_every_method_ends_bit_equal_with_everything_spilled(name, request):
    """Among the clients is one that sends NaN and nothing by turns, so that rows are left out of the matrix."""

    def run(subject):
        outcome = subject.run(stressor=Faulty([0]), tasks=(4, 6), clients=3).outcome
        return outcome.model_digest, outcome.accuracy

    inside = on_a_bench(name, run)
    request.getfixturevalue("nothing_fits")
    assert on_a_bench(name, run) == inside


class Live(TorchDispatchMode):
    """Measures the peak of the bytes in tensors that are made while it is active, to a megabyte.

    What is gone is taken off only when all that was made could be a new peak: to look at each of thousands of live
    tensors after each operation took most of the time of a method that holds a network for each client.
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak, self._total, self._made = 0, 0, dict[int, tuple[StorageWeakRef, int]]()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = {each.untyped_storage()._cdata for each in tree_leaves((args, kwargs)) if torch.is_tensor(each)}
        out = func(*args, **(kwargs or {}))
        for each in tree_leaves(out):
            if torch.is_tensor(each) and each.untyped_storage()._cdata not in given:
                storage = each.untyped_storage()
                self._total += storage.nbytes() - self._made.get(storage._cdata, (None, 0))[1]
                self._made[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        if self._total > self.peak + 1e6:
            self._made = {key: made for key, made in self._made.items() if not made[0].expired()}
            self._total = sum(size for _, size in self._made.values())
            self.peak = max(self.peak, self._total)
        return out


class Wide(ConvNet):
    """A transformer of 100,000 weights: 256 clients send 100 MB."""

    def build(self) -> FeatureExtractor:
        size: dict[str, Any] = {"img_size": 8, "patch_size": 4, "in_chans": 1, "embed_dim": 64, "depth": 2}
        extractor = FeatureExtractor(VisionTransformer(**size, num_heads=2, num_classes=0), 64)
        extractor.transformer = Transformer(tokens=5, width=64, depth=2, heads=2)
        return extractor


@pytest.mark.parametrize("name", METHODS)
def test_no_method_needs_memory_for_each_client_beyond_its_updates(name):
    """256 clients: beyond the updates and the statistics, which `spill` places, only chunks of a fixed size exist."""
    subject = subject_of(name, Bench("wide", Wide))
    try:
        subject.require_training()
        stage = subject.stage(tasks=(5, 5))
    except NotApplicable as reason:
        pytest.skip(str(reason))
    one = stage.updates
    copies = 256 // len(one.clients) + 1
    told = (tuple(each) * copies for each in (one.samples, one.clients, one.statistics))
    updates = Updates(one.delta.repeat(copies, 1), *told, one.layout)
    with Live() as live:
        stage.merge(updates)
    assert live.peak < 49e6
