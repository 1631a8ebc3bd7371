"""A newcomer's walk: the commands of the tutorials run in order, and print what the pages say they print."""

import shlex
import tomllib

import numpy as np
import pytest
from PIL import Image

from . import pages

DOCS = pages.ROOT / "docs"
CHEAPER = {
    "fcilbench run quickstart": None,  # its rows are there
    "fcilbench results verify leaderboards/mine --sample 1": "fcilbench results verify leaderboards/mine --sample 0",
    "fcilbench run images.yaml --out my-results": "fcilbench run images.yaml --out my-results --only seed:0",
}
LEFT_OUT = (
    "fcilbench plugins test acme-fcil/tempered",  # tests of the templates do it
    "fcilbench run mine.yaml --only aggregator:tempered",  # more seeds of the same
    "fcilbench run mine.yaml --jobs 2",
)
"""Commands that would take minutes and show nothing that others here do not."""


class Walk:
    """Runs the commands of a page in a folder, where `before` may do what no command of the page does."""

    def __init__(self, cli, before=None):
        self.cli, self.before, self.printed = cli, before or {}, []

    def follow(self, page):
        for number, text in enumerate(pages.suites(page)):
            (self.cli.folder / ("images.yaml" if "image-folder" in text else "mine.yaml")).write_text(text)
            assert number == 0
        for command in pages.commands(page):
            if command not in LEFT_OUT:
                self.run(CHEAPER.get(command) or command)
        said = {" ".join(line.split()) for line in "\n".join(self.printed).splitlines()}
        for kind, text in pages.fences(page):
            if kind == "text" and self.is_output(text):
                assert [line for line in text.splitlines() if " ".join(line.split()) not in said] == []

    def run(self, command):
        done = self.cli(*shlex.split(command)[1:])
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        self.printed += [done.stdout, done.stderr]
        self.before.pop(command, lambda: None)()

    @staticmethod
    def is_output(text):
        return not text.startswith(("my-images/", "text,label"))


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shared")
    (folder / "site").mkdir()
    return folder


@pytest.fixture
def cli(new_cli, shared, tmp_path):
    return new_cli(tmp_path, shared)


@pytest.mark.slow
def test_ten_minutes(cli):
    walk = Walk(cli)
    walk.run("fcilbench results merge leaderboards/quickstart --out results")
    walk.follow(DOCS / "start.md")
    assert "done 6   new 12" in cli("plan", "mine.yaml").stdout


@pytest.mark.slow
def test_your_method_against_the_board(cli, put, shared):
    def install():  # as `pip install -e` would
        folder = cli.folder / "acme-fcil"
        package = {f"acme_fcil/{path.name}": path.read_text() for path in (folder / "acme_fcil").iterdir()}
        points = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["entry-points"]
        put(
            shared / "site",
            "acme-fcil",
            package,
            {kind.removeprefix("fcilbench."): named for kind, named in points.items()},
        )
        (shown,) = (text for kind, text in pages.fences(page) if kind == "python")
        assert package["acme_fcil/tempered.py"] == shown

    page = DOCS / "tutorial-method.md"
    Walk(cli, {"fcilbench plugins new acme-fcil/tempered": install}).follow(page)
    rows = (cli.folder / "leaderboards" / "mine" / "rows.jsonl").read_text().splitlines()
    assert len(rows) == 12 + 1
    assert "tempered" in (cli.folder / "leaderboards" / "mine" / "README.md").read_text()


@pytest.mark.slow
def test_your_own_data(cli):
    draw = np.random.default_rng(0)
    for split, count in (("train", 12), ("test", 4)):
        for hue, name in enumerate(("cat", "cow", "dog", "owl")):
            folder = cli.folder / "my-images" / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = draw.integers(0, 120, (32, 32, 3)) + 40 * np.eye(4, 3, dtype=int)[hue]
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number}.png")
    lines = [f'"text {number} about {label}",{label}' for label in ("card", "time") for number in range(10)]
    (cli.folder / "my-texts.csv").write_text("\n".join(["text,label", *lines]) + "\n")
    walk = Walk(cli)
    walk.follow(DOCS / "tutorial-data.md")
    assert {row["status"] for row in cli.json("show", "--out", "my-results")["rows"]} == {"ok"}
