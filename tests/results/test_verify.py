"""What `results verify` says of honest folders; test_forgeries.py has those that are not."""

import shutil
from pathlib import Path

import pytest

from fcilbench.errors import UsageError
from fcilbench.results.store import Store
from fcilbench.results.verify import verify

BOARDS = Path(__file__).parents[2] / "leaderboards"
PUBLISHED = BOARDS / "quickstart"


@pytest.fixture
def store(tmp_path):
    shutil.copytree(PUBLISHED, tmp_path / "mine")
    return Store(tmp_path / "mine")


def test_a_published_folder_has_no_problem(store):
    found = verify(store)
    assert (found.problems, found.notes) == ([], [])
    assert len(found.rows) == len(list(store.scan())) > 0
    with pytest.raises(UsageError, match=r"holds no rows\.jsonl"):
        verify(Store(store.root / "cells"))


@pytest.mark.parametrize("name", sorted(path.parent.name for path in BOARDS.glob("*/rows.jsonl")))
def test_every_published_folder_is_clean(name):
    """Rows of schemas 3 and 4, methods that train nothing, the centralised reference, resumed cells, lock files."""
    found = verify(Store(BOARDS / name))
    assert found.problems == []
    assert found.rows


def test_an_environment_is_read_once_and_named_for_each_of_its_rows(store):
    row = next(store.scan())
    environment = store.environment_path(row.env)
    environment.write_text(environment.read_text().replace("python", "snake"))
    others = sum(other.env == row.env for other in store.scan())
    assert 1 < others == sum("is another" in text for _, text in verify(store).problems)
