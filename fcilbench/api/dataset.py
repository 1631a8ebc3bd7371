"""Data sets: raw samples with labels, numbered by their content so that every archive layout gives the same streams."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from fcilbench.errors import DataError
from fcilbench.spec import params as _params
from fcilbench.spec.archive import Archive
from fcilbench.spec.plugin import Plugin

if TYPE_CHECKING:
    import torch

Modality = Literal["vision", "text", "array"]
"""What the samples are: images, texts, or arrays of numbers of any shape, such as spectrograms and series."""
Labels = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Samples:
    """Inputs with their labels.

    Attributes:
        inputs: Vision: uint8 `[n, height, width, channels]`. Text: `str` objects `[n]`. Array: numbers of one type,
            `[n, ...]`. A data set may also load images as files that are not decoded yet
            (`fcilbench.data.images.ImageFiles`).
        labels: int64 `[n]`, index into the corpus' class names.
    """

    inputs: Any
    labels: Labels

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.labels):
            raise DataError(f"{len(self.inputs)} inputs but {len(self.labels)} labels")

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: Labels) -> Samples:
        """Returns the samples at `index`, in that order."""
        return Samples(self.inputs[index], self.labels[index])


@dataclass(frozen=True)
class Corpus:
    """Training and test samples of one data set, with the name of each label.

    `outside` are test inputs that belong to no class, for out-of-scope detection; `None` if there are none. `remarks`
    are what a user should know of how the samples were read, each a line that rows and boards show.
    """

    train: Samples
    test: Samples
    class_names: tuple[str, ...]
    outside: npt.NDArray[Any] | None = None
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Augmentation:
    """Training augmentation of images at their native size, before they are resized for the backbone.

    A random crop after zero padding by `crop_padding` pixels on each side; with `flip`, a horizontal flip with
    probability one half.
    """

    crop_padding: int = 0
    flip: bool = False


@dataclass(frozen=True)
class Transform:
    """What the arrays of a data set go through on the device on their way into the network: by itself, they are scaled.

    A subclass adds what training does at random: `draw` draws the numbers, `apply` uses them.

    Attributes:
        mean: What is subtracted: one number, or one for each entry of an array's first axis.
        std: What it is then divided by, likewise.
    """

    mean: float | tuple[float, ...] = 0.0
    std: float | tuple[float, ...] = 1.0

    def draw(self, count: int, random: np.random.Generator) -> dict[str, npt.NDArray[Any]]:
        """Draws the random numbers of `count` training inputs, by name, each `[count, ...]`."""
        return {}

    def apply(self, arrays: torch.Tensor, draws: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Returns the inputs of a batch, float32 `[B, ...]`, of its arrays, float32 `[B, *shape]`.

        It is a function of tensors, as a loss is. `draws` are those of these samples in training, and empty in tests.
        """
        mean, std = (
            each if isinstance(each, float | int) else _on_device(tuple(each), arrays.device, arrays.dim() - 2)
            for each in (self.mean, self.std)
        )
        return (arrays - mean) / std


@functools.cache  # made once, before a step is captured: a copy from the host would break the capture
def _on_device(values: tuple[float, ...], device: torch.device, more: int) -> torch.Tensor:
    """Returns a number for each entry of the first axis, float32 `[n, 1, ...]` with `more` axes of length 1."""
    import torch

    return torch.tensor(values, dtype=torch.float32, device=device).reshape(-1, *[1] * more)


class DatasetParams(_params.Params):
    """Hyperparameters that every data set has."""

    train_per_class: int | None = _params.Field(None, ge=1, description="training samples kept of each class")
    test_per_class: int | None = _params.Field(None, ge=1, description="test samples kept of each class")


class Dataset(Plugin):
    """A data set plugin. `fcilbench.data.open.open_dataset` loads, verifies and numbers its samples.

    A data set whose counts depend on its hyperparameters sets the attributes on the instance, in `__init__`.

    Attributes:
        default_tasks: Number of equal tasks, or classes per task, when a suite does not say.
        fingerprint: Expected content digest (`fcilbench.data.content.number`), or "" if it cannot be declared.
        augmentation: Training augmentation that the field uses for it, if it has images.
        shape: Shape of one array, if it has arrays.
        transform: What its arrays go through, if it has arrays.
        cached: Whether the decoded samples, arrays of numbers, are kept in the cache folder until the files of the
            layout or the plugin's code change.
        layouts: Alternative sets of paths under the data root, one of which holds the data; () if it needs no files.
        archives: What `fcilbench data fetch` gets and unpacks.
        by_hand: Where to get the archives that have no address, and why.
    """

    modality: Modality = "vision"
    classes: int
    default_tasks: int | tuple[int, ...]
    train_samples: int
    test_samples: int
    fingerprint: str = ""
    augmentation: Augmentation = Augmentation()
    shape: tuple[int, ...] = ()
    transform: Transform = Transform()
    cached: ClassVar[bool] = False
    layouts: tuple[tuple[str, ...], ...] = ()
    archives: ClassVar[tuple[Archive, ...]] = ()
    by_hand: ClassVar[str] = ""
    licence: ClassVar[str] = ""
    homepage: ClassVar[str] = ""
    citation: ClassVar[str] = ""

    class Params(DatasetParams):
        """Only the common hyperparameters."""

    @abstractmethod
    def load(self, root: Path) -> Corpus:
        """Reads the whole data set, below the data root, from the layout of its official archive.

        Raises:
            DataError: If it is missing or incomplete, with the paths where its files belong.
        """

    @classmethod
    def facts(cls) -> dict[str, Any]:
        """Returns counts, default split, digest and terms; `None` for counts that depend on the hyperparameters."""
        return _facts(cls)

    def instance_facts(self) -> dict[str, Any]:
        """Returns the same facts of this instance."""
        return _facts(self)


def _facts(source: Dataset | type[Dataset]) -> dict[str, Any]:
    tasks = getattr(source, "default_tasks", None)
    names = ("modality", "classes", "fingerprint", "licence", "homepage", "citation", "by_hand")
    return {
        **{name: getattr(source, name, None) for name in names},
        "shape": list(source.shape),
        "default_tasks": list(tasks) if isinstance(tasks, tuple) else tasks,
        "train": getattr(source, "train_samples", None),
        "test": getattr(source, "test_samples", None),
        "layouts": [list(layout) for layout in source.layouts],
        "archives": [asdict(archive) for archive in source.archives],
    }
