"""The most confident head."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fcilbench.api import Message, Selector, Task, TestSamples, confidence


class Confidence(Selector):
    """The task whose own head has the largest softmax probability; ties go to the earlier task.

    A sample passes the modules of all T tasks: nothing is sent, but evaluation takes T passes.
    """

    heads = True

    def pick(self, fitted: Message, samples: TestSamples, tasks: Sequence[Task]) -> torch.Tensor:
        """Picks by the confidence of each task's slice, that of `MostConfident`."""
        return torch.stack([confidence(own, task) for own, task in zip(samples.logits, tasks, strict=True)]).argmax(0)
