"""The pages' promises: their commands exist with these options, their suites are valid, their pictures are drawn."""

import subprocess
import sys

import pytest
from markdown_it import MarkdownIt

from fcilbench.suite.load import load_suite

from . import pages

COMMANDS = dict.fromkeys(command for page in pages.PAGES for command in pages.commands(page))


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_and_option_exists(command, parse):
    parse(command)


def test_the_pages_have_commands():
    assert {page.stem for page in pages.PAGES if pages.commands(page)} >= {
        "README",
        "start",
        "tutorial-method",
        "tutorial-data",
    }


@pytest.mark.parametrize("page", [page for page in pages.PAGES if pages.suites(page)], ids=lambda page: page.stem)
def test_the_suites_are_valid(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # what they extend is shipped
    for number, text in enumerate(pages.suites(page)):
        path = tmp_path / f"suite-{number}.yaml"
        path.write_text(text)
        assert load_suite(path).suite.fcilbench == 1


@pytest.mark.parametrize("page", pages.PAGES, ids=lambda page: page.stem)
def test_no_formula_is_taken_for_html(page):
    tokens = MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8"))
    inner = [child for token in tokens for child in (token.children or [token])]
    found = [token.content for token in inner if token.type in ("html_inline", "html_block")]
    assert [text for text in found if not text.startswith("<!--")] == []


def test_the_pictures_are_those_of_the_script(tmp_path):
    subprocess.run([sys.executable, pages.ROOT / "docs" / "draw.py", tmp_path], check=True)
    committed = {path.name: path.read_text() for path in (pages.ROOT / "docs" / "pictures").iterdir()}
    assert committed == {path.name: path.read_text() for path in tmp_path.iterdir()}


def test_the_index_names_every_page():
    index = (pages.ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    own = {page.name for page in pages.PAGES if page.parent.name == "docs"} - {"index.md"}
    assert {name for name in own if f"({name})" not in index} == set()
