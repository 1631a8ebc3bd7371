"""The hand-written pages in the site: links that leave `docs/` are mended, and the index gets its navigation."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[2]
"""The repository."""
OUTSIDE = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "leaderboards/README.md": "leaderboards.md",
    "weights/README.md": "weights.md",
}
"""Pages that are not in `docs/`, and their names in the site."""
REFERENCE = """
## Reference

- [Suite keys](reference/suite.md): every key with its legal values
- [Shipped suites](reference/shipped.md): all that come with the package
- [Data sets](reference/datasets.md): what each reads, its counts and its terms
- [Backbones](reference/backbones.md): networks for images, texts and arrays
- [Stressors](reference/stressors.md) and [Selectors](reference/selectors.md): their options
- [Python interface](api/README.md): what plugins and notebooks import
"""
"""The section of the index whose pages are made from the code, in the site alone."""
_FENCE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\\[\[\]])*)\]\(([^()\s]+)\)")
_TARGET = re.compile(r"\[([^\]]+)\]\(([^)#:]+)\.md\)")


def write_pages(source: Path, extra: Path) -> None:
    """Writes the hand-written pages below `source`, and what is copied as it is below `extra`."""
    for path in sorted((ROOT / "docs").rglob("*.md")):
        name = path.relative_to(ROOT / "docs")
        if name.parts[0] != "build":
            write(source / name, mended(path.relative_to(ROOT)))
    for path, name in OUTSIDE.items():
        write(source / name, mended(Path(path)))
    write(source / "example.md", notebook(ROOT / "docs" / "example.ipynb"))
    index = source / "index.md"
    text = index.read_text(encoding="utf-8") + REFERENCE
    index.write_text(text + navigation(text), encoding="utf-8")
    shutil.copytree(ROOT / "docs" / "pictures", source / "pictures")
    for picture in (ROOT / "leaderboards").glob("picture-*.svg"):
        shutil.copy(picture, source)
    for path in sorted([*(ROOT / "leaderboards").rglob("*.html"), *(ROOT / "leaderboards").rglob("*.js")]):
        copy = extra / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)


def mended(path: Path) -> str:
    """Returns the text of a page of the repository, with links that lead to pages of the site.

    A link to a file that the site does not have becomes its text.

    Raises:
        FileNotFoundError: If a link leads nowhere.
    """
    own = site_name(path)
    assert own is not None

    def link(found: re.Match[str]) -> str:
        text, (target, mark, anchor) = found[1], found[2].partition("#")
        if ":" in target or not target:
            return found[0]
        there = Path(os.path.normpath(path.parent / target))
        if not (ROOT / there).exists():
            raise FileNotFoundError(f"{path}: the link to {target} leads nowhere")
        if there.parts[0] == "leaderboards" and there.as_posix() not in OUTSIDE:
            return board_link(own, there.with_name("index.html"), text)
        name = site_name(there)
        if text.endswith(".md"):
            text = title(there)
        return f"[{text}]({relative(own, name)}{mark}{anchor})" if name else text

    text = (ROOT / path).read_text(encoding="utf-8")
    parts = _FENCE.split(text)
    return "".join(part if part.startswith("```") else _LINK.sub(link, part) for part in parts)


def title(path: Path) -> str:
    """Returns the first heading of a page of the repository."""
    return (ROOT / path).read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def site_name(path: Path) -> str | None:
    """Returns the name in the site of a file of the repository; `None` if the site does not have it."""
    if path == Path("docs/example.ipynb"):
        return "example.md"
    if path.parts[0] == "docs" and path.suffix == ".md":
        return str(PurePosixPath(*path.parts[1:]))
    return OUTSIDE.get(path.as_posix())


def relative(page: str, target: str) -> str:
    """Returns the address of a file of the site as a page of it has to write it."""
    return os.path.relpath(target, os.path.dirname(page) or ".").replace(os.sep, "/")


def board_link(page: str, board: Path, text: str, anchor: str = "") -> str:
    """Returns a link from a page to a board, which is copied as it is: Sphinx would miss it, but for HTML."""
    return f'<a href="{relative(page, board.as_posix())}{anchor}">{text}</a>'


def notebook(path: Path) -> str:
    """Returns a notebook as a page: its texts, and its code."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    shown = {"markdown": "{}\n", "code": "```python\n{}\n```\n"}
    return "\n".join(shown[cell["cell_type"]].format("".join(cell["source"]).strip()) for cell in cells)


def navigation(index: str) -> str:
    """Returns the navigation of the site: of each section of the index the pages that its list names."""
    trees = []
    for section in index.split("\n## ")[1:]:
        caption, _, body = section.partition("\n")
        if names := _TARGET.findall(body):
            trees.append(toctree([f"{words} <{name}>" for words, name in names], f":caption: {caption}"))
    return "\n" + "\n".join(trees)


def toctree(names: list[str], *options: str) -> str:
    """Returns the lines that put pages into the navigation, and show nothing."""
    return "\n".join(["```{toctree}", ":hidden:", *options, "", *names, "```", ""])


def write(path: Path, text: str) -> None:
    """Writes a page, and its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
