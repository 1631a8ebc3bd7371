"""What the registry says about plugins: plain records that travel as JSON between it and its child process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fcilbench.registry.entrypoints import PluginRef


@dataclass(frozen=True)
class FieldDescription:
    """One hyperparameter of a plugin.

    Attributes:
        name: Its key in a suite.
        type: Its type, as the author wrote it, e.g. `float` or `int | None`.
        required: Whether it has no default.
        default: Default value, JSON-compatible.
        description: What it means.
        source: Where the default comes from.
        space: Search space for tuning (`low`, `high`, `log`, `choices`), or `None`.
    """

    name: str
    type: str
    required: bool = False
    default: Any = None
    description: str = ""
    source: str | None = None
    space: dict[str, Any] | None = None


@dataclass(frozen=True)
class Description:
    """One plugin as `plugins show` prints it.

    Attributes:
        ref: Where it is.
        version: The plugin's declared version.
        summary: First line of its docstring.
        fields: Its hyperparameters, in the author's order.
        schema: JSON Schema of its `Params`.
        facts: What its class declares: counts, default tasks, licence, traits.
        origin: `file:line` of the class.
        import_ms: Milliseconds its import took, that of torch not counted.
        code_digest: Digest of its normalised source (see `fcilbench.registry.digest`).
        problem: Why it is broken, or `None`.
    """

    ref: PluginRef
    version: str = ""
    summary: str = ""
    fields: tuple[FieldDescription, ...] = ()
    schema: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    origin: str = ""
    import_ms: float = 0.0
    code_digest: str = ""
    problem: str | None = None

    @property
    def traits(self) -> dict[str, Any]:
        """The columns of the comparison table that an aggregator declares."""
        return dict(self.facts.get("traits", {}))

    @property
    def field_names(self) -> tuple[str, ...]:
        """Legal keys of the plugin in a suite."""
        return tuple(each.name for each in self.fields)


@dataclass(frozen=True)
class Use:
    """A plugin with the options that a suite gives it.

    Attributes:
        ref: The plugin.
        options: Values by parameter, JSON-compatible.
    """

    ref: PluginRef
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with the options of a plugin.

    Attributes:
        loc: Path to the value within the options; empty if the options as a whole are wrong.
        message: What is wrong, with the nearest legal word where there is one.
        hint: What to do about it.
    """

    loc: tuple[str | int, ...]
    message: str
    hint: str | None = None


@dataclass(frozen=True)
class Resolved:
    """A plugin whose options are valid.

    Attributes:
        use: What was asked.
        version: The plugin's declared version.
        params: Every parameter, defaults filled in.
        identity: What of the parameters identifies a cell.
        facts: What the class declares.
        code_digest: Digest of its normalised source.
    """

    use: Use
    version: str
    params: dict[str, Any]
    identity: dict[str, Any]
    facts: dict[str, Any]
    code_digest: str


@dataclass(frozen=True)
class Unresolved:
    """A plugin that cannot be used with these options.

    Attributes:
        use: What was asked.
        problems: Why.
        prerequisite: Whether something is missing on this machine (a weight file, a package), so that the suite
            itself may be right.
    """

    use: Use
    problems: tuple[Problem, ...]
    prerequisite: bool = False
