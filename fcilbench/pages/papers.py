"""Where a method comes from: of the built-ins, from a file that travels with the package; of others nothing is said."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import NamedTuple


class Paper(NamedTuple):
    """The source of a method as its card names it, and the address of its paper or ""."""

    source: str
    address: str


def paper_of(plugin: str) -> Paper | None:
    """Returns the paper of a built-in method by its full name, e.g. `fcilbench/fedavg`; `None` of any other plugin."""
    dist, _, name = plugin.rpartition("/")
    return _papers().get(name) if dist == "fcilbench" else None


@cache
def _papers() -> dict[str, Paper]:
    from ruamel.yaml import YAML

    text = files("fcilbench.pages").joinpath("papers.yaml").read_text(encoding="utf-8")
    read = YAML(typ="safe").load(text)
    return {
        name: Paper(each["source"], f"https://arxiv.org/abs/{each['arxiv']}" if "arxiv" in each else "")
        for name, each in read.items()
    }
