"""Text of somebody else in every place of every format, read back by a parser of the format where there is one."""

from __future__ import annotations

import csv
import io
import json
import re
from html.parser import HTMLParser

import pytest
from markdown_it import MarkdownIt

from fcilbench.boards.build import AccuracyBoard
from fcilbench.boards.render import render
from fcilbench.escape import (
    clean,
    escape_csv,
    escape_markdown,
    escape_tex,
    line,
    markdown_paragraph,
    page_link,
    tex_comment,
    tex_row,
)
from fcilbench.pages.index import Line, render_index
from fcilbench.pages.report import render_report
from fcilbench.results.store import Store
from fcilbench.tables import comma_separated

PAYLOADS = (
    "two\nlines",
    "x\r\n\\input{/etc/passwd}",
    "\\input{a} % $x$ & #1 ^^M {b} ~ _",
    "<script>alert(1)</script>",
    "\"><img src=x onerror='a()'>&amp;",
    "{{ 7*7 }} {% raw %}",
    "a|b|c",
    "[link](javascript:alert(1)) ![i](//x)",
    "<https://evil.example> `code` *b* _i_ ~~s~~ $\\frac{1}{2}$",
    "1. item",
    "- item",
    "# heading",
    "| --- |",
    "=cmd|' /C calc'!A0",
    "+1+1",
    "-2+3",
    "@SUM(A1)",
    "\t=1",
    "[2] of 3",
    "*",
    "\x1b[31mred\x07",
    "a\u202eb\u2066c\u200bd",
    "tag\U000e0041 half\ud800",
    "name: '; DROP TABLE rows; --",
)
SHOWN = [pytest.param(each, id=ascii(each)[1:25]) for each in PAYLOADS]
_MARKDOWN = MarkdownIt("commonmark").enable(["table", "strikethrough"])


@pytest.mark.parametrize(
    "character", ["\x1b", "\x07", "\x9b", "\u202e", "\u2066", "\u200b", "\ufeff", "\ud800", "\xad"]
)
def test_control_and_direction_characters_are_spelt_out(character):
    assert clean(f"a{character}b\nc") == f"a\\u{ord(character):04x}b\nc"
    text = json.dumps({"x": f"a{character}"}, ensure_ascii=False)
    assert json.loads(clean(text)) == json.loads(text)


def test_characters_beyond_the_basic_plane_are_spelt_as_json_spells_them():
    assert clean("a\U000e0041") == "a\\udb40\\udc41"
    assert json.loads(f'"{clean("a" + chr(0xE0041))}"') == "a\U000e0041"


@pytest.mark.parametrize("payload", SHOWN)
def test_a_line_is_one_line_without_control_characters(payload):
    assert line(payload).isprintable()


class _Text(HTMLParser):
    """Collects the text and the tags of a page."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes, self.text = [], [], ""
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes

    def handle_data(self, data):
        self.text += data


def _rendered(text):
    """The text of Markdown and the kinds of what a reader sees."""
    page = _Text(_MARKDOWN.render(text))
    return page.text.strip(), page.tags


@pytest.mark.parametrize("payload", SHOWN)
def test_markdown_shows_text_as_it_is(payload):
    assert _rendered(markdown_paragraph(payload)) == (line(payload), ["p"])
    text, tags = _rendered(f"- {markdown_paragraph(payload)}")
    assert (text, tags) == (line(payload), ["ul", "li"])
    text, tags = _rendered(f"| a | b |\n| --- | --- |\n| x {escape_markdown(payload)} | end |")
    assert tags == ["table", "thead", "tr", "th", "th", "tbody", "tr", "td", "td"]
    assert [each for each in text.split("\n") if each] == ["a", "b", f"x {line(payload)}", "end"]
    assert not re.search(r"(?<!\\)\$", escape_markdown(payload))  # GitHub would set it as mathematics


@pytest.mark.parametrize("payload", SHOWN)
def test_csv_reads_back_and_holds_no_formula(payload):
    ((head,), (cell,)) = csv.reader(io.StringIO(comma_separated([payload], [[payload]])))
    assert head == cell
    assert cell[0] not in "=+-@\t\r"
    assert cell.removeprefix("'") == clean(payload)


def test_in_csv_numbers_stay_numbers():
    values = [-0.5, 3, 1e-9, None, True, "-0.25", "+3", "1e5", "-x", "a=b", "–"]
    (row,) = csv.reader(io.StringIO(comma_separated(values, [])))
    assert row == ["-0.5", "3", "1e-09", "", "True", "-0.25", "+3", "1e5", "'-x", "a=b", "–"]
    assert escape_csv(" =1") == "' =1"
    assert escape_csv("\uff1d1") == "'\uff1d1"  # a spreadsheet reads the wide sign as =


def _live(tex):
    """What LaTeX executes of a text: control words, characters with a meaning, and ends of rows or comments."""
    found = []
    for each in tex.split("\n"):
        code = re.split(r"(?<!\\)%", each)[0]  # a comment ends with its line
        found += re.findall(r"\\(?:[A-Za-z]+|.)|[&$#^_~{}]", code)
    return found


_PRINTED = {r"\textbackslash", r"\textasciitilde", r"\textasciicircum", r"\textless", r"\textgreater", r"\textbar"}


@pytest.mark.parametrize("payload", SHOWN)
def test_latex_prints_text_and_executes_none_of_it(payload):
    cell = escape_tex(payload)
    assert "\n" not in cell
    assert {*_live(cell)} <= _PRINTED | {rf"\{each}" for each in "&%$#_{}"} | {"{", "}"}
    assert re.sub(r"\\[{}]", "", cell).count("{") == re.sub(r"\\[{}]", "", cell).count("}")
    assert tex_row([cell, "x"]).lstrip("{}")[:1] not in ("[", "*") or tex_row([cell, "x"]).startswith("{}")
    assert _live(tex_comment(payload)) == []
    assert "\n" not in tex_comment(payload)


def _board(payload, make_cell, make_row):
    """Rows whose labels, warnings, messages and data set hold a payload, in two scenarios."""
    cells = []
    for seed, rounds in ((0, 2), (1, 2), (0, 3)):
        cell = make_cell("sum", seed, protocol={"rounds": rounds})
        use = {kind: each.model_copy(update={"label": f"{payload}{kind}"}) for kind, each in cell.plugins.items()}
        cells.append(cell.model_copy(update={str(kind): each for kind, each in use.items()}))
    rows = [make_row(cells[0], {"faa/none": 0.5}, warnings=(f"{payload}, then", f"see {payload}"))]
    failed = make_row(cells[1], "failed")
    broken = failed.failure.model_copy(update={"type": payload, "message": payload})
    return [*rows, failed.model_copy(update={"failure": broken}), make_row(cells[2], {"faa/none": 0.6})]


@pytest.mark.parametrize("payload", [each for each in SHOWN if "\ud800" not in each.values[0]])
def test_no_board_is_broken_by_what_rows_say(payload, make_cell, make_row, tmp_path):
    """Against the same board of harmless text: as many lines, cells and tags, and no other commands."""
    harmless, hostile = (_board(text, make_cell, make_row) for text in ("text", payload))
    found = {}
    for name, rows in (("harmless", harmless), ("hostile", hostile)):
        board = AccuracyBoard().build(rows)
        shown = {form: render(board, form, width=2000) for form in ("table", "md", "csv", "json", "tex")}
        assert json.loads(shown["json"])["blocks"][0]["entries"][0]["warnings"]
        for text in shown.values():
            assert clean(text) == text
        table = list(csv.reader(io.StringIO(shown["csv"])))
        page = _Text(render_report([board], rows, Store(tmp_path), title=rows[0].coords["aggregator"]))
        found[name] = {
            "lines": [shown["table"].count("\n"), shown["tex"].count("\n")],
            "cells": [len(table), {len(row) for row in table}],
            "formulas": [cell for row in table for cell in row if cell[:1] in ("=", "+", "@")],
            "commands": [each for each in _live(shown["tex"]) if each not in _PRINTED and each not in "{}"],
            "markdown": _rendered(shown["md"])[1],
            "html": (page.tags, [key for key, _ in page.attributes]),
        }
        found[name]["commands"] = [each for each in found[name]["commands"] if re.match(r"\\[A-Za-z]|&|\\\\", each)]
    assert found["hostile"] == found["harmless"]


def test_an_honest_warning_of_two_lines_stays_in_the_comment_of_a_paper(make_cell, make_row):
    row = make_row(make_cell("sum"), {"faa/none": 0.5}, warnings=("2 negative coefficients\n\\input{secret}",))
    text = render(AccuracyBoard().build([row]), "tex")
    assert "% sum warns: 2 negative coefficients \\input{secret}\n" in text
    assert r"\input" not in _live(text)
    table = render(AccuracyBoard().build([row]), "table")
    assert "- sum warns: 2 negative coefficients \\input{secret}\n" in table


@pytest.mark.parametrize(
    ("folder", "address"),
    [
        ("small-tuned", "small-tuned/index.html"),
        ("javascript:alert(1)", "javascript%3Aalert%281%29/index.html"),
        ('"><b>', "%22%3E%3Cb%3E/index.html"),
        ("a b#c?d", "a%20b%23c%3Fd/index.html"),
    ],
)
def test_a_folder_makes_a_relative_link(folder, address):
    assert page_link(folder, "index.html") == address
    page = _Text(render_index("Leaderboards", [Line(folder, "x", (), (), (), ())]))
    assert [value for key, value in page.attributes if key == "href"] == [address]
    assert page.tags.count("b") == 0
