"""20 Newsgroups, by hand and on the real messages.

s17: headers that give the label away, and messages that are empty without them (ZixuanKe/PyContinual#5).
"""

import os
from pathlib import Path

import pytest

from fcilbench.data.open import open_dataset
from fcilbench.errors import DataError
from fcilbench.plugins.datasets.newsgroups20 import Newsgroups20, clean

ROOT = Path(os.environ.get("FCILBENCH_DATA", ""))
needs_data = pytest.mark.skipif(
    not (ROOT / "20_newsgroups").is_dir(), reason="FCILBENCH_DATA has no 20_newsgroups folder"
)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("Newsgroups: a.b\n\nhello", "hello"),
        ("Newsgroups: a.b\n\n", ""),
        ("> quoted\n", ""),
        ("From: x\n\nJoe writes:\n> old\nnew words", "new words"),
        ("From: x\n\nbody line\n\n-- \nJoe, the signature", "body line"),
        ("no header here: fine\nsecond", "no header here: fine\nsecond"),
        ("From: x\n\n< odd quote\nbody", "< odd quote\nbody"),
    ],
)
def test_s17_cleaning(message, expected):
    assert clean(message) == expected


class Few(Newsgroups20):
    test_samples = 2


def test_empty_messages_are_dropped_and_the_split_is_by_content(tmp_path):
    group = tmp_path / "20_newsgroups" / "a.b"
    group.mkdir(parents=True)
    for number in range(10):
        (group / str(number)).write_text(f"Newsgroups: a.b\n\nmessage {number}", encoding="latin-1")
    (group / "empty").write_text("Newsgroups: a.b\n\n> only a quote\n", encoding="latin-1")
    corpus = Few().load(tmp_path)
    assert (len(corpus.train), len(corpus.test)) == (8, 2)
    for number in range(10):
        (group / str(number)).rename(group / f"renamed-{9 - number}")
    again = Few().load(tmp_path)
    assert sorted(again.test.inputs) == sorted(corpus.test.inputs)


def test_a_missing_folder_says_what_to_put_there(tmp_path):
    with pytest.raises(DataError, match="has no newsgroups") as error:
        Newsgroups20().load(tmp_path)
    assert "20news-19997" in error.value.hint


@needs_data
def test_s17_the_real_messages():
    corpus, digest = open_dataset(Newsgroups20(), ROOT)
    assert (len(corpus.class_names), len(corpus.train) + len(corpus.test)) == (20, 19_997 - 56)
    assert digest == Newsgroups20.fingerprint
    # Forwarded messages, whose body begins with a header of its own; no message keeps the one it came with.
    assert sum(text.startswith("Newsgroups:") for text in [*corpus.train.inputs, *corpus.test.inputs]) == 12
    assert all(text.strip() for text in corpus.test.inputs)


def test_what_systems_leave_behind_is_passed_over_and_folders_are_told(tmp_path):
    """A `.DS_Store` became a message more, a folder an IsADirectoryError, a hidden folder a 21st class."""
    group = tmp_path / "20_newsgroups" / "a.b"
    group.mkdir(parents=True)
    for number in range(10):
        (group / str(number)).write_text(f"Newsgroups: a.b\n\nmessage {number}", encoding="latin-1")
    clean_corpus = Few().load(tmp_path)
    (group / ".DS_Store").write_text("Bud1")
    (group / "old").mkdir()
    (tmp_path / "20_newsgroups" / ".git").mkdir()
    (tmp_path / "20_newsgroups" / "__MACOSX").mkdir()
    corpus = Few().load(tmp_path)
    assert corpus.class_names == ("a.b",)
    assert [*corpus.train.inputs, *corpus.test.inputs] == [*clean_corpus.train.inputs, *clean_corpus.test.inputs]
    assert clean_corpus.remarks == ()
    assert corpus.remarks == ("folders within newsgroups are passed over: a.b/old",)
    (tmp_path / "20_newsgroups" / "notes").mkdir()
    with pytest.raises(DataError, match="20_newsgroups/notes has no messages"):
        Few().load(tmp_path)
