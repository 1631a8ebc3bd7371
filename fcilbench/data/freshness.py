"""What a decoded data set was made from: its files, the code that reads them and the decoder."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import sys
from collections.abc import Callable
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from fcilbench.api import content
from fcilbench.api.dataset import Dataset
from fcilbench.data import folders, images
from fcilbench.data.layout import find_layout
from fcilbench.registry.digest import normalised

_FORMAT = 1
# Imported whether the data set uses them or not, so that every process gets the same answer.
_DECIDING = (content, folders, images)


def key(dataset: Dataset, root: Path) -> str:
    """Returns 16 hexadecimal digits that tell caches apart which are of use at the same time."""
    options = dataset.params.model_dump(mode="json", exclude={"train_per_class", "test_per_class"})
    kind = type(dataset)
    parts = [f"{kind.__module__}:{kind.__qualname__}", dataset.version, options, str(root.resolve())]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def now(dataset: Dataset, root: Path) -> dict[str, Any]:
    """Returns what a cache must have been made from to hold: files, code and decoder, as they are now."""
    kinds = [kind for kind in type(dataset).__mro__ if issubclass(kind, Dataset) and kind is not Dataset]
    code = hashlib.sha256()
    for module in [*(kind.__module__ for kind in kinds), *(each.__name__ for each in _DECIDING)]:
        code.update(f"{module}\0{_source(module)}\0".encode())
    files, stamp = _stamp(find_layout(dataset.layouts, root) or ())
    pillow = metadata.version("pillow")
    return {"format": _FORMAT, "code": code.hexdigest(), "pillow": pillow, "files": files, "stamp": stamp}


def _source(module: str) -> str:
    try:
        return normalised(inspect.getsource(sys.modules[module]))
    except (KeyError, OSError, TypeError, SyntaxError):
        return ""


def _stamp(paths: tuple[Path, ...]) -> tuple[int, str]:
    """Returns the number of files below the paths, and a digest of their names, sizes and times."""
    seen: list[tuple[str, int, int]] = []
    pending = [str(path) for path in paths]
    while pending:
        place = pending.pop()
        try:
            with os.scandir(place) as entries:
                for entry in entries:
                    if entry.is_dir():
                        pending.append(entry.path)
                    else:
                        seen.append(_facts(entry.path, entry.stat))
        except NotADirectoryError:
            seen.append(_facts(place, partial(os.stat, place)))
        except OSError:
            seen.append((place, -1, -1))  # whoever reads it will say what is wrong
    return len(seen), hashlib.sha256(repr(sorted(seen)).encode()).hexdigest()


def _facts(path: str, look: Callable[[], os.stat_result]) -> tuple[str, int, int]:
    try:
        stat = look()
    except OSError:  # a link to nothing
        return path, -1, -1
    return path, stat.st_size, stat.st_mtime_ns
