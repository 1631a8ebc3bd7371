from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fcilbench.api.dataset import Augmentation
from fcilbench.data.open import open_dataset
from fcilbench.errors import DataError
from fcilbench.plugins.datasets.digits import Digits


def test_content_and_split(tmp_path: Path) -> None:
    corpus, digest = open_dataset(Digits(), tmp_path)
    assert digest == Digits.fingerprint
    assert corpus.class_names == tuple("0123456789")
    assert corpus.train.inputs.shape == (1438, 8, 8, 1)
    assert corpus.train.inputs.dtype == np.uint8
    # Class sizes 178 182 177 183 181 182 181 179 174 180 (UCI), a fifth of each, rounded.
    assert np.bincount(corpus.test.labels).tolist() == [36, 36, 35, 37, 36, 36, 36, 36, 35, 36]
    assert np.bincount(corpus.train.labels).tolist() == [142, 146, 142, 146, 145, 146, 145, 143, 139, 144]
    assert not {each.tobytes() for each in corpus.train.inputs} & {each.tobytes() for each in corpus.test.inputs}
    # n * 255 / 16 for n = 0..16, rounded half to even (only n = 8 is a half: 127.5).
    scale = [0, 16, 32, 48, 64, 80, 96, 112, 128, 143, 159, 175, 191, 207, 223, 239, 255]
    assert np.unique(corpus.train.inputs).tolist() == scale
    assert Digits.augmentation == Augmentation(crop_padding=1, flip=False)  # a mirrored 2 is no digit


def test_limits_keep_the_digest_of_the_whole(tmp_path: Path) -> None:
    corpus, digest = open_dataset(Digits(Digits.Params(train_per_class=3, test_per_class=2)), tmp_path)
    assert (len(corpus.train), len(corpus.test)) == (30, 20)
    assert digest == Digits.fingerprint


def test_damaged_copy_is_a_data_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise OSError("digits.csv.gz: not a gzip file")

    monkeypatch.setattr("sklearn.datasets.load_digits", broken)
    with pytest.raises(DataError, match="not a gzip file") as caught:
        Digits().load(tmp_path)
    assert "scikit-learn" in (caught.value.hint or "")


def test_facts_do_not_import_scikit_learn() -> None:
    code = (
        "import sys; from fcilbench.plugins.datasets.digits import Digits; facts = Digits.facts();"
        "assert facts['default_tasks'] == 5 and facts['classes'] == 10 and facts['licence'];"
        "assert 'sklearn' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
