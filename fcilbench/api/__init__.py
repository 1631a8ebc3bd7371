"""All that a plugin author imports.

Names load on first use, so that the torch-free half of the program can read `fcilbench.api.protocol` and
`fcilbench.api.params` without importing torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fcilbench.api.aggregator import Aggregator, No, Request, Traits, Yes, masked_cross_entropy
    from fcilbench.api.archive import Archive
    from fcilbench.api.backbone import Backbone, FeatureExtractor, ImageInput, TextBackbone, TokenIds
    from fcilbench.api.client import Batch, Client, Context, Net
    from fcilbench.api.dataset import Dataset, DatasetParams
    from fcilbench.api.message import Message, nbytes, pack_symmetric, unpack_symmetric
    from fcilbench.api.params import Field, Params, Space, TaskIdentity
    from fcilbench.api.plugin import Plugin
    from fcilbench.api.predict import AllClasses, Answer, MostConfident, Predictors, TrueTask
    from fcilbench.api.protocol import Partition, Protocol
    from fcilbench.api.samples import Augmentation, Corpus, Samples
    from fcilbench.api.schedule import Phase, Schedule
    from fcilbench.api.server import Parts, Server, State, Updates
    from fcilbench.api.stressor import Stressor
    from fcilbench.api.task import Task

_HOME = {
    "aggregator": ("Aggregator", "No", "Request", "Traits", "Yes", "masked_cross_entropy"),
    "archive": ("Archive",),
    "backbone": ("Backbone", "FeatureExtractor", "ImageInput", "TextBackbone", "TokenIds"),
    "client": ("Batch", "Client", "Context", "Net"),
    "dataset": ("Dataset", "DatasetParams"),
    "message": ("Message", "nbytes", "pack_symmetric", "unpack_symmetric"),
    "params": ("Field", "Params", "Space", "TaskIdentity"),
    "plugin": ("Plugin",),
    "predict": ("AllClasses", "Answer", "MostConfident", "Predictors", "TrueTask"),
    "protocol": ("Partition", "Protocol"),
    "samples": ("Augmentation", "Corpus", "Samples"),
    "schedule": ("Phase", "Schedule"),
    "server": ("Parts", "Server", "State", "Updates"),
    "stressor": ("Stressor",),
    "task": ("Task",),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "Aggregator",
    "AllClasses",
    "Answer",
    "Archive",
    "Augmentation",
    "Backbone",
    "Batch",
    "Client",
    "Context",
    "Corpus",
    "Dataset",
    "DatasetParams",
    "FeatureExtractor",
    "Field",
    "ImageInput",
    "Message",
    "MostConfident",
    "Net",
    "No",
    "Params",
    "Partition",
    "Parts",
    "Phase",
    "Plugin",
    "Predictors",
    "Protocol",
    "Request",
    "Samples",
    "Schedule",
    "Server",
    "Space",
    "State",
    "Stressor",
    "Task",
    "TaskIdentity",
    "TextBackbone",
    "TokenIds",
    "Traits",
    "TrueTask",
    "Updates",
    "Yes",
    "masked_cross_entropy",
    "nbytes",
    "pack_symmetric",
    "unpack_symmetric",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'fcilbench.api' has no attribute {name!r}")
    return getattr(import_module(f"fcilbench.api.{_MODULE_OF[name]}"), name)
