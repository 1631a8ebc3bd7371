"""The clean federation."""

from __future__ import annotations

from fcilbench.api import Stressor


class NoStress(Stressor):
    """Nothing goes wrong; the reference that every stressor is paired with."""
