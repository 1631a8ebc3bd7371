"""A job in this process: what its last event says about an error in a plugin."""

import sys

import torch

from fcilbench.execution.base import Job
from fcilbench.results import private
from fcilbench.spec.cell import Cell, PluginUse
from fcilbench.spec.protocol import Partition, Seeds
from fcilbench.worker.jobs import serve

PLUGIN = """
from fcilbench.plugins.aggregators.fedavg import FedAvg

class Acme(FedAvg):
    def prepare(self, network, request):
        return self._layers(network)

    def _layers(self, network):
        return network.nothing
"""
VIT = {"model": "vit_tiny_patch16_224", "weights": "none", "args": {"img_size": 16, "patch_size": 8, "depth": 1}}


def test_the_message_ends_with_the_innermost_frame_of_the_plugin(install, tmp_path, monkeypatch):
    monkeypatch.setattr(private, "_user", lambda: ((str(tmp_path),), ""))
    install("acme", {"acme_where.py": PLUGIN}, {"aggregators": {"acme": "acme_where:Acme"}})

    def use(name, **params):
        return PluginUse(name=name, label=name, version="1", params=params)

    cell = Cell(
        dataset=use("fcilbench/digits", train_per_class=4, test_per_class=2),
        tasks=(5, 5),
        backbone=use("fcilbench/timm", **VIT),
        partition=Partition(kind="iid"),
        aggregator=use("acme/acme"),
        stress=use("fcilbench/none"),
        seeds=Seeds(),
    )
    events, threads = [], torch.get_num_threads()
    serve(Job(cell.model_dump(mode="json"), "c" * 64, str(tmp_path)).request, events.append)
    torch.set_num_threads(threads)
    assert (events[-1]["event"], events[-1]["kind"], events[-1]["type"]) == ("failed", "plugin", "AttributeError")
    assert events[-1]["message"] == "'Network' object has no attribute 'nothing' (acme_where.py:9 in _layers)"
    trace = (tmp_path / "traceback.txt").read_text()
    assert '"~/site/acme_where.py", line 9, in _layers' in trace
    assert str(tmp_path) not in trace
    del sys.modules["acme_where"]
