"""All that a plugin author imports. It imports torch; the torch-free words live in `fcilbench.spec`."""

from fcilbench.api.aggregator import Aggregator, No, Request, masked_cross_entropy
from fcilbench.api.backbone import Backbone, FeatureExtractor, ImageInput, TextBackbone, TokenIds, Transformer
from fcilbench.api.client import Batch, Client, Context, LayerGram, Net
from fcilbench.api.dataset import Augmentation, Corpus, Dataset, DatasetParams, Samples
from fcilbench.api.lora import LoraLinear, freeze_batch_norm, insert_lora, lora_layers
from fcilbench.api.message import Layout, Message, Piece, Wire, matches, nbytes, pack_symmetric, unpack_symmetric
from fcilbench.api.predict import AllClasses, DecisionRule, Module, MostConfident, Predictors, TrueTask
from fcilbench.api.schedule import Convergence, Phase, Schedule, Task
from fcilbench.api.selector import Selector, SelectorServer, TestSamples, labelled_features, task_of
from fcilbench.api.server import Server, State, Updates
from fcilbench.api.stressor import Stressor
from fcilbench.errors import DataError, PrerequisiteError
from fcilbench.spec.archive import Archive
from fcilbench.spec.params import Field, Params, PresetParams, Space
from fcilbench.spec.plugin import Plugin
from fcilbench.spec.protocol import Partition, Protocol, TaskIdentity

__all__ = ["Aggregator", "No", "Request", "masked_cross_entropy"]
__all__ += ["Backbone", "FeatureExtractor", "ImageInput", "TextBackbone", "TokenIds", "Transformer"]
__all__ += ["Batch", "Client", "Context", "LayerGram", "Net"]
__all__ += ["Augmentation", "Corpus", "Dataset", "DatasetParams", "Samples"]
__all__ += ["LoraLinear", "freeze_batch_norm", "insert_lora", "lora_layers"]
__all__ += ["Layout", "Message", "Piece", "Wire", "matches", "nbytes", "pack_symmetric", "unpack_symmetric"]
__all__ += ["AllClasses", "DecisionRule", "Module", "MostConfident", "Predictors", "TrueTask"]
__all__ += ["Convergence", "Phase", "Schedule", "Task"]
__all__ += ["Selector", "SelectorServer", "TestSamples", "labelled_features", "task_of"]
__all__ += ["Server", "State", "Updates"]
__all__ += ["Stressor"]
__all__ += ["Archive", "DataError", "Field", "Params", "PrerequisiteError", "PresetParams"]
__all__ += ["Partition", "Plugin", "Protocol", "Space", "TaskIdentity"]
