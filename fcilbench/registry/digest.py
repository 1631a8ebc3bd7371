"""Digest of a plugin's source: its own module and what that imports of its own package, read and never executed.

Comments, docstrings, layout and the declarations of options do not count: an option's value is part of the identity,
and a plan compares defaults itself. Dynamic imports, data files and other packages are not seen; the plugin's `version`
and the environment's digest cover them.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import importlib.util
import itertools
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path

_OWN_PARTS = ("fcilbench.plugins.", "fcilbench.vectors.")
"""The part of this package that counts for a built-in plugin; `ENGINE_VERSION`, `PROTOCOL_VERSION` cover the rest."""

_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def source_files(module: str) -> dict[str, Path]:
    """Returns the files, by module name, of a module and of the modules of its top-level package that it imports."""
    top = module.partition(".")[0]
    found: dict[str, Path] = {}
    pending = [module]
    while pending:
        # Importing `a.b.c` executes `a` and `a.b` too.
        for part in itertools.accumulate(pending.pop().split("."), "{}.{}".format):
            path = _locate(part) if part == module or _counts(part) else None
            if path is not None and part not in found:
                found[part] = path
                pending += [each for each in _imports(part, path) if each.partition(".")[0] == top]
    return dict(sorted(found.items()))


def code_digest(module: str) -> str:
    """Returns SHA-256 over the normalised source of a module and of what it imports in its own package."""
    digest = hashlib.sha256()
    for name, path in source_files(module).items():
        digest.update(f"{name}\0{_file_digest(path, path.stat().st_mtime_ns)}\0".encode())
    return digest.hexdigest()


def normalised(source: str) -> str:
    """Returns the syntax tree of a source as text, without positions, docstrings and options of `Params`."""
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
        if name == "body" and isinstance(node, ast.ClassDef) and _is_params(node):
            kept = [each for each in kept if not _is_option(each)]
        if kept is not None and kept != [] and name not in ("kind", "type_comment"):
            parts.append(f"{name}={_dump(kept)}")
    return f"{type(node).__name__}({','.join(parts)})"


def _is_params(node: ast.ClassDef) -> bool:
    names = [node.name, *(ast.unparse(base).rpartition(".")[2] for base in node.bases)]
    return any(name.endswith("Params") for name in names)


def _is_option(node: ast.AST) -> bool:
    return isinstance(node, ast.AnnAssign) and "ClassVar" not in ast.unparse(node.annotation)


@functools.lru_cache(maxsize=4096)
def _file_digest(path: Path, _mtime_ns: int) -> str:
    content = path.read_bytes()
    # An extension module or a broken file does not parse: its bytes are digested instead.
    with contextlib.suppress(SyntaxError, ValueError):
        content = normalised(content.decode()).encode()
    return hashlib.sha256(content).hexdigest()


def _counts(name: str) -> bool:
    return name.partition(".")[0] != "fcilbench" or f"{name}.".startswith(_OWN_PARTS)


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
        spec = PathFinder.find_spec(f"{spec.name}.{part}", spec.submodule_search_locations)
    return Path(spec.origin) if spec is not None and spec.origin and Path(spec.origin).is_file() else None


def _imports(module: str, path: Path) -> Iterator[str]:
    """Yields the names of the modules that a file imports anywhere, whether they exist or not."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            with contextlib.suppress(ImportError):  # more dots than packages
                base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
                yield from (base, *(f"{base}.{alias.name}" for alias in node.names))
