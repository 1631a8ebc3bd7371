"""Optical recognition of handwritten digits: 1,797 real 8x8 images that come with scikit-learn."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fcilbench.api import Augmentation, Corpus, DataError, Dataset, Samples, split_samples


class Digits(Dataset):
    """1,797 handwritten digits of 8x8 pixels, bundled with scikit-learn: needs no download.

    They are the test set of the UCI corpus (Alpaydin and Kaynak 1998), which has no official split of its own. Ours
    is stratified and follows from the content: within each class the images are ordered by their SHA-256, and the
    first fifth is the test set. Pixel counts 0..16 become 0..255. Training shifts images by at
    most one pixel (4/32 of the usual CIFAR crop, at 8 pixels) and never flips them: a mirrored 2 is no digit.
    """

    version = "1"
    classes = 10
    default_tasks = 5
    train_samples = 1438
    test_samples = 359
    fingerprint = "sha256:b8a3c935cdc41c42ded45757cf852ea152274442bca64009ffa1ea04092f6f00"
    augmentation = Augmentation(crop_padding=1, flip=False)
    licence = "CC BY 4.0"
    homepage = "https://archive.ics.uci.edu/dataset/80/optical+recognition+of+handwritten+digits"
    citation = "Alpaydin and Kaynak (1998), Optical Recognition of Handwritten Digits, UCI, doi:10.24432/C50P49"

    def load(self, root: Path) -> Corpus:
        """Reads the images, uint8 `[n, 8, 8, 1]`, from the installed scikit-learn; `root` is not used.

        Raises:
            DataError: If scikit-learn's copy is missing or damaged.
        """
        from sklearn.datasets import load_digits

        try:
            bunch = load_digits()
        except (OSError, ValueError) as error:
            raise DataError(
                f"digits: scikit-learn cannot read its bundled images: {error}",
                hint="reinstall it: pip install --force-reinstall scikit-learn",
            ) from error
        inputs = np.rint(np.asarray(bunch.images) * (255 / 16)).astype(np.uint8)[..., None]
        everything = Samples(inputs, np.asarray(bunch.target, dtype=np.int64))
        return Corpus(*split_samples(everything, self.test_samples), tuple("0123456789"))
