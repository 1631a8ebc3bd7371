"""Base of the data sets that are image files: two layouts, one way of decoding, cached."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from fcilbench.api.content import Listing
from fcilbench.api.dataset import Augmentation, Corpus, Dataset, DatasetParams
from fcilbench.data.folders import Listed, class_folders, class_tree, stratified_split
from fcilbench.data.images import ImageFiles
from fcilbench.data.layout import ARCHIVES, describe_layouts, find_layout
from fcilbench.errors import DataError
from fcilbench.spec import params as _params

CENTRAL = 256 / 224
"""Share by which the shorter side exceeds the central crop (He et al. 2016, and the field since)."""


class ImageDataset(Dataset):
    """A data set of image files, in its official layout or as `<name>/{train,test}/<class>/*`.

    The augmentation is CIFAR's at scale: a random crop after zero padding of an eighth (4 of 32) and a horizontal flip.

    Attributes:
        name: Folder of the tree under the data root; the name of the plugin.
        margin: Length of an image's shorter side before the central crop, in units of `size`.
    """

    cached = True
    name: ClassVar[str]
    margin: ClassVar[float] = CENTRAL

    class Params(DatasetParams):
        """Size of the decoded images."""

        size: int = _params.Field(224, ge=8, description="height and width that images are decoded to, in pixels")

    def __init__(self, params: _params.Params | None = None) -> None:
        super().__init__(params)
        self.augmentation = Augmentation(crop_padding=self.params.size // 8, flip=True)

    def official(self, paths: tuple[Path, ...]) -> tuple[tuple[str, ...], Listed, Listed]:
        """Lists class names, training and test images of an official layout.

        By default it is a folder of class folders without a split, which are split here; override it for any other.

        Args:
            paths: The paths of the layout that is there.

        Raises:
            DataError: If something of it is missing or damaged.
        """
        names, images = class_folders(paths[0])
        return names, *self.split(images)

    def listing(self, root: Path) -> Listing:
        """Lists the image files of the first layout that is there.

        Raises:
            DataError: If none is, or what is there is incomplete; the message says where to put what.
        """
        paths = find_layout(self.layouts, root)
        if paths is None:
            raise DataError(f"{self.name}: not found: no {describe_layouts(self.layouts, root)}", hint=self._hint(root))
        try:
            tree = [path.parent.name + "/" + path.name for path in paths] == [f"{self.name}/train", f"{self.name}/test"]
            names, train, test = class_tree(*paths) if tree else self.official(paths)
        except DataError as error:
            raise DataError(f"{self.name}: {error.message}", hint=error.hint or self._hint(root)) from error
        return Listing(self._files(train), self._files(test), names)

    def load(self, root: Path) -> Corpus:
        """Decodes the whole data set into memory, in the order of its files."""
        listing = self.listing(root)
        return Corpus(listing.train.samples(), listing.test.samples(), listing.class_names)

    def split(self, images: Listed) -> tuple[Listed, Listed]:
        """Splits images that have no official split: `test_samples` of them, stratified, by the content of the files.

        Raises:
            DataError: If there are not as many as there should be.
        """
        total = self.train_samples + self.test_samples
        if len(images.files) != total:
            raise DataError(f"{len(images.files)} images, expected {total}")
        content = self._files(images).content()
        train, test = stratified_split(images.labels, content, self.test_samples)
        known = Listed(images.files, images.labels, content)
        return known.take(train), known.take(test)

    def _files(self, images: Listed) -> ImageFiles:
        return ImageFiles(images.files, images.labels, self.params.size, self.margin, images.content)

    def _hint(self, root: Path) -> str:
        files = ", ".join(f"{archive.file} ({archive.checksum})" for archive in self.archives)
        by_hand = (
            f"put {files} into {root / ARCHIVES} and run `fcilbench data fetch {self.name}`, or unpack them by hand"
        )
        start = self.by_hand or f"run `fcilbench data fetch {self.name}`; or"
        return f"{start} {by_hand}; another data root is set by --data or FCILBENCH_DATA"
