"""Laws of devices: what runs on a CPU runs on a GPU, with the same result."""

from __future__ import annotations

from typing import Any

import torch

from fcilbench.api.server import Updates
from fcilbench.testing.bench import UNEVEN
from fcilbench.testing.law import LawBroken, Laws, NotApplicable
from fcilbench.testing.subject import AggregatorSubject, gap

LAWS: Laws[AggregatorSubject] = Laws()

_TOLERANCE = 1e-3


@LAWS.law(
    "cpu-gpu",
    "CPU and GPU merge the same updates to the same model, and a run on the GPU ends",
    fix="create tensors on the device of what they meet (`zeros_like`, `.to(updates.delta)`), and call .cpu() before "
    ".numpy()",
    gpu=True,
)
def cpu_gpu(subject: AggregatorSubject) -> None:
    """Merges a round's updates on both devices, then runs all tasks on the GPU."""
    if not torch.cuda.is_available():
        raise NotApplicable("there is no CUDA device")
    here, there = subject.stage(), subject.stage(device="cuda")
    given = here.updates
    moved = Updates(
        given.delta.cuda(),
        given.samples,
        given.clients,
        tuple({name: value.cuda() for name, value in message.items()} for message in given.statistics),
        given.layout,
    )
    one, two = here.merge(given), there.merge(moved)
    step = one.vector - here.federation.server.vector
    wrong = gap(two.vector.cpu(), one.vector, step if bool(step.any()) else one.vector)
    if not wrong <= _TOLERANCE:
        raise LawBroken(f"the step on the GPU differs by up to {wrong:.2g} of its largest entry")
    run = subject.run(device="cuda")
    if len(run.outcome.accuracy["none"]) != len(UNEVEN):
        raise LawBroken("the run on the GPU did not measure all tasks")
    if lost := _elsewhere(run.ends[-1].server.state):
        raise LawBroken(f"`server.state[{lost!r}]` holds a large tensor on the CPU after a run on the GPU")


def _elsewhere(state: dict[str, Any]) -> str | None:
    """Returns the first entry whose large tensors left the GPU; small numbers may live on the CPU."""
    for name, value in state.items():
        for tensor in value if isinstance(value, list) else [value]:
            if isinstance(tensor, torch.Tensor) and tensor.device.type == "cpu" and tensor.numel() > 256:
                return name
    return None
