"""The committed pages of leaderboards/ are what `fcilbench site leaderboards` makes of the committed rows."""

import re
import shutil
from pathlib import Path

import pytest
from jinja2 import Environment, nodes

from fcilbench.cli.board import site
from fcilbench.pages.pack import MARK, page_code, unpacked

COMMITTED = Path(__file__).parents[1] / "leaderboards"
TEMPLATE = COMMITTED / "README.md.jinja"
COUNTS = "two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|twenty|fifty|hundred"
THINGS = "seeds|points|rounds|tasks|clients|draws|trials|images|texts|epochs|classes|leaderboards|tests"
FIGURE = re.compile(rf"(?<![\w.-])[-+]?\d[\d.,]*|±\s*\d|\bp\s*[=<]|\b(?:{COUNTS})\s+(?:{THINGS})\b", re.IGNORECASE)
"""A figure; the digits of a name (CIFAR-100, AVX512) are none."""


def pages(folder):
    """Returns every page by its path; packed data are unpacked, for libraries of compression differ in their bytes."""
    found = {}
    for path in sorted([*folder.rglob("README.md"), *folder.rglob("index.html"), *folder.glob("picture-*.svg")]):
        text = path.read_text(encoding="utf-8")
        found[str(path.relative_to(folder))] = re.sub(
            r'(?<=id="data">)[^<]*', lambda packed: unpacked(packed.group()), text
        )
    return found


def test_the_pages_are_up_to_date(tmp_path):
    fresh = tmp_path / "leaderboards"  # a page names the folder, for `reproduce --from`
    shutil.copytree(COMMITTED, fresh)
    for page in [*fresh.rglob("README.md"), *fresh.rglob("index.html"), *fresh.glob("picture-*.svg")]:
        page.unlink()
    site(fresh)
    old, new = pages(COMMITTED), pages(fresh)
    differing = sorted(name for name in {*old, *new} if old.get(name) != new.get(name))
    assert differing == [], "run `fcilbench site leaderboards` and commit what it writes"


def test_the_code_of_the_pages_is_up_to_date():
    """The library above it is that of the vl-convert that wrote it; another one is another library."""
    library, own = (COMMITTED / "charts.js").read_text(encoding="utf-8").split(MARK)
    assert own == page_code().removeprefix(MARK)
    assert library.startswith("/* Vega 6.")
    assert "Redistribution and use" in library[:2000]


def test_every_folder_with_rows_has_a_page_that_the_index_names():
    folders = {path.parent.name for path in COMMITTED.glob("*/rows.jsonl")}
    assert {"quickstart", "small-tuned"} <= folders
    for index, link in (("README.md", "]({}/README.md)"), ("index.html", 'href="{}/index.html"')):
        text = (COMMITTED / index).read_text(encoding="utf-8")
        assert [name for name in folders if link.format(name) not in text] == []


def test_rows_of_older_code_say_so_and_their_board_comes_last(tmp_path):
    shutil.copytree(COMMITTED / "quickstart", tmp_path / "quickstart")
    (tmp_path / "README.md").write_text("<!-- table -->\n<!-- end -->\n")
    rows = tmp_path / "quickstart" / "rows.jsonl"
    text = re.sub(r',"checksum":"\w+"', "", rows.read_text())
    rows.write_text(re.sub(r'"engine_version": ?\d+', '"engine_version": 1', text))
    shutil.copytree(COMMITTED / "quickstart", tmp_path / "same")
    site(tmp_path)
    text = (tmp_path / "quickstart" / "README.md").read_text(encoding="utf-8")
    assert "rows are of older code than this checkout: engine version 1, here" in text
    assert re.search(r"\| \[quickstart\].* older \(12 rows\) \|", (tmp_path / "README.md").read_text())
    for page in ("README.md", "index.html"):
        text = (tmp_path / page).read_text(encoding="utf-8")
        assert 0 < text.index("same/") < text.index("quickstart/")  # by name it is the other way round


def typed(source):
    """Returns the text of a template that no function gave: what stands in it as it is, and the words of claims."""
    tree = Environment().parse(source)
    words = [each.data for each in tree.find_all(nodes.TemplateData)]
    for call in tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Name) and call.node.name == "claim":
            words += [each.value for argument in call.args[1:] for each in argument.find_all(nodes.Const)]
            words += [each.value for each in call.args[1:] if isinstance(each, nodes.Const)]
    return words


NO_FIGURE = re.compile(r"\]\([^)]*\)|^\d+\. (?=\*\*)", re.MULTILINE)
"""The address of a link, and the number of a finding in a list."""


def figures(source):
    return [found.group().strip() for text in typed(source) for found in FIGURE.finditer(NO_FIGURE.sub("", text))]


def test_no_figure_of_the_page_is_typed():
    """Also none that a row could not give: seeds, rounds and images are looked up, too."""
    assert len(typed(TEMPLATE.read_text(encoding="utf-8"))) > 100
    assert figures(TEMPLATE.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("SUM has 35.4 ± {{ a }} points", ["35.4"]),
        ("{{ a }} ± 6.3", ["± 6"]),
        ("it is -1.9 from ridge, +47 from FedAvg", ["-1.9", "+47"]),
        ("uploads 1,086 MB (p = {{ p }})", ["1,086", "p ="]),
        ("Four seeds and {{ n }} rounds", ["Four seeds"]),
        ("\n10. **SUM** has {{ a }}, and 3. **x**", ["3."]),
        ('{{ claim(x > 0.5, "above 83.4 %") }}', ["83.4"]),
        ('{{ claim(x > 0.5, "above 83.4 %" ~ y) }}', ["83.4"]),
        ("CIFAR-100, CLINC150, L2P, AVX512-BF16, [a](../b/1.md), {{ faa('b', 'e', 'none', 'sum at 1.1e-3') }}", []),
    ],
)
def test_what_a_typed_figure_is(source, found):
    assert figures(source) == found
