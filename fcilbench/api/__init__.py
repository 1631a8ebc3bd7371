"""All that the author of a plugin imports, of every kind.

A name is imported when it is asked for: those of methods, backbones, data sets and stressors bring torch, those of
executors, boards and trackers do not.
"""

from __future__ import annotations

import ast
import functools
import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # read by `_homes`, too
    from fcilbench.api.aggregator import Aggregator, No, Request, masked_cross_entropy, seen_cross_entropy
    from fcilbench.api.backbone import BARE, Backbone, FeatureExtractor, ImageInput, TextBackbone, TokenIds, Transformer
    from fcilbench.api.client import Batch, Client, Context, FisherKind, LayerGram, Net, State
    from fcilbench.api.dataset import Augmentation, Corpus, Dataset, DatasetParams, Samples, Transform
    from fcilbench.api.lora import LoraLinear, freeze_batch_norm, insert_lora, lora_layers, merge_adapters
    from fcilbench.api.memory import Memory, Rehearsal, class_balanced, herded, herding, quotas, reservoir
    from fcilbench.api.message import Layout, Message, Piece, Wire, matches, nbytes, pack_symmetric, unpack_symmetric
    from fcilbench.api.predict import (
        ONE_SCALE,
        AllClasses,
        DecisionRule,
        Logits,
        Module,
        MostConfident,
        Predictors,
        TrueTask,
        confidence,
    )
    from fcilbench.api.schedule import Convergence, Indices, Phase, Schedule, Task
    from fcilbench.api.selector import Selector, SelectorServer, TestSamples, labelled_features, task_of
    from fcilbench.api.server import Server, Updates
    from fcilbench.api.stressor import SomeClients, Stressor, Turn, Upload
    from fcilbench.boards.build import BaseBoard, Figures
    from fcilbench.boards.model import Board, Column, Group
    from fcilbench.boards.scenario import BoardCell
    from fcilbench.data.alike import alike_remarks, class_name, respelt_remarks, unseen_pairs
    from fcilbench.data.content import number as number_samples
    from fcilbench.data.content import split_samples
    from fcilbench.data.doubles import sample_remarks
    from fcilbench.data.folders import Layout as ImageLayout
    from fcilbench.data.folders import compare_classes, find_images, list_annotated, list_classes, listing_remarks
    from fcilbench.data.images import ImageDataset, ImageFiles, Size, class_folders, class_tree, sides
    from fcilbench.data.images import decoded as decoded_images
    from fcilbench.data.images import sized as sized_images
    from fcilbench.data.images import visible as visible_entries
    from fcilbench.data.labelled import LabelledText, label_rows, names_of_labels
    from fcilbench.data.root import file_digest, find_data, find_weights
    from fcilbench.data.table import Table, TableForm, read_table
    from fcilbench.errors import DataError, PluginError, PrerequisiteError, UsageError
    from fcilbench.execution.base import (
        Device,
        Executor,
        Job,
        RunOptions,
        attempt,
        executor_settings,
        job_environment,
    )
    from fcilbench.plugins.aggregators.lwf import distillation
    from fcilbench.plugins.aggregators.ncm import FrozenFeatures, write_head
    from fcilbench.plugins.aggregators.prompts import PromptedViT, PromptMethod
    from fcilbench.results.store import Store
    from fcilbench.spec.archive import Archive
    from fcilbench.spec.outcome import UNCONVERGED
    from fcilbench.spec.params import Field, Params, PresetParams, Space, non_defaults
    from fcilbench.spec.plugin import Plugin
    from fcilbench.spec.protocol import Partition, Protocol, TaskIdentity
    from fcilbench.spec.row import Row
    from fcilbench.tracking.base import Report, Tracker, Warn
    from fcilbench.vectors.class_means import class_sums, nearest_mean_head, scatter_rows
    from fcilbench.vectors.ridge import solve_ridge
    from fcilbench.vectors.sums import client_weights, weighted_sum
    from fcilbench.worker.events import TERMINAL, Event, died

__all__ = ["Aggregator", "No", "Request", "masked_cross_entropy", "seen_cross_entropy"]
__all__ += ["BARE", "Backbone", "FeatureExtractor", "ImageInput", "TextBackbone", "TokenIds", "Transformer"]
__all__ += ["Batch", "Client", "Context", "FisherKind", "LayerGram", "Net", "State"]
__all__ += ["Augmentation", "Corpus", "Dataset", "DatasetParams", "Samples", "Transform"]
__all__ += ["LoraLinear", "freeze_batch_norm", "insert_lora", "lora_layers", "merge_adapters"]
__all__ += ["Layout", "Message", "Piece", "Wire", "matches", "nbytes", "pack_symmetric", "unpack_symmetric"]
__all__ += ["ONE_SCALE", "AllClasses", "DecisionRule", "Logits", "Module", "MostConfident", "Predictors", "TrueTask"]
__all__ += ["confidence"]
__all__ += ["UNCONVERGED", "Convergence", "Indices", "Phase", "Schedule", "Task"]
__all__ += ["Memory", "Rehearsal", "class_balanced", "herded", "herding", "quotas", "reservoir"]
__all__ += ["Selector", "SelectorServer", "TestSamples", "labelled_features", "task_of"]
__all__ += ["Server", "Updates"]
__all__ += ["SomeClients", "Stressor", "Turn", "Upload"]
__all__ += ["FrozenFeatures", "PromptMethod", "PromptedViT", "distillation", "write_head"]
__all__ += ["ImageDataset", "ImageFiles", "Size", "class_folders", "class_tree"]
__all__ += ["decoded_images", "sides", "sized_images"]
__all__ += ["visible_entries"]
__all__ += ["ImageLayout", "compare_classes", "find_images", "list_annotated", "list_classes", "listing_remarks"]
__all__ += ["LabelledText", "Table", "TableForm", "label_rows", "names_of_labels", "read_table"]
__all__ += ["alike_remarks", "class_name", "respelt_remarks", "sample_remarks", "unseen_pairs"]
__all__ += ["number_samples", "split_samples"]
__all__ += ["file_digest", "find_data", "find_weights", "non_defaults"]
__all__ += ["class_sums", "client_weights", "nearest_mean_head", "scatter_rows", "solve_ridge", "weighted_sum"]
__all__ += ["TERMINAL", "Device", "Event", "Executor", "Job", "RunOptions"]
__all__ += ["attempt", "died", "executor_settings", "job_environment"]
__all__ += ["BaseBoard", "Board", "BoardCell", "Column", "Figures", "Group"]
__all__ += ["Report", "Row", "Store", "Tracker", "Warn"]
__all__ += ["Archive", "DataError", "Field", "Params", "PluginError", "PrerequisiteError", "PresetParams"]
__all__ += ["Partition", "Plugin", "Protocol", "Space", "TaskIdentity", "UsageError"]


@functools.cache
def _homes() -> dict[str, tuple[str, str]]:
    """Returns for each public name its module and its name there, from the imports above, which only tools execute."""
    tree = ast.parse(Path(__file__).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {name.asname or name.name: (node.module or "", name.name) for node in imports for name in node.names}


if not TYPE_CHECKING:  # or a type checker would take any name for one of this module

    def __getattr__(name: str) -> Any:
        if name not in _homes():
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module, there = _homes()[name]
        found = globals()[name] = getattr(importlib.import_module(module), there)
        return found

    def __dir__() -> list[str]:
        return sorted(__all__)
