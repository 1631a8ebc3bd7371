"""What a worker answers to `inspect`: a survey of a data set, and how tasks and clients share its samples."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from fcilbench.api.backbone import TextBackbone
from fcilbench.api.dataset import Corpus, Dataset
from fcilbench.data.root import data_root
from fcilbench.data.survey import spread, survey
from fcilbench.errors import FcilbenchError
from fcilbench.federation.run import decoding_events
from fcilbench.federation.tasks import TaskStream, partition, stream, validation_split
from fcilbench.registry import entrypoints
from fcilbench.spec.protocol import Partition
from fcilbench.worker.events import Emit


def inspect_dataset(request: dict[str, Any], emit: Emit) -> dict[str, Any]:
    """Returns the survey of a data set with `tokens` by backbone and `partitions`.

    The request has `name` and `params` of the data set, `backbones` (`label`, `name`, `params`) and `draws` (`label`,
    `clients`, `tasks`, `order`, `partition`, `validation`, `spec`).
    """
    dataset = cast(Dataset, _plugin("datasets", request))
    found, corpus = survey(dataset, data_root(), decoding_events(emit))
    if dataset.modality == "text":
        found["texts"]["tokens"] = [_tokens(each, corpus) for each in request["backbones"]]
    return {**found, "partitions": [_spread(corpus, each) for each in request["draws"]]}


def _plugin(kind: str, use: dict[str, Any]) -> Any:
    plugin = cast(Any, entrypoints.load(entrypoints.lookup(kind, use["name"])))
    return plugin(plugin.Params.model_validate(use["params"]))


def _tokens(use: dict[str, Any], corpus: Corpus) -> dict[str, Any]:
    """Returns the number of tokens that a backbone reads of the texts, and how many texts fill all that it reads."""
    try:
        backbone = _plugin("backbones", use)
        if not isinstance(backbone, TextBackbone):
            return {"backbone": use["label"], "problem": "it reads images, not texts"}
        encoded = backbone.encode([str(text) for samples in (corpus.train, corpus.test) for text in samples.inputs])
    except FcilbenchError as error:
        return {"backbone": use["label"], "problem": str(error)}
    limit = getattr(backbone.params, "max_length", None)
    full = int((encoded.lengths >= limit).sum()) if isinstance(limit, int) else 0
    return {"backbone": use["label"], "limit": limit, "full": full, **spread(encoded.lengths.tolist())}


def _spread(corpus: Corpus, draw: dict[str, Any]) -> dict[str, Any]:
    """Returns how many samples of each class each client gets in each task, as an experiment draws them."""
    where = ""
    drawn: dict[str, Any] = {"label": draw["label"], "clients": draw["clients"], "tasks": [], "problem": None}
    try:
        labels, seed = corpus.train.labels, draw["partition"]
        if share := draw["validation"]:
            random = stream(seed, "validation")
            labels = labels[validation_split(labels, share, random, corpus.class_names)[0]]
        split = TaskStream.draw(len(corpus.class_names), draw["tasks"], draw["order"])
        internal, names = split.internal(labels), split.names(corpus.class_names)
        for task in split.tasks:
            where = f"task {task.index + 1}: "
            own = internal[(internal >= task.offset) & (internal < task.seen)]
            spec = Partition.model_validate(draw["spec"])
            parts = partition(own, draw["clients"], spec, stream(seed, "partition", task.index))
            counts = [np.bincount(own[part] - task.offset, minlength=task.size).tolist() for part in parts]
            drawn["tasks"].append({"classes": names[task.index], "counts": counts})
    except FcilbenchError as error:
        hint = f" ({error.hint})" if error.hint else ""
        return {**drawn, "tasks": [], "problem": f"{where}{error}{hint}"}
    return drawn
