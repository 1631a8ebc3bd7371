"""Reads some columns of a table of texts, each row with its place: CSV and its relatives, JSON lines, Parquet.

The kind follows from the content and the suffix. Nothing is dropped, cut or guessed: a row that does not fit the header
is an error with its file and line.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fcilbench.errors import DataError

_DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_LONGEST_FIELD = 1 << 30  # the default of `csv` refuses texts of 131,072 characters
_SAYS_COLUMNS = "text_column and label_column say which ones are read"
_FOREIGN = {
    b"PK\x03\x04": "a zip archive or a spreadsheet: save the sheet as CSV UTF-8, or unpack the archive",
    b"\x1f\x8b": "compressed with gzip: unpack it with gunzip",
    b"\xd0\xcf\x11\xe0": "an old spreadsheet: save the sheet as CSV UTF-8",
}


@dataclass(frozen=True)
class TableForm:
    """How a text file of rows is written.

    Attributes:
        delimiter: Character between fields; `None`: found in the header.
        encoding: Name of a codec; `None`: UTF-8, or what a byte-order mark says.
        quote: Character around fields that hold a delimiter; `None` if there is none.
    """

    delimiter: str | None = None
    encoding: str | None = None
    quote: str | None = '"'


@dataclass(frozen=True)
class Table:
    """The asked columns of a table.

    Attributes:
        rows: Place (`file:line`, or `file, row 3`) and values of each row, in the order of the columns.
        says: How the file was read, as words.
    """

    rows: list[tuple[str, tuple[Any, ...]]]
    says: str


def read_table(path: Path, columns: Sequence[str], form: TableForm | None = None) -> Table:
    """Reads some columns of a table. A column is found by its name, else whatever its case and the blanks around it.

    Raises:
        DataError: If the file cannot be read, lacks a column, or a row does not fit; with file and line.
    """
    if path.is_dir():
        raise DataError(f"{path} is a folder", hint="name the file; for class folders of images `use: image-folder`")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    if data.startswith(b"PAR1"):
        return _parquet(path, columns)
    if foreign := next((words for mark, words in _FOREIGN.items() if data.startswith(mark)), None):
        raise DataError(f"{path} is no table of texts", hint=f"it is {foreign}")
    text, encoding = _decode(path, data, (form or TableForm()).encoding)
    if path.suffix.lower() in (".jsonl", ".ndjson", ".json"):
        return _json_lines(path, text, columns, encoding)
    return _separated(path, text, columns, form or TableForm(), encoding)


def _decode(path: Path, data: bytes, encoding: str | None) -> tuple[str, str]:
    """Returns the text of a file and the name of its encoding."""
    name = encoding or next((codec for mark, codec in _MARKS if data.startswith(mark)), "utf-8")
    try:
        return data.decode("utf-8-sig" if name.lower().replace("_", "-") in ("utf-8", "utf8") else name), name
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start) + 1
        wrong = f"byte 0x{data[error.start]:02x} is not {'UTF-8' if encoding is None else encoding}"
        hint = "save the file as UTF-8, or set encoding to what it is, e.g. cp1252 for western Windows"
        raise DataError(f"{path}:{number}: {wrong} ({error.reason})", hint=hint) from error
    except UnicodeError as error:  # UTF-16 without an end
        raise DataError(f"{path} is not {name}: {error}", hint="set encoding to what the file is") from error


def _separated(path: Path, text: str, columns: Sequence[str], form: TableForm, encoding: str) -> Table:
    delimiter, header = _header(path, text, columns, form)
    places = find_columns(str(path), header, columns, f"the first line names the columns; {_SAYS_COLUMNS}")
    rows: list[tuple[str, tuple[Any, ...]]] = []
    for number, fields in _records(path, text, delimiter, form.quote, skip=1):
        if len(fields) > len(header):
            raise _too_many(f"{path}:{number}", fields, len(header), delimiter, form.quote)
        rows.append((f"{path}:{number}", tuple(fields[at] if at < len(fields) else None for at in places)))
    if not rows:
        raise DataError(f"{path} has no rows")
    quotes = "no quotes" if form.quote is None else f"quotes {form.quote}"
    return Table(rows, f"{encoding}, divided by {_DELIMITERS.get(delimiter, repr(delimiter))}, {quotes}")


def _header(path: Path, text: str, columns: Sequence[str], form: TableForm) -> tuple[str, list[str]]:
    """Returns the delimiter and the names of the columns; of several delimiters the first that gives the columns."""
    tabs = path.suffix.lower() in (".tsv", ".tab")
    usual = sorted(_DELIMITERS, key=lambda each: (each != "\t") if tabs else 0)
    found: dict[str, list[str]] = {}
    for delimiter in [form.delimiter] if form.delimiter else usual:
        try:
            found[delimiter] = next(_records(path, text, delimiter, form.quote), (0, []))[1]
        except DataError:  # quotes that fit another delimiter
            continue
        wanted = [_place_of(each, found[delimiter]) for each in columns]
        if None not in wanted:
            return delimiter, found[delimiter]
    if not found:
        next(_records(path, text, form.delimiter or usual[0], form.quote))  # tells what is wrong with the quotes
    best = max(found, key=lambda each: len(found[each]))
    return best, found[best]


def _records(
    path: Path, text: str, delimiter: str, quote: str | None, skip: int = 0
) -> Iterator[tuple[int, list[str]]]:
    """Yields the line on which a record begins, and its fields; empty lines are none."""
    csv.field_size_limit(_LONGEST_FIELD)
    quoting: dict[str, Any] = {"quotechar": quote} if quote else {"quoting": csv.QUOTE_NONE, "quotechar": None}
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True, **quoting)
    count = 0
    while True:
        number = reader.line_num + 1
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            hint = "double a quote within a quoted text, or set `quote: none` if quotes are part of the texts"
            raise DataError(f"{path}:{number}: the quotes do not fit: {error}", hint=hint) from error
        if fields:
            count += 1
            if count > skip:
                yield number, fields


def _too_many(place: str, fields: list[str], columns: int, delimiter: str, quote: str | None) -> DataError:
    mark = quote or '"'
    blank = any(each != each.lstrip() and each.lstrip().startswith(mark) for each in fields)
    if blank:
        hint = f"a blank before {mark} makes the quote a part of the text: remove the blank"
    elif quote is None:
        hint = f"a text with {delimiter!r} needs quotes around it: quote it and leave `quote` out"
    else:
        hint = f"put quotes around a text that holds {delimiter!r}, as in {mark}hello{delimiter} world{mark}"
    return DataError(f"{place}: {len(fields)} fields, but the header has {columns}", hint=hint)


def find_columns(where: str, header: Sequence[str], columns: Sequence[str], hint: str = _SAYS_COLUMNS) -> list[int]:
    """Returns the positions of columns in a header; the `hint` is for one that is missing.

    Raises:
        DataError: If one is missing or stands twice.
    """
    places = []
    for name in columns:
        place = _place_of(name, header)
        if place is None:
            alike = [each for each in header if _plain(each) == _plain(name)]
            if len(alike) > 1:
                shown = ", ".join(map(repr, alike))
                raise DataError(f"{where} has several columns {name!r}: {shown}", hint="rename all but one")
            has = ", ".join(header[:20]) or "none"
            raise DataError(f"{where} has no column {name!r}; it has: {has}", hint=hint)
        places.append(place)
    return places


def _place_of(name: str, header: Sequence[str]) -> int | None:
    for same in (lambda each: each == name, lambda each: _plain(each) == _plain(name)):
        found = [index for index, each in enumerate(header) if same(each)]
        if found:
            return found[0] if len(found) == 1 else None
    return None


def _plain(name: str) -> str:
    return " ".join(name.split()).casefold()


def _json_lines(path: Path, text: str, columns: Sequence[str], encoding: str) -> Table:
    rows: list[tuple[str, tuple[Any, ...]]] = []
    whole = text.lstrip().startswith("[")
    every = f"every object needs the keys of the columns; {_SAYS_COLUMNS}"
    for place, record in _array(path, text) if whole else _objects(path, text):
        if not isinstance(record, dict):
            hint = 'write {"text": ..., "label": ...}'
            raise DataError(f"{place}: {str(record)[:40]!r} is no object of columns", hint=hint)
        keys = [*record]
        rows.append((place, tuple(record[keys[at]] for at in find_columns(place, keys, columns, every))))
    if not rows:
        raise DataError(f"{path} has no rows")
    return Table(rows, f"{encoding}, {'an array of JSON objects' if whole else 'JSON lines'}")


def _objects(path: Path, text: str) -> Iterator[tuple[str, Any]]:
    for number, each in enumerate(text.split("\n"), start=1):
        if each.strip():
            try:
                yield f"{path}:{number}", json.loads(each, object_pairs_hook=_once)
            except ValueError as error:
                hint = "JSON lines hold one object on each line"
                raise DataError(f"{path}:{number}: not valid JSON: {error}", hint=hint) from error


def _array(path: Path, text: str) -> Iterator[tuple[str, Any]]:
    try:
        records = json.loads(text, object_pairs_hook=_once)
    except ValueError as error:
        raise DataError(f"{path}: not valid JSON: {error}") from error
    yield from ((f"{path}, object {number}", each) for number, each in enumerate(records, start=1))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns an object, of which no key may stand twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"key {next(each for each in names if names.count(each) > 1)!r} stands twice")
    return found


def _parquet(path: Path, columns: Sequence[str]) -> Table:
    import pyarrow.parquet as pq

    try:
        names = list(pq.read_schema(path).names)
        kept = [names[at] for at in find_columns(str(path), names, columns)]
        values = [pq.read_table(path, columns=[each])[each].to_pylist() for each in kept]
    except DataError:
        raise
    except Exception as error:  # the reader of a damaged file may raise anything
        raise DataError(f"cannot read {path}: {' '.join(str(error).split())}") from error
    rows = [(f"{path}, row {number}", row) for number, row in enumerate(zip(*values, strict=True), start=1)]
    if not rows:
        raise DataError(f"{path} has no rows")
    return Table(rows, "Parquet")
