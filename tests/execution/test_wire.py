import pytest

from fcilbench.worker.wire import LineBuffer, decode, encode


@pytest.mark.parametrize(
    "line", [b"", b"rubbish", b"\xff\xfe", b"[1]", b'"event"', b'{"event": 3}', b'{"loss": 1}', b"[" * 100_000]
)
def test_what_is_not_an_event_is_none(line):
    assert decode(line) is None


def test_events_carry_nan_and_odd_objects():
    event = decode(encode({"event": "round", "loss": float("nan"), "logs": {"set": {1}}}))
    assert event["loss"] != event["loss"]
    assert event["logs"] == {"set": "{1}"}


def test_lines_do_not_depend_on_chunks_and_long_ones_are_dropped():
    buffer = LineBuffer(largest=5)
    assert buffer.feed(b"on") == []
    assert buffer.feed(b"e\ntwo\nth") == [b"one", b"two"]
    assert buffer.feed(b"ree\n") == [b"three"]
    assert buffer.feed(b"toolong\nok\ntoo") == [b"ok"]
    assert buffer.feed(b"long") == []
    assert buffer.feed(b"er\nlast\n") == [b"last"]
