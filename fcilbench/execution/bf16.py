"""What `precision: bf16` costs on a processor without instructions for it; told before anything is trained."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fcilbench.results.processor import has_bf16, processor

TIMES_PRODUCT, TIMES_STEP = 40, 10
"""How many times as long bf16 takes as fp32 without such instructions, for a product of two matrices and for a training
step of a small ViT (`benchmarks/results/bf16-2026-11-29.md`)."""


def slow_bf16(precisions: Iterable[str], devices: Sequence[str] = ("",), executor: str = "local") -> str:
    """Returns one line if cells would run in bf16 on this processor, which has no instructions for it; else "".

    Nothing is said where cells run elsewhere (on a GPU, on the nodes of another executor), whose processor is not known
    here, or where the flags of this one are not known.

    Args:
        precisions: `protocol.precision` of each cell.
        devices: What `choose_devices` returns; one empty value is the CPU.
        executor: Value of `--executor`.
    """
    count = sum(each == "bf16" for each in precisions)
    remote = any(devices) or executor.partition(",")[0].removeprefix("fcilbench/") != "local"
    if not count or remote or has_bf16(processor()):
        return ""
    return (
        f"bf16 is slow here: this processor has no instructions for it. A matrix product takes about {TIMES_PRODUCT} "
        f"times as long as in fp32, a training step of a small ViT about {TIMES_STEP} times "
        f"({count} cell{'s' * (count > 1)}; with precision: fp32 they are other cells)"
    )
