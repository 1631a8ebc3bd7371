"""Evaluation: accuracy on the test samples of every task seen so far, under each task identity."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fcilbench.api.predict import DecisionRule, Predictors
from fcilbench.api.task import Task
from fcilbench.engine.precision import autocast
from fcilbench.federation.experiment import Federation
from fcilbench.spec.protocol import TaskIdentity

Needed = dict[str, list[int]]


def evaluate(federation: Federation, predictors: Predictors) -> dict[TaskIdentity, list[float]]:
    """Measures a method's answers.

    Each module is loaded once and run over the test samples that some identity needs it for (only its head, where the
    features of its backbone are known, see `features.py`); then the rules answer.

    Args:
        federation: The federation; `server.tasks` are the tasks seen so far.
        predictors: What the method deploys.

    Returns:
        For each declared task identity the accuracy in [0, 1] on each task seen so far.

    Raises:
        ValueError: If the method has no answer for a declared identity, or reads a module it does not deploy.
    """
    tasks, identities = federation.server.tasks, federation.experiment.evaluate.task_identity
    for identity in identities:
        if identity not in predictors.rules:
            raise ValueError(f"the method has no answer for task identity {identity!r}")
    needed = _needed(predictors, identities, tasks)
    logits: dict[tuple[str, int], torch.Tensor] = {}
    federation.features.forget_trained()
    for name, indices in needed.items():
        if name not in predictors.modules:
            raise ValueError(f"the method answers with module {name!r} but deploys {sorted(predictors.modules)}")
        federation.features.load(predictors.modules[name](), federation.server.counters)
        for index in indices:
            logits[name, index] = _logits(federation, index, tasks[-1].seen)
    return {
        identity: [_accuracy(federation, predictors.rules[identity], identity, logits, t) for t in tasks]
        for identity in identities
    }


def _needed(predictors: Predictors, identities: Sequence[TaskIdentity], tasks: Sequence[Task]) -> Needed:
    """Returns for each module the tasks whose test samples it must see."""
    needed: Needed = {}
    for task in tasks:
        for identity in identities:
            true = task if identity == "oracle" else None
            for name in predictors.rules[identity].modules(tasks, true):
                indices = needed.setdefault(name, [])
                if task.index not in indices:
                    indices.append(task.index)
    return needed


def _logits(federation: Federation, task: int, seen: int) -> torch.Tensor:
    """Returns float32 logits `[n, seen]` of one task's test samples under the loaded module."""
    with torch.no_grad(), autocast(federation.experiment.protocol.precision, federation.model.vector.device):
        return federation.features.logits(task, federation.test, federation.test_index[task], seen)


def _accuracy(
    federation: Federation,
    answer: DecisionRule,
    identity: TaskIdentity,
    logits: dict[tuple[str, int], torch.Tensor],
    task: Task,
) -> float:
    tasks = federation.server.tasks
    true = task if identity == "oracle" else None
    own = {name: logits[name, task.index] for name in answer.modules(tasks, true)}
    labels = federation.test.labels[federation.test_index[task.index]]
    if len(labels) == 0:
        raise ValueError(f"task {task.index} has no test samples")
    return int((answer(own, tasks, true) == labels).sum()) / len(labels)
