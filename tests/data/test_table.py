"""Tables of texts: what is read, and what is refused with its line; none of it in silence."""

import json

import pandas as pd
import pytest

from fcilbench.data.table import TableForm, read_table
from fcilbench.errors import DataError

COLUMNS = ("text", "label")


def rows(path, body, columns=COLUMNS, **form):
    path.write_bytes(body if isinstance(body, bytes) else body.encode())
    return [values for _, values in read_table(path, columns, TableForm(**form)).rows]


@pytest.mark.parametrize(
    ("name", "body", "form", "says"),
    [
        ("a.csv", "text,label\na,b\n", {}, 'utf-8, divided by commas, quotes "'),
        ("a.csv", "text;label\na;b\n", {}, 'utf-8, divided by semicolons, quotes "'),
        ("a.txt", "text|label\na|b\n", {}, 'utf-8, divided by bars, quotes "'),
        ("a.csv", "label\ttext\r\nb\ta\r\n", {}, 'utf-8, divided by tabs, quotes "'),
        ("a.tsv", "text\tlabel\na\tb\n", {}, 'utf-8, divided by tabs, quotes "'),
        ("a.csv", "Text , LABEL\na,b\n", {}, 'utf-8, divided by commas, quotes "'),
        ("a.csv", "text~label\na~b\n", {"delimiter": "~"}, "utf-8, divided by '~', quotes \""),
        ("a.csv", "text,label\n'a',b\n", {"quote": "'"}, "utf-8, divided by commas, quotes '"),
        ("a.csv", "\ufefftext,label\na,b\n", {}, 'utf-8-sig, divided by commas, quotes "'),
        ("a.csv", "text\tlabel\na\tb\n".encode("utf-16"), {}, 'utf-16, divided by tabs, quotes "'),
        ("a.csv", b"text,label\na,b\n", {"encoding": "cp1252"}, 'cp1252, divided by commas, quotes "'),
        ("a.jsonl", '{"text": "a", "label": "b"}\n\n', {}, "utf-8, JSON lines"),
        ("a.json", '[{"Label": "b", "Text": "a"}]', {}, "utf-8, an array of JSON objects"),
    ],
)
def test_the_form_of_a_file_is_recognised(tmp_path, name, body, form, says):
    assert rows(tmp_path / name, body, **form) == [("a", "b")]
    assert read_table(tmp_path / name, COLUMNS, TableForm(**form)).says == says


def test_parquet_by_its_content(tmp_path):
    pd.DataFrame({"label": [3, 4], "text": ["a", "b"], "more": [0.5, 1.5]}).to_parquet(tmp_path / "a.parquet")
    assert rows(tmp_path / "b.csv", (tmp_path / "a.parquet").read_bytes()) == [("a", 3), ("b", 4)]


def test_a_row_is_called_by_the_line_on_which_it_begins(tmp_path):
    rows(tmp_path / "a.csv", 'text,label\n\n"two\nlines",x\nb,y\n')
    places = [place.removeprefix(f"{tmp_path}/") for place, _ in read_table(tmp_path / "a.csv", COLUMNS).rows]
    assert places == ["a.csv:3", "a.csv:5"]


def test_accents_of_another_encoding_are_read_if_it_is_named(tmp_path):
    assert rows(tmp_path / "a.csv", "text,label\né,x\n".encode("latin-1"), encoding="latin-1") == [("é", "x")]


@pytest.mark.parametrize(
    ("name", "body", "reason", "hint"),
    [
        ("a.csv", "label,text\nyes,hello, world\n", "a.csv:2: 3 fields, but the header has 2", '"hello, world"'),
        ("a.csv", 'text,label\n "a, b", x\n', "a.csv:2: 3 fields", 'a blank before " makes the quote a part'),
        ("a.csv", 'text,label\n"a,x\nb,y\n', "a.csv:2: the quotes do not fit: unexpected end of data", "quote: none"),
        ("a.csv", 'text,label\n"a"b,x\n', "a.csv:2: the quotes do not fit", "double a quote"),
        ("a.csv", "satz;klasse\na;b\n", "has no column 'text'; it has: satz, klasse", "text_column and label_column"),
        ("a.csv", "TEXT,Text,label\n", "has several columns 'text': 'TEXT', 'Text'", "rename all but one"),
        ("a.csv", b"text,label\nok,x\n\xe9,x\n", "a.csv:3: byte 0xe9 is not UTF-8", "set encoding"),
        ("a.csv", b"PK\x03\x04", "is no table of texts", "save the sheet as CSV UTF-8"),
        ("a.csv", "text,label\n", "a.csv has no rows", ""),
        ("a.jsonl", '{"text": "a", "label": 1}\n{"text": "b"}\n', "a.jsonl:2 has no column 'label'", "every object"),
        (
            "a.jsonl",
            '{"text": "a", "text": "b", "label": 1}\n',
            "a.jsonl:1: not valid JSON: key 'text' stands",
            "",
        ),
        ("a.jsonl", '{"text": \n', "a.jsonl:1: not valid JSON", "one object on each line"),
        ("a.jsonl", '"text"\n', "a.jsonl:1: 'text' is no object of columns", ""),
        ("a.parquet", b"PAR1xx", "cannot read .*a.parquet: ", ""),
    ],
)
def test_what_does_not_fit_is_refused_with_its_line(tmp_path, name, body, reason, hint):
    with pytest.raises(DataError, match=reason) as caught:
        rows(tmp_path / name, body)
    assert hint in (caught.value.hint or "")


def test_a_folder_is_no_table(tmp_path):
    with pytest.raises(DataError, match="is a folder") as caught:
        read_table(tmp_path, COLUMNS)
    assert "use: image-folder" in caught.value.hint


def test_a_split_column_is_a_column_like_others(tmp_path):
    body = json.dumps({"text": "a", "label": 1, "part": "train"})
    assert rows(tmp_path / "a.jsonl", body, (*COLUMNS, "part")) == [("a", 1, "train")]
