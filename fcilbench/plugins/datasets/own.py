"""Data sets of the user's own, by parameters alone: a folder of images, or a CSV file of texts.

Classes, counts and the content digest come from the files. A cell is identified by the digest, so that a data set may
be moved or renamed, and a changed file is another data set.
"""

from __future__ import annotations

import csv
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from pydantic import model_validator

from fcilbench.api import (
    Corpus,
    DataError,
    Dataset,
    DatasetParams,
    Field,
    ImageDataset,
    Samples,
    class_folders,
    class_tree,
    find_data,
    non_defaults,
    number_samples,
    split_samples,
)

_TASKS = 5  # when a suite does not say; as equal as possible
_WHERE = "an absolute path, else relative to the working directory, else to the data root"
_SHARE = "share of each class that becomes the test set, by the content of the samples"


class _OwnData(Dataset):
    """What the two have in common: facts of the instance, and an identity that is the content."""

    licence = "as the owner of the files says"
    breaks: ClassVar = {"terms": "homepage and citation are for the owner of the files to say"}

    def _declare(self, classes: int, train: int, test: int) -> None:
        self.classes, self.train_samples, self.test_samples = classes, train, test
        tasks = min(_TASKS, classes)
        self.default_tasks = tuple(classes // tasks + (index < classes % tasks) for index in range(tasks))

    @cached_property
    def _digest(self) -> str:
        return number_samples(self.load(Path()))[1]

    def instance_facts(self) -> dict[str, Any]:
        """Returns the counts and the digest of the files."""
        return {**super().instance_facts(), "fingerprint": self._digest}

    def identity(self) -> dict[str, Any]:
        """Returns the hyperparameters, with the content digest in place of what says where the samples are."""
        kept = non_defaults(self.params)
        common = {"size", *DatasetParams.model_fields}
        return {"path": self._digest, **{name: value for name, value in kept.items() if name in common}}


class ImageFolder(_OwnData, ImageDataset):
    """Your own images in class folders: `<path>/{train,test}/<class>/*`, or `<path>/<class>/*` with `test_share`.

    Classes are the folders' names in order. An image is resized so that its shorter side is `size`, then its centre is
    cropped. The augmentation is a random crop after zero padding of an eighth, and a horizontal flip.
    """

    version = "1"
    name = "image-folder"
    margin = 1.0

    class Params(ImageDataset.Params):
        """Where the folders are, how they are split, and the size of the decoded images."""

        path: str = Field(description=f"folder of the images: {_WHERE}")
        train: str = Field("train", description="folder below path with the class folders of the training images")
        test: str = Field("test", description="folder below path with the class folders of the test images")
        test_share: float | None = Field(None, gt=0, lt=1, description=f"path has the class folders itself; {_SHARE}")

    def __init__(self, params: Params) -> None:
        super().__init__(params)
        folder, share = find_data(params.path), params.test_share
        self._folders = (folder,) if share is not None else (folder / params.train, folder / params.test)
        self.layouts = (tuple(map(str, self._folders)),)
        try:
            if share is None:
                found = class_tree(*self._folders)
                self._declare(len(found.class_names), len(found.train), len(found.test))
            else:
                names, images = class_folders(folder)
                count = round(share * len(images))
                self._declare(len(names), len(images) - count, count)
        except DataError as error:
            hint = "give train and test, or test_share if path has the class folders itself"
            raise DataError(f"image-folder: {error.message}", hint=error.hint or hint) from error

    def official(self, paths: tuple[Path, ...]) -> Corpus:
        """Lists the images of the training and test folders, or of the one folder that is split."""
        return super().official(paths) if len(paths) == 1 else class_tree(*paths)

    def _hint(self, root: Path) -> str:
        return f"mend the files under {self._folders[0]}"

    def files(self) -> list[Path]:
        """Returns the folders and the images: a new file changes its folder."""
        corpus = self.load(Path())
        images = [*corpus.train.inputs.files, *corpus.test.inputs.files]
        return [*self._folders, *sorted({image.parent for image in images}), *sorted(images)]


class Csv(_OwnData):
    """Your own texts in a CSV (or, by its suffix, TSV) file with a header, UTF-8.

    Classes are the values of the label column in order of their text. The test set is another file, the rows that a
    column marks, or a share of each class.
    """

    version = "1"
    modality = "text"

    class Params(DatasetParams):
        """Which file, which columns, and how it is split: one of `test`, `split_column`, `test_share`."""

        path: str = Field(description=f"file of the training texts, or of all texts: {_WHERE}")
        text_column: str = Field("text", description="column of the texts")
        label_column: str = Field("label", description="column of the class names")
        test: str | None = Field(None, description="file of the test texts, with the same columns")
        split_column: str | None = Field(None, description="column that says `train` or `test`")
        test_share: float | None = Field(None, gt=0, lt=1, description=_SHARE)

        @model_validator(mode="after")
        def _one_split(self) -> Self:
            given = [name for name in ("test", "split_column", "test_share") if getattr(self, name) is not None]
            if len(given) != 1:
                found = ", ".join(given) or "none"
                raise ValueError(f"give exactly one of test, split_column and test_share, not {found}")
            return self

    def __init__(self, params: Params) -> None:
        super().__init__(params)
        self._files = [find_data(name) for name in (params.path, params.test) if name is not None]
        rows = [row for path in self._files for row in _read(path, params, test=path is not self._files[0])]
        names = sorted({row.label for row in rows if not row.test})
        number_of = {name: index for index, name in enumerate(names)}
        for row in rows:
            if row.label not in number_of:
                raise DataError(f"csv: {row.place}: label {row.label!r} has no training text")
        samples = Samples(
            np.array([row.text for row in rows], dtype=object),
            np.array([number_of[row.label] for row in rows], dtype=np.int64),
        )
        if params.test_share is None:
            is_test = np.array([row.test for row in rows], dtype=bool)
            train, test = (samples.take(np.flatnonzero(chosen)) for chosen in (~is_test, is_test))
        else:
            try:
                train, test = split_samples(samples, round(params.test_share * len(samples)))
            except DataError as error:
                raise DataError(f"csv: {self._files[0]}: {error.message}", hint="change test_share") from error
        if absent := [name for label, name in enumerate(names) if label not in test.labels]:
            raise DataError(f"csv: {self._files[-1]} has no test text of {', '.join(map(repr, absent[:3]))}")
        self._corpus = Corpus(train, test, tuple(names))
        self._declare(len(names), len(train), len(test))

    def load(self, root: Path) -> Corpus:
        """Returns the texts, which the constructor has read."""
        return self._corpus

    def files(self) -> list[Path]:
        """Returns the CSV files, on whose content a cell's identity depends."""
        return self._files


class _Row(NamedTuple):
    text: str
    label: str
    test: bool
    place: str


def _read(path: Path, params: Csv.Params, test: bool) -> list[_Row]:
    csv.field_size_limit(1 << 30)  # the default refuses texts of 131,072 characters
    rows = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
            columns = list(reader.fieldnames or ())
            for name in filter(None, (params.text_column, params.label_column, params.split_column)):
                if name not in columns:
                    raise DataError(f"csv: {path} has no column {name!r}; it has: {', '.join(columns) or 'none'}")
            for row in reader:
                place = f"{path}, line {reader.line_num}"
                text, label = row[params.text_column], row[params.label_column]
                if text is None or not label:
                    raise DataError(f"csv: {place}: no text or no label")
                if params.split_column:
                    split = row[params.split_column]
                    if split not in ("train", "test"):
                        hint = "remove the rows of other splits, or write train or test"
                        raise DataError(f"csv: {place}: {params.split_column} is {split!r}", hint=hint)
                    test = split == "test"
                rows.append(_Row(text, label, test, place))
    except UnicodeDecodeError as error:
        raise DataError(f"csv: {path} is not UTF-8 ({error.reason})", hint="save it as UTF-8") from error
    except (OSError, csv.Error) as error:
        raise DataError(f"csv: cannot read {path}: {error}") from error
    if not rows:
        raise DataError(f"csv: {path} has no rows")
    return rows
