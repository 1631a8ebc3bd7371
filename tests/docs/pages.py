"""What a page holds that a test can try: its fences, and the commands in them."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "methods").glob("*.md")),
]


def fences(page):
    """Returns kind and text of each fence of a page, in order."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def commands(page):
    """Returns the calls of `fcilbench` in the fences of a page, without comments."""
    parts = [
        part for kind, body in fences(page) if kind == "bash" for line in body.splitlines() for part in line.split("&&")
    ]
    return [part.partition(" #")[0].strip() for part in parts if part.strip().startswith("fcilbench ")]


def suites(page):
    """Returns the whole suites of a page."""
    return [body for kind, body in fences(page) if kind == "yaml" and body.startswith("fcilbench: 1")]
