"""What completes an argument on the command line. Nothing here imports a plugin, and each import waits for its call."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import typer

from fcilbench.shipped import folder, located

Found = Iterator[tuple[str, str]]
"""Words that begin as the user's does, each with what a shell may say about it."""

_CELL = re.compile(rb'"cell_id"\s*:\s*"([0-9a-f]{64})"')
_COORDS = re.compile(rb'"coords"\s*:\s*(\{[^{}]*\})')
_HEAD = 4096
"""Bytes of a row that hold its id and its labels."""
_UNSAFE = re.compile(r"[^\w./#=,+ -]")
"""What a label does not keep: the scripts of shells evaluate what they are given, and a row may be a stranger's."""
_DIGITS = 12
"""Digits of an id that are offered."""


def suites(incomplete: str) -> Found:
    """Yields the suites that come with the package, and those of this folder; nothing leaves paths to the shell."""
    shipped = [path.stem for path in sorted(folder("suites").glob("*.yaml")) if path.stem.startswith(incomplete)]
    if shipped:
        yield from ((str(path), "") for path in _here(incomplete))
        yield from ((name, "comes with fcilbench") for name in shipped)


def leaderboards(incomplete: str) -> Found:
    """Yields the leaderboards that come with the package; other folders are the shell's."""
    for path in sorted(folder("leaderboards").glob("*/rows.jsonl")):
        if (name := f"leaderboards/{path.parent.name}").startswith(incomplete):
            yield name, "comes with fcilbench"


def cells(ctx: typer.Context, incomplete: str) -> Found:
    """Yields the ids of the rows in the folder that `--from` or `--out` names before this word."""
    from fcilbench.errors import FcilbenchError
    from fcilbench.results.lines import read_lines

    given = ctx.params.get("source") or ctx.params.get("out") or "results"
    told = dict[str, str]()
    try:
        for line in read_lines(located(Path(given), "leaderboards"), "rows.jsonl"):
            head = line.data[:_HEAD]
            if (found := _CELL.search(head)) and found[1].decode().startswith(incomplete.lower()):
                told[found[1][:_DIGITS].decode()] = _labels(head)
    except (FcilbenchError, OSError):
        return
    yield from told.items()


def boards(incomplete: str) -> Found:
    """Yields the boards that are installed."""
    return _plugins(incomplete, "boards")


def datasets(incomplete: str) -> Found:
    """Yields the data sets that are installed."""
    return _plugins(incomplete, "datasets")


def trackers(incomplete: str) -> Found:
    """Yields the trackers that are installed."""
    return _plugins(incomplete, "trackers")


def executors(incomplete: str) -> Found:
    """Yields the executors that are installed."""
    return _plugins(incomplete, "executors")


def plugins(ctx: typer.Context, incomplete: str) -> Found:
    """Yields the plugins that are installed, of all kinds or of that of `--kind`."""
    from fcilbench.registry.entrypoints import KINDS

    kind = ctx.params.get("kind")
    return _plugins(incomplete, *([kind] if kind in KINDS else KINDS))


def kinds(incomplete: str) -> Found:
    """Yields the kinds of plugin."""
    from fcilbench.registry.entrypoints import KINDS

    yield from ((kind.removesuffix("s"), "") for kind in KINDS if kind.startswith(incomplete))


def figures(incomplete: str) -> Found:
    """Yields the figures that can be drawn."""
    from fcilbench.charts.choose import FIGURES

    yield from ((name, "") for name in FIGURES if name.startswith(incomplete))


def policies(incomplete: str) -> Found:
    """Yields the values of `--rerun`."""
    from fcilbench.suite.select import POLICIES

    yield from ((name, "") for name in POLICIES if name.startswith(incomplete))


def tolerances(incomplete: str) -> Found:
    """Yields the metrics that a tolerance may be about, each with its sign of equality."""
    from fcilbench.spec.metrics import METRICS

    for metric in METRICS.values():
        name = f"{metric.name}/*=" if metric.cost is None else f"{metric.name}="
        if name.startswith(incomplete):
            yield name, metric.title


def _plugins(incomplete: str, *of: str) -> Found:
    """Yields plugins by their short names, or in full once the user has typed a package's name."""
    from fcilbench.registry.entrypoints import find

    for kind in of:
        for ref in find(kind):
            name = ref.name if "/" in incomplete else ref.short
            if name.startswith(incomplete):
                yield name, kind.removesuffix("s")


def _here(incomplete: str) -> list[Path]:
    try:
        found = [path for path in sorted(Path().glob("*.y*ml")) if path.name.startswith(incomplete)]
        return [path for path in found if not _UNSAFE.search(path.name)]
    except OSError:
        return []


def _labels(head: bytes) -> str:
    found = _COORDS.search(head)
    try:
        coords = json.loads(found[1]) if found else {}
    except ValueError:
        return ""
    label = "/".join(str(value) for axis, value in coords.items() if axis != "seed") + f"#{coords.get('seed', 0)}"
    return _UNSAFE.sub("", label)
