"""How fast SUM's server mathematics at the end of a task is, beside reading what it must read.

    python -m benchmarks.task_end [--tasks 10] [--size 5400000] [--threads 1] [--json FILE]

All times of one table come from one run on one machine: the projection of the last of T task vectors on the others
(three passes over (T - 1) x D), its cut for the sparsification (over D), the module of all tasks (tau_uni and the
scales: two passes over T x D), and reading as many numbers as often (a sum each). On a GPU ours is timed twice: in
plain torch, and in the Triton kernels. Each is the best of several repeats, in turns so that other load hits all alike.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import torch

from benchmarks.aggregation import clients
from benchmarks.timing import best, run
from fcilbench.engine.meters import device_name
from fcilbench.vectors.basis import project_out
from fcilbench.vectors.topk import Cut, cut
from fcilbench.vectors.unify import Modulators, unify

K_PCT, SWITCH = 0.05, "FCILBENCH_KERNELS"


def module(basis: list[torch.Tensor], cuts: list[Cut], kept: list[torch.Tensor]) -> torch.Tensor:
    unified = unify(basis, cuts, "count", basis[0].device)
    return Modulators(basis, kept, unified).scales()


def reading(vectors: list[torch.Tensor], times: int) -> torch.Tensor:
    return torch.stack([vector.sum() for _ in range(times) for vector in vectors])


def task_vectors(count: int, size: int, device: torch.device) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Returns the basis of all but the last, with that itself behind it, and the coefficients of the basis."""
    vectors, kept = list(clients(count, size, device)), []
    for index, vector in enumerate(vectors[:-1]):
        refined, coefficients = project_out(vector, vectors[:index])
        vector.copy_(refined)
        kept.append(coefficients)
    return vectors, kept


def in_torch(function: Callable[[], object]) -> Callable[[], object]:
    def call() -> object:
        before = os.environ.get(SWITCH)
        os.environ[SWITCH] = "off"
        try:
            return function()
        finally:
            os.environ.pop(SWITCH)
            if before is not None:
                os.environ[SWITCH] = before

    return call


def measure(count: int, size: int, repeats: int, device: torch.device) -> dict[str, object]:
    vectors, kept = task_vectors(count, size, device)
    refined, last = project_out(vectors[-1], vectors[:-1])
    basis = [*vectors[:-1], refined]
    cuts = [cut(vector, K_PCT) for vector in basis]
    parts: dict[str, Callable[[], object]] = {
        "projection": lambda: project_out(vectors[-1], vectors[:-1]),
        "module": lambda: module(basis, cuts, [*kept, last]),
    }
    ways = {name: in_torch(part) for name, part in parts.items()}
    if device.type == "cuda" and kernels_run(basis):
        ways |= {f"{name}, triton": part for name, part in parts.items()}
    ways |= {"cut": lambda: cut(refined, K_PCT)}
    ways |= {
        "reading for the projection": lambda: reading(vectors[:-1], 3),
        "reading for the cut": lambda: reading([refined], 1),
        "reading for the module": lambda: reading(basis, 2),
    }
    seconds = best(ways, repeats, device)
    names = [name for name in ways if not name.startswith("reading")]
    return {
        "device": device_name(device),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "tasks": count,
        "size": size,
        "seconds": seconds,
        "ratio_to_reading": {
            name: seconds[name] / seconds[f"reading for the {name.removesuffix(', triton')}"] for name in names
        },
    }


def kernels_run(basis: list[torch.Tensor]) -> bool:
    """Whether the kernels are used; compiles and checks them, so that this costs no time later."""
    from fcilbench.vectors.kernels import tasks

    return tasks.usable(basis) is not None and tasks.usable(basis[:-1]) is not None


def table(found: dict[str, object]) -> str:
    seconds, ratios = found["seconds"], found["ratio_to_reading"]
    assert isinstance(seconds, dict)
    assert isinstance(ratios, dict)
    lines = [
        f"T = {found['tasks']}, D = {found['size']:,}, {found['device']}, {found['threads']} threads, "
        f"torch {found['torch']}",
        f"{'':16}{'reading':>12}{'torch':>12}{'triton':>12}{'torch / reading':>18}{'triton / reading':>18}",
    ]
    for name in ("projection", "cut", "module"):
        fused = f"{name}, triton"
        own = f"{seconds[fused]:12.4f}" if fused in seconds else f"{'':12}"
        ratio = f"{ratios[fused]:18.2f}" if fused in ratios else ""
        reading_ = seconds[f"reading for the {name}"]
        lines.append(f"{name:16}{reading_:12.4f}{seconds[name]:12.4f}{own}{ratios[name]:18.2f}{ratio}")
    return "\n".join(lines)


if __name__ == "__main__":
    run("task_end", __doc__, ("--tasks", "T, at least 2"), measure, table)
