"""The committed pages of leaderboards/ are what `fcilbench site leaderboards` makes of the committed rows."""

import base64
import gzip
import re
import shutil
from pathlib import Path

from fcilbench.cli.board import site

COMMITTED = Path(__file__).parents[1] / "leaderboards"


def pages(folder):
    """Returns every page by its path; packed data are unpacked, for libraries of compression differ in their bytes."""
    found = {}
    for path in sorted([*folder.rglob("README.md"), *folder.rglob("index.html")]):
        text = path.read_text(encoding="utf-8")
        found[str(path.relative_to(folder))] = re.sub(
            r'(?<=atob\(")[^"]*', lambda packed: gzip.decompress(base64.b64decode(packed.group())).decode(), text
        )
    return found


def test_the_pages_are_up_to_date(tmp_path):
    fresh = tmp_path / "fresh"
    shutil.copytree(COMMITTED, fresh)
    for page in [*fresh.glob("*/README.md"), *fresh.rglob("index.html")]:
        page.unlink()
    site(fresh)
    old, new = pages(COMMITTED), pages(fresh)
    differing = sorted(name for name in {*old, *new} if old.get(name) != new.get(name))
    assert differing == [], "run `fcilbench site leaderboards` and commit what it writes"


def test_every_folder_with_rows_has_a_page_that_the_index_names():
    folders = {path.parent.name for path in COMMITTED.glob("*/rows.jsonl")}
    assert {"quickstart", "small-tuned"} <= folders
    for index, link in (("README.md", "]({}/README.md)"), ("index.html", 'href="{}/index.html"')):
        text = (COMMITTED / index).read_text(encoding="utf-8")
        assert [name for name in folders if link.format(name) not in text] == []


def test_rows_of_older_code_say_so(tmp_path):
    shutil.copytree(COMMITTED / "quickstart", tmp_path / "quickstart")
    shutil.copy(COMMITTED / "README.md", tmp_path)
    rows = tmp_path / "quickstart" / "rows.jsonl"
    text = re.sub(r',"checksum":"\w+"', "", rows.read_text())
    rows.write_text(re.sub(r'"engine_version": ?\d+', '"engine_version": 1', text))
    site(tmp_path)
    text = (tmp_path / "quickstart" / "README.md").read_text(encoding="utf-8")
    assert "rows are of older code than this checkout: engine version 1, here" in text
    assert re.search(r"\| \[quickstart\].* older \(12 rows\) \|", (tmp_path / "README.md").read_text())
