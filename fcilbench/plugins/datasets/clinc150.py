"""CLINC150: intent classification, 150 intents in 10 domains, with out-of-scope queries (Larson et al. 2019)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from fcilbench.api import Corpus, DataError, Dataset, Samples

_FILE = "clinc150/data_full.json"
_OUT_OF_SCOPE = "oos"


class Clinc150(Dataset):
    """CLINC150 (`data_full.json`): 15,000 training and 4,500 test queries of 150 intents.

    Labels are the intents in alphabetical order. The out-of-scope intent is left out by its name (sorted, it would be
    number 80 and shift all that follow); its 1,000 test queries are kept apart for out-of-scope detection. The 3,000
    validation queries are not used. Two texts occur in both train and test; they are kept, as the field does.
    """

    version = "1"
    modality = "text"
    classes = 150
    default_tasks = 10
    train_samples = 15_000
    test_samples = 4_500
    fingerprint = "sha256:02d7093c7fc28d64f4a88329e3ac610aa03135aefa8ebdc93d17d56efacd60f9"
    licence = "CC BY 3.0"
    homepage = "https://github.com/clinc/oos-eval"
    citation = (
        "Larson et al. (2019), An Evaluation Dataset for Intent Classification and Out-of-Scope Prediction. EMNLP."
    )
    layouts = ((_FILE,),)
    by_hand = f"no checksum is published: put data/data_full.json of {homepage} at {_FILE} under the data root"

    def load(self, root: Path) -> Corpus:
        """Reads `<root>/clinc150/data_full.json`, the official file.

        Raises:
            DataError: If the file is missing or not in the official form.
        """
        path = root / _FILE
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            train, test, out_of_scope = (record[split] for split in ("train", "test", "oos_test"))
            names = sorted({intent for _, intent in train} - {_OUT_OF_SCOPE})
            number = {name: label for label, name in enumerate(names)}
            outside = np.array([text for text, _ in out_of_scope], dtype=object)
            return Corpus(_samples(train, number), _samples(test, number), tuple(names), outside)
        except OSError as error:
            what = f"cannot be read: {error.strerror or error}"
        except KeyError as error:
            what = f"has no split or no training queries {error}"
        except (TypeError, ValueError) as error:
            what = f"is not the official file ({error})"
        hint = f"get data_full.json from {self.homepage} (folder data) and put it there"
        raise DataError(f"clinc150: {path} {what}", hint=hint)


def _samples(pairs: list[list[str]], number: dict[str, int]) -> Samples:
    kept = [(text, number[intent]) for text, intent in pairs if intent != _OUT_OF_SCOPE]
    texts = np.array([text for text, _ in kept], dtype=object)
    return Samples(texts, np.array([label for _, label in kept], dtype=np.int64))
