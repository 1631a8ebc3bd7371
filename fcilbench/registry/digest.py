"""Digest of a plugin's source, read and never executed: its own module and what that imports or derives from.

Of a plugin's own distribution every imported module counts, and of this one those of `fcilbench.plugins` and
`fcilbench.vectors`; no file of `fcilbench.api` does. Comments, docstrings, layout, a method's card and the declarations
of options do not count: an option's value is part of the identity, and `fcilbench.results.stale` compares defaults
itself. Dynamic imports, data files and other packages are not seen; the plugin's `version` and the environment's digest
cover them.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import importlib.util
import itertools
import json
import sys
from collections.abc import Collection, Iterable, Iterator
from importlib import metadata
from importlib.machinery import BuiltinImporter, FrozenImporter, ModuleSpec, PathFinder
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

_OURS = "fcilbench"
_OWN_PARTS = ("fcilbench.plugins.", "fcilbench.vectors.")
"""The part of this package that counts for a plugin; `ENGINE_VERSION`, `PROTOCOL_VERSION` cover the rest."""

_STANDARD = (BuiltinImporter, FrozenImporter, PathFinder)
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def source_files(module: str, dist: str = "", bases: Collection[str] = ()) -> dict[str, Path]:
    """Returns the files, by module name, that count for a plugin.

    Args:
        module: Module of the plugin's class.
        dist: Name of its distribution; without one, its own packages are those that share the module's first name.
        bases: Modules of the classes that it derives from; those that do not count are left out.
    """
    own = _Own(module, dist)
    found: dict[str, Path] = {}
    pending = [module, *filter(own.counts, bases)]
    while pending:
        # Importing `a.b.c` executes `a` and `a.b` too.
        for part in itertools.accumulate(pending.pop().split("."), "{}.{}".format):
            path = _locate(part) if part == module or own.counts(part) else None
            if path is not None and part not in found:
                found[part] = path
                pending += filter(own.counts, _imports(part, path))
    return dict(sorted(found.items()))


def code_digest(module: str, dist: str = "", bases: Collection[str] = ()) -> str:
    """Returns SHA-256 over the normalised source of the files that count for a plugin, see `source_files`."""
    digest = hashlib.sha256()
    for name, path in source_files(module, dist, bases).items():
        digest.update(f"{name}\0{_file_digest(path, path.stat().st_mtime_ns)}\0".encode())
    return digest.hexdigest()


def normalised(source: str) -> str:
    """Returns the syntax tree of a source as text, without positions, docstrings, cards and options of `Params`."""
    return _dump(ast.parse(source))


def _dump(node: object) -> str:
    # `ast.dump` is no use here: its text changes with the version of Python.
    if isinstance(node, list):
        return f"[{','.join(map(_dump, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    parts = []
    for name, value in ast.iter_fields(node):
        kept = value
        if name == "body" and isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            kept = value[1:]
        if name == "body" and isinstance(node, ast.ClassDef):
            unread = _is_option if _is_params(node) else _is_card
            kept = [each for each in kept if not unread(each)]
        if kept is not None and kept != [] and name not in ("kind", "type_comment"):
            parts.append(f"{name}={_dump(kept)}")
    return f"{type(node).__name__}({','.join(parts)})"


def _is_params(node: ast.ClassDef) -> bool:
    bases = [ast.unparse(base).rpartition(".")[2] for base in node.bases]
    return node.name == "Params" or any(base.endswith("Params") for base in bases)


def _is_card(node: ast.AST) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return isinstance(node, ast.Assign | ast.AnnAssign) and [getattr(each, "id", "") for each in targets] == ["card"]


def _is_option(node: ast.AST) -> bool:
    return isinstance(node, ast.AnnAssign) and "ClassVar" not in ast.unparse(node.annotation)


@functools.lru_cache(maxsize=4096)
def _file_digest(path: Path, _mtime_ns: int) -> str:
    content = path.read_bytes()
    # An extension module or a broken file does not parse, and generated code may be too deep: its bytes are digested.
    with contextlib.suppress(SyntaxError, ValueError, RecursionError):
        content = normalised(content.decode()).encode()
    return hashlib.sha256(content).hexdigest()


class _Own:
    """Which modules count for a plugin: those of its own distribution, and of ours the plugins and vectors."""

    def __init__(self, module: str, dist: str) -> None:
        top = module.partition(".")[0]
        self._tops, self._project = {top}, None
        if top != _OURS:
            with contextlib.suppress(metadata.PackageNotFoundError, ValueError):
                found = metadata.distribution(dist)
                self._tops |= _top_levels(found)
                self._project = _project_of(found)

    def counts(self, name: str) -> bool:
        """Says whether a module counts, which need not exist."""
        top = name.partition(".")[0]
        if top == _OURS:
            return f"{name}.".startswith(_OWN_PARTS)
        return top in self._tops or (self._project is not None and _is_in(_locate(top), self._project))


def _top_levels(dist: metadata.Distribution) -> set[str]:
    """Returns the names of a distribution's top-level packages and modules, as far as its metadata tell them."""
    names = {*(dist.read_text("top_level.txt") or "").split()}
    names |= {point.value.partition(":")[0].partition(".")[0] for point in dist.entry_points}
    for path in dist.files or ():
        if path.suffix == ".py":
            names.add(path.parts[0].removesuffix(".py"))
    return {name for name in names if name.isidentifier()}


def _project_of(dist: metadata.Distribution) -> Path | None:
    """Returns the project's folder of an editable install, whose metadata do not list its packages; else `None`."""
    origin = json.loads(dist.read_text("direct_url.json") or "{}")
    editable = origin.get("dir_info", {}).get("editable", False)
    return Path(unquote(urlsplit(origin["url"]).path)).resolve() if editable else None


def _is_in(path: Path | None, project: Path) -> bool:
    """Says whether a file is a project's own, and not of a virtual environment within the project's folder."""
    if path is None or not path.resolve().is_relative_to(project):
        return False
    return not {"site-packages", "dist-packages"} & {*path.resolve().relative_to(project).parts}


def _locate(name: str) -> Path | None:
    """Returns the file of a module; `find_spec` alone would import its packages."""
    top, *rest = name.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    for part in rest:
        if spec is None or spec.submodule_search_locations is None:
            return None
        spec = _find(f"{spec.name}.{part}", spec.submodule_search_locations)
    return Path(spec.origin) if spec is not None and spec.origin and Path(spec.origin).is_file() else None


def _find(name: str, locations: Iterable[str]) -> ModuleSpec | None:
    """Returns the spec of a module below a package, also of an editable install that maps it elsewhere."""
    finders: list[Any] = [PathFinder, *(each for each in sys.meta_path if each not in _STANDARD)]
    for finder in finders:
        with contextlib.suppress(ImportError, ValueError, AttributeError):
            spec: ModuleSpec | None = finder.find_spec(name, list(locations))
            if spec is not None:
                return spec
    return None


def _imports(module: str, path: Path) -> Iterator[str]:
    """Yields the names of the modules that a file imports anywhere, whether they exist or not.

    A name that a third party imports from `fcilbench.api` leads to the module from which that has it, and the module
    itself to those of all its names.
    """
    api, ours = f"{_OURS}.api", module.startswith(f"{_OURS}.")
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in _statements(path):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            yield from names
            for name in [] if ours else [each for each in names if f"{each}.".startswith(f"{api}.")]:
                yield from _origins(name, "*")
        elif isinstance(node, ast.ImportFrom):
            with contextlib.suppress(ImportError):  # more dots than packages
                base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
                yield from (base, *(f"{base}.{alias.name}" for alias in node.names))
                if base.startswith(api) and not ours:
                    yield from _origins(base, {alias.name for alias in node.names})
                elif base == _OURS and not ours and any(alias.name == "api" for alias in node.names):
                    yield from _origins(api, "*")


def _origins(module: str, names: Collection[str]) -> Iterator[str]:
    """Yields the modules from which a module of ours imports some names (`*`: all), to pass them on."""
    path = _locate(module)
    for node in _statements(path) if path else ():
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(f"{_OURS}."):
            passed = {each.name for each in node.names if "*" in names or (each.asname or each.name) in names}
            if passed:
                yield node.module
                yield from _origins(node.module, passed) if node.module.startswith(f"{_OURS}.api") else ()


def _statements(path: Path) -> Iterable[ast.AST]:
    """Returns all nodes of a file's syntax tree; none if it is no source."""
    try:
        return ast.walk(ast.parse(path.read_bytes()))
    except (SyntaxError, ValueError, RecursionError):
        return ()
