"""Each forgery of a published result is named at its line; what cannot be seen so is seen by training again."""

import json
import re
from pathlib import Path

import pytest

from fcilbench.execution.data_check import data_problems
from fcilbench.registry import catalog
from fcilbench.results.verify import verify

from . import forge
from .forgeries import FORGERIES, NOT_SEEN, plausible

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT / "leaderboards" / "quickstart"


def problems(store):
    found = verify(store)
    return [*found.problems, *data_problems(found.rows, lambda _: None)]


@pytest.fixture(scope="module", autouse=True)
def one_worker():
    """One process answers for all tests: its start takes longer than all of them."""
    with catalog.session():
        yield


@pytest.fixture(scope="module")
def published():
    return json.dumps(vars(forge.read(PUBLISHED)))


@pytest.fixture
def folder(published):
    return forge.Folder(**json.loads(published))


def test_what_is_written_back_unchanged_has_no_problem(folder, tmp_path):
    assert problems(forge.write(folder, tmp_path / "mine")) == []


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forgery_is_named_at_its_line(name, folder, tmp_path):
    change, says, line = FORGERIES[name]
    change(folder)
    found = problems(forge.write(folder, tmp_path / "mine"))
    assert any(number == line and says in text for number, text in found), found
    assert not [text for _, text in found if "cannot be checked" in text]
