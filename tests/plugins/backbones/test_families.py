"""Families of text models give the library's features or are refused in one clear line (benchmarks/families.py)."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

SPEC = spec_from_file_location("families", Path(__file__).parents[3] / "benchmarks" / "families.py")
assert SPEC is not None
assert SPEC.loader is not None
families: Any = module_from_spec(SPEC)
SPEC.loader.exec_module(families)


@pytest.mark.parametrize("family", ["layoutlm", "squeezebert", "splinter", "markuplm", "reformer", "bert"])
def test_a_family_gives_the_features_of_the_library(family: str) -> None:
    """LayoutLM and SqueezeBERT call their pooler in any case; Splinter and MarkupLM have eager attention alone.

    Reformer has twice as many features as its `hidden_size` says.
    """
    row = families.family_row(family)
    assert row["verdict"] == "works", row


@pytest.mark.parametrize(
    ("family", "reason"),
    [
        ("bros", "MODEL does not read texts alone: ValueError: You have to specify bbox"),
        ("perceiver", "MODEL does not read texts alone: TypeError: PerceiverModel.forward() missing 1 required"),
        ("xmod", "MODEL does not read texts alone: ValueError: Input language unknown."),
        ("nystromformer", "MODEL gives a text other features when it is padded: choose another model"),
        ("mbart", "MODEL is an encoder-decoder: choose an encoder"),
    ],
)
def test_a_family_that_needs_more_than_texts_is_refused(family: str, reason: str) -> None:
    row = families.family_row(family)
    assert row["verdict"] == "refused"
    assert row["detail"].startswith(reason)


@pytest.mark.slow
def test_no_family_fails_in_another_way() -> None:
    """About 12 seconds of the processor for 75 families."""
    families.quiet()
    rows = [families.family_row(family) for family in families.families()]
    assert [row for row in rows if row["verdict"] == "broken"] == []
    assert sum(row["verdict"] == "works" for row in rows) >= 40
    assert all("\n" not in row["detail"] for row in rows)


def test_the_table_of_old_names() -> None:
    rows = {row["old name"]: row for row in families.name_rows()}
    assert list(rows["vit_base_patch16_224_in21k"].values()) == [
        "vit_base_patch16_224_in21k",
        "vit_base_patch16_224.augreg_in21k",
        "vit_base_patch16_224.augreg_in21k",
        *("0.5, 0.5, 0.5", "0.5, 0.5, 0.5", "224"),
    ]
    assert rows["mixer_b16_224_in21k"]["here"].startswith("refused: timm ")
