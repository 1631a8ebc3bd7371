"""Trackers: their interface, how one is opened by name, its URI, and how it is filled from a results folder."""

from __future__ import annotations

import logging
import os
import re
import socket
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast
from urllib.parse import unquote, urlsplit

from fcilbench.errors import UsageError
from fcilbench.registry import entrypoints
from fcilbench.results.store import NoRowsError, Store
from fcilbench.spec.row import Row

Warn = Callable[[str], None]
_log = logging.getLogger(__name__)
VARIABLES = ("FCILBENCH_TRACKING_URI", "MLFLOW_TRACKING_URI")
_PORTS = {"http": 80, "https": 443}


@dataclass
class Report:
    """What a tracker has done so far.

    Attributes:
        present: Number of rows that it had already.
        lost: Number of rows that it could not write; `results sync` writes them later.
        warning: Why rows were lost, in one line, or `None`.
    """

    logged: int = 0
    present: int = 0
    lost: int = 0
    warning: str | None = None


class Tracker(Protocol):
    """Observer of a suite. Its methods never raise and never block the run for long.

    A class registered in the entry-point group `fcilbench.trackers` is constructed as
    `Class(store, uri=..., warn=...)`, with `uri=None` if the user gave none. It reports a failure by one call of
    `warn`, and in `report`.
    """

    report: Report

    def suite_started(self, suite: str, facts: Mapping[str, Any]) -> None:
        """Called when a suite starts; `facts` are JSON values that describe it (planned cells, devices, ...)."""

    def cell_finished(self, row: Row) -> None:
        """Called with each row, after the store has it and the cell's curve and files."""

    def suite_finished(self, interrupted: bool = False) -> None:
        """Writes what is pending, in bounded time: after an interrupt within a few seconds."""


def parse_tracking(option: str | None) -> tuple[str, str | None]:
    """Returns the tracker's name and URI of a `--tracking` value.

    Example:
        >>> parse_tracking("mlflow=http://x:1"), parse_tracking("http://x:1"), parse_tracking("acme/board")
        (('mlflow', 'http://x:1'), ('mlflow', 'http://x:1'), ('acme/board', None))
    """
    if option is None:
        return "mlflow", None
    name, equals, uri = option.partition("=")
    if ":" in name:  # the `=` of a query is no name's
        return "mlflow", option
    if equals and not uri:
        raise UsageError(f"--tracking {option}: no URI after =", hint="e.g. --tracking mlflow=sqlite:///runs.db")
    return name, uri or None


def open_tracker(name: str, store: Store, *, uri: str | None = None, warn: Warn | None = None) -> Tracker:
    """Opens a tracker for a results folder, by its plugin name: `mlflow`, or `dist/name` of a third party.

    `uri` is where it writes; `None` means what the environment says, or the tracker's default. `warn` shows one line to
    the user.
    """
    ref = entrypoints.lookup("trackers", name)
    cls = entrypoints.load(ref)
    with entrypoints.blaming(ref):
        return cast(Tracker, cls(store, uri=uri, warn=warn or _log.warning))


def sync(store: Store, tracker: Tracker) -> Report:
    """Passes the last row of every cell to a tracker and returns its report.

    Raises:
        NoRowsError: If the folder has no rows.
    """
    suites: dict[str, list[Row]] = defaultdict(list)
    for row in store.latest().values():
        suites[row.suite].append(row)
    if not suites:
        raise NoRowsError(store.root)
    for suite, rows in suites.items():
        tracker.suite_started(suite, {})
        for row in rows:
            tracker.cell_finished(row)
        tracker.suite_finished()
    return tracker.report


def tracking_uri(root: Path, option: str | None = None) -> str:
    """Returns the tracking URI: the option, else the environment, else a SQLite file in the results folder.

    Example:
        >>> tracking_uri(Path("/data/results"), "http://tracking:5000")
        'http://tracking:5000'
    """
    for value in (option, *(os.environ.get(name) for name in VARIABLES)):
        if value:
            return value
    return f"sqlite:///{root.resolve() / 'mlflow.db'}"


def unreachable(uri: str) -> str | None:
    """Returns why an http(s) tracking server cannot be reached, in one line; `None` if it can, or for other URIs."""
    scheme = uri.partition("://")[0]
    if scheme not in _PORTS:
        return None
    try:
        parts = urlsplit(uri)
        address = (parts.hostname or "", parts.port or _PORTS[scheme])
    except ValueError:
        shown = without_password(uri)
        return f"{shown} is not a URL with a legal port (special characters of a password are percent-encoded)"
    try:
        socket.create_connection(address, timeout=3.0).close()
    except (OSError, OverflowError) as error:
        return f"no answer from {without_password(uri)}: {scrub(str(error), uri)}"
    return None


def without_password(uri: str) -> str:
    """Returns a URI without user name, password and query.

    Example:
        >>> without_password("https://ann:secret@tracking:5000/x?token=secret")
        'https://tracking:5000/x'
    """
    scheme, mark, rest = uri.partition("://")
    if not mark:
        return uri
    # In the path of a file an @ is a letter; elsewhere everything before the last @ may be a password.
    shown = rest if rest.startswith("/") else rest.rpartition("@")[2]
    return f"{scheme}{mark}{re.split('[?#]', shown)[0]}"


def scrub(text: str, uri: str) -> str:
    """Returns a text, such as the message of an exception, without the secrets of a URI."""
    text = text.replace(uri, without_password(uri))
    user, at, place = uri.partition("://")[2].rpartition("@")
    password, query = user.partition(":")[2], re.split("[?#]", place, maxsplit=1)[1:]
    found = {user if at else "", password, *re.split("[/?#@:]", password), *query}
    found |= {value.partition("=")[2] for each in query for value in re.split("[&;#]", each)}
    for secret in sorted({*found, *map(unquote, found)}, key=len, reverse=True):
        if len(secret) > 1:
            text = text.replace(secret, "***")
    return text
