"""Where a key of a `set` rule or of an aggregator's entry belongs: to the protocol or to a plugin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fcilbench.errors import nearest
from fcilbench.spec.protocol import Protocol
from fcilbench.suite.parse import Path
from fcilbench.suite.schema import PLUGIN_KINDS, PluginAxis

Target = PluginAxis | Literal["protocol"]


@dataclass(frozen=True)
class Setting:
    """A value that a suite gives to a parameter, with its path in the suite."""

    value: Any
    path: Path


def route(key: str, fields: Sequence[str]) -> tuple[Target, str]:
    """Says what a key sets.

    Args:
        key: `protocol.lr`, `aggregator.lambda_s`, `backbone.model`, or a bare key for the aggregator or the protocol.
        fields: Parameters of the aggregator in question.

    Returns:
        `protocol` or the axis of a plugin, and the parameter's name. Parameters of plugins other than the aggregator
        are not checked here.

    Raises:
        ValueError: If nothing has that key, or both the aggregator and the protocol have it.

    Example:
        >>> route("lr", ["lambda_s"])
        ('protocol', 'lr')
    """
    head, dot, name = key.partition(".")
    protocol = list(Protocol.model_fields)
    if not dot:
        if key in fields and key in protocol:
            raise ValueError(f"key {key!r} is ambiguous: write 'aggregator.{key}' or 'protocol.{key}'")
        if key in fields:
            return "aggregator", key
        if key in protocol:
            return "protocol", key
        raise ValueError(f"unknown key {key!r}{nearest(key, [*fields, *protocol])}")
    if head == "protocol":
        if name not in protocol:
            raise ValueError(f"unknown key {name!r} of the protocol{nearest(name, protocol)}")
        return "protocol", name
    if head == "aggregator" and name not in fields:
        raise ValueError(f"unknown key {name!r}{nearest(name, fields)}")
    for axis in PLUGIN_KINDS:
        if head == axis:
            return axis, name
    raise ValueError(f"unknown key {key!r}{nearest(head, [*PLUGIN_KINDS, 'protocol'])}")
