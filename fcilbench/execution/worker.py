"""The worker: a process that imports plugins and answers one request after the other.

Started as `python -P -m fcilbench.execution.worker REQUESTS EVENTS`, where the two numbers are the pipes it reads
requests from and writes events to (`fcilbench.registry.process`). A request has a `token` and an `ask`:

    describe, resolve    about a plugin (`registry.describe`); one `answer`
    probe, verify        about a cell or a data set (`execution.probe`); `decoding` events, then one `answer`
    run                  trains a cell (`execution.jobs`); ends with one of `TERMINAL`

Standard output and error belong to whatever the plugins print. When the pipe of requests closes, the parent is gone and
the worker ends itself.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import queue
import signal
import sys
import threading
import traceback
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fcilbench.registry.process import LARGEST_LINE, Event, EventTooLargeError, LineBuffer, encode

_PR_SET_PDEATHSIG = 1


class Channel:
    """The worker's end of the event pipe; safe to use from any thread."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._process = os.getpid()

    def emit(self, token: str, event: Event) -> None:
        """Sends an event of a request.

        A process that a plugin has forked ends here: it must not speak for the worker, nor go on with its work.

        Raises:
            EventTooLargeError: If the event is longer than a line may be.
        """
        if os.getpid() != self._process:
            os._exit(1)
        line = encode({"token": token, **event})
        if len(line) > LARGEST_LINE:
            size = f"{len(line) / 2**20:.0f} MiB"
            raise EventTooLargeError(f"event {event['event']!r} has {size}, more than {LARGEST_LINE >> 20} MiB")
        with self._lock:
            try:
                while line:
                    line = line[os.write(self._descriptor, line) :]
            except BrokenPipeError:  # there is no parent to hear it
                os._exit(0)


def main(arguments: list[str] | None = None) -> None:
    """Answers requests until the parent closes the pipe.

    Args:
        arguments: The numbers of the request pipe and the event pipe; the process's own by default.
    """
    request_pipe, event_pipe = (int(argument) for argument in (arguments or sys.argv[1:]))
    for descriptor in (request_pipe, event_pipe):
        os.set_inheritable(descriptor, False)
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is the parent's to handle
    requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(request_pipe, requests), name="requests", daemon=True).start()
    faulthandler.enable()
    channel = Channel(event_pipe)
    try:
        while True:
            _serve(requests.get(), channel)
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(1)  # threads and exit handlers of plugins must not keep it


def _serve(request: dict[str, Any], channel: Channel) -> None:
    ask, token = request.pop("ask"), request.pop("token")

    def emit(event: Event) -> None:
        channel.emit(token, event)

    if ask == "run":
        redirect_output(Path(request["workdir"]) / "log.txt", request["cell_id"])
        from fcilbench.execution import jobs  # imports torch

        jobs.serve(request, emit)
    elif ask in ("probe", "verify"):
        from fcilbench.execution import probe

        emit({"event": "answer", **probe.answer(ask, request, emit)})
    else:
        from fcilbench.registry import describe

        emit({"event": "answer", **describe.answer({"ask": ask, **request})})


def _listen(descriptor: int, requests: queue.SimpleQueue[dict[str, Any]]) -> None:
    buffer = LineBuffer()
    while chunk := os.read(descriptor, 1 << 16):
        for line in buffer.feed(chunk):
            requests.put(json.loads(line))
    os._exit(0)  # also in the middle of a cell: an orphan must not write on into a store that others use


def _die_with_parent() -> None:
    """Asks Linux to kill this process when its parent dies: the closed pipe says so too, but needs the GIL."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def redirect_output(log: Path, cell_id: str) -> None:
    """Sends file descriptors 1 and 2, and so all that Python and C code print, to the end of a cell's log."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # the plugin before may have closed it
            stream.flush()
    with suppress(OSError):  # a full disk is reported by the cell itself
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        if descriptor > 2:
            os.close(descriptor)
    with suppress(OSError, ValueError):
        print(f"--- {datetime.now(UTC).isoformat(timespec='seconds')} cell {cell_id} process {os.getpid()}", flush=True)


if __name__ == "__main__":
    main()
