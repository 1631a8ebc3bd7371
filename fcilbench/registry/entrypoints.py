"""Finds plugins by name in package metadata; only `load` imports one."""

from __future__ import annotations

import functools
import importlib
import os
import re
import sys
from dataclasses import dataclass
from importlib import metadata

from fcilbench.errors import PrerequisiteError, UsageError, nearest

KINDS = ("aggregators", "backbones", "datasets", "stressors", "executors", "trackers", "boards")
"""Kinds of plugin; the entry-point group of a kind is `fcilbench.<kind>`."""

ALLOW_LIST = "FCILBENCH_PLUGINS"
"""Environment variable: comma-separated distributions whose plugins are visible; unset means all of them."""

_OWN = "fcilbench"


class BrokenPluginError(PrerequisiteError):
    """A plugin (`dist/name`) is installed but cannot be used."""

    def __init__(self, plugin: str, reason: str) -> None:
        super().__init__(
            f"plugin {plugin} is broken: {reason}",
            hint=f"repair or uninstall {plugin.partition('/')[0]}; `fcilbench plugins list` shows all plugins",
        )
        self.reason = reason


@dataclass(frozen=True)
class PluginRef:
    """A plugin as package metadata describes it.

    Attributes:
        dist: Normalised name of the distribution that registers it.
        target: `module:attribute` of its class.
    """

    kind: str
    dist: str
    dist_version: str
    short: str
    target: str

    @property
    def name(self) -> str:
        """Full name `dist/short`, unique within a kind."""
        return f"{self.dist}/{self.short}"

    @property
    def module(self) -> str:
        """Module part of the target."""
        return self.target.partition(":")[0]


def find(kind: str) -> list[PluginRef]:
    """Returns the visible plugins of one of `KINDS`, built-in ones first, then by name."""
    if kind not in KINDS:
        raise UsageError(f"unknown kind of plugin {kind!r}{nearest(kind, KINDS)}")
    refs = [ref for ref in _registered(_path_state()) if ref.kind == kind]
    if ALLOW_LIST in os.environ:
        allowed = {_OWN, *map(normalise, os.environ[ALLOW_LIST].split(","))}
        refs = [ref for ref in refs if ref.dist in allowed]
    return sorted(refs, key=lambda ref: (ref.dist != _OWN, ref.dist, ref.short))


def lookup(kind: str, name: str) -> PluginRef:
    """Finds one plugin of one of `KINDS` by its short name, if that is unique, or by `dist/name`.

    Raises:
        UsageError: If no plugin has this name (the message gives the nearest one) or several have it (it names all).

    Example:
        >>> lookup("aggregators", "sum").name
        'fcilbench/sum'
    """
    refs = find(kind)
    dist, slash, short = name.rpartition("/")
    found = [ref for ref in refs if ref.short == short and (not slash or ref.dist == normalise(dist))]
    if len(found) == 1:
        return found[0]
    noun = kind.removesuffix("s")
    if found:
        owners = " and ".join(f"{ref.name} ({ref.target})" for ref in found)
        raise UsageError(f"{noun} {name!r} is ambiguous: {owners}", hint="write the full name, dist/name")
    names = [ref.short for ref in refs] + ([ref.name for ref in refs] if slash else [])
    raise UsageError(f"unknown {noun} {name!r}{nearest(name, names)}", hint=_where_else(kind, name))


def load(ref: PluginRef) -> type:
    """Imports a plugin's class.

    Raises:
        BrokenPluginError: If its module cannot be imported or holds no such class.
        PrerequisiteError: If the plugin itself reports that a package is missing.
    """
    module_name, _, attribute = ref.target.partition(":")
    try:
        found: object = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except PrerequisiteError:
        raise
    except (Exception, SystemExit) as error:  # a plugin may even call exit() while it is imported
        raise BrokenPluginError(ref.name, reason_of(error)) from error
    if not isinstance(found, type):
        raise BrokenPluginError(ref.name, f"{ref.target} is a {type(found).__name__}, not a class")
    return found


def normalise(dist: str) -> str:
    """Returns a distribution's name in its canonical form (lower case, single dashes)."""
    return re.sub(r"[-_.]+", "-", dist.strip()).lower()


def reason_of(error: BaseException) -> str:
    """Returns type and message of an exception in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _where_else(kind: str, name: str) -> str:
    """Returns the hint for a name that was not found: it may be hidden, or the name of another kind of plugin."""
    short, visible = name.rpartition("/")[2], {ref for each in KINDS for ref in find(each)}
    for ref in _registered(_path_state()):
        if ref.short == short and ref in visible:
            return f"{short!r} is one of the {ref.kind}"
        if ref.short == short and ref.kind == kind:
            return f"{ref.name} is installed but hidden by {ALLOW_LIST}"
    return f"`fcilbench plugins list` shows what is installed; a new plugin registers under fcilbench.{kind}"


def _path_state() -> tuple[tuple[str, int], ...]:
    """Returns the search path with the folders' times, which change when a package is installed or removed."""
    return tuple((entry, os.stat(entry).st_mtime_ns) for entry in sys.path if os.path.exists(entry))


@functools.lru_cache(maxsize=4)
def _registered(_state: tuple[tuple[str, int], ...]) -> tuple[PluginRef, ...]:
    return tuple(
        PluginRef(kind, normalise(point.dist.name), point.dist.version, point.name, point.value)
        for kind in KINDS
        for point in metadata.entry_points(group=f"{_OWN}.{kind}")
        if point.dist is not None and point.dist.name  # a half-removed package leaves metadata without a name
    )
