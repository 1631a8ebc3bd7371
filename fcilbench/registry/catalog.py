"""Descriptions and resolutions of plugins, answered by a child process and cached by the state of their files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from fcilbench.registry.entrypoints import PluginRef
from fcilbench.registry.records import Description, Resolved, Unresolved, Use


@contextmanager
def session() -> Iterator[None]:
    """Keeps one child process for all questions asked within the block (importing plugins costs seconds)."""
    yield


def describe(refs: Sequence[PluginRef]) -> list[Description]:
    """Describes plugins, in the given order; a broken one comes back with its `problem` and breaks no other."""
    raise NotImplementedError


def resolve(uses: Sequence[Use]) -> list[Resolved | Unresolved]:
    """Validates options against each plugin's parameters, in the given order."""
    raise NotImplementedError
