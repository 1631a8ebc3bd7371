"""The base class of plugins: a class with a version and nested `Params`; an instance has one set of values."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from fcilbench.spec import params as _params


class Plugin:
    """Base of aggregators, backbones, datasets and stressors.

    Attributes:
        version: Raised by the author whenever the plugin's results change; part of a cell's identity.
        params: The validated hyperparameters of this instance.
        breaks: Checks of the conformance kit (`fcilbench.testing`) that the plugin fails by nature, each with the
            reason; the kit tests that it fails them.
        kit_params: Hyperparameters with which the kit tries the plugin if it is given none: small enough for its
            networks of 16 features and for seconds on a CPU. A plugin whose defaults are small needs none.
    """

    version: ClassVar[str] = "1"
    breaks: ClassVar[Mapping[str, str]] = {}
    kit_params: ClassVar[Mapping[str, Any]] = {}

    class Params(_params.Params):
        """A plugin without hyperparameters."""

    params: Any

    def __init_subclass__(cls) -> None:
        """Refuses a misspelt hook: the inherited one would run under the plugin's name.

        Raises:
            TypeError: If a public method has nearly the name of an inherited one.
        """
        super().__init_subclass__()
        inherited = {name: getattr(base, name) for base in cls.__bases__ for name in dir(base)}
        hooks = [name for name, value in inherited.items() if name[0] != "_" and callable(value)]
        for name in sorted(vars(cls).keys() - hooks):
            close = difflib.get_close_matches(name, hooks, n=1, cutoff=0.8)
            if close and name[0] != "_" and callable(getattr(cls, name)):
                raise TypeError(
                    f"method `{name}` of class {cls.__name__} is no hook; did you mean `{close[0]}`? "
                    "Name helpers with a leading underscore"
                )

    def __init__(self, params: _params.Params | None = None) -> None:
        self.params = self.Params() if params is None else params

    @classmethod
    def facts(cls) -> dict[str, Any]:
        """Returns JSON-compatible facts for plans, boards and `plugins show`."""
        return {}

    def instance_facts(self) -> dict[str, Any]:
        """Returns the facts that depend on the hyperparameters; they override those of `facts`."""
        return {}

    def identity(self) -> dict[str, Any]:
        """Returns the hyperparameters that are part of a cell's identity: those that are not at their default.

        Override it if a value is the path of a file: return a digest of the file's content in place of the path.

        Raises:
            PrerequisiteError: If the file is not on this machine.
        """
        return _params.non_defaults(self.params)

    def files(self) -> list[Path]:
        """Returns the files whose content `identity` depends on."""
        return []
