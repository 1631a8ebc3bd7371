"""The processor of this machine, read without torch: what it is called, and the instruction sets that change numbers.

Libraries choose their code by the instruction sets. Another code adds up in another order, so numbers of two machines
differ in their last bits, and trained models in more (`docs/portability.md`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CPUINFO = Path("/proc/cpuinfo")
INSTRUCTION_SETS = (
    *("sse2", "sse4_1", "sse4_2", "avx", "f16c", "fma", "avx2", "avx_vnni"),
    *("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512_vnni", "avx512_bf16", "avx512_fp16"),
    *("amx_tile", "amx_int8", "amx_bf16", "amx_fp16"),
    *("asimd", "fphp", "asimdhp", "asimddp", "bf16", "i8mm", "sve", "sve2"),
)
"""The flags of Linux by which libraries of linear algebra choose their code: x86-64, then ARM."""

_BF16 = ("avx512_bf16", "amx_bf16", "bf16")
_AVX512, _AVX2 = {"avx512f", "avx512bw", "avx512dq", "avx512vl", "fma"}, {"avx2", "fma"}


def processor(cpuinfo: Path | None = None) -> dict[str, Any]:
    """Returns `vendor`, `family`, `model`, `name` and `instruction_sets` of this machine's first processor.

    What Linux does not say is an empty text or list. `cpuinfo` is another file than `/proc/cpuinfo`.
    """
    first = _first(cpuinfo or CPUINFO)
    flags = {*first.get("flags", "").split(), *first.get("features", "").split()}
    return {
        "vendor": first.get("vendor_id", first.get("cpu implementer", "")),
        "family": first.get("cpu family", first.get("cpu architecture", "")),
        "model": first.get("model", first.get("cpu part", "")),
        "name": first.get("model name", ""),
        "instruction_sets": [name for name in INSTRUCTION_SETS if name in flags],
    }


def has_bf16(found: Mapping[str, Any]) -> bool:
    """Returns whether a `processor` has instructions for bfloat16; one with unknown flags counts as having them."""
    sets = found["instruction_sets"]
    return not sets or any(name in sets for name in _BF16)


def torch_capability(found: Mapping[str, Any]) -> str:
    """Returns the name by which torch calls the code that it will choose on a `processor`, e.g. `AVX512`."""
    wanted, sets = os.environ.get("ATEN_CPU_CAPABILITY", "").upper(), {*found["instruction_sets"]}
    if wanted in ("DEFAULT", "AVX2", "AVX512"):
        return wanted
    return "AVX512" if sets >= _AVX512 else "AVX2" if sets >= _AVX2 else "DEFAULT"


def _first(path: Path) -> dict[str, str]:
    """Returns the fields of the first processor, by their names in small letters."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    lines = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    return {name.strip().lower(): value.strip() for name, _, value in lines}
