"""The head of the largest free energy."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fcilbench.api import Message, Selector, Task, TestSamples


class Energy(Selector):
    """The task whose own head has the largest logsumexp, i.e. the least energy -logsumexp(z); ties: the earlier task.

    Liu et al. 2020, "Energy-based Out-of-distribution Detection", equation 4 at temperature 1, over the task's slice. A
    sample passes the modules of all T tasks: nothing is sent, but evaluation takes T passes.
    """

    heads = True

    def pick(self, fitted: Message, samples: TestSamples, tasks: Sequence[Task]) -> torch.Tensor:
        """Picks by the logsumexp of each task's slice."""
        slices = [own[:, task.classes] for own, task in zip(samples.logits, tasks, strict=True)]
        return torch.stack([own.logsumexp(dim=1) for own in slices]).argmax(dim=0)
