"""The documentation site builds strictly, asks no foreign server for anything, and has all options of all methods."""

import html
import os
import re
import subprocess
import sys

import pytest
from ruamel.yaml import YAML

from fcilbench.registry.catalog import describe, resolve, session
from fcilbench.registry.entrypoints import find

from . import pages

for package in ("sphinx", "myst_parser", "furo"):
    pytest.importorskip(package, reason="needs the extra `docs`: pip install 'fcilbench[docs]'")

ASSET = r"""<(?!a\b)[^>]*?\b(?:src|href|data|action|poster|srcset)\s*=\s*["']?\s*(?:https?:)?//[^>]*>"""
STYLE = r"""(?:url\(|@import)\s*["']?(?:https?:)?//"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Builds the site as its first lines say, in a folder of its own."""
    build = tmp_path_factory.mktemp("build")
    docs = pages.ROOT / "docs"
    for command in (
        [docs / "generate.py", build],
        ["-m", "sphinx", "-W", "--keep-going", "-n", "-q", "-c", docs, build / "source", build / "html"],
    ):
        words, quiet = [sys.executable, *map(str, command)], {**os.environ, "NO_COLOR": "1"}
        done = subprocess.run(words, env=quiet, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return build


def page(site, name):
    return (site / "html" / name).read_text(encoding="utf-8")


@pytest.mark.slow
def test_no_page_asks_a_foreign_server(site):
    files = [path for path in sorted((site / "html").rglob("*")) if path.suffix in (".html", ".css")]
    assert len(files) > 80
    text = {path.name: path.read_text(encoding="utf-8") for path in files}
    assert {name: found for name in text if (found := re.findall(f"{ASSET}|{STYLE}", text[name], re.IGNORECASE))} == {}


@pytest.mark.slow
def test_every_method_has_its_page_with_all_of_its_options(site):
    methods = [each for each in describe(find("aggregators")) if each.ref.dist == "fcilbench"]
    assert len(methods) > 50
    lacking = []
    for method in methods:
        text = page(site, f"methods/{method.ref.short}.html")
        cells = {html.unescape(re.sub(r"<[^>]+>", "", cell)) for cell in re.findall(r"<td.*?</td>", text, re.DOTALL)}
        lacking += [(method.ref.short, name) for name in method.field_names if name not in map(str.strip, cells)]
        lacking += [method.ref.short] * (method.facts["card"]["family"] not in text)
    assert lacking == []


@pytest.mark.slow
def test_a_method_has_its_figures_and_a_link_to_their_board(site):
    text = page(site, "methods/fedavg.html")
    assert 'href="../leaderboards/quickstart/index.html#show=fedavg"' in text
    assert (site / "html" / "leaderboards" / "quickstart" / "index.html").is_file()
    board = (pages.ROOT / "leaderboards" / "quickstart" / "README.md").read_text(encoding="utf-8")
    tables = re.findall(r"^\| fedavg .*$", board, re.MULTILINE)[:3]  # none, inferred and oracle of the accuracy board
    shown = [figure for line in tables for figure in re.findall(r"\d+\.\d+ ± \d+\.\d+", line)[:1]]  # FAA
    assert len(shown) == 3
    assert [figure for figure in shown if figure not in text] == []


@pytest.mark.slow
def test_commands_and_keys_are_there(site):
    commands, suite = page(site, "commands.html"), page(site, "reference/suite.html")
    assert [each for each in ("--rerun", "--tolerance", "results verify", "plugins new") if each not in commands] == []
    shipped = page(site, "reference/shipped.html")
    suites = {each.stem for each in (pages.ROOT / "suites").glob("*.yaml")}
    assert {name for name in suites if name not in shipped} == {"paper-tuned"}  # which others extend
    assert [each for each in ("min_samples", "clip_norm", "task_identity", "because") if each not in suite] == []


@pytest.mark.slow
def test_the_entries_of_suites_are_valid():
    sys.path.insert(0, str(pages.ROOT / "docs"))
    try:
        from maker.plugins import suite_entries
    finally:
        sys.path.pop(0)
    with session():
        entries = [(each, text) for each in describe(find("aggregators")) for text in suite_entries(each)]
        assert len(entries) > 100
        wrong = []
        for method, text in entries:
            entry = YAML(typ="safe").load(text)
            options = {key: value for key, value in entry.items() if key != "use"} if isinstance(entry, dict) else {}
            wrong += [(text, str(problem)) for problem in resolve(method.ref, options).problems]
    assert wrong == []
