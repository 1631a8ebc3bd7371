"""Finds a plugin and runs the checks of its kind, as pytest classes or without pytest.

A plugin's whole test file can be:

    from fcilbench.testing import AggregatorConformance

    class TestGossip(AggregatorConformance):
        plugin = "acme-fcil/gossip"
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, cast

from pydantic import ValidationError

from fcilbench.api import Backbone, Plugin
from fcilbench.errors import PrerequisiteError, UsageError, nearest
from fcilbench.registry import entrypoints
from fcilbench.registry.validation import explain, validate
from fcilbench.spec.cell import KINDS_WITH_PARAMS
from fcilbench.testing import boards, client, executors, merging, state, stressors, trackers
from fcilbench.testing.bench import BENCHES, Bench, quiet_torch
from fcilbench.testing.cells import PluginSubject
from fcilbench.testing.check import SHARED, Check, CheckFailed, NotApplicable, Result, Status
from fcilbench.testing.others import BACKBONE_CHECKS, DATASET_CHECKS, BackboneSubject, DatasetSubject
from fcilbench.testing.selectors import SELECTOR_CHECKS, SelectorSubject
from fcilbench.testing.subject import AggregatorSubject

CHECKS: Mapping[str, Sequence[Check[Any]]] = {
    "aggregators": (*SHARED, *merging.CHECKS, *state.CHECKS, *client.CHECKS),
    "backbones": BACKBONE_CHECKS,
    "datasets": DATASET_CHECKS,
    "stressors": stressors.CHECKS,
    "selectors": SELECTOR_CHECKS,
    "executors": executors.CHECKS,
    "boards": boards.CHECKS,
    "trackers": trackers.CHECKS,
}
"""The checks of each kind of plugin, in the order in which they are reported."""


@dataclass(frozen=True)
class Case:
    """A plugin with hyperparameters, ready to be checked.

    Attributes:
        subjects: The plugin on each of its benches; a subject keeps the runs that several checks need.
        demand: Whether a declared check must fail: `breaks` holds for the default hyperparameters only.
        params: The hyperparameters that differ from the defaults.
        causes: Exceptions so far, each with the check that met it first.

    Raises:
        UsageError: If `breaks` names an unknown check or gives no reason.
    """

    kind: str
    subjects: Sequence[Any]
    breaks: Mapping[str, str] = field(default_factory=dict)
    demand: bool = True
    params: Mapping[str, Any] = field(default_factory=dict)
    causes: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        known = [check.id for check in CHECKS[self.kind]]
        for id_, reason in self.breaks.items():
            if id_ not in known:
                raise UsageError(f"`breaks` names {id_!r}, which is no check{nearest(id_, known)}")
            if not str(reason).strip():
                raise UsageError(f"`breaks` gives no reason for {id_!r}", hint="say why it fails by nature")

    def run(self, check: Check[Any]) -> Result:
        """Runs one check on every subject; returns the first failure, else `passed` if one passed, else `skipped`.

        A declared check must fail on some bench (`demand`), and not by an exception. An exception that an earlier check
        met is not reported again.
        """
        reason, skips, passed = self.breaks.get(check.id), list[str](), False

        def result(status: Status, found: str = "", fix: str = "", trace: str = "") -> Result:
            return Result(check.id, check.statement, status, found, fix, trace)

        for subject in self.subjects:
            where = getattr(subject, "where", "")
            on = f" (on the kit's {where})" if where else ""
            try:
                with quiet_torch():
                    check.function(subject)
                passed = True
            except (NotApplicable, PrerequisiteError) as answer:
                skips.append(str(answer))
            except CheckFailed as finding:
                if reason is not None:
                    return result("declared", f"{reason} ({finding}{on})")
                return result("failed", f"{finding}{on}", check.fix)
            except Exception as error:
                trace = traceback.format_exc()
                innermost = trace.rpartition('  File "')[2]  # where it was raised, and the message
                if (first := self.causes.setdefault(innermost, check.id)) != check.id:
                    return result("skipped", f"fails with the same error as {first!r}")
                found = f"{type(error).__name__}: {' '.join(str(error).split())}{on}"
                return result("failed", found, check.fix, trace)
        if passed and reason is not None and self.demand:
            found = f"`breaks` says that the plugin fails this check ({reason}), but it passes"
            return result("failed", found, f"remove {check.id!r} from `breaks`")
        status: Status = "passed" if passed else "failed" if check.required else "skipped"
        return result(status, "" if passed else "; ".join(dict.fromkeys(skips)))

    def results(self) -> Iterator[Result]:
        """Runs all checks, one after the other."""
        return map(self.run, CHECKS[self.kind])


def case(
    kind: str,
    name: str,
    options: Mapping[str, Any] | None = None,
    *,
    network: Callable[[], Backbone] | None = None,
    root: Path | None = None,
) -> Case:
    """Finds a plugin and prepares its checks.

    `options` are hyperparameters that differ from the defaults; without any, those of `Plugin.kit_params`. `network`
    makes the backbone on which an aggregator is tried, instead of the kit's own two; `root` is the data root.

    Raises:
        UsageError: If the plugin, checks of its kind, or one of its hyperparameters does not exist or is not valid.
    """
    if kind not in CHECKS:
        raise UsageError(f"there are no checks for {kind}{nearest(kind, CHECKS)}")
    ref = entrypoints.lookup(kind, name)
    cls = entrypoints.load(ref)
    if kind not in KINDS_WITH_PARAMS:  # of the half without torch: no hyperparameters, so no identity
        given = dict(options or {})
        if given and kind != "executors":
            raise UsageError(f"{ref.name}: {kind} take no parameters")
        return Case(kind, [PluginSubject(ref, cls, given)], getattr(cls, "breaks", {}), demand=not given)
    if not issubclass(cls, Plugin):
        base = kind.removesuffix("s").title()
        raise UsageError(f"{ref.name} ({ref.target}) does not derive from fcilbench.api.{base}")
    given = dict(options or cls.kit_params)
    try:
        validate(cls.Params, given)
    except ValidationError as error:
        problem = explain(error, cls.Params)[0].message
        raise UsageError(f"{ref.name}: {problem}", hint="set it, e.g. --set NAME=VALUE") from error
    plugin = cast(type[Any], cls)
    subjects: list[Any]
    if kind == "aggregators":
        benches = BENCHES if network is None else (Bench("own network", network),)
        subjects = [AggregatorSubject(plugin, given, bench) for bench in benches]
    elif kind == "selectors":
        subjects = [SelectorSubject(plugin, given, bench) for bench in BENCHES]
    elif kind == "backbones":
        subjects = [BackboneSubject(plugin, given)]
    elif kind == "stressors":
        subjects = [stressors.StressorSubject(plugin, given)]
    else:
        subjects = [DatasetSubject(plugin, given, root)]
    return Case(kind, subjects, cls.breaks, demand=not options, params=given)


class _Conformance:
    """Base of the classes below, one for each kind, with one test for each check.

    `plugin` is a name or `dist/name`, `params` the hyperparameters, or an executor's options, that differ from the
    defaults, `backbone` a
    `staticmethod` that makes the network on which an aggregator is tried, and `root` the data root.
    """

    plugin: ClassVar[str]
    params: ClassVar[Mapping[str, Any]] = {}
    kind: ClassVar[str]
    backbone: ClassVar[Callable[[], Backbone] | None] = None
    root: ClassVar[Path | None] = None

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """Makes one test of each check; pytest calls it."""
        import pytest

        if "check" in metafunc.fixturenames:
            known = [line.partition(":")[0].strip() for line in metafunc.config.getini("markers")]
            gpu = [pytest.mark.gpu] if "gpu" in known else []
            checks = [pytest.param(each, id=each.id, marks=gpu if each.gpu else ()) for each in CHECKS[self.kind]]
            metafunc.parametrize("check", checks)

    def test_check(self, check: Check[Any]) -> None:
        """Runs one check of the kit on the plugin: it fails, or is skipped with a reason, as the check says."""
        import pytest

        result = self.case().run(check)
        if result.status == "skipped":
            pytest.skip(result.found)
        if result.status == "failed":
            pytest.fail(f"{self.plugin}: {result}\n{result.trace}", pytrace=False)

    @classmethod
    @cache
    def case(cls) -> Case:
        """Returns the plugin ready to be checked; it is made once for a class."""
        return case(cls.kind, cls.plugin, cls.params, network=cls.backbone, root=cls.root)


class AggregatorConformance(_Conformance):
    """The checks of aggregators, on digits with two small networks."""

    kind = "aggregators"


class BackboneConformance(_Conformance):
    """The checks of backbones."""

    kind = "backbones"


class DatasetConformance(_Conformance):
    """The checks of data sets; those that read the data are skipped if the data are missing."""

    kind = "datasets"


class StressorConformance(_Conformance):
    """The checks of stressors, on digits with a small network."""

    kind = "stressors"


class SelectorConformance(_Conformance):
    """The checks of selectors, on digits with two small networks."""

    kind = "selectors"


class ExecutorConformance(_Conformance):
    """The checks of executors, with processes that train nothing."""

    kind = "executors"


class BoardConformance(_Conformance):
    """The checks of boards."""

    kind = "boards"


class TrackerConformance(_Conformance):
    """The checks of trackers."""

    kind = "trackers"
