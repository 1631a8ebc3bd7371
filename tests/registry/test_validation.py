from pathlib import Path
from typing import Literal

import pytest
from pydantic import ValidationError, field_validator, model_validator

from fcilbench.errors import Problem
from fcilbench.registry.validation import explain, validate
from fcilbench.spec.params import Field, Params


class Plain(Params):
    rate: float = Field(0.5, gt=0.0)
    steps: int = 1
    shape: tuple[int, ...] = ()
    path: Path | None = None
    mode: Literal["fast", "exact"] = "fast"
    on: bool = False


class Behind(Plain):
    """A validator in Python stands before the fields."""

    @model_validator(mode="before")
    @classmethod
    def _before(cls, raw):
        return raw


class Checked(Params):
    low: int = 1
    high: int = 2

    @field_validator("low")
    @classmethod
    def _even(cls, value):
        if value == 13:
            raise ValueError("13 is unlucky")
        return value

    @model_validator(mode="after")
    def _ordered(self):
        if self.low > self.high:
            raise ValueError("low must not be above high")
        return self


@pytest.mark.parametrize("model", [Plain, Behind])
def test_what_yaml_writes_is_taken(model):
    found = validate(model, {"rate": 1, "shape": [1, 2], "path": "a/b", "mode": "exact", "on": True})
    assert (found.rate, found.shape, found.path) == (1.0, (1, 2), Path("a/b"))


@pytest.mark.parametrize("model", [Plain, Behind])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rate": "0.5"}, 'rate: "0.5" is not a valid number'),
        ({"steps": 1.0}, "steps: 1.0 is not a valid integer"),
        ({"on": "yes"}, 'on: "yes" is not a valid boolean'),
        ({"on": 1}, "on: 1 is not a valid boolean"),
        ({"steps": None}, "steps: null is not a valid integer"),
        ({"rate": 0}, "rate: 0 is not greater than 0"),
        ({"mode": "exat"}, "mode: \"exat\" is not 'fast' or 'exact' (did you mean 'exact'?)"),
        ({"raet": 1}, "unknown key 'raet' (did you mean 'rate'?)"),
    ],
)
def test_nothing_is_coerced(model, options, message):
    with pytest.raises(ValidationError) as hit:
        validate(model, options)
    assert [problem.message for problem in explain(hit.value, model)] == [message]


@pytest.mark.parametrize(
    ("low", "problem"),
    [(13, Problem("low: 13 is unlucky", ("low",))), (3, Problem("low must not be above high"))],
)
def test_the_authors_own_messages_come_through(low, problem):
    with pytest.raises(ValidationError) as hit:
        validate(Checked, {"low": low})
    assert explain(hit.value, Checked) == [problem]


def test_long_values_are_cut():
    with pytest.raises(ValidationError) as hit:
        validate(Plain, {"steps": "x" * 500})
    assert len(explain(hit.value, Plain)[0].message) < 100
