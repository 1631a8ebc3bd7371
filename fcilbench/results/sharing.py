"""Rows that share their equal parts: cells of a grid differ in little, and 20,000 whole rows would fill a gigabyte."""

from __future__ import annotations

import gc
import marshal
from types import TracebackType
from typing import Any, Self

from fcilbench.spec.row import Row

_PARTS = ("coords", "seeds", "test_sizes", "classes", "warnings", "status", "suite", "suite_digest", "device", "env")
_DIGESTS = ("hardware_digest", "host_digest", "tuned_from")


class Sharing:
    """Replaces equal parts of many new rows by one of them, while it is open.

    Python's collector of cycles rests meanwhile: it would look through all rows again and again, which have none.
    """

    def __init__(self) -> None:
        self._parts: dict[Any, Any] = {}
        self._enabled = gc.isenabled()

    def __enter__(self) -> Self:
        gc.disable()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._enabled:
            gc.enable()

    def __call__(self, row: Row) -> Row:
        """Returns the row, whose parts are now those of an earlier row where they are equal."""
        fields = row.__dict__
        for name in (*_PARTS, *_DIGESTS):
            fields[name] = self._part(fields[name])
        params = row.params.__dict__
        for name, value in params.items():
            params[name] = self._part(value)
        fields["plugins"] = {
            kind: self._parts.setdefault((each.name, each.version, each.code_digest, _key(each.identity)), each)
            for kind, each in row.plugins.items()
        }
        for name in ("code", "data"):
            value = fields[name]
            fields[name] = self._parts.setdefault((name, *value.__dict__.values()), value)
        return row

    def _part(self, value: Any) -> Any:
        return self._parts.setdefault(_key(value), value)


def _key(value: Any) -> bytes:
    """Returns bytes that are equal only for JSON values that are: 1, 1.0 and true differ, and so does another order."""
    return marshal.dumps(value, 2)
