"""How long a plugin's module takes to import, measured in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache

from fcilbench.registry.entrypoints import KINDS, find

_TRIES, _QUICK = 3, 0.3
_SCRIPT = """
import importlib, json, os, sys, time
for name in {base}:
    importlib.import_module(name)
out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
for module in {modules}:
    for _ in range({tries}):
        child = os.fork()
        if child:
            if os.waitpid(child, 0)[1] == 0:
                break
            continue
        start, slow = time.perf_counter(), 1
        try:
            importlib.import_module(module)
            seconds = time.perf_counter() - start
            slow = int(seconds > {quick})
            out.write(json.dumps([module, seconds]) + "\\n")
            out.flush()
        finally:
            os._exit(slow)
"""
_BASE = {"backbones": ("torch", "timm", "fcilbench.api.backbone")}
_PLAIN = ("torch", "fcilbench.api.aggregator", "fcilbench.api.dataset")


def import_seconds(kind: str, module: str) -> float | None:
    """Returns the seconds that a module takes to import once torch (for backbones: and timm) is there.

    The best of up to three, each in a fresh child, so that neither a busy machine nor cold byte code counts. All
    modules of the kind are measured at the first question, because starting torch takes longer than the rest.

    Args:
        kind: Kind of the plugin.
        module: Its module.

    Returns:
        Seconds, or `None` if it could not be imported there.
    """
    registered = tuple(sorted({ref.module for ref in find(kind)})) if kind in KINDS else ()
    times = _measure(kind, registered if module in registered else (module,))
    return times.get(module)


@cache
def _measure(kind: str, modules: tuple[str, ...]) -> dict[str, float]:
    script = _SCRIPT.format(base=_BASE.get(kind, _PLAIN), modules=list(modules), tries=_TRIES, quick=_QUICK)
    # Where this process finds modules, the child must find them too.
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, env=environment, timeout=300
    )
    times: dict[str, float] = {}
    for line in done.stdout.splitlines():
        name, seconds = json.loads(line)
        times[name] = min(seconds, times.get(name, seconds))
    return times
