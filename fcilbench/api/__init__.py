"""All that a plugin author imports. It imports torch; the torch-free words live in `fcilbench.spec`."""

from fcilbench.api.aggregator import Aggregator, No, Request, masked_cross_entropy
from fcilbench.api.backbone import Backbone, FeatureExtractor, ImageInput, TextBackbone, TokenIds, Transformer
from fcilbench.api.client import Batch, Client, Context, LayerGram, Net
from fcilbench.api.dataset import Augmentation, Corpus, Dataset, DatasetParams, Samples
from fcilbench.api.lora import LoraLinear, freeze_batch_norm, insert_lora, lora_layers
from fcilbench.api.message import Layout, Message, Piece, Wire, matches, nbytes, pack_symmetric, unpack_symmetric
from fcilbench.api.predict import AllClasses, DecisionRule, Module, MostConfident, Predictors, TrueTask
from fcilbench.api.schedule import Phase, Schedule, Task
from fcilbench.api.server import Server, State, Updates
from fcilbench.api.stressor import Stressor
from fcilbench.errors import DataError, PrerequisiteError
from fcilbench.spec.archive import Archive
from fcilbench.spec.params import Field, Params, PresetParams, Space
from fcilbench.spec.plugin import Plugin
from fcilbench.spec.protocol import Partition, Protocol, TaskIdentity

__all__ = [
    "Aggregator",
    "AllClasses",
    "Archive",
    "Augmentation",
    "Backbone",
    "Batch",
    "Client",
    "Context",
    "Corpus",
    "DataError",
    "Dataset",
    "DatasetParams",
    "DecisionRule",
    "FeatureExtractor",
    "Field",
    "ImageInput",
    "LayerGram",
    "Layout",
    "LoraLinear",
    "Message",
    "Module",
    "MostConfident",
    "Net",
    "No",
    "Params",
    "Partition",
    "Phase",
    "Piece",
    "Plugin",
    "Predictors",
    "PrerequisiteError",
    "PresetParams",
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
    "Transformer",
    "TrueTask",
    "Updates",
    "Wire",
    "freeze_batch_norm",
    "insert_lora",
    "lora_layers",
    "masked_cross_entropy",
    "matches",
    "nbytes",
    "pack_symmetric",
    "unpack_symmetric",
]
