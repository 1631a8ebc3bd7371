"""The kit without pytest: finds a plugin, checks the laws of its kind, returns verdicts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from fcilbench.api.backbone import Backbone
from fcilbench.errors import UsageError, nearest
from fcilbench.registry import entrypoints
from fcilbench.registry.entrypoints import PluginRef
from fcilbench.spec.plugin import Plugin
from fcilbench.testing.bench import Bench, quiet_torch
from fcilbench.testing.law import Law, Verdict, judge, unknown_laws
from fcilbench.testing.laws import aggregator, backbone, dataset
from fcilbench.testing.laws.backbone import BackboneSubject
from fcilbench.testing.laws.dataset import DatasetSubject
from fcilbench.testing.subject import AggregatorSubject

LAWS: Mapping[str, Sequence[Law[Any]]] = {
    "aggregators": aggregator.LAWS,
    "backbones": tuple(backbone.LAWS),
    "datasets": tuple(dataset.LAWS),
}
"""The laws of each kind of plugin that has some."""


@dataclass(frozen=True)
class Case:
    """A plugin with hyperparameters, ready to be judged.

    Attributes:
        ref: Where the plugin is.
        subject: What the laws of its kind take; it keeps what several of them need.
        laws: The laws of its kind.
    """

    ref: PluginRef
    subject: Any
    laws: Sequence[Law[Any]]

    @property
    def breaks(self) -> Mapping[str, str]:
        """Laws that the plugin declares to break."""
        plugin: Plugin = self.subject.make()
        return plugin.breaks

    def judge(self, law: Law[Any]) -> Verdict:
        """Checks one law, with one torch thread; a declaration speaks of the default hyperparameters."""
        wrong = unknown_laws(self.breaks, self.laws) if law.id == "contract" else []
        if wrong:
            return Verdict(law.id, law.statement, "broken", f"`breaks`: {'; '.join(wrong)}", "see `plugins test`")
        with quiet_torch():
            return judge(law, self.subject, self.breaks, demand=not self.subject.options)

    def verdicts(self) -> Iterator[Verdict]:
        """Checks all laws, one after the other."""
        return map(self.judge, self.laws)


def case(
    kind: str,
    name: str,
    options: Mapping[str, Any] | None = None,
    *,
    network: Callable[[], Backbone] | None = None,
    root: Path | None = None,
) -> Case:
    """Finds a plugin and makes it ready.

    Args:
        kind: `aggregators`, `backbones` or `datasets`.
        name: Short name or `dist/name`.
        options: Hyperparameters that differ from the defaults.
        network: Makes the backbone on which an aggregator is tried, instead of the kit's own.
        root: Data root for data sets.

    Raises:
        UsageError: If there is no such plugin, no laws for its kind, or its hyperparameters are not valid.
        BrokenPluginError: If it cannot be imported.
    """
    if kind not in LAWS:
        raise UsageError(f"there are no laws for {kind}{nearest(kind, LAWS)}")
    ref = entrypoints.lookup(kind, name)
    cls, given = entrypoints.load(ref), dict(options or {})
    if not issubclass(cls, Plugin):
        raise UsageError(
            f"{ref.name} ({ref.target}) does not derive from fcilbench.api.{kind.removesuffix('s').title()}"
        )
    try:
        cls.Params.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UsageError(
            f"{ref.name}: {where}: {first['msg']}", hint=f"set it, e.g. --set {where or 'name'}=VALUE"
        ) from error
    plugin = cast(type[Any], cls)
    subject: AggregatorSubject | BackboneSubject | DatasetSubject
    if kind == "aggregators":
        subject = AggregatorSubject(plugin, ref.module, given, Bench() if network is None else Bench(network))
    elif kind == "backbones":
        subject = BackboneSubject(plugin, ref.module, given)
    else:
        subject = DatasetSubject(plugin, ref.module, given, root)
    return Case(ref, subject, LAWS[kind])
