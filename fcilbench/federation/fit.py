"""Whether the parts of an experiment fit together: backbone and data set, adapter and network."""

from __future__ import annotations

from contextlib import ExitStack

import torch

from fcilbench.api.backbone import Backbone, TextBackbone
from fcilbench.api.dataset import Dataset
from fcilbench.api.lora import lora_layers
from fcilbench.engine.model import Network, evaluating
from fcilbench.errors import UsageError


def misfit(backbone: Backbone, dataset: Dataset) -> str:
    """Returns why a backbone does not read a data set's samples; "" if it does."""
    if dataset.modality not in backbone.reads:
        return f"a backbone for {' and '.join(backbone.reads)} does not read {dataset.modality} data"
    if dataset.modality == "array" and tuple(dataset.shape) != (wanted := backbone.input_shape()):
        return f"the backbone reads arrays of shape {list(wanted)}, the data set has {list(dataset.shape)}"
    return ""


def check_adapters(network: Network, backbone: Backbone) -> None:
    """Raises UsageError for a LoRA layer without effect: some networks use a weight without calling its layer."""
    layers, called = lora_layers(network), set[str]()
    if not layers:
        return
    if isinstance(backbone, TextBackbone):
        inputs = torch.from_numpy(backbone.encode(["1 2"]).ids)
    else:
        inputs = torch.zeros(1, *backbone.input_shape())
    with ExitStack() as hooks, torch.no_grad(), evaluating(network):
        for name, layer in layers.items():
            hooks.enter_context(layer.register_forward_hook(lambda *_, name=name: called.add(name)))
        network(inputs)
    if idle := [name for name in layers if name not in called]:
        raise UsageError(
            f"adapter: {idle[0]} cannot be adapted: the network uses its weight without calling the layer",
            hint="leave it out of the adapter's targets",
        )
