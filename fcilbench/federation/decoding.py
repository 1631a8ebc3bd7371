"""Events of a data set that is decoded into its cache before the first round."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

SECONDS = 0.5
"""At least so long between two events."""


def decoding_events(on_event: Callable[[dict[str, Any]], None]) -> Callable[[int, int], None]:
    """Returns a progress callback for `Dataset.open` that emits `decoding` events, few enough to be read.

    Args:
        on_event: Told `{"event": "decoding", "done": ..., "total": ...}`.
    """
    told = 0.0

    def report(done: int, total: int) -> None:
        nonlocal told
        if done == total or time.monotonic() - told >= SECONDS:
            told = time.monotonic()
            on_event({"event": "decoding", "done": done, "total": total})

    return report
