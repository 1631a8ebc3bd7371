"""The learning curves of a results folder: in a file of each cell that is trained there, or one file of all."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fcilbench.results.foreign import CURVE, DamagedError, RefusedError, parse_json, read_regular
from fcilbench.results.lines import Records

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Curve:
    """A cell's learning curve.

    Attributes:
        where: Its place in the folder, `file` or `file:line`.
        events: One record for each round and each task end, in the order in which they were written.
        wrong: What stands there that is no event, each as `place: reason`.
    """

    where: str
    events: list[dict[str, Any]]
    wrong: list[str]


class Curves:
    """The curves of one folder; a curve in a cell's own folder counts before that in `curves.jsonl`."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._published = Records(root, "curves.jsonl", "cell_id", CURVE)

    def read(self, cell_id: str) -> Curve | None:
        """Returns a cell's curve, or `None` if there is none; what is damaged in it is told as `wrong`."""
        name = own_file(cell_id)
        try:
            text = read_regular(self._root, name, CURVE.size)
            if text is not None:
                lines = enumerate(text.splitlines(), start=1)
                return _curve(name, ((f"{name}:{number}", line) for number, line in lines if line.strip()))
            if cell_id not in self._published:
                return None
            where = self._published.where(cell_id)
            events = parse_json(self._published.content(cell_id) or b"", CURVE)["events"]
        except RefusedError as error:
            return Curve(name, [], [str(error)])
        except (DamagedError, KeyError) as error:
            return Curve(where, [], [f"{where}: not a curve: {error}"])
        if not isinstance(events, list):
            return Curve(where, [], [f"{where}: not a curve: its events are no list"])
        return _curve(where, ((f"{where}: event {number}", event) for number, event in enumerate(events, start=1)))

    def content(self, cell_id: str) -> bytes | None:
        """Returns a cell's curve as the JSON text of its record in `curves.jsonl`; `None` if there is none.

        The text of each event is that which was written: no number is read and written anew. What is damaged is left
        out with a logged warning.
        """
        name = own_file(cell_id)
        try:
            text = read_regular(self._root, name, CURVE.size)
            if text is None:
                return self._published.content(cell_id)
        except (DamagedError, RefusedError) as error:
            _log.warning("%s: the curve of cell %s is left out: %s", self._root, cell_id[:12], error)
            return None
        events = []
        for number, line in enumerate(text.splitlines(), start=1):
            try:
                events += [line] if line.strip() and _parsed(line) else []
            except DamagedError as error:
                _log.warning("%s:%d is left out: %s", self._root / name, number, error)
        return b'{"cell_id":"%b","events":[%b]}' % (cell_id.encode(), b",".join(events))

    def add(self, contents: Iterable[bytes]) -> None:
        """Appends curves to `curves.jsonl`, as `content` returns them."""
        self._published.append(contents)


def own_file(cell_id: str) -> str:
    """Returns the curve's file in a cell's own folder, relative to the results folder."""
    return f"cells/{cell_id}/rounds.jsonl"


def _curve(where: str, found: Iterator[tuple[str, Any]]) -> Curve:
    events, wrong = [], []
    for place, event in found:
        try:
            record = _parsed(event)
            if not isinstance(record, dict):
                raise DamagedError("it is no map")
        except DamagedError as error:
            wrong.append(f"{place}: not an event of a curve: {error}")
        else:
            events.append(record)
    return Curve(where, events, wrong)


def _parsed(event: Any) -> Any:
    return parse_json(event) if isinstance(event, bytes) else event
