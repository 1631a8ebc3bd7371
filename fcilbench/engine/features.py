"""Features of the network as it was before training: each pass is made once on this machine, and kept in a file.

Methods that fit a head on frozen features, the queries of prompts, and selectors run the backbone, as it was built,
over samples without augmentation. What comes out depends on nothing that a method, or a cell, changes. The next cell
that needs a pass reads it from `features/` in the cache folder.

The file's name is a digest of all that its bits depend on: weights, buffers and structure of the backbone, the whole
batch of inputs (the same sample in another batch may have another last bit), precision, switches and versions of the
libraries, processor, threads, and the code that computes. So a cell has the same bits whether a pass is made or read.
A digest of the content is verified when it is read; a damaged file is made again. A folder that cannot be written or is
full costs time and nothing else.

A pass is never read if gradients flow, if a layer is watched, or if the weights, or anything else of the backbone, are
not those that were built. On a GPU nothing is kept: to copy and digest a batch should take about as long as its pass
(reckoned, not measured).

What a cell costs must not depend on what earlier cells left behind. So each file holds the seconds that its pass took,
which `Stopwatch` counts where it is read, and the largest batch so far is always computed, for the peak of memory. That
pass is compared with the file, too: should they differ, nothing is read any more.
"""

from __future__ import annotations

import functools
import hashlib
import io
import itertools
import json
import logging
import os
import pickle
import platform
import sys
import time
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fcilbench.api.lora import FrozenBatchNorm
from fcilbench.engine.rounding import rounding
from fcilbench.files import cache_root, replacing

LIMIT = 2 << 30
"""Bytes of all files together; beyond them those that were not used for longest are removed."""

_log = logging.getLogger(__name__)
_FORMAT = 1
_DIGEST = hashlib.sha256().digest_size
_SCANNED = 64 << 20
"""Bytes that a process writes between two looks at the size of all files."""
_NAMED = ("torch", "timm", "transformers")
"""Large packages of which the version stands for the code; of others whose classes a backbone has, the files do."""
_VARIABLES = ("ATEN_", "DNNL_", "GLIBC_", "KMP_", "MKL_", "OMP_", "ONEDNN_", "OPENBLAS_", "TORCH_")
_CPU = ("vendor_id", "cpu family", "model", "model name", "stepping", "microcode", "cache size", "cpu cores", "flags")
_NO_STRUCTURE = {"training", "_modules", "_parameters", "_buffers", "_non_persistent_buffers_set"}
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


class StartingPasses:
    """The passes of a network's backbone as it was before training.

    Args:
        network: The network, whose backbone is `body`; all of it is as it was before training.
        built: The `structure` of the body before the method could change it.
        initial: The state vector `[D]` before training; never written to.
        named: Its tensors, which training changes, by their names in the network: views.
        facts: What else the passes depend on, plain JSON.

    Attributes:
        initial: The same vector.
        saved: Seconds that the passes took which were read instead of made.
    """

    def __init__(
        self,
        network: nn.Module,
        body: nn.Module,
        built: str,
        *,
        initial: torch.Tensor,
        named: Mapping[str, torch.Tensor],
        facts: Mapping[str, Any],
    ) -> None:
        self.initial, self.saved = initial, 0.0
        self._body, self._built, self._plain = body, built, body.forward
        tensors = dict(itertools.chain(network.named_parameters(), network.named_buffers()))
        changing = {id(tensors[name]): value for name, value in named.items()}
        # Whatever training changes comes first: it is the first to differ.
        self._tensors = sorted((_Tensor(*each, changing) for each in _tensors(body)), key=lambda each: each.fixed)
        self._facts = dict(facts)
        self._folder = cache_root().absolute() / "features"
        self._largest, self._written, self._writes, self._reads = 0, _SCANNED, True, True

    @functools.cached_property
    def _network(self) -> bytes:
        """Digest of all but the inputs and the switches."""
        known = [_FORMAT, self._built, self._facts, _code(self._body), _machine()]
        digest = hashlib.sha256(json.dumps(known, sort_keys=True, default=str).encode())
        for each in sorted(self._tensors, key=lambda each: each.name):
            _update(digest, each.name, each.at_start)
        return digest.digest()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Within this block, passes of the body over samples of the data set are read where they were made before."""
        if "forward" in vars(self._body):  # a block within this one
            yield
            return
        self._body.forward = self._forward
        try:
            yield
        finally:
            del self._body.forward

    def _forward(self, *inputs: torch.Tensor, **options: Any) -> Any:
        if len(inputs) != 1 or options or not self._applies(inputs[0]):
            return self._plain(*inputs, **options)
        path, rows = self._folder / f"{self._key(inputs[0])}.pass", len(inputs[0])
        found = _read(path) if self._reads else None
        if found is not None and rows <= self._largest:
            self.saved += found[1]
            return found[0]
        started = time.perf_counter()
        made = self._plain(inputs[0])
        seconds = time.perf_counter() - started
        self._largest = max(self._largest, rows)
        if found is not None and not _same_bits(found[0], made):
            _log.warning("%s is not what the network computes now: kept features are not read any more", path)
            self._reads, found = False, None
        if found is None and isinstance(made, torch.Tensor):
            self._write(path, made, seconds)
        return made

    def _applies(self, inputs: torch.Tensor) -> bool:
        """Says whether this is a pass of the body as it was before training."""
        if not isinstance(inputs, torch.Tensor) or not inputs.dim() or inputs.device.type != "cpu":
            return False
        if torch.is_grad_enabled() or torch.is_inference_mode_enabled():
            return False
        if torch._C._functorch.peek_interpreter_stack() is not None:  # e.g. vmap: the batch is not what it seems
            return False
        if torch._C._len_torch_function_stack() or any(each.training for each in self._body.modules()):
            return False
        return all(each.is_at_start() for each in self._tensors) and structure(self._body) == self._built

    def _key(self, inputs: torch.Tensor) -> str:
        digest = hashlib.sha256(self._network)
        _update(digest, f"{_switches()} {inputs.stride()}", inputs)
        return digest.hexdigest()

    def _write(self, path: Path, made: torch.Tensor, seconds: float) -> None:
        if not self._writes:
            return
        content = io.BytesIO()
        values = made.detach().clone(memory_format=torch.contiguous_format)  # a view would be saved with what it views
        torch.save({"values": values, "stride": made.stride(), "seconds": seconds}, content)
        data = content.getvalue()
        try:
            with replacing(path, durable=False) as file:
                file.write(hashlib.sha256(data).digest() + data)
            self._written += len(data)
            if self._written >= _SCANNED:
                self._written = 0
                evict(self._folder, LIMIT)
        except OSError as error:
            self._writes = False
            _log.warning("features are not kept at %s: %s", self._folder, error.strerror or error)


class _Tensor:
    """A parameter or buffer of the body, and what it was before training.

    Attributes:
        fixed: Whether it is none of the tensors that training changes.
    """

    def __init__(
        self, name: str, module: nn.Module, key: str, tensor: torch.Tensor, changing: Mapping[int, torch.Tensor]
    ) -> None:
        self.name, self._module, self._key, self._own, self._version = name, module, key, tensor, tensor._version
        value, self.fixed = changing.get(id(tensor)), id(tensor) not in changing
        if value is None:  # a buffer may be written to
            value = tensor.detach() if key in module._parameters else tensor.detach().clone()
        self.at_start = value

    def is_at_start(self) -> bool:
        """Says whether the module has the values that were there before training."""
        now: torch.Tensor | None = self._module._parameters.get(self._key)
        if now is None:
            now = self._module._buffers.get(self._key)
        if now is None or (self.at_start.data_ptr() == self._own.data_ptr() and self._own._version != self._version):
            return False
        return now.data_ptr() == self.at_start.data_ptr() or torch.equal(now, self.at_start)


def _tensors(body: nn.Module) -> Iterator[tuple[str, nn.Module, str, torch.Tensor]]:
    for prefix, module in body.named_modules():
        for key, tensor in itertools.chain(module._parameters.items(), module._buffers.items()):
            if (
                tensor is not None and key != "num_batches_tracked"
            ):  # which BatchNorm counts, and reads in training alone
                yield f"{prefix}.{key}", module, key, tensor


def structure(body: nn.Module) -> str:
    """Returns the modules of a network with classes, attributes and hooks, but without mode and tensors, as a text."""
    lines = []
    for name, module in body.named_modules():
        kind = type(module)
        if issubclass(kind, FrozenBatchNorm):  # in eval mode it computes what it computed before it was frozen
            kind = kind.__mro__[2]
        parts = [f"{key}={_value(value)}" for key, value in vars(module).items() if key not in _NO_STRUCTURE]
        if isinstance(getattr(vars(module).get("forward"), "__self__", None), StartingPasses):
            parts = [part for part in parts if not part.startswith("forward=")]
        lines.append(f"{name}: {kind.__module__}.{kind.__qualname__} {' '.join(parts)}")
    return "\n".join(lines)


def _value(value: object) -> str:
    """Returns an attribute as a text; one that cannot be told from others gives another text each time."""
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, functools.partial):
        value = [value.func, value.args, value.keywords]
    if isinstance(value, dict):
        value = [list(each) for each in value.items()]
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_value, value))}]"
    return _named(value) or _digest(value)


def _named(value: Any) -> str:
    """Returns the name of a class or function; "" for one with a closure, and for anything else."""
    plain = isinstance(value, types.FunctionType) and not value.__closure__ and "<" not in value.__qualname__
    known = plain or isinstance(value, type | types.BuiltinFunctionType)
    return f"{value.__module__}.{value.__qualname__}" if known else ""


def _digest(value: object) -> str:
    digest = hashlib.sha256()
    if isinstance(value, torch.Tensor):
        _update(digest, "", value)
        return digest.hexdigest()
    with suppress(Exception):  # of whatever cannot be pickled
        if not isinstance(value, nn.Module | types.FunctionType | types.MethodType):
            return hashlib.sha256(pickle.dumps(value)).hexdigest()
    return os.urandom(16).hex()


def _update(digest: Any, name: str, tensor: torch.Tensor) -> None:
    """Adds a tensor's name, type, shape and bytes to a digest."""
    digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\0".encode())
    digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())


def _code(body: nn.Module) -> list[str]:
    """Returns all packages' versions, and digests of the files of this one and of those whose classes the body has."""
    folders = [folder for folder in map(Path, filter(None, sys.path)) if folder.is_dir()]
    versions = {path.name for folder in folders for path in folder.glob("*.*-info")}
    names = {"fcilbench", *(type(module).__module__.partition(".")[0] for module in body.modules())}
    return [*sorted(versions), *(f"{name} {_code_of(name)}" for name in sorted(names - {*_NAMED}))]


@functools.cache
def _code_of(name: str) -> str:
    file, digest = getattr(sys.modules.get(name), "__file__", None), hashlib.sha256()
    if file is None:
        return os.urandom(16).hex()
    path = Path(file)
    for each in sorted(path.parent.rglob("*.py")) if path.name == "__init__.py" else [path]:
        digest.update(f"{each.relative_to(path.parent)}\0".encode() + each.read_bytes() + b"\0")
    return digest.hexdigest()


def _machine() -> list[Any]:
    """Returns what of the machine decides which code the libraries run."""
    variables = sorted((name, value) for name, value in os.environ.items() if name.startswith(_VARIABLES))
    return [platform.machine(), *platform.libc_ver(), _processor(), _torch(), rounding(), os.cpu_count(), variables]


def _torch() -> str:
    return f"{torch.version.git_version} {torch.__config__.show()}"


@functools.cache
def _processor() -> dict[str, str]:
    try:
        first = Path("/proc/cpuinfo").read_text(errors="replace").partition("\n\n")[0]
    except OSError:
        return {"node": platform.node()}
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in first.splitlines())}
    known = {name: fields[name] for name in _CPU if name in fields}
    return known or {"node": platform.node()}


def _switches() -> list[str]:
    """Returns torch's switches that change how a pass is computed."""
    read: tuple[Callable[[], object], ...] = (
        torch.get_num_threads,
        torch.get_default_dtype,
        torch.get_float32_matmul_precision,
        torch.get_deterministic_debug_mode,
        torch.backends.cpu.get_cpu_capability,
        torch.backends.cuda.flash_sdp_enabled,
        torch.backends.cuda.math_sdp_enabled,
        torch.backends.cuda.mem_efficient_sdp_enabled,
    )
    autocast = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
    return [str(autocast), str(torch.backends.mkldnn.enabled), *(str(each()) for each in read)]


def _read(path: Path) -> tuple[torch.Tensor, float] | None:
    """Returns a pass and the seconds that it took; `None` if it is not kept, or is damaged."""
    try:
        data = path.read_bytes()
        if hashlib.sha256(data[_DIGEST:]).digest() != data[:_DIGEST]:
            return None
        found = torch.load(io.BytesIO(data[_DIGEST:]), weights_only=True)
        os.utime(path)
        values = found["values"]
        # The layout in memory is kept: products of matrices may depend on it.
        return torch.empty_strided(values.shape, found["stride"], dtype=values.dtype).copy_(values), found["seconds"]
    except Exception:  # the reader of a damaged file may raise anything
        return None


def _same_bits(one: torch.Tensor, other: object) -> bool:
    if not isinstance(other, torch.Tensor) or one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


def evict(folder: Path, limit: int) -> None:
    """Removes the files that were not used for longest, until all together have at most `limit` bytes."""
    files = []
    with os.scandir(folder) as found:
        for each in found:
            with suppress(OSError):  # another process may have removed it
                stat = each.stat()
                files.append((stat.st_mtime_ns, stat.st_size, each.path))
    excess = sum(size for _, size, _ in files) - limit
    for _, size, name in sorted(files):
        if excess <= 0:
            break
        with suppress(OSError):
            os.unlink(name)
        excess -= size
