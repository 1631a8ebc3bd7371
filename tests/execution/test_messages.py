import pytest

from fcilbench.execution.messages import Job, LineBuffer, decode_event, decode_job, encode


def test_a_job_survives_the_pipe() -> None:
    job = Job(cell={"a": [1, None]}, cell_id="ff", workdir="/w", data_root=None, device="cuda", offline=True)
    assert decode_job(encode(job)) == job


@pytest.mark.parametrize("line", [b"", b"no", b"[]", b'{"cell": {}}', b'{"cell": {}, "nonsense": 1}'])
def test_what_is_not_a_job_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        decode_job(line)


@pytest.mark.parametrize("line", [b"", b"rubbish", b"\xff\xfe", b"[1]", b'"event"', b'{"event": 3}', b'{"loss": 1}'])
def test_what_is_not_an_event_is_none(line: bytes) -> None:
    assert decode_event(line) is None


def test_events_carry_nan_and_odd_objects() -> None:
    event = decode_event(encode({"event": "round", "loss": float("nan"), "logs": {"set": {1}}}))
    assert event is not None
    assert event["loss"] != event["loss"]
    assert event["logs"] == {"set": "{1}"}


def test_lines_do_not_depend_on_chunks() -> None:
    buffer = LineBuffer()
    assert buffer.feed(b"on") == []
    assert buffer.feed(b"e\ntwo\nth") == [b"one", b"two"]
    assert buffer.feed(b"ree\n") == [b"three"]
