"""The kit as pytest classes: one test a law.

A plugin's whole test file can be:

    from fcilbench.testing import AggregatorConformance

    class TestGossip(AggregatorConformance):
        plugin = "acme-fcil/gossip"
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from fcilbench.api.backbone import Backbone
from fcilbench.testing.kit import LAWS, Case, case
from fcilbench.testing.law import Law


class _Conformance:
    """Base of the three classes.

    Attributes:
        plugin: Name of the plugin, `dist/name`.
        params: Hyperparameters that differ from the defaults.
        kind: Kind of plugin.
    """

    plugin: ClassVar[str]
    params: ClassVar[Mapping[str, Any]] = {}
    kind: ClassVar[str]

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """Makes one test of each law; pytest calls it."""
        import pytest

        if "law" not in metafunc.fixturenames:
            return
        known = [line.partition(":")[0].strip() for line in metafunc.config.getini("markers")]
        gpu = [pytest.mark.gpu] if "gpu" in known else []
        laws = [pytest.param(law, id=law.id, marks=gpu if law.gpu else ()) for law in LAWS[self.kind]]
        metafunc.parametrize("law", laws)

    def test_law(self, law: Law[Any]) -> None:
        """Fails with the law, what was seen and a way out."""
        import pytest

        verdict = _case(type(self)).judge(law)
        if verdict.status == "skipped":
            pytest.skip(verdict.found)
        if verdict.status == "broken":
            pytest.fail(f"{self.plugin}: {verdict}\n{verdict.trace}", pytrace=False)

    @classmethod
    def case(cls) -> Case:
        """Returns the plugin ready to be judged; made once a class."""
        return case(cls.kind, cls.plugin, cls.params)


_CASES: dict[type[_Conformance], Case] = {}


def _case(cls: type[_Conformance]) -> Case:
    if cls not in _CASES:
        _CASES[cls] = cls.case()
    return _CASES[cls]


class AggregatorConformance(_Conformance):
    """The laws of aggregators, checked on digits with a small network.

    Attributes:
        backbone: Makes the network, where the method needs another than the kit's (`staticmethod(...)`).
    """

    kind = "aggregators"
    backbone: ClassVar[Callable[[], Backbone] | None] = None

    @classmethod
    def case(cls) -> Case:
        """Returns the aggregator on its bench."""
        return case(cls.kind, cls.plugin, cls.params, network=cls.backbone)


class BackboneConformance(_Conformance):
    """The laws of backbones."""

    kind = "backbones"


class DatasetConformance(_Conformance):
    """The laws of data sets; those that read the data are skipped where they are not there.

    Attributes:
        root: Data root; `None` for the default.
    """

    kind = "datasets"
    root: ClassVar[Path | None] = None

    @classmethod
    def case(cls) -> Case:
        """Returns the data set at its data root."""
        return case(cls.kind, cls.plugin, cls.params, root=cls.root)
