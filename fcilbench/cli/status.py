"""`fcilbench status`: how far the runs of a results folder are, once or until nothing runs any more."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic, sleep
from typing import Any

import typer

from fcilbench.cli import console, options
from fcilbench.cli.progress import cell_name
from fcilbench.errors import CELLS_FAILED, OK, UsageError
from fcilbench.execution.status import Running, Status, Waiting, Watcher, counted, standing_of
from fcilbench.files import neighbour
from fcilbench.results.provenance import host_digest
from fcilbench.results.store import NoRowsError, Store
from fcilbench.spec.row import Row
from fcilbench.tables import duration, text_table

_EVERY = 2.0  # seconds between two looks
_SETTLED = 6.0  # seconds without a cell in training after which a run is over; between two of its cells there are fewer
_UNKNOWN = (
    "which cells wait is not known: no run has noted its cells here (one of an older fcilbench, or of `tune`); "
    "`fcilbench plan SUITE --out DIR` says what a suite lacks"
)


def status(
    out: options.Out = options.RESULTS,
    watch: options.Watch = False,
    form: options.Format = options.Form.TABLE,
) -> None:
    """Show how far the runs of a results folder are: done, running, failed, waiting, rate and time left.

    It reads the folder alone, on any machine that sees it: rows, leases, curves, and the cells that each run noted when
    it started. Rate and time left are those of the present stretch of work, in which no break was longer than two
    minutes. --watch draws it anew every two seconds and ends when nothing runs any more; where the output is no
    terminal, it waits and prints the end.

    Exit codes: 0 cells still run, or all are ok; 3 nothing runs and some cells are not ok; 4 there are no cells.
    """
    store = Store(out)
    if not store.root.is_dir():
        raise UsageError(f"folder {store.root} does not exist{neighbour(store.root)}")
    watcher = Watcher(store)
    found = _watch(watcher, store, form) if watch else watcher.look()
    total = sum(found.counts.values())
    if not total:
        raise NoRowsError(store.root)
    if form is options.Form.TABLE:
        console.show(_lines(found, store, console.width()))
    else:
        _show_records(found, store, form)
    raise typer.Exit(OK if found.running or found.counts["done"] == total else CELLS_FAILED)


def _watch(watcher: Watcher, store: Store, form: options.Form) -> Status:
    """Looks until nothing has run for a while, and draws what it sees if the output is a terminal."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    screen = Console(highlight=False)
    drawn = form is options.Form.TABLE and sys.stdout.isatty()
    with Live(console=screen, auto_refresh=False, transient=True) as live:
        found, busy = watcher.look(), monotonic()
        while found.running or (found.waiting and monotonic() - busy < _SETTLED):
            busy = monotonic() if found.running else busy
            if drawn:
                text = "\n".join(_lines(found, store, screen.width))
                live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)
            sleep(_EVERY)
            found = watcher.look()
    return found


@dataclass
class _Group:
    """The cells of one method, suite or machine."""

    rows: list[Row] = field(default_factory=list)
    running: list[Running] = field(default_factory=list)
    waiting: list[Waiting] = field(default_factory=list)

    @property
    def counts(self) -> list[int]:
        return [*counted(map(standing_of, self.rows), len(self.running), len(self.waiting)).values()]

    @property
    def seconds(self) -> float | None:
        """Mean time of a finished cell."""
        times = [row.cost.wall_s for row in self.rows if row.status == "ok"]
        return sum(times) / len(times) if times else None


def _groups(found: Status, key: Callable[[Row | Running | Waiting], str]) -> dict[str, _Group]:
    groups = defaultdict[str, _Group](_Group)
    for row in found.rows:
        groups[key(row)].rows.append(row)
    for running in found.running:
        groups[key(running)].running.append(running)
    for waiting in found.waiting:
        groups[key(waiting)].waiting.append(waiting)
    return dict(sorted(groups.items()))


def _method(each: Row | Running | Waiting) -> str:
    return str(each.coords.get("aggregator", "unknown"))


def _machines(found: Status, store: Store) -> list[dict[str, Any]]:
    """Returns a record for each machine that has trained, or trains, cells of the folder."""
    rows, recent, running = (defaultdict[str, list[Any]](list) for _ in range(3))
    for row in found.rows:
        if row.attempts:
            rows[row.host_digest].append(row)
    for row in found.ended:
        recent[row.host_digest].append(row)
    for each in found.running:
        running[each.owner.host].append(each)
    records = []
    for host in sorted({*rows, *recent, *running}, key=lambda each: (each != host_digest(), each)):
        counts = counted(map(standing_of, rows[host]), len(running[host]), 0)
        known = [record for row in rows[host][-1:] if (record := store.environment(row.env))]
        records.append(
            {
                "machine": "this one" if host == host_digest() else f"host {host.removeprefix('sha256:')[:8]}",
                "hardware": _hardware(known[0]) if known else "",
                **{key: counts[key] for key in ("done", "running", "failed", "skipped")},
                "cells_an_hour": found.rate(len(recent[host])),
            }
        )
    return records


def _hardware(record: Mapping[str, Any]) -> str:
    worker = record.get("worker")
    gpu = worker.get("gpu") if isinstance(worker, Mapping) else None
    return str(gpu or record.get("cpu") or "")


def _lines(found: Status, store: Store, width: int) -> list[str]:
    """Returns what a terminal shows: counts, rate and time left, then by suite, method and machine, and what runs."""
    lines = ["   ".join(f"{standing} {number}" for standing, number in found.counts.items() if number)]
    lines += _pace(found) + ([] if found.waiting_known else [_UNKNOWN])
    suites = _groups(found, lambda each: each.suite)
    if len(suites) > 1:
        table = [[name, *each.counts] for name, each in suites.items()]
        lines += ["", *text_table([("suite", *found.counts)], table, width=width, right=range(1, 6))]
    table = [[name, *each.counts, _time(each.seconds)] for name, each in _groups(found, _method).items()]
    lines += ["", *text_table([("method", *found.counts, "mean time")], table, width=width, right=range(1, 7))]
    heads = ["machine", "hardware", "done", "running", "failed", "skipped", "an hour"]
    table = [[*(each | {"cells_an_hour": _rate(each["cells_an_hour"])}).values()] for each in _machines(found, store)]
    lines += ["", *text_table([heads], table, width=width, right=range(2, 7))]
    if found.running:
        table = [
            [
                each.cell_id[:12],
                cell_name(each.coords),
                str(each.owner),
                f"{each.share:.0%}",
                _time(_age(each, found)),
                each.text,
            ]
            for each in found.running
        ]
        heads = ["running", "what", "where", "done", "for", "at"]
        lines += ["", *text_table([heads], table, width=width, right=(3, 4))]
    return lines


def _pace(found: Status) -> list[str]:
    """Returns a line with rate and time left, if cells run, and else one that says that none does."""
    rate, span = found.rate(), duration(found.hours * 3600)
    pace = f"{_rate(rate)} cells an hour in {span} of work" if rate else "rate not known yet: no cell has ended"
    if found.running:
        left = f"about {duration(found.left)} left" if found.left is not None else "time left not known yet"
        return [f"{pace}; {left} with {len(found.running)} at a time"]
    if not found.waiting:
        return [f"{pace}; nothing runs or waits"]
    return [f"{pace}; nothing runs now: the same `fcilbench run` continues"]


def _age(each: Running, found: Status) -> float:
    return max(0.0, (found.now - each.since).total_seconds())


def _time(seconds: float | None) -> str:
    return "" if seconds is None else duration(seconds)


def _rate(rate: float | None) -> str:
    return "" if rate is None else f"{rate:.0f}" if rate >= 100 else f"{rate:.1f}"


def _show_records(found: Status, store: Store, form: options.Form) -> None:
    """Prints the methods as a list, and in JSON all that is known besides."""
    heads = ("method", *found.counts, "mean_seconds")
    rows = [(name, *each.counts, each.seconds) for name, each in _groups(found, _method).items()]
    running = [
        {
            "cell_id": each.cell_id,
            "suite": each.suite,
            "coords": each.coords,
            "owner": str(each.owner),
            "share": each.share,
            "at": each.text,
            "seconds": _age(each, found),
        }
        for each in found.running
    ]
    about: dict[str, Any] = {
        "store": str(store.root),
        "counts": found.counts,
        "waiting_known": found.waiting_known,
        "cells_an_hour": found.rate(),
        "seconds_left": found.left,
        "machines": _machines(found, store),
        "running": running,
        "waiting": [vars(each) for each in found.waiting],
    }
    records: Sequence[dict[str, Any]] = [dict(zip(heads, row, strict=True)) for row in rows]
    console.show_list(form, heads, rows, key="methods", records=records, right=range(1, 7), **about)
