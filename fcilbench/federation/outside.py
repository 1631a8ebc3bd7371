"""Out-of-scope detection: can the final model tell inputs of no class from those of its classes?"""

from __future__ import annotations

from collections.abc import Hashable

import torch

from fcilbench.api.predict import Predictors
from fcilbench.engine.data import DeviceData
from fcilbench.engine.precision import autocast
from fcilbench.federation.experiment import Federation


def outside_auroc(federation: Federation, predictors: Predictors) -> float | None:
    """Returns the area under the ROC curve of the largest softmax probability (Hendrycks and Gimpel 2017).

    Test samples of all classes should score above the out-of-scope inputs; 0.5 is chance. The one model of task
    identity `none` is asked, its probabilities over all classes seen.

    Args:
        federation: The federation after its last task.
        predictors: What the method deploys.

    Returns:
        The area, or `None` if the data set has no out-of-scope inputs or the method no single model for `none`.
    """
    answer = predictors.rules.get("none")
    if federation.outside is None or answer is None:
        return None
    names = answer.modules(federation.server.tasks, None)
    if len(names) != 1:
        return None
    federation.features.forget_trained()
    federation.features.load(predictors.modules[names[0]](), federation.server.counters)
    own = enumerate(federation.test_index)
    inside = torch.cat([_confidence(federation, task, federation.test, index) for task, index in own])
    everything = torch.arange(len(federation.outside), device=inside.device)
    return auroc(inside, _confidence(federation, "outside", federation.outside, everything))


def auroc(inside: torch.Tensor, outside: torch.Tensor) -> float:
    """Returns the share of pairs in which the inside score is larger, ties counting one half (Mann-Whitney).

    Example:
        >>> auroc(torch.tensor([0.9, 0.8]), torch.tensor([0.8, 0.1]))
        0.875
    """
    from sklearn.metrics import roc_auc_score

    truth = [1] * len(inside) + [0] * len(outside)
    return float(roc_auc_score(truth, torch.cat([inside, outside]).double().cpu().numpy()))


def _confidence(federation: Federation, key: Hashable, data: DeviceData, index: torch.Tensor) -> torch.Tensor:
    """Returns the largest softmax probability over all classes seen, `[n]`."""
    seen = federation.server.tasks[-1].seen
    with torch.no_grad(), autocast(federation.experiment.protocol.precision, federation.model.vector.device):
        logits = federation.features.logits(key, data, index, seen)
    return logits.softmax(dim=1).amax(dim=1)
