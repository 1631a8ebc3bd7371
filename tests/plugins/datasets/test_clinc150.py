"""CLINC150, toy and real; s18: labels that shift where out-of-scope is taken for a class (clinc/oos-eval#2)."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from fcilbench.data.open import open_dataset
from fcilbench.errors import DataError
from fcilbench.plugins.datasets.clinc150 import Clinc150

ROOT = Path(os.environ.get("FCILBENCH_DATA", ""))
needs_data = pytest.mark.skipif(
    not (ROOT / "clinc150" / "data_full.json").is_file(), reason="FCILBENCH_DATA has no clinc150/data_full.json"
)


def write(tmp_path, record):
    (tmp_path / "clinc150").mkdir()
    (tmp_path / "clinc150" / "data_full.json").write_text(json.dumps(record))
    return tmp_path


def toy(*intents):
    pairs = [[f"{intent} {i}", intent] for intent in intents for i in range(2)]
    return {"train": pairs, "test": pairs, "oos_test": [["what", "oos"]]}


def test_s18_oos_is_left_out_by_name_not_by_number(tmp_path):
    corpus = Clinc150().load(write(tmp_path, toy("z", "oos", "b", "a")))
    assert corpus.class_names == ("a", "b", "z")
    assert len(corpus.train) == 6
    assert dict(zip(corpus.train.inputs, corpus.train.labels.tolist(), strict=True))["z 0"] == 2
    assert corpus.outside.tolist() == ["what"]


def test_missing_damaged_and_foreign_files_say_what_to_do(tmp_path):
    with pytest.raises(DataError, match="cannot be read: No such file") as error:
        Clinc150().load(tmp_path)
    assert "data_full.json" in error.value.hint
    root = write(tmp_path, {"train": []})
    with pytest.raises(DataError, match="has no split or no training queries 'test'"):
        Clinc150().load(root)
    (root / "clinc150" / "data_full.json").write_text("{")
    with pytest.raises(DataError, match="is not the official file"):
        Clinc150().load(root)


@needs_data
def test_s18_the_real_file():
    corpus, digest = open_dataset(Clinc150(), ROOT)
    assert (len(corpus.class_names), len(corpus.train), len(corpus.test), len(corpus.outside)) == (
        150,
        15000,
        4500,
        1000,
    )
    assert {int(c) for c in np.bincount(corpus.train.labels)} == {100}
    assert {int(c) for c in np.bincount(corpus.test.labels)} == {30}
    assert digest == Clinc150.fingerprint
    assert len(set(corpus.train.inputs) & set(corpus.test.inputs)) == 2
