"""What a worker does with a cell: builds the experiment, runs it, and reports how it ended.

This is the only module of the room that imports torch when it is imported; the parent never imports it.
"""

from __future__ import annotations

import errno
import functools
import gc
import os
import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import torch

from fcilbench.api.selector import Selector
from fcilbench.data.root import data_root
from fcilbench.engine.portable import make_portable
from fcilbench.engine.rounding import rounding
from fcilbench.errors import DivergedError, PluginError, PrerequisiteError
from fcilbench.federation.experiment import Experiment, Unsupported
from fcilbench.federation.run import run_experiment
from fcilbench.registry import entrypoints
from fcilbench.results.private import hide_homes
from fcilbench.results.provenance import machine_facts
from fcilbench.spec.cell import OWN, PLUGIN_KINDS, SELECTORS, Cell, PluginUse
from fcilbench.spec.plugin import Plugin
from fcilbench.worker.events import Emit, Failed, OutOfMemory
from fcilbench.worker.gpus import find_gpus

_BUILT_IN = "fcilbench.plugins"
_DISK_TROUBLE = frozenset({errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EFBIG})
_SWITCHES: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (torch.get_num_threads, torch.set_num_threads),
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    (torch.is_grad_enabled, torch.set_grad_enabled),
    *(
        (functools.partial(getattr, backend, name), functools.partial(setattr, backend, name))
        for backend, names in (
            (torch.backends.mkldnn, ["enabled"]),
            (torch.backends.cudnn, ["enabled", "benchmark", "deterministic"]),
        )
        for name in names
    ),
)
"""How torch's global switches are read and set."""
_LONGEST_MESSAGE, _LONGEST_TRACEBACK = 400, 100_000  # a row's reason has at most 500


@functools.cache
def environment() -> dict[str, Any]:
    """Returns the part of the environment that is seen with torch on the device.

    The GPU's facts come from nvidia-smi if it answers, so that they equal those that a plan reads without torch.
    """
    cuda = torch.cuda.is_available()
    gpu = {"gpu": torch.cuda.get_device_name(0) if cuda else None}
    gpus = find_gpus() if cuda else []
    versions = {"torch": torch.__version__, "cuda": torch.version.cuda}
    return {**versions, **gpu, **(gpus[0].facts if gpus else {}), **_arithmetic(), "machine": machine_facts()}


def _arithmetic() -> dict[str, str]:
    """Returns the code that torch has chosen for this processor, how it rounds, and the versions of its libraries.

    A library that torch was built without is absent.
    """
    built = torch.__config__.show()
    blas = re.search(r"Math Kernel Library Version (\S+)", built) or re.search(r"BLAS_INFO=(\w+)", built)
    onednn = re.search(r"MKL-DNN v(\S+)|oneDNN v(\S+)", built)
    found = {
        "capability": torch.backends.cpu.get_cpu_capability(),
        "blas": f"{'MKL ' if 'Math Kernel' in built else ''}{blas[1]}" if blas else "",
        "onednn": (onednn[1] or onednn[2]) if onednn else "",
        "rounding": rounding(),
    }
    return {name: value for name, value in found.items() if value}


def serve(request: dict[str, Any], emit: Emit) -> None:
    """Runs a job (`Job.request`); whatever the plugins do, its last event is one of `TERMINAL`."""
    roots: set[str] = set()
    workdir = Path(request["workdir"])
    try:
        with _switches_kept():
            emit({"event": "ready", "environment": environment()})
            (workdir / "traceback.txt").unlink(missing_ok=True)
            emit({"event": "started", "pid": os.getpid()})
            cell = Cell.model_validate(request["cell"])
            torch.set_num_threads(cell.runtime.threads)
            if cell.runtime.portable:
                make_portable(request["device"])
            outcome = run_experiment(build_experiment(cell, request["device"], roots), workdir, emit)
        emit({"event": "finished", "outcome": outcome.model_dump(mode="json")})
    except Unsupported as reason:
        emit({"event": "skipped", "reason": str(reason)[:_LONGEST_MESSAGE]})
    except BaseException as error:  # a plugin may even call sys.exit
        emit(_failure(error, workdir, roots))
    finally:
        _clean_up()


def build_experiment(cell: Cell, device: str, roots: set[str] | None = None) -> Experiment:
    """Builds a cell's experiment from registered plugins, and adds the names of their packages to `roots`."""
    built: dict[str, Any] = {}
    for axis, use in cell.plugins.items():
        built[axis] = _plugin(PLUGIN_KINDS[axis], use, roots)
    picking = {
        k: Selector() if use.name == OWN.name else _plugin(SELECTORS, use, roots) for k, use in cell.picking.items()
    }
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
        selectors=picking,
        runtime=cell.runtime,
        data_root=data_root(),
        device=device,
        declared_fingerprint=cell.data_fingerprint,
    )


def _plugin(kind: str, use: PluginUse, roots: set[str] | None) -> Any:
    plugin = cast(type[Plugin], entrypoints.load(entrypoints.lookup(kind, use.name)))
    if roots is not None:
        top = plugin.__module__.partition(".")[0]
        roots.add(_BUILT_IN if top == "fcilbench" else top)
    return plugin(plugin.Params.model_validate(use.params))


@contextmanager
def _switches_kept() -> Iterator[None]:
    """Restores torch's global switches at the end, so that a cell does not inherit those of an earlier one."""
    before = [read() for read, _ in _SWITCHES]
    try:
        yield
    finally:
        if torch.get_default_device().type != "cpu":
            torch.set_default_device(None)
        for (read, write), value in zip(_SWITCHES, before, strict=True):
            if read() != value:
                write(value)


def _clean_up() -> None:
    gc.collect()
    if not gc.get_freeze_count():  # the collector need not search what the first cell has imported
        gc.freeze()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _failure(error: BaseException, workdir: Path, roots: set[str]) -> Failed | OutOfMemory:
    text = hide_homes("".join(traceback.format_exception(error)))
    if len(text) > _LONGEST_TRACEBACK:
        text = f"{text[: _LONGEST_TRACEBACK // 2]}\n...\n{text[-_LONGEST_TRACEBACK // 2 :]}"
    with suppress(OSError, ValueError):  # a plugin may have closed it
        print(text, flush=True)  # standard output is the cell's log
    path = workdir / "traceback.txt"
    with suppress(OSError):
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    message = (str(error) or repr(error))[:_LONGEST_MESSAGE]
    type_ = type(error).__name__
    if _disk_trouble(error) is None and _out_of_memory(error):
        return OutOfMemory(event="oom", type=type_, message=message, traceback_path=path.name)
    if disk := _disk_trouble(error):
        kind, message = "environment", f"{disk.strerror}: {disk.filename or workdir}"
    else:
        place = _place(error, roots - {_BUILT_IN}) or _place(error, {_BUILT_IN})
        kind = _kind(error, place)
        message += place * (kind == "plugin")
    return Failed(event="failed", kind=kind, type=type_, message=message, traceback_path=path.name)


def _kind(error: BaseException, place: str) -> str:
    """Returns what is to blame for an error, as `Failure.kind` names it."""
    if isinstance(error, PrerequisiteError):
        return "prerequisite"
    if isinstance(error, DivergedError):
        return "diverged"
    return "plugin" if place or isinstance(error, PluginError) else "internal"


def _disk_trouble(error: BaseException | None) -> OSError | None:
    """Returns the error of a full or read-only disk that caused an error, if one did."""
    for _ in range(20):  # a chain of causes may be circular
        if error is None or (isinstance(error, OSError) and error.errno in _DISK_TROUBLE):
            return error
        error = error.__cause__ or error.__context__
    return None


def _out_of_memory(error: BaseException) -> bool:
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    words = ("out of memory", "can't allocate memory", "not enough memory")
    return isinstance(error, RuntimeError) and any(word in str(error).lower() for word in words)


def _place(error: BaseException, roots: set[str]) -> str:
    """Returns the innermost frame of an error in these packages, e.g. ` (bad.py:45 in aggregate)`; "" if none is."""
    found = ""
    for frame, number in traceback.walk_tb(error.__traceback__):
        module = f"{frame.f_globals.get('__name__', '')}."
        if any(module.startswith(f"{root}.") for root in roots):
            found = f" ({Path(frame.f_code.co_filename).name}:{number} in {frame.f_code.co_name})"
    return found
