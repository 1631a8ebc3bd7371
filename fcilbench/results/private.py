"""Keeps home directories and user names out of what leaves a machine: rows, resolved suites, environments.

Rewritten are, wherever they stand in a text:

- the home directory of the user who runs this, and `/home/NAME`, `/Users/NAME`, `/root` (below `/nfs`, `/export/...`,
  too), which become `~`;
- the user's login name as a part of an absolute path: `/scratch/ann/x` becomes `/scratch/USER/x`, `/tmp/of-ann/x`
  becomes `/tmp/of-USER/x`.

Other absolute paths stay, as do web addresses and, outside of paths, the name. Messages, reasons, warnings and
tracebacks are rewritten when they are made; parameters when a row is exported, since the row at home must find its
files. What identifies a cell is never rewritten: a plugin that reads a file is identified by its content.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import pwd
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fcilbench.results.provenance import digest
from fcilbench.spec.row import Row

if TYPE_CHECKING:
    from fcilbench.results.store import Store

_log = logging.getLogger(__name__)
_END = r"(?![\w.-])"
"""The end of a part of a path."""
_PART = r"[^\s/'\"`:;,()\[\]{}<>|]+"
_WEB = r"https?://\S+"
_HOMES = rf"(?<![\w.~-])(?:/[\w.-]+){{0,2}}/(?:home|Users)/{_PART}|(?<![\w.~-])/root{_END}"


def hide_homes(text: str) -> str:
    """Returns a text without home directories and without the user's name in paths.

    Example:
        >>> hide_homes("no such file: '/home/ann/data/x.npy'")
        "no such file: '~/data/x.npy'"
    """
    homes, name = _user()
    own = "".join(rf"|(?<![\w.~-]){re.escape(home)}{_END}" for home in homes)
    text = re.sub(rf"({_WEB}){own}|{_HOMES}", lambda found: found[1] or "~", text)
    if name:
        part = rf"(?<=[/_-]){re.escape(name)}(?=[/'\"`:;,()\[\]{{}}<>|\s]|$)"
        path = rf"({_WEB})|(?<![\w.~-])/(?:{_PART}/)*{_PART}"
        text = re.sub(path, lambda found: found[1] or re.sub(part, "USER", found[0]), text)
    return text


@functools.cache
def _user() -> tuple[tuple[str, ...], str]:
    """Returns the home directories of the user, the longest first, and the login name; `root` is nobody's name."""
    homes, name = {os.path.expanduser("~")}, ""
    with contextlib.suppress(KeyError):
        entry = pwd.getpwuid(os.getuid())
        name = entry.pw_name
        homes.add(entry.pw_dir)
    homes |= {os.path.realpath(home) for home in homes}
    real = sorted((home for home in homes if len(Path(home).parts) > 1), key=lambda home: (-len(home), home))
    return tuple(real), "" if name == "root" else name


def hide_everywhere(value: Any) -> Any:
    """Returns a JSON value with `hide_homes` of every text in it, keys excepted."""
    if isinstance(value, str):
        return hide_homes(value)
    if isinstance(value, Mapping):
        return {key: hide_everywhere(each) for key, each in value.items()}
    return [hide_everywhere(each) for each in value] if isinstance(value, list | tuple) else value


def hidden_texts(row: Row) -> Row:
    """Returns a row whose failure, reason and warnings are rewritten."""
    failure = row.failure and row.failure.model_copy(update={"message": hide_homes(row.failure.message)})
    warnings = [hide_homes(each) for each in row.warnings]
    skipped = row.skipped and hide_homes(row.skipped)
    return row.model_copy(update={"failure": failure, "skipped": skipped, "warnings": warnings})


def hidden(row: Row) -> Row:
    """Returns a row as it may leave the machine; its id, identities, labels and figures are as they were."""
    params = row.params.model_copy(update=hide_everywhere(dict(row.params)))
    selectors = {
        label: each.model_copy(update={"params": hide_everywhere(each.params)}) for label, each in row.selectors.items()
    }
    return hidden_texts(row).model_copy(update={"params": params, "selectors": selectors})


def publish(source: Store, target: Store, rows: Sequence[Row]) -> list[Row]:
    """Returns rows as they may leave the machine, and writes the suites and environments that had to be rewritten.

    A record has the digest of its content for a name, so rows name the rewritten one. What a plugin identifies a cell
    by stays, even if it is a path; that is logged as a warning.
    """
    suites: dict[str | None, str | None] = {None: None}
    environments: dict[str, str] = {}
    told: set[str] = set()
    found = []
    for row in map(hidden, rows):
        if row.suite_digest not in suites:
            record = source.suite(row.suite_digest or "")
            suites[row.suite_digest] = _rewritten(record, row.suite_digest, target.save_suite)
        if row.env not in environments:
            environments[row.env] = _rewritten(source.environment(row.env), row.env, target.save_environment)
        for use in (each.record for each in row.uses):
            if hide_everywhere(use.identity) != use.identity and use.name not in told:
                told.add(use.name)
                _log.warning(
                    "%s identifies cells by a path, which stays in the exported rows: %s "
                    "(its `identity` should give the content's digest instead)",
                    use.name,
                    use.identity,
                )
        found.append(row.model_copy(update={"suite_digest": suites[row.suite_digest], "env": environments[row.env]}))
    return found


def _rewritten(record: Mapping[str, Any] | None, name: Any, save: Any) -> Any:
    """Returns the name of a record as it may leave the machine, which is saved if it differs from the record `name`."""
    if record is None or digest(record) != name:
        return name
    shown = hide_everywhere(record)
    return name if shown == record else save(shown)
