"""Base of the data sets that are image files: their official layout or two folders of class folders, cached."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from fcilbench.api.dataset import Augmentation, Corpus, Dataset, DatasetParams
from fcilbench.data.images import class_folders, class_tree, sized, split_images, unnested
from fcilbench.data.root import ARCHIVES, describe_layouts, find_layout
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
    margin: float = CENTRAL

    class Params(DatasetParams):
        """Size of the decoded images."""

        size: int = _params.Field(224, ge=8, description="height and width that images are decoded to, in pixels")

    def __init__(self, params: _params.Params | None = None) -> None:
        super().__init__(params)
        self.augmentation = Augmentation(crop_padding=self.params.size // 8, flip=True)

    def official(self, paths: tuple[Path, ...]) -> Corpus:
        """Lists the images of an official layout.

        By default it is a folder of class folders without a split. They are split here, stratified and by the content
        of the files. Override it for any other layout.

        Args:
            paths: The paths of the layout that is there.

        Raises:
            DataError: If something of it is missing or damaged.
        """
        names, images = class_folders(paths[0])
        total = self.train_samples + self.test_samples
        if len(images) != total:
            raise DataError(f"{len(images)} images, expected {total}")
        return Corpus(*split_images(images, self.test_samples), names)

    def load(self, root: Path) -> Corpus:
        """Lists the image files of the first layout that is there.

        Raises:
            DataError: If none is, or what is there is incomplete; the message says where to put what.
        """
        paths = find_layout(self.layouts, root)
        if paths is None:
            raise DataError(f"{self.name}: not found: no {describe_layouts(self.layouts, root)}", hint=self._hint(root))
        tree = [root / self.name / "train", root / self.name / "test"]
        try:
            places = tuple(map(unnested, paths))
            found = class_tree(*places) if list(paths) == tree else self.official(places)
        except DataError as error:
            raise DataError(f"{self.name}: {error.message}", hint=error.hint or self._hint(root)) from error
        return sized(found, self.params.size, self.margin)

    def _hint(self, root: Path) -> str:
        files = ", ".join(f"{archive.file} ({archive.checksum})" for archive in self.archives)
        by_hand = (
            f"put {files} into {root / ARCHIVES} and run `fcilbench data fetch {self.name}`, or unpack them by hand"
        )
        start = self.by_hand or f"run `fcilbench data fetch {self.name}`; or"
        return f"{start} {by_hand}; another data root is set by --data or FCILBENCH_DATA"
