"""How fast a round of SUM's server mathematics is, beside the printed formula and beside the memory itself.

    python -m benchmarks.aggregation [--clients 10] [--size 5400000] [--threads 1] [--json FILE]

All times of one table come from one run on one machine: ours (three passes: statistics, Gram matrix, weighted sum of
the trimmed vectors), the printed formula (trimmed copy, then N (N - 1) projections), and reading the N x D numbers
three times (a sum each). Each is the best of several repeats, taken in turns so that other load hits all alike. Memory
is the peak of what is allocated on top of the clients' rows, taken first, before anything can be reused. The end of a
task is in `task_end`.
"""

from __future__ import annotations

import torch

from benchmarks.timing import best, extra_memory, run
from fcilbench.engine.meters import device_name
from fcilbench.vectors.surgery import Trimmed, coefficients, gram, merge, surgery_matrix

Z_THR, LAMBDA_S = 4.5, 0.4


def ours(rows: torch.Tensor) -> torch.Tensor:
    vectors = Trimmed(rows, Z_THR)
    weights = coefficients(surgery_matrix(gram(vectors)))
    return merge(LAMBDA_S * weights, vectors)[0]


def printed(rows: torch.Tensor) -> torch.Tensor:
    """The paper's algorithm as it stands: trim, project each vector on each other one, sum."""
    trimmed = rows.clone()
    for row in trimmed:
        variance, mean = torch.var_mean(row, correction=0)
        row[(row - mean).abs() > Z_THR * variance.sqrt()] = 0.0
    total = torch.zeros_like(rows[0])
    for i, row in enumerate(trimmed):
        refined = row.clone()
        for j, other in enumerate(trimmed):
            if j != i:
                refined -= (row @ other) / (other @ other) * other
        total += refined
    return LAMBDA_S * total


def reading(rows: torch.Tensor) -> torch.Tensor:
    return torch.stack([rows.sum() for _ in range(3)])


def clients(count: int, size: int, device: torch.device) -> torch.Tensor:
    """Heavy-tailed updates with a common direction: mean pairwise cosine about 0.06, as early rounds have."""
    generator = torch.Generator(device).manual_seed(0)
    rows = torch.empty(count, size, device=device)
    common = torch.randn(size, generator=generator, device=device) * 2.5e-6
    for row in rows:
        row.normal_(generator=generator).mul_(1e-5)
        row.mul_(torch.rand(size, generator=generator, device=device).add_(0.2).reciprocal_().mul_(0.5)).add_(common)
    return rows


def measure(count: int, size: int, repeats: int, device: torch.device) -> dict[str, object]:
    rows = clients(count, size, device)
    whole = rows.numel() * rows.element_size()
    ways = {"ours": lambda: ours(rows), "printed formula": lambda: printed(rows)}
    memory = {name: extra_memory(way, device) / whole for name, way in ways.items()}
    spatial = best({**ways, "reading three times": lambda: reading(rows)}, repeats, device)
    expected = printed(rows)
    difference = float((ours(rows) - expected).norm() / expected.norm())
    return {
        "device": device_name(device),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "clients": count,
        "size": size,
        "seconds": spatial,
        "ratio_printed_to_ours": spatial["printed formula"] / spatial["ours"],
        "ratio_ours_to_reading": spatial["ours"] / spatial["reading three times"],
        "extra_memory_over_rows": memory,
        "relative_difference": difference,
        "trimmed_share": _trimmed_share(rows),
    }


def _trimmed_share(rows: torch.Tensor) -> float:
    vectors = Trimmed(rows, Z_THR)
    gram(vectors)
    return int(vectors.zeroed) / rows.numel()


def table(found: dict[str, object]) -> str:
    seconds, memory = found["seconds"], found["extra_memory_over_rows"]
    assert isinstance(seconds, dict)
    assert isinstance(memory, dict)
    lines = [
        f"N = {found['clients']}, D = {found['size']:,}, {found['device']}, {found['threads']} threads, "
        f"torch {found['torch']}",
        f"{'':24}{'seconds':>10}{'extra memory / (N D 4 bytes)':>32}",
    ]
    for name, value in seconds.items():
        extra = f"{memory[name]:.2f}" if name in memory else ""
        lines.append(f"{name:24}{value:10.4f}{extra:>32}")
    lines.append(
        f"printed formula / ours {found['ratio_printed_to_ours']:.2f}, ours / reading three times "
        f"{found['ratio_ours_to_reading']:.2f}, relative difference of the results {found['relative_difference']:.1e}, "
        f"trimmed {found['trimmed_share']:.2%}"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    run("aggregation", __doc__, ("--clients", "N"), measure, table)
