"""How fast SUM's server mathematics at the end of a task is, beside reading what it must read.

    python -m benchmarks.task_end [--tasks 10] [--size 5400000] [--threads 1] [--json FILE]

All times of one table come from one run on one machine: the projection of the last of T task vectors on the others
(three passes over (T - 1) x D), its cut for the sparsification (over D), the module of all tasks (tau_uni and the
scales: two passes over T x D), and reading as many numbers as often (a sum each). Each is the best of several repeats,
in turns so that other load hits all alike.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from benchmarks.aggregation import clients
from benchmarks.timing import best, run
from fcilbench.engine.meters import device_name
from fcilbench.vectors.module import Cut, Modulators, cut, project_out, unify

K_PCT = 0.05


def module(basis: list[torch.Tensor], cuts: list[Cut], kept: list[torch.Tensor]) -> torch.Tensor:
    unified = unify(basis, cuts, "count", basis[0].device)
    return Modulators(basis, kept, [1.0] * len(basis), unified).scales()


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


def measure(count: int, size: int, repeats: int, device: torch.device) -> dict[str, object]:
    vectors, kept = task_vectors(count, size, device)
    refined, last = project_out(vectors[-1], vectors[:-1])
    basis = [*vectors[:-1], refined]
    cuts = [cut(vector, K_PCT) for vector in basis]
    parts: dict[str, Callable[[], object]] = {
        "projection": lambda: project_out(vectors[-1], vectors[:-1]),
        "module": lambda: module(basis, cuts, [*kept, last]),
    }
    ways = parts | {
        "cut": lambda: cut(refined, K_PCT),
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
        "ratio_to_reading": {name: seconds[name] / seconds[f"reading for the {name}"] for name in names},
    }


def table(found: dict[str, object]) -> str:
    seconds, ratios = found["seconds"], found["ratio_to_reading"]
    assert isinstance(seconds, dict)
    assert isinstance(ratios, dict)
    lines = [
        f"T = {found['tasks']}, D = {found['size']:,}, {found['device']}, {found['threads']} threads, "
        f"torch {found['torch']}",
        f"{'':16}{'reading':>12}{'ours':>12}{'ours / reading':>18}",
    ]
    for name in ("projection", "cut", "module"):
        reading_ = seconds[f"reading for the {name}"]
        lines.append(f"{name:16}{reading_:12.4f}{seconds[name]:12.4f}{ratios[name]:18.2f}")
    return "\n".join(lines)


if __name__ == "__main__":
    run("task_end", __doc__, ("--tasks", "T, at least 2"), measure, table)
