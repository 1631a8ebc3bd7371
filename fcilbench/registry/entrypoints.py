"""Finds plugins by name in package metadata; only `load` imports one."""

from __future__ import annotations

import functools
import importlib
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata

from fcilbench.errors import FcilbenchError, PluginError, PrerequisiteError, UsageError, nearest

KINDS = ("aggregators", "backbones", "datasets", "stressors", "selectors", "executors", "trackers", "boards")
"""Kinds of plugin; the entry-point group of a kind is `fcilbench.<kind>`."""

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
    """Returns the installed plugins of one of `KINDS`, built-in ones first, then by name."""
    if kind not in KINDS:
        raise UsageError(f"unknown kind of plugin {kind!r}{nearest(kind, KINDS)}")
    refs = [ref for ref in _registered(_path_state()) if ref.kind == kind]
    return sorted(refs, key=lambda ref: (ref.dist != _OWN, ref.dist, ref.short))


def lookup(kind: str, name: str) -> PluginRef:
    """Finds one plugin of one of `KINDS` by its short name, if that is unique, or by `dist/name`.

    The short name of an executor or a tracker of ours is ours alone: what runs where nothing is said must not depend on
    what else is installed.

    Raises:
        UsageError: If no plugin has this name (the message gives the nearest one) or several have it (it names all).

    Example:
        >>> lookup("aggregators", "sum").name
        'fcilbench/sum'
    """
    refs = find(kind)
    dist, slash, short = name.rpartition("/")
    found = [ref for ref in refs if ref.short == short and (not slash or ref.dist == normalise(dist))]
    if len(found) == 1 or (found and found[0].dist == _OWN and kind in ("executors", "trackers")):
        return found[0]
    noun = kind.removesuffix("s")
    if found:
        owners = " and ".join(f"{ref.name} ({ref.target})" for ref in found)
        raise UsageError(f"{noun} {name!r} is ambiguous: {owners}", hint="write the full name, dist/name")
    names = [ref.short for ref in refs] + ([ref.name for ref in refs] if slash else [])
    others = [ref.kind for ref in _registered(_path_state()) if ref.short == short]
    listed = f"`fcilbench plugins list` shows what is installed; a new plugin registers under fcilbench.{kind}"
    hint = f"{short!r} is one of the {others[0]}" if others else listed
    raise UsageError(f"unknown {noun} {name!r}{nearest(name, names)}", hint=hint)


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


@contextmanager
def blaming(ref: PluginRef) -> Iterator[None]:
    """Turns any exception in the block into an error that says whose plugin it is, unless it is one of ours.

    Raises:
        PluginError: If the block of a third party's plugin raises what is no error for the user.
    """
    try:
        yield
    except FcilbenchError:
        raise
    except Exception as error:
        if ref.dist == _OWN:
            raise
        raise PluginError(
            f"{ref.kind.removesuffix('s')} {ref.name}, a plugin of the package {ref.dist}, broke: {reason_of(error)}",
            hint=f"tell whoever maintains {ref.dist}; with -v the traceback is shown",
        ) from error


def normalise(dist: str) -> str:
    """Returns a distribution's name in its canonical form (lower case, single dashes)."""
    return re.sub(r"[-_.]+", "-", dist.strip()).lower()


def reason_of(error: BaseException) -> str:
    """Returns type and message of an exception in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _target(point: metadata.EntryPoint) -> str:
    """Returns `module:Class` without the blanks and extras that an entry point may have."""
    found = point.pattern.match(point.value)
    return f"{found['module']}:{found['attr']}" if found and found["attr"] else point.value


def _path_state() -> tuple[tuple[str, int], ...]:
    """Returns the search path with the folders' times, which change when a package is installed or removed."""
    return tuple((entry, os.stat(entry).st_mtime_ns) for entry in sys.path if os.path.exists(entry))


@functools.lru_cache(maxsize=4)
def _registered(_state: tuple[tuple[str, int], ...]) -> tuple[PluginRef, ...]:
    return tuple(
        PluginRef(kind, normalise(point.dist.name), point.dist.version, point.name, _target(point))
        for kind in KINDS
        for point in metadata.entry_points(group=f"{_OWN}.{kind}")
        if point.dist is not None and point.dist.name  # a half-removed package leaves metadata without a name
    )
