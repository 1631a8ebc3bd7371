"""Writes a working plugin with its registration and its test, into a new package or an existing one. No torch."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from string import Template

from fcilbench.errors import UsageError, nearest
from fcilbench.registry.entrypoints import normalise

KINDS = {
    "aggregator": "in a suite's grid, aggregator: [$plugin]",
    "backbone": "in a suite's grid, backbone: [$plugin]",
    "dataset": "in a suite's grid, dataset: [$plugin]",
    "stressor": "in a suite's grid, stress: [none, $plugin]",
    "selector": "in a suite, evaluate: {selectors: [$plugin]}",
    "executor": "fcilbench run SUITE --executor $plugin",
    "board": "fcilbench board $plugin",
    "tracker": "fcilbench run SUITE --tracking $plugin",
}
"""Kinds of plugin that have a template, with the use of one."""
TEMPLATES = Path(__file__).parent / "templates"
"""A file each, in which `$name`s are filled in."""
_PACKAGE = {
    "pyproject.toml": "pyproject",
    ".github/workflows/test.yml": "workflow",
    "README.md": "readme",
    ".gitignore": "gitignore",
}
_NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")


def write(name: str, parent: Path, kind: str = "aggregator") -> tuple[str, list[Path]]:
    """Writes a new plugin: its class, its entry point and its test; the package too, unless it exists.

    Args:
        name: `gossip` (the package is `fcilbench-gossip`) or `acme-fcil/gossip`.
        parent: Where the package's folder is or goes, or that folder itself. It is called like the package.
        kind: One of `KINDS`.

    Returns:
        The plugin's full name and the files that were written or changed; the first is the package's folder.

    Raises:
        UsageError: If a name cannot be used, or a file would be overwritten.

    Example:
        >>> write("acme-fcil/gossip", Path("."))[0]  # doctest: +SKIP
        'acme-fcil/gossip'
    """
    if kind not in KINDS:
        raise UsageError(f"there is no scaffold for {kind!r}{nearest(kind, KINDS)}")
    given, _, short = name.rpartition("/")
    dist = normalise(given) if given else f"fcilbench-{short.replace('_', '-')}"
    for word in (short, dist):
        if not _NAME.fullmatch(word):
            raise UsageError(f"{word!r} cannot be a name", hint="use lower-case letters, digits and dashes: my-method")
    if dist == "fcilbench":
        raise UsageError("the package fcilbench is taken", hint=f"name your own, e.g. acme-fcil/{short}")
    folder = parent if _project(parent) == dist else parent / dist
    values = {
        "name": short,
        "dist": dist,
        "package": dist.replace("-", "_"),
        "module": short.replace("-", "_"),
        "cls": "".join(word.capitalize() for word in re.split(r"[-_]", short)),
        "kind": kind,
        "base": kind.title(),
        "use": Template(KINDS[kind]).substitute(plugin=f"{dist}/{short}"),
    }
    exists = folder.is_dir() and any(folder.iterdir())
    root = _package_folder(folder, values["package"]) if exists else values["package"]
    files = {f"{root}/$module.py": kind, "tests/test_$module.py": "test"} | ({} if exists else _PACKAGE)
    texts = {Template(path).substitute(values): _filled(template, values) for path, template in files.items()}
    if not exists:
        texts[f"{root}/__init__.py"] = ""
    for path in texts:
        if (folder / path).exists():
            raise UsageError(f"{folder / path} exists", hint="remove it, or choose another name")
    if exists:
        texts["pyproject.toml"] = _registered(folder, values)
    for path, text in texts.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    return f"{dist}/{short}", [folder, *(folder / path for path in texts)]


def _filled(template: str, values: dict[str, str]) -> str:
    return Template((TEMPLATES / f"{template}.txt").read_text(encoding="utf-8")).substitute(values)


def _project(folder: Path) -> str | None:
    """Returns the normalised name of the project in a folder, or `None` if there is none."""
    try:
        found = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]["name"]
    except (OSError, tomllib.TOMLDecodeError, KeyError, TypeError):
        return None
    return normalise(str(found))


def _package_folder(folder: Path, package: str) -> str:
    """Returns where the modules of an existing project are."""
    for root in (package, f"src/{package}"):
        if (folder / root).is_dir():
            return root
    raise UsageError(
        f"{folder} has no package folder {package}/", hint=f"create {package}/__init__.py, or choose another package"
    )


def _registered(folder: Path, values: dict[str, str]) -> str:
    """Returns an existing pyproject.toml with the plugin's entry point added."""
    path = folder / "pyproject.toml"
    if _project(folder) != values["dist"]:
        raise UsageError(f"{path} is not the project {values['dist']}", hint="choose another package: DIST/NAME")
    text = path.read_text(encoding="utf-8")
    line = Template('$name = "$package.$module:$cls"\n').substitute(values)
    group = f"fcilbench.{values['kind']}s"
    if values["name"] in tomllib.loads(text)["project"].get("entry-points", {}).get(group, {}):
        raise UsageError(f"{path} already registers {values['name']!r} in {group}", hint="choose another name")
    head = re.compile(rf"^\[project\.entry-points\.(['\"]){re.escape(group)}\1\][^\n]*\n", re.MULTILINE)
    if match := head.search(text):
        return f"{text[: match.end()]}{line}{text[match.end() :]}"
    return f'{text.rstrip()}\n\n[project.entry-points."{group}"]\n{line}'
