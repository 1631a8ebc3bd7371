"""Presets: one place resolves them, single options win."""

from typing import ClassVar

import pytest
from pydantic import ValidationError

from fcilbench.registry.validation import validate
from fcilbench.spec.params import Field, PresetParams


class Mine(PresetParams):
    presets: ClassVar = {"original": {"alpha": 2.0, "few": None}}

    alpha: float = Field(1.0, ge=0)
    few: int | None = Field(3, ge=1)


def test_a_preset_fills_and_a_single_option_overrides():
    assert Mine().model_dump() == {"preset": "default", "alpha": 1.0, "few": 3}
    assert Mine(preset="original").model_dump() == {"preset": "original", "alpha": 2.0, "few": None}
    mine = Mine(preset="original", alpha=1.0)
    assert (mine.alpha, mine.few) == (1.0, None)
    assert Mine(**mine.model_dump()) == mine


def test_options_from_a_suite_are_as_strict_as_without_a_preset():
    assert validate(Mine, {"preset": "original"}).alpha == 2.0
    for wrong in ({"preset": "peer"}, {"preset": ["original"]}, {"preset": "original", "alpha": "1"}, {"alhpa": 1.0}):
        with pytest.raises(ValidationError):
            validate(Mine, wrong)
