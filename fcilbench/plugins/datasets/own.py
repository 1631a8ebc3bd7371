"""Data sets of the user's own, by parameters alone: a folder of images, or a table of texts.

Classes, counts and the content digest come from the files. A cell is identified by the digest, so that a data set may
be moved or renamed, and a changed file is another data set. What is passed over, or may be a mistake, is told in
remarks: in `fcilbench check`, in the row and on boards.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
from pydantic import field_validator, model_validator

from fcilbench.api import (
    Corpus,
    DataError,
    Dataset,
    DatasetParams,
    Field,
    ImageDataset,
    Samples,
    TableForm,
    alike_remarks,
    class_name,
    compare_classes,
    find_data,
    find_images,
    label_rows,
    list_annotated,
    list_classes,
    listing_remarks,
    names_of_labels,
    non_defaults,
    number_samples,
    read_table,
    respelt_remarks,
    sample_remarks,
    split_samples,
)

_TASKS = 5  # when a suite does not say; as equal as possible
_SHARE = 0.2  # when nothing says what the test set is
_LONGEST = 400  # characters of a remark; a row takes no longer ones than 1,000
_WHERE = "an absolute path, else relative to the working directory, else to the data root"
_SHARED = "share of each class that becomes the test set, by the content of the samples"


class _OwnData(Dataset):
    """What the two have in common: facts of the instance, and an identity that is the content.

    Attributes:
        reading: How the files are read, as words.
    """

    licence = "as the owner of the files says"
    breaks: ClassVar = {"terms": "homepage and citation are for the owner of the files to say"}
    reading: str
    _corpus: Any  # read at once, or when it is first asked for

    def _declare(self, classes: int, train: int, test: int) -> None:
        self.classes, self.train_samples, self.test_samples = classes, train, test
        tasks = min(_TASKS, classes)
        self.default_tasks = tuple(classes // tasks + (index < classes % tasks) for index in range(tasks))

    @cached_property
    def _digest(self) -> str:
        return number_samples(self.load(Path()))[1]

    def instance_facts(self) -> dict[str, Any]:
        """Returns the counts and the digest of the files, how they are read, and the remarks on them."""
        remarks = list(self.load(Path()).remarks)
        return {**super().instance_facts(), "fingerprint": self._digest, "reading": self.reading, "remarks": remarks}

    def identity(self) -> dict[str, Any]:
        """Returns the hyperparameters, with the content digest in place of what says where the samples are."""
        kept = non_defaults(self.params)
        common = {"size", *DatasetParams.model_fields}
        return {"path": self._digest, **{name: value for name, value in kept.items() if name in common}}


def _test_count(labels: Sequence[int], share: float | None) -> int:
    """Returns how many samples become the test set; without a share a fifth, and at least one of each class."""
    count, classes = len(labels), len(set(labels))
    return round(share * count) if share is not None else max(classes, min(round(_SHARE * count), count - classes))


def _split(samples: Samples, names: Sequence[str], share: float | None, where: Path) -> tuple[Samples, Samples]:
    """Splits off a share of each class; an error says which shares are possible."""
    try:
        return split_samples(samples, _test_count(samples.labels.tolist(), share), names)
    except DataError as error:
        single = np.bincount(samples.labels, minlength=len(names)).min() < 2
        low, high = len(names) / len(samples), 1 - len(names) / len(samples)
        hint = "add samples of the class, or leave it out: no test_share helps" if single else ""
        hint = hint or f"set test_share to {low:.2g} or more, and at most {high:.2g}"
        raise DataError(f"{where}: {error.message}", hint=hint) from error


def _with_remarks(corpus: Corpus, told: Sequence[str]) -> Corpus:
    """Returns the corpus with the remarks on how it was read, and those on names that look alike and on doubles."""
    told = (*told, *alike_remarks(corpus.class_names), *sample_remarks(corpus))
    lines = [each if len(each) <= _LONGEST else f"{each[: _LONGEST - 1]}…" for each in told]
    return Corpus(corpus.train, corpus.test, corpus.class_names, remarks=tuple(lines))


def _default_remark(share: float | None) -> tuple[str, ...]:
    told = f"no test set is named: test_share {_SHARE:g} of each class, by content, is the test set"
    return (told,) if share is None else ()


class ImageFolder(_OwnData, ImageDataset):
    """Your own images in class folders: `<path>/{train,test}/<class>/*`, or `<path>/<class>/*`.

    `val` (`valid`, `validation`, `dev`) is the test set where there is no `test` with classes, or by the table
    `val_annotations.txt` of Tiny ImageNet. Without any of them a share of each class is: `test_share`, by default 0.2.
    All of this may lie in a folder of its own below path. Images in folders below their class folder count as of that
    class. `fcilbench data inspect DIR` says which layout it found, and what it passes over.

    Classes are the folders' names in order. An image is turned as its orientation tag says, resized so that its shorter
    side is `size`, then its centre is cropped. The augmentation is a random crop after zero padding of an eighth, and a
    horizontal flip.
    """

    version = "2"
    name = "image-folder"
    margin = 1.0

    class Params(ImageDataset.Params):
        """Where the folders are, how they are split, and the size of the decoded images."""

        path: str = Field(description=f"folder of the images: {_WHERE}")
        train: str = Field("train", description="folder below path with the class folders of the training images")
        test: str = Field("test", description="folder below path with the class folders of the test images")
        test_share: float | None = Field(
            None, gt=0, lt=1, description=f"there is no folder of test images; {_SHARED}; without both {_SHARE:g}"
        )

        @model_validator(mode="after")
        def _two_folders(self) -> Self:
            if self.train == self.test:
                raise ValueError(f"train and test are the same folder, {self.train!r}")
            return self

    def __init__(self, params: Params) -> None:
        super().__init__(params)
        self._folder = find_data(params.path)
        try:
            self._layout = find_images(self._folder, params.train, params.test, params.test_share)
            self.reading = self._layout.says
            self._train, self._test = list_classes(self._layout.train), None
            if self._layout.test is not None:
                labels, test = self._layout.labels, self._layout.test
                self._test = list_annotated(labels, test, self._train.names) if labels else list_classes(test)
                compare_classes(self._train, self._test, self._layout)
            if self._train.nested == len(self._train.names):  # such as `<class>/images/*`
                self.reading = self.reading.replace("<class>/*", "<class>/*/*")
        except DataError as error:
            hint = error.hint or "give train and test, or test_share if path has the class folders itself"
            raise DataError(f"image-folder: {error.message}", hint=hint) from error
        read = (self._layout.train, self._layout.test, self._layout.labels)
        self.layouts = (tuple(str(each) for each in read if each is not None),)
        total = len(self._train.files)
        count = _test_count(self._train.labels, params.test_share) if self._test is None else len(self._test.files)
        self._declare(len(self._train.names), total - count if self._test is None else total, count)

    @cached_property
    def _corpus(self) -> Corpus:
        params, names = self.params, tuple(map(class_name, self._train.names))
        train, remarks = self._train.samples(params.size, self.margin), self._layout.remarks
        if self._test is None:
            train, test = _split(train, names, params.test_share, self._layout.train)
            remarks = (*_default_remark(params.test_share), *remarks)
        else:
            test = self._test.samples(params.size, self.margin)
        listings = [self._train] if self._test is None else [self._train, self._test]
        respelt = respelt_remarks(dict(zip(self._train.names, names, strict=True)))
        return _with_remarks(Corpus(train, test, names), (*remarks, *listing_remarks(listings), *respelt))

    def load(self, root: Path) -> Corpus:
        """Returns the image files, which the constructor has listed."""
        try:
            return self._corpus
        except DataError as error:
            hint = error.hint or f"mend the files under {self._folder}"
            raise DataError(f"image-folder: {error.message}", hint=hint) from error

    def files(self) -> list[Path]:
        """Returns the images and all folders above them: a new file changes its folder."""
        images = [*self._train.files, *(self._test.files if self._test else ())]
        folders = {above for image in images for above in image.parents if above.is_relative_to(self._folder)}
        return [*sorted(folders), *([self._layout.labels] if self._layout.labels else []), *sorted(images)]


class Csv(_OwnData):
    """Your own texts in a table with a header: CSV or TSV, JSON lines (`.jsonl`, `.json`), or Parquet.

    Classes are the values of the label column in order of their text. The test set is another file, the rows that a
    column marks, or a share of each class: by default 0.2 of it. Delimiter and encoding are found (commas, semicolons,
    tabs, bars; UTF-8, or what a byte-order mark says), columns by their names whatever the case. A row that does not
    fit the header is an error. Labels are read without blanks around them; two that look the same are an error.
    """

    version = "2"
    modality = "text"

    class Params(DatasetParams):
        """Which file, which columns, and how it is split: at most one of `test`, `split_column`, `test_share`."""

        path: str = Field(description=f"file of the training texts, or of all texts: {_WHERE}")
        text_column: str = Field("text", description="column of the texts")
        label_column: str = Field("label", description="column of the class names")
        test: str | None = Field(None, description="file of the test texts, with the same columns")
        split_column: str | None = Field(None, description="column that says `train` or `test`")
        test_share: float | None = Field(
            None, gt=0, lt=1, description=f"{_SHARED}; {_SHARE:g} if nothing says what the test set is"
        )
        delimiter: str | None = Field(
            None, min_length=1, max_length=1, description="character between fields; by default found in the header"
        )
        encoding: str | None = Field(
            None, description="codec of the text, e.g. cp1252; by default UTF-8 or what a byte-order mark says"
        )
        quote: Literal['"', "'", "none"] = Field(
            '"', description="character around fields that hold a delimiter; none: quotes are part of the texts"
        )

        @field_validator("encoding")
        @classmethod
        def _known(cls, name: str | None) -> str | None:
            try:
                "a".encode(name or "utf-8")
            except (LookupError, ValueError):
                known = "utf-8, cp1252, latin-1, utf-16, gb18030 or shift_jis"
                raise ValueError(f"{name!r} is no encoding of text, such as {known}") from None
            return name

        @field_validator("delimiter")
        @classmethod
        def _divides(cls, mark: str | None) -> str | None:
            if mark is not None and mark in "\r\n\"'":
                raise ValueError(f'{mark!r} cannot divide fields; a tab is written "\\t"')
            return mark

        @model_validator(mode="after")
        def _one_split(self) -> Self:
            given = [name for name in ("test", "split_column", "test_share") if getattr(self, name) is not None]
            if self.text_column == self.label_column:
                raise ValueError(f"text_column and label_column are the same, {self.text_column!r}")
            if len(given) > 1:
                raise ValueError(f"give one of test, split_column and test_share, not {', '.join(given)}")
            return self

    def __init__(self, params: Params) -> None:
        super().__init__(params)
        self._files = [find_data(name) for name in (params.path, params.test) if name is not None]
        try:
            self._corpus = self._read()
        except DataError as error:
            raise DataError(f"csv: {error.message}", hint=error.hint) from error
        self._declare(len(self._corpus.class_names), len(self._corpus.train), len(self._corpus.test))

    def _read(self) -> Corpus:
        params = self.params
        if len(self._files) == 2 and self._files[0].samefile(self._files[1]):
            raise DataError(f"{self._files[1]} is named for training and for test", hint="set test_share instead")
        form = TableForm(params.delimiter, params.encoding, None if params.quote == "none" else params.quote)
        columns = [each for each in (params.text_column, params.label_column, params.split_column) if each is not None]
        tables = [read_table(path, columns, form) for path in self._files]
        self.reading = "; ".join(dict.fromkeys(each.says for each in tables))
        rows = [row for test, table in enumerate(tables) for row in label_rows(table, columns, bool(test))]
        names_of = names_of_labels(rows)
        names = tuple(names_of.values())
        number_of = {label: index for index, label in enumerate(names_of)}
        texts = np.array([row.text for row in rows], dtype=object)
        samples = Samples(texts, np.array([number_of[row.label] for row in rows], dtype=np.int64))
        if params.test is None and params.split_column is None:
            train, test = _split(samples, names, params.test_share, self._files[0])
            remarks = _default_remark(params.test_share)
        else:
            is_test, remarks = np.array([row.test for row in rows], dtype=bool), ()
            train, test = (samples.take(np.flatnonzero(chosen)) for chosen in (~is_test, is_test))
        if absent := [name for label, name in enumerate(names) if label not in test.labels]:
            more = f" and {len(absent) - 1} more classes" if len(absent) > 1 else ""
            hint = "add test texts of each class, or leave the class out; or keep training texts alone: test_share"
            raise DataError(f"{self._files[-1]} has no test text of class {absent[0]!r}{more}", hint=hint)
        return _with_remarks(Corpus(train, test, names), (*remarks, *respelt_remarks(names_of)))

    def load(self, root: Path) -> Corpus:
        """Returns the texts, which the constructor has read."""
        corpus: Corpus = self._corpus
        return corpus

    def files(self) -> list[Path]:
        """Returns the files, on whose content a cell's identity depends."""
        return self._files
