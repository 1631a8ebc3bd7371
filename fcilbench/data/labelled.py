"""Texts with their labels, from the rows of a table: what is no text or no label is refused with its place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from fcilbench.data.alike import class_name, unseen_pairs
from fcilbench.data.table import Table
from fcilbench.errors import DataError


class LabelledText(NamedTuple):
    """One row.

    Attributes:
        label: Name of its class, as it is written.
        test: Whether it is for tests.
        place: Where it stands: `file:line`.
    """

    text: str
    label: str
    test: bool
    place: str


def label_rows(table: Table, columns: Sequence[str], test: bool) -> list[LabelledText]:
    """Returns the rows of a table of texts, labels and, if there is a third column, the word `train` or `test`.

    Raises:
        DataError: If a value is missing, or none of these; with its place.
    """
    found = []
    for place, (text, label, *split) in table.rows:
        for column, value in zip(columns, (text, label), strict=False):
            if value is None or (column == columns[1] and not str(value).strip()):
                raise DataError(f"{place}: no {column}", hint="fill it in, or remove the row")
        if not isinstance(text, str):
            raise DataError(f"{place}: {columns[0]} is {text!r}, which is no text", hint="text_column names the texts")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise DataError(f"{place}: {columns[0]} holds half a character (a lone surrogate)") from error
        if split:
            word = str(split[0]).strip().lower()
            if word not in ("train", "test"):
                hint = "remove the rows of other splits, or write train or test"
                raise DataError(f"{place}: {columns[2]} is {split[0]!r}", hint=hint)
            test = word == "test"
        found.append(LabelledText(text, _label(place, columns[1], label), test, place))
    return found


def _label(place: str, column: str, value: Any) -> str:
    """Returns a label as text: whole numbers and truth values of JSON and Parquet are labels, too."""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str | int):
        hint = "write labels as texts or whole numbers; pandas makes floats of numbers in a column with gaps"
        raise DataError(f"{place}: {column} is {value!r}, which is no label", hint=hint)
    return str(value)


def names_of_labels(rows: Sequence[LabelledText]) -> dict[str, str]:
    """Returns for each label the name of its class, in the order of the names.

    Raises:
        DataError: If a label cannot be shown, two cannot be told apart, or one has no training text.
    """
    first: dict[str, str] = {}
    for row in rows:
        first.setdefault(row.label, row.place)
    for one, other in unseen_pairs(first):
        hint = "write both alike: blanks, invisible characters or forms of accents must not make two classes"
        raise DataError(f"{first[other]}: label {other!a} looks the same as {one!a} of {first[one]}", hint=hint)
    names = {}
    for label, place in first.items():
        try:
            names[label] = class_name(label)
        except DataError as error:
            raise DataError(f"{place}: {error.message}", hint=error.hint) from error
    trained = {row.label for row in rows if not row.test}
    if strange := [label for label in first if label not in trained]:
        hint = "add training texts of the class, or remove its test texts"
        raise DataError(f"{first[strange[0]]}: label {strange[0]!r} has no training text", hint=hint)
    return dict(sorted(names.items(), key=lambda pair: pair[1]))
