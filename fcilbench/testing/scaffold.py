"""Writes a package with a working aggregator and the kit as its test. Imports no torch."""

from __future__ import annotations

import re
from pathlib import Path
from string import Template

from fcilbench.errors import UsageError
from fcilbench.registry.entrypoints import normalise
from fcilbench.testing.templates import FILES

_NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")


def write(name: str, parent: Path) -> Path:
    """Writes the package of a new aggregator into a new folder.

    Args:
        name: `gossip` (the package is `fcilbench-gossip`) or `acme-fcil/gossip`.
        parent: Where the folder goes; it is called like the package.

    Returns:
        The folder.

    Raises:
        UsageError: If a name is not usable, or the folder exists.

    Example:
        >>> write("acme-fcil/gossip", Path(".")).name  # doctest: +SKIP
        'acme-fcil'
    """
    given, _, short = name.rpartition("/")
    dist = normalise(given) if given else f"fcilbench-{short.replace('_', '-')}"
    for word in (short, dist):
        if not _NAME.fullmatch(word):
            raise UsageError(f"{word!r} cannot be a name", hint="use lower-case letters, digits and dashes: my-method")
    if dist == "fcilbench":
        raise UsageError("the package fcilbench is taken", hint=f"name your own, e.g. acme-fcil/{short}")
    folder = parent / dist
    if folder.exists():
        raise UsageError(f"{folder} exists", hint="remove it, or choose another package: DIST/NAME")
    words = re.split(r"[-_]", short)
    values = {
        "name": short,
        "dist": dist,
        "module": dist.replace("-", "_"),
        "test": short.replace("-", "_"),
        "cls": "".join(word.capitalize() for word in words),
    }
    for path, text in FILES.items():
        target = folder / Template(path).substitute(values)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(Template(text).substitute(values), encoding="utf-8")
    return folder
