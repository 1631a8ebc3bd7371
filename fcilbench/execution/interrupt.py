"""Ctrl-C, SIGTERM and a closed terminal: wishes that the supervisor's loop reads, not exceptions amid its work."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Counts how often the user asked to stop.

    Attributes:
        count: 0 go on, 1 end in good order, 2 or more end at once.
    """

    def __init__(self) -> None:
        self.count = 0

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Catches the signals while the block runs; outside the main thread, where that is impossible, does nothing."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in _SIGNALS}
        before = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}  # nohup
        for number in before:
            signal.signal(number, self._count)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _count(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1
