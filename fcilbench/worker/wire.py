"""The lines that go through the two pipes of a worker: one JSON object each, with the token of its request."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, cast

from fcilbench.worker.events import Event

LARGEST_LINE = 1 << 24
"""Bytes of the longest line that is accepted; a longer one is dropped."""


def encode(message: Mapping[str, Any]) -> bytes:
    """Returns a message as one line; a value that JSON does not know is written as its `repr`."""
    return json.dumps(message, default=repr, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> dict[str, Any] | None:
    """Returns the message on a line, or `None` if the line is no event, such as stray output of a plugin."""
    try:
        body = json.loads(line)
        if b"\\ud" in line:  # a lone surrogate, which no file can hold, becomes a question mark
            body = json.loads(json.dumps(body, ensure_ascii=False).encode(errors="replace"))
    except (ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) and isinstance(body.get("event"), str) else None


def events_of(token: str, lines: Iterable[bytes]) -> list[Event]:
    """Returns the events of one request on some lines, without their token."""
    messages = [message for line in lines if (message := decode(line)) is not None]
    return [cast(Event, message) for message in messages if message.pop("token", None) == token]


class LineBuffer:
    """Cuts a stream of bytes into lines; drops lines longer than `largest`."""

    def __init__(self, largest: int = LARGEST_LINE) -> None:
        self._largest = largest
        self._rest = bytearray()

    def feed(self, chunk: bytes) -> list[bytes]:
        """Returns the lines that `chunk` completes, without their newline."""
        lines = []
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            self._rest += end
            if len(self._rest) <= self._largest:
                lines.append(bytes(self._rest))
            self._rest.clear()
        self._rest += rest[: self._largest + 1 - len(self._rest)]  # no more than tells that it is too long
        return lines
