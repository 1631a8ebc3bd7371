"""Geometry of the final models on test samples: sharpness of the loss, margins, and separation of the classes.

Kim and Do 2026 (section 5.3, table 11) compare SUM with the centralised reference by the increase of the loss under a
perturbation of the weights of norm rho = 0.2, and by cosine distances between classes. A task identity is measured
where the method answers by the largest logit of one module: `none` over all classes seen, `oracle` task by task.
Everything is computed in float32, whatever the precision of the protocol.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import torch
from torch.func import functional_call
from torch.nn import functional

from fcilbench.api.predict import AllClasses, Module, Predictors, TrueTask
from fcilbench.api.schedule import Task
from fcilbench.engine.model import evaluating
from fcilbench.federation.evaluation import as_module
from fcilbench.federation.experiment import Federation
from fcilbench.spec.protocol import TaskIdentity

RHO = 0.2
"""Norm of the perturbation of the weights."""
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)

Weights = Mapping[str, torch.Tensor]
Losses = Callable[[Weights], Iterator[torch.Tensor]]
Margins = dict[str, list[float | None]]
"""Mean and quantiles (`q05`, ...) of the margins of each task's samples."""


def geometry(
    federation: Federation, predictors: Predictors
) -> tuple[dict[str, float | None], dict[TaskIdentity, Margins]]:
    """Measures the deployed models on the test samples of the tasks seen.

    Returns:
        `sharpness`, `margin` and `separation` by `<metric>/<task identity>`, where `oracle` is the mean over tasks of
        two classes or more; and the margins by task identity.
    """
    metrics, distributions = dict[str, float | None](), dict[TaskIdentity, Margins]()
    tasks = federation.server.tasks
    parts: list[tuple[str, Task, Sequence[Task]]]
    for identity in federation.experiment.evaluate.task_identity:
        rule = predictors.rules[identity]
        if identity == "none" and isinstance(rule, AllClasses):
            parts = [(rule.module, Task(0, 0, tasks[-1].seen), tasks)]
        elif identity == "oracle" and isinstance(rule, TrueTask):
            parts = [(rule.modules(tasks, task)[0], task, (task,)) for task in tasks]
        else:
            continue
        figures: dict[str, list[float]] = {"sharpness": [], "margin": [], "separation": []}
        lines = distributions.setdefault(identity, {})
        for name, classes, own in parts:
            part = _Part(federation, as_module(predictors.modules[name]()), classes)
            rows = torch.cat([federation.test_index[task.index] for task in own])
            features, logits = part.outputs(rows)
            labels = classes.local(federation.test.labels[rows])
            distances = torch.split(margins(logits, labels), [len(federation.test_index[task.index]) for task in own])
            for each in distances:
                lines.setdefault("mean", []).append(_finite(float(each.mean())))
                for q in QUANTILES:
                    lines.setdefault(f"q{100 * q:02.0f}", []).append(_finite(float(each.quantile(q))))
            if classes.size < 2:
                continue  # one class is always right: there is nothing to measure
            figures["sharpness"].append(sharpness(partial(part.losses, rows), part.weights, RHO))
            figures["margin"].append(math.fsum(float(each.mean()) for each in distances) / len(distances))
            figures["separation"].append(separation(features, labels))
        for metric, values in figures.items():
            metrics[f"{metric}/{identity}"] = _finite(math.fsum(values) / len(values)) if values else None
    return metrics, distributions


def sharpness(losses: Losses, weights: Weights, rho: float) -> float:
    """Returns L(w + rho g / ||g||) - L(w) with g the gradient of L at w (Foret et al. 2021); 0 where g is 0.

    Args:
        losses: Function from weights to the parts of the loss, whose sum is L.
        weights: The weights w by name; they are left unchanged.
        rho: Norm of the perturbation, over all weights together.
    """
    leaves = {name: weight.detach().clone().requires_grad_() for name, weight in weights.items()}
    before = []
    with torch.enable_grad():
        for loss in losses(leaves):
            loss.backward()  # type: ignore[no-untyped-call]
            before.append(float(loss.detach()))
    gradient = {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}
    norm = math.sqrt(math.fsum(float(each.double().square().sum()) for each in gradient.values()))
    if norm == 0.0:
        return 0.0
    with torch.no_grad():
        moved = {**leaves, **{name: leaves[name] + rho / norm * each for name, each in gradient.items()}}
        return math.fsum(float(loss) for loss in losses(moved)) - math.fsum(before)


def margins(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Returns the logit of the true class minus the largest other one, `[n]`, of logits `[n, c]`; negative if wrong."""
    own = logits.gather(1, labels[:, None])
    return own.squeeze(1) - logits.scatter(1, labels[:, None], -math.inf).amax(dim=1)


def separation(features: torch.Tensor, labels: torch.Tensor) -> float:
    """Returns the mean over pairs of classes of the cosine distance between their mean features `[F]`, in [0, 2]."""
    means = torch.stack([features[labels == each].double().mean(dim=0) for each in sorted(set(labels.tolist()))])
    unit = functional.normalize(means, dim=1)
    above = torch.triu_indices(len(unit), len(unit), offset=1)
    return 1.0 - float((unit @ unit.T)[above[0], above[1]].mean())  # of a single class: no number


def _finite(value: float) -> float | None:
    """Returns a number, or `None` for what is undefined, e.g. the margin of a task with one class."""
    return value if math.isfinite(value) else None


class _Part:
    """One deployed module that answers among some classes.

    Attributes:
        weights: What is perturbed: trained parameters, and parameters that the module replaces, by name.
    """

    def __init__(self, federation: Federation, module: Module, classes: Task) -> None:
        self._federation, self._classes, model = federation, classes, federation.model
        self._network, parameters = model.network, dict(model.network.named_parameters())
        tensors = {**model.named(module.vector), **{k: v.to(model.vector) for k, v in module.frozen.items()}}
        self.weights = {name: tensor.detach() for name, tensor in tensors.items() if name in parameters}
        self._buffers = {name: tensor.detach() for name, tensor in tensors.items() if name not in parameters}

    def outputs(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns features `[n, F]` and the logits of the classes `[n, c]`."""
        with torch.no_grad():
            batches = torch.split(rows, self._federation.experiment.runtime.eval_batch_size)
            features, logits = zip(*(self._run(self.weights, batch) for batch in batches), strict=True)
        return torch.cat(features), torch.cat(logits)

    def losses(self, rows: torch.Tensor, weights: Weights) -> Iterator[torch.Tensor]:
        """Yields the parts of the mean cross-entropy of some samples, a training batch each: its gradient fits."""
        for batch in torch.split(rows, self._federation.experiment.protocol.batch_size):
            labels = self._classes.local(self._federation.test.labels[batch])
            yield functional.cross_entropy(self._run(weights, batch)[1].double(), labels, reduction="sum") / len(rows)

    def _run(self, weights: Weights, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        test, tensors = self._federation.test, {**weights, **self._buffers}
        context = {} if test.memo is None else {"memo": test.memo[rows]}
        with evaluating(self._network):
            features = functional_call(self._network, tensors, (test.plain(rows), "outputs", context))["features"]
            logits = functional_call(self._network, tensors, (features, "head"))
        return features, logits[:, self._classes.classes]
