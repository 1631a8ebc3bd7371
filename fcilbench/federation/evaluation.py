"""Evaluation: accuracy on the test samples of every task seen so far, by task identity and selector; out-of-scope.

Features of test samples are kept while the backbone stays the same: for several heads on one backbone within one
evaluation, and over all tasks for the initial backbone, which selectors and methods that train none read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch

from fcilbench.api import DecisionRule, Module, Net, Predictors, Task, TaskIdentity, TestSamples
from fcilbench.api.predict import log_odds
from fcilbench.engine.data import DeviceData
from fcilbench.engine.model import Bare, FlatModel
from fcilbench.engine.precision import Precision, all_finite, autocast
from fcilbench.errors import PluginError
from fcilbench.spec.protocol import Scored

TaskLogits = dict[int, torch.Tensor]
"""Logits `[n, seen]` of the test samples of each task, by the task's index, under one module."""

Logits = dict[str, TaskLogits]
"""By name of the module."""

FEATURES = "features of "
"""In front of a module's name: its features `[n, F]`, kept beside the logits where a rule reads them."""

Wanted = dict[str, dict[int, torch.Tensor]]
"""For each module the test samples of each task that it must see, as a mask bool `[n]`."""


@dataclass(frozen=True)
class Picker:
    """A selector's rule.

    Attributes:
        pick: Returns for some samples the index of a task each, int64 `[n]`.
        heads: Whether it reads logits of the module of every task.
        under: The state vector `[D]` under whose features it works; `None` if it reads none.
        bare: Whether these are features of the backbone alone, without what the method adds to what passes.
    """

    pick: Callable[[TestSamples, Sequence[Task]], torch.Tensor]
    heads: bool
    under: torch.Tensor | None
    bare: bool = False


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
        self._model, self.initial = model, model.vector.clone() if model.passes is None else model.passes.initial
        self._start = Module(self.initial)
        self._test, self._index, self._ood = test, index, ood
        self._precision, self._batch_size = precision, batch_size
        self._under: Module | None = None
        self._features: dict[Hashable, torch.Tensor] = {}
        self._of_start: dict[Hashable, torch.Tensor] = {}
        self.unanswered = False

    def accuracy(
        self,
        predictors: Predictors,
        tasks: Sequence[Task],
        scored: Sequence[Scored],
        pickers: Mapping[Scored, Picker] | None = None,
    ) -> dict[Scored, list[float]]:
        """Returns the accuracy in [0, 1] on each of the tasks seen so far, by what it is scored under.

        `pickers` has the selectors among what is `scored`; the others are task identities. Where a selector picks by
        features, a sample passes the module of the picked task only.

        Raises:
            PluginError: If the method has no rule for an identity, reads a module that it does not deploy, or deploys
                one with values that are not finite; or if a selector picks no task.
        """
        pickers = pickers or {}
        identities = [key for key in scored if key not in pickers]
        for identity in [*identities, *(["oracle"] if pickers else [])]:
            if identity not in predictors.rules:
                raise PluginError(f"the method has no rule for task identity {identity!r}")
        self.forget_trained()
        picks = {key: self._picks(picker, tasks) for key, picker in pickers.items() if not picker.heads}
        wanted = self._wanted(predictors, identities, tasks, [*picks.values()], heads=len(picks) < len(pickers))
        logits = self._run(predictors, wanted, tasks)
        for key, picker in pickers.items():
            if picker.heads:
                picks[key] = self._picks(picker, tasks, [logits[name] for name in _heads(predictors, tasks)])
        self.forget_trained()
        return {
            key: [
                self._picked_share(predictors, logits, task, picks[key][task.index], tasks)
                if key in picks
                else self._share(predictors, key, logits, task, tasks)
                for task in tasks
            ]
            for key in scored
        }

    def _wanted(
        self,
        predictors: Predictors,
        identities: Sequence[Scored],
        tasks: Sequence[Task],
        picks: Sequence[Sequence[torch.Tensor]],
        heads: bool,
    ) -> Wanted:
        """Returns which samples each module must see.

        The rules of task identities, and a selector that reads the `heads`, need all of a task; any other selector
        those samples for which it has picked the module's task.
        """
        whole = {task.index: torch.ones_like(self._index[task.index], dtype=torch.bool) for task in tasks}
        wanted = {name: {t: whole[t] for t in own} for name, own in needed(predictors, identities, tasks).items()}
        for name in _heads(predictors, tasks) if heads else ():
            wanted[name] = dict(whole)
        for task, own in ((task, of_tasks[task.index]) for of_tasks in picks for task in tasks):
            for chosen in sorted({*own.tolist()}):
                for name in predictors.rules["oracle"].modules(tasks, tasks[chosen]):
                    asked, mask = wanted.setdefault(name, {}), own == chosen
                    asked[task.index] = asked[task.index] | mask if task.index in asked else mask
        return wanted

    def _run(self, predictors: Predictors, wanted: Wanted, tasks: Sequence[Task]) -> Logits:
        """Returns the logits of each module on the samples of the tasks that it must see; others are NaN."""
        logits: Logits = {}
        for name, asked in wanted.items():
            net, seen = self._deploy(name, predictors), tasks[-1].seen
            some = {task: rows for task, rows in asked.items() if not (task in self._features or bool(rows.all()))}
            features = self._features_in(net, some)
            whole = (task for task in asked if task not in some)
            features |= {task: self._features_of(net, task, self._test, self._index[task]) for task in whole}
            with torch.no_grad(), self._arithmetic():
                logits[name] = {task: net.head(own)[:, :seen] for task, own in features.items()}
            if any(_reads_features(rule) for rule in predictors.rules.values()):
                logits[FEATURES + name] = features
        return logits

    def _features_in(self, net: Net, masks: Mapping[int, torch.Tensor]) -> TaskLogits:
        """Returns the features `[n, F]` of the samples of each task, NaN for those that are not in its mask.

        The samples of all tasks pass together, in batches: there may be few of each.
        """
        if not masks:
            return {}
        index = torch.cat([self._index[task][rows] for task, rows in masks.items()])
        with torch.no_grad(), self._arithmetic():
            features = self._forward(net, self._test, index)
        by_task = {}
        counts = [int(rows.sum()) for rows in masks.values()]
        for (task, rows), own in zip(masks.items(), torch.split(features, counts), strict=True):
            by_task[task] = features.new_full((len(rows), features.shape[1]), math.nan)
            by_task[task][rows] = own
        return by_task

    def _picks(self, picker: Picker, tasks: Sequence[Task], heads: Sequence[TaskLogits] = ()) -> list[torch.Tensor]:
        """Returns for each task which tasks a selector picks for its test samples, int64 `[n]` each.

        `heads` are the logits of the module of every task, for a selector that reads them.
        """
        picks, net = [], None
        if picker.under is not None:
            net = self._enter(Module(picker.under))
            net = Bare(net) if picker.bare else net
        for task in tasks:
            index = self._index[task.index]
            features = self._start.vector.new_zeros(len(index), 0)
            if net is not None:
                key = ("bare", task.index) if picker.bare else task.index
                features = self._features_of(net, key, self._test, index)
            samples = TestSamples(features, [own[task.index] for own in heads])
            picks.append(picker.pick(samples, tasks))
        return picks

    def _picked_share(
        self,
        predictors: Predictors,
        logits: Logits,
        task: Task,
        picks: torch.Tensor,
        tasks: Sequence[Task],
    ) -> float:
        """Returns the share of a task's samples to which the method's answer for the picked task is right."""
        rule, right = predictors.rules["oracle"], 0
        for chosen in sorted({*picks.tolist()}):
            right += self._right(rule, logits, task, tasks, true=tasks[chosen], rows=picks == chosen)
        return right / len(picks)

    def ood_auroc(self, predictors: Predictors, tasks: Sequence[Task]) -> float | None:
        """Returns the area under the ROC curve of the largest softmax probability (Hendrycks and Gimpel 2017).

        Samples are ordered by its log odds, for the probability itself would be 1 for many of them.

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
        inside, outside = (log_odds(logits, logits.max(dim=1)[1]) for logits in (torch.cat(own), other))
        return None if torch.cat([inside, outside]).isnan().any() else auroc(inside, outside)

    def forget_trained(self) -> None:
        """Frees the features under any backbone but the initial one, because training changes it."""
        if self._under is not self._start:
            self._under, self._features = None, {}

    def _deploy(self, name: str, predictors: Predictors) -> Net:
        """Builds a module and returns the network under it; the module must not change until `forget_trained`."""
        if name not in predictors.modules:
            raise PluginError(f"the method answers with module {name!r} but deploys {sorted(predictors.modules)}")
        module = as_module(predictors.modules[name]())
        if not all(all_finite(tensor) for tensor in (module.vector, *module.frozen.values())):
            raise PluginError(f"the deployed module {name!r} has values that are not finite")
        return self._enter(module)

    def _enter(self, module: Module) -> Net:
        """Returns the network under a module, with the features that are kept of its backbone."""
        if self._under is None or not self._same_backbone(module, self._under):
            start = self._same_backbone(module, self._start)
            self._under, self._features = (self._start, self._of_start) if start else (module, {})
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
        features = self._features_of(net, key, data, index)
        with torch.no_grad(), self._arithmetic():
            return net.head(features)[:, :seen]

    def _features_of(self, net: Net, key: Hashable, data: DeviceData, index: torch.Tensor) -> torch.Tensor:
        """Returns the features `[n, F]` of all samples of a key, which are kept while the backbone stays the same."""
        if key not in self._features:
            with torch.no_grad(), self._arithmetic():
                self._features[key] = self._forward(net, data, index)
        return self._features[key]

    def _arithmetic(self) -> AbstractContextManager[object]:
        return self._model.arithmetic(partial(autocast, self._precision, self._start.vector.device))

    def _forward(self, net: Net, data: DeviceData, index: torch.Tensor) -> torch.Tensor:
        parts = [self._start.vector.new_zeros(0, self._model.layout.features)]
        with self._model.reading():
            for rows in torch.split(index, self._batch_size) if len(index) else ():
                context = {} if data.memo is None else {"memo": data.memo[rows]}
                parts.append(net.outputs(data.plain(rows), context)["features"])
        return torch.cat(parts)

    def _share(
        self, predictors: Predictors, identity: Scored, logits: Logits, task: Task, tasks: Sequence[Task]
    ) -> float:
        """Returns the share of a task's test samples that the rule of a task identity answers correctly."""
        rule, true = predictors.rules[cast("TaskIdentity", identity)], task if identity == "oracle" else None
        everyone = torch.ones_like(self._index[task.index], dtype=torch.bool)
        return self._right(rule, logits, task, tasks, true=true, rows=everyone) / len(everyone)

    def _right(
        self,
        rule: DecisionRule,
        logits: Logits,
        task: Task,
        tasks: Sequence[Task],
        *,
        true: Task | None,
        rows: torch.Tensor,
    ) -> int:
        """Returns how many of some test samples of a task, a mask bool `[n]`, a rule answers correctly.

        A sample whose logits are NaN or infinite has no answer, so it counts as wrong.
        """
        names, labels = rule.modules(tasks, true), self._test.labels[self._index[task.index]][rows]
        own = {name: logits[name][task.index][rows] for name in names}
        more = {}
        if _reads_features(rule):
            more["features"] = {name: logits[FEATURES + name][task.index][rows] for name in names}
        answered = torch.stack([(each < math.inf).all(dim=1) for each in own.values()]).all(dim=0)
        self.unanswered |= not bool(answered.all())
        return int(((rule(own, tasks, true, **more) == labels) & answered).sum())


def _reads_features(rule: DecisionRule) -> bool:
    return bool(getattr(rule, "features", False))


def as_module(built: Module | torch.Tensor) -> Module:
    """Returns a deployed model as a `Module`: a tensor is a state vector without frozen tensors."""
    return Module(built) if isinstance(built, torch.Tensor) else built


def auroc(inside: torch.Tensor, outside: torch.Tensor) -> float:
    """Returns the share of pairs in which the inside score is larger, ties counting one half (Mann-Whitney)."""
    from sklearn.metrics import roc_auc_score

    truth = [1] * len(inside) + [0] * len(outside)
    return float(roc_auc_score(truth, torch.cat([inside, outside]).double().cpu().numpy()))


def needed(predictors: Predictors, identities: Sequence[Scored], tasks: Sequence[Task]) -> dict[str, list[int]]:
    """Returns for each module the tasks whose test samples it must see under some task identities."""
    found: dict[str, dict[int, None]] = {}  # dicts as ordered sets
    for task in tasks:
        for identity in cast("Sequence[TaskIdentity]", identities):
            for name in predictors.rules[identity].modules(tasks, task if identity == "oracle" else None):
                found.setdefault(name, {})[task.index] = None
    return {name: list(indices) for name, indices in found.items()}


def _heads(predictors: Predictors, tasks: Sequence[Task]) -> list[str]:
    """Returns the name of the module that answers for each task.

    Raises:
        PluginError: If several do for one task, so that there are no logits of that task's module.
    """
    names = [list(predictors.rules["oracle"].modules(tasks, task)) for task in tasks]
    if several := next((own for own in names if len(own) != 1), None):
        raise PluginError(f"a selector reads the logits of one module a task, the method answers with {several}")
    return [own[0] for own in names]
