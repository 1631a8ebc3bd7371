"""What a worker does with a cell: builds the experiment from the registry, runs it, and names every way it can end.

The only module of the room that imports torch and the right half of the program.
"""

from __future__ import annotations

import errno
import functools
import gc
import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, cast

import torch

from fcilbench.data.root import data_root
from fcilbench.errors import DivergedError, PluginError, PrerequisiteError
from fcilbench.execution.base import Job
from fcilbench.execution.devices import find_gpus
from fcilbench.federation.experiment import Experiment, Unsupported
from fcilbench.federation.run import run_experiment
from fcilbench.registry import entrypoints
from fcilbench.registry.process import Event, EventTooLargeError
from fcilbench.spec.cell import Cell, PluginUse
from fcilbench.spec.plugin import Plugin

Emit = Callable[[Event], None]
_AXES = {"dataset": "datasets", "backbone": "backbones", "aggregator": "aggregators", "stress": "stressors"}
_BUILT_IN = "fcilbench.plugins"
_DISK_TROUBLE = frozenset({errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EFBIG})
_BACKEND_SWITCHES: tuple[tuple[Any, str], ...] = (
    (torch.backends.mkldnn, "enabled"),
    *((torch.backends.cudnn, name) for name in ("enabled", "benchmark", "deterministic")),
)
_LONGEST_MESSAGE, _LONGEST_TRACEBACK = 2000, 100_000


@functools.cache
def environment() -> dict[str, Any]:
    """Returns what of the environment only a process with torch, at the device, can see.

    Name and memory of a GPU come from nvidia-smi where it answers: a plan reads them without torch and must know its
    hardware again.
    """
    cuda = torch.cuda.is_available()
    gpus = find_gpus() if cuda else []
    facts = {"gpu": gpus[0].name, "gpu_memory": gpus[0].memory, "driver": gpus[0].driver} if gpus else {}
    return {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "gpu": torch.cuda.get_device_name(0) if cuda else None,
        **facts,
    }


def serve(request: dict[str, Any], emit: Emit) -> None:
    """Runs a job, given by the fields of a `Job`; its last event is one of `TERMINAL`, whatever the plugins do."""
    roots: set[str] = set()
    workdir = Path(request["workdir"])
    try:
        with _switches_kept():
            job = Job(**request)
            emit({"event": "ready", "environment": environment()})
            (workdir / "traceback.txt").unlink(missing_ok=True)
            emit({"event": "started", "pid": os.getpid()})
            cell = Cell.model_validate(job.cell)
            torch.set_num_threads(cell.runtime.threads)
            root = Path(job.data_root) if job.data_root else None
            outcome = run_experiment(build_experiment(cell, root, job.device, roots), workdir, emit)
        emit({"event": "finished", "outcome": outcome.model_dump(mode="json")})
    except Unsupported as reason:
        emit({"event": "skipped", "reason": str(reason)[:_LONGEST_MESSAGE]})
    except BaseException as error:  # a plugin may even call sys.exit: that too is data
        emit(_failure(error, workdir, roots))
    finally:
        _clean_up()


def build_experiment(cell: Cell, root: Path | None, device: str, roots: set[str] | None = None) -> Experiment:
    """Builds a cell's experiment from the plugins that the registry knows.

    `roots` receives the packages that they come from; without a `root` of the data sets the default one is taken.
    """
    built: dict[str, Any] = {}
    for axis, kind in _AXES.items():
        use: PluginUse = getattr(cell, axis)
        plugin = cast(type[Plugin], entrypoints.load(entrypoints.lookup(kind, use.name)))
        if roots is not None:
            top = plugin.__module__.partition(".")[0]
            roots.add(_BUILT_IN if top == "fcilbench" else top)
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


@contextmanager
def _switches_kept() -> Iterator[None]:
    """Puts torch's global switches back at the end; a cell must not find those of the cell before it."""
    threads, dtype, device = torch.get_num_threads(), torch.get_default_dtype(), torch.get_default_device()
    precision, grad = torch.get_float32_matmul_precision(), torch.is_grad_enabled()
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    backends = [(backend, name, getattr(backend, name)) for backend, name in _BACKEND_SWITCHES]
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)
        if torch.get_default_device() != device:
            torch.set_default_device(None if device.type == "cpu" else device)
        torch.set_float32_matmul_precision(precision)
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        torch.set_grad_enabled(grad)
        for backend, name, value in backends:
            if getattr(backend, name) != value:
                setattr(backend, name, value)


def _clean_up() -> None:
    gc.collect()
    _freeze_imports()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@functools.cache
def _freeze_imports() -> None:
    """Spares the collector what the first cell imported: most objects of the process."""
    gc.freeze()


def _failure(error: BaseException, workdir: Path, roots: set[str]) -> Event:
    text = "".join(traceback.format_exception(error))
    if len(text) > _LONGEST_TRACEBACK:
        text = f"{text[: _LONGEST_TRACEBACK // 2]}\n...\n{text[-_LONGEST_TRACEBACK // 2 :]}"
    with suppress(OSError, ValueError):  # a plugin may have closed it
        print(text, flush=True)  # standard output is the cell's log
    path = workdir / "traceback.txt"
    with suppress(OSError):
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    message = (str(error) or repr(error))[:_LONGEST_MESSAGE]
    event = {"type": type(error).__name__, "message": message, "traceback_path": path.name}
    if disk := _disk_trouble(error):
        place = disk.filename or workdir
        return {"event": "failed", "kind": "environment", **event, "message": f"{disk.strerror}: {place}"}
    if _out_of_memory(error):
        return {"event": "oom", "kind": "oom", **event}
    if isinstance(error, PrerequisiteError):
        return {"event": "failed", "kind": "prerequisite", **event}
    if isinstance(error, DivergedError):
        return {"event": "failed", "kind": "diverged", **event}
    theirs = isinstance(error, EventTooLargeError | PluginError) or _touches(error.__traceback__, roots | {_BUILT_IN})
    return {"event": "failed", "kind": "plugin" if theirs else "internal", **event}


def _disk_trouble(error: BaseException | None) -> OSError | None:
    """Returns the error of a full or read-only disk behind an error; torch raises one of its own on top of it."""
    for _ in range(20):  # a chain of causes may be a circle
        if error is None or (isinstance(error, OSError) and error.errno in _DISK_TROUBLE):
            return error
        error = error.__cause__ or error.__context__
    return None


def _out_of_memory(error: BaseException) -> bool:
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    words = ("out of memory", "can't allocate memory", "not enough memory")
    return isinstance(error, RuntimeError) and any(word in str(error).lower() for word in words)


def _touches(trace: TracebackType | None, roots: set[str]) -> bool:
    """Whether the traceback passes through a module of one of these packages."""
    while trace is not None:
        module = str(trace.tb_frame.f_globals.get("__name__", ""))
        if any(module == root or module.startswith(f"{root}.") for root in roots):
            return True
        trace = trace.tb_next
    return False
