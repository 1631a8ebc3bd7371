"""Evaluation: accuracy on the test samples of every task seen so far, under each task identity; out-of-scope detection.

Features of test samples are kept while the backbone stays the same: for a method that trains no backbone over all
tasks, for several heads on one backbone within one evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from functools import partial

import torch

from fcilbench.api import Module, Net, Predictors, Task, TaskIdentity
from fcilbench.engine.data import DeviceData
from fcilbench.engine.model import FlatModel
from fcilbench.engine.precision import Precision, all_finite, autocast
from fcilbench.errors import PluginError

Logits = dict[tuple[str, int], torch.Tensor]


class Evaluator:
    """Runs deployed modules over test samples.

    Features that were kept change no bit: they are always computed in the same batches, and the head always runs on all
    samples of a task at once. Features under the initial backbone are kept between evaluations.

    `unanswered` tells whether a model had logits of NaN or infinity for a test sample.

    Args:
        model: The resident model with its `initial` state vector `[D]`.
        index: Positions of each task's test samples, int64.
        ood: Inputs that belong to no class; `None` if there are none.
    """

    def __init__(
        self,
        model: FlatModel,
        *,
        test: DeviceData,
        index: Sequence[torch.Tensor],
        ood: DeviceData | None,
        precision: Precision,
        batch_size: int,
    ) -> None:
        self._model, self.initial = model, model.vector.clone()
        self._start = Module(self.initial)
        self._test, self._index, self._ood = test, index, ood
        self._precision, self._batch_size = precision, batch_size
        self._under: Module | None = None
        self._features: dict[Hashable, torch.Tensor] = {}
        self.unanswered = False

    def accuracy(
        self, predictors: Predictors, tasks: Sequence[Task], identities: Sequence[TaskIdentity]
    ) -> dict[TaskIdentity, list[float]]:
        """Returns for each identity the accuracy in [0, 1] on each of the tasks seen so far.

        Raises:
            PluginError: If the method has no rule for an identity, reads a module that it does not deploy, or deploys
                one with values that are not finite.
        """
        for identity in identities:
            if identity not in predictors.rules:
                raise PluginError(f"the method has no rule for task identity {identity!r}")
        logits: Logits = {}
        self.forget_trained()
        for name, asked in needed(predictors, identities, tasks).items():
            net = self._deploy(name, predictors)
            for task in asked:
                logits[name, task] = self._logits(net, task, self._test, self._index[task], tasks[-1].seen)
        self.forget_trained()
        return {
            identity: [self._share(predictors, identity, logits, task, tasks) for task in tasks]
            for identity in identities
        }

    def ood_auroc(self, predictors: Predictors, tasks: Sequence[Task]) -> float | None:
        """Returns the area under the ROC curve of the largest softmax probability (Hendrycks and Gimpel 2017).

        Test samples of all classes should score above the out-of-scope inputs; 0.5 is chance. The one model of task
        identity `none` is asked, its probabilities over all classes seen. `None` if the data set has no out-of-scope
        inputs, the method no single model for `none`, or that model logits of NaN.
        """
        rule = predictors.rules.get("none")
        names = [] if rule is None else rule.modules(tasks, None)
        if self._ood is None or len(names) != 1:
            return None
        self.forget_trained()
        net, seen = self._deploy(names[0], predictors), tasks[-1].seen
        own = [self._logits(net, task, self._test, index, seen) for task, index in enumerate(self._index)]
        everything = torch.arange(len(self._ood), device=own[0].device)
        other = self._logits(net, "ood", self._ood, everything, seen)
        self.forget_trained()
        inside, outside = (logits.softmax(dim=1).amax(dim=1) for logits in (torch.cat(own), other))
        return None if torch.cat([inside, outside]).isnan().any() else auroc(inside, outside)

    def forget_trained(self) -> None:
        """Frees the features under any backbone but the initial one, because training changes it."""
        if self._under is not self._start:
            self._under = None
            self._features.clear()

    def _deploy(self, name: str, predictors: Predictors) -> Net:
        """Builds a module and returns the network under it; the module must not change until `forget_trained`."""
        if name not in predictors.modules:
            raise PluginError(f"the method answers with module {name!r} but deploys {sorted(predictors.modules)}")
        module = as_module(predictors.modules[name]())
        if not all(all_finite(tensor) for tensor in (module.vector, *module.frozen.values())):
            raise PluginError(f"the deployed module {name!r} has values that are not finite")
        if self._under is None or not self._same_backbone(module, self._under):
            self._features.clear()
            self._under = self._start if self._same_backbone(module, self._start) else module
        return self._model.under(module.vector, module.frozen)

    def _same_backbone(self, one: Module, other: Module) -> bool:
        layout = self._model.layout
        return (
            all(torch.equal(one.vector[part], other.vector[part]) for part in (layout.backbone, layout.buffers))
            and set(one.frozen) == set(other.frozen)
            and all(torch.equal(tensor, other.frozen[name]) for name, tensor in one.frozen.items())
        )

    def _logits(self, net: Net, key: Hashable, data: DeviceData, index: torch.Tensor, seen: int) -> torch.Tensor:
        """Returns float32 logits `[n, seen]` of the samples at `index`, which are always the same for one key."""
        with torch.no_grad(), self._model.arithmetic(partial(autocast, self._precision, index.device)):
            if key not in self._features:
                parts = [self._start.vector.new_zeros(0, self._model.layout.features)]
                for rows in torch.split(index, self._batch_size) if len(index) else ():
                    context = {} if data.memo is None else {"memo": data.memo[rows]}
                    parts.append(net.outputs(data.plain(rows), context)["features"])
                self._features[key] = torch.cat(parts)
            return net.head(self._features[key])[:, :seen]

    def _share(
        self, predictors: Predictors, identity: TaskIdentity, logits: Logits, task: Task, tasks: Sequence[Task]
    ) -> float:
        """Returns the share of a task's test samples that the rule answers correctly.

        A sample whose logits are NaN or infinite has no answer, so it counts as wrong.
        """
        rule, true = predictors.rules[identity], task if identity == "oracle" else None
        own: Mapping[str, torch.Tensor] = {name: logits[name, task.index] for name in rule.modules(tasks, true)}
        labels = self._test.labels[self._index[task.index]]
        answered = torch.stack([(each < math.inf).all(dim=1) for each in own.values()]).all(dim=0)
        self.unanswered |= not bool(answered.all())
        return int(((rule(own, tasks, true) == labels) & answered).sum()) / len(labels)


def as_module(built: Module | torch.Tensor) -> Module:
    """Returns a deployed model as a `Module`: a tensor is a state vector without frozen tensors."""
    return Module(built) if isinstance(built, torch.Tensor) else built


def auroc(inside: torch.Tensor, outside: torch.Tensor) -> float:
    """Returns the share of pairs in which the inside score is larger, ties counting one half (Mann-Whitney)."""
    from sklearn.metrics import roc_auc_score

    truth = [1] * len(inside) + [0] * len(outside)
    return float(roc_auc_score(truth, torch.cat([inside, outside]).double().cpu().numpy()))


def needed(predictors: Predictors, identities: Sequence[TaskIdentity], tasks: Sequence[Task]) -> dict[str, list[int]]:
    """Returns for each module the tasks whose test samples it must see."""
    found: dict[str, dict[int, None]] = {}  # dicts as ordered sets
    for task in tasks:
        for identity in identities:
            for name in predictors.rules[identity].modules(tasks, task if identity == "oracle" else None):
                found.setdefault(name, {})[task.index] = None
    return {name: list(indices) for name, indices in found.items()}
