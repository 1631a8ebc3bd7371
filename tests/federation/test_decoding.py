from __future__ import annotations

from typing import Any

import pytest

from fcilbench.federation import decoding


def test_few_events_and_always_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([100.0, 100.0, 100.2, 100.6, 100.6, 100.7])
    monkeypatch.setattr(decoding.time, "monotonic", lambda: next(now))
    seen: list[dict[str, Any]] = []
    report = decoding.decoding_events(seen.append)
    for done in (1, 2, 3, 4):
        report(done, 4)
    assert [event["done"] for event in seen] == [1, 3, 4]
    assert seen[0] == {"event": "decoding", "done": 1, "total": 4}
