"""What a worker does with a job: builds the experiment from the registry, runs it, and names every way it can end.

This is the only module of the room that imports torch and the right half of the program.
"""

from __future__ import annotations

import gc
import os
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, cast

import torch

from fcilbench.data.root import data_root
from fcilbench.errors import PrerequisiteError
from fcilbench.execution.messages import Event, Job
from fcilbench.execution.offline import refuse_network
from fcilbench.federation.experiment import Experiment, Unsupported
from fcilbench.federation.run import run_experiment
from fcilbench.registry import entrypoints
from fcilbench.spec.cell import Cell, PluginUse
from fcilbench.spec.plugin import Plugin

Emit = Callable[[Event], None]
_AXES = {"dataset": "datasets", "backbone": "backbones", "aggregator": "aggregators", "stress": "stressors"}
_BUILT_IN = "fcilbench.plugins"


def environment() -> dict[str, Any]:
    """Returns what of the environment only a process with torch can see."""
    cuda = torch.cuda.is_available()
    return {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "gpu": torch.cuda.get_device_name(0) if cuda else None,
    }


def serve(job: Job, emit: Emit) -> None:
    """Runs a job; its last event is one of `messages.TERMINAL`, whatever the plugins do.

    Args:
        job: The job.
        emit: Takes the events.
    """
    workdir = Path(job.workdir)
    roots: set[str] = set()
    try:
        if job.offline:
            refuse_network()
        (workdir / "traceback.txt").unlink(missing_ok=True)
        emit({"event": "started", "pid": os.getpid()})
        cell = Cell.model_validate(job.cell)
        torch.set_num_threads(cell.runtime.threads)
        outcome = run_experiment(_experiment(cell, job, roots), workdir, emit)
        emit({"event": "finished", "outcome": outcome.model_dump(mode="json")})
    except Unsupported as reason:
        emit({"event": "skipped", "reason": str(reason)})
    except BaseException as error:  # a plugin may even call sys.exit: that too is data
        emit(_failure(error, workdir, roots))
    finally:
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def build_experiment(cell: Cell, root: Path | None, device: str, roots: set[str] | None = None) -> Experiment:
    """Builds a cell's experiment from the plugins that the registry knows.

    Args:
        cell: The cell.
        root: Folder of the data sets, or `None` for the default.
        device: `cpu` or `cuda`.
        roots: If given, receives the modules (packages) that the cell's plugins come from.

    Raises:
        PrerequisiteError: If a plugin is missing or broken on this machine.
    """
    built: dict[str, Any] = {}
    for axis, kind in _AXES.items():
        use: PluginUse = getattr(cell, axis)
        plugin = cast(type[Plugin], entrypoints.load(entrypoints.lookup(kind, use.name)))
        if roots is not None:
            roots.add(_root(plugin.__module__))
        built[axis] = plugin(plugin.Params.model_validate(use.params))
    return Experiment(
        dataset=built["dataset"],
        backbone=built["backbone"],
        aggregator=built["aggregator"],
        stressor=built["stress"],
        protocol=cell.protocol,
        partition=cell.partition,
        tasks=cell.tasks,
        seeds=cell.seeds,
        evaluate=cell.evaluate,
        runtime=cell.runtime,
        data_root=data_root(root),
        device=device,
        declared_fingerprint=cell.data_fingerprint,
    )


def _experiment(cell: Cell, job: Job, roots: set[str]) -> Experiment:
    return build_experiment(cell, Path(job.data_root) if job.data_root else None, job.device, roots)


def _failure(error: BaseException, workdir: Path, roots: set[str]) -> Event:
    text = "".join(traceback.format_exception(error))
    with suppress(OSError, ValueError):  # a plugin may have closed it
        print(text, flush=True)  # standard output is the cell's log
    path = workdir / "traceback.txt"
    path.write_text(text)
    event = {"type": type(error).__name__, "message": str(error) or repr(error), "traceback_path": path.name}
    if _out_of_memory(error):
        return {"event": "oom", "kind": "oom", **event}
    if isinstance(error, PrerequisiteError):
        return {"event": "failed", "kind": "prerequisite", **event}
    kind = "plugin" if _touches(error.__traceback__, roots | {_BUILT_IN}) else "internal"
    return {"event": "failed", "kind": kind, **event}


def _out_of_memory(error: BaseException) -> bool:
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and "out of memory" in str(error).lower()


def _touches(trace: TracebackType | None, roots: set[str]) -> bool:
    """Whether the traceback passes through a module of one of these packages."""
    while trace is not None:
        module = str(trace.tb_frame.f_globals.get("__name__", ""))
        if any(module == root or module.startswith(f"{root}.") for root in roots):
            return True
        trace = trace.tb_next
    return False


def _root(module: str) -> str:
    top = module.partition(".")[0]
    return _BUILT_IN if top == "fcilbench" else top
