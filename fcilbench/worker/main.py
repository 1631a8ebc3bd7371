"""The worker: a process that imports plugins and answers one request after the other.

Started as `python -P -m fcilbench.worker.main REQUESTS EVENTS`, where the two numbers are the pipes it reads
requests from and writes events to (`fcilbench.worker.process`). A request has a `token` and an `ask`:

    describe, resolve    about a plugin (`worker.describe`); one `answer`
    probe, verify        about a cell or a data set (`worker.probe`); `decoding` events, then one `answer`
    inspect              describes a data set (`worker.survey`); `decoding` events, then one `answer`
    run                  trains a cell (`worker.jobs`); ends with one of `TERMINAL`

Standard output and error are for what the plugins print. When the pipe of requests closes, the parent is gone, and the
worker ends.
"""

from __future__ import annotations

import ctypes
import faulthandler
import functools
import ipaddress
import json
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from fcilbench.errors import PluginError, PrerequisiteError
from fcilbench.files import write_all
from fcilbench.worker.events import Emit, Event
from fcilbench.worker.wire import LARGEST_LINE, encode

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Answers requests until the parent closes the pipe."""
    request_pipe, event_pipe = map(int, sys.argv[1:])
    for descriptor in (request_pipe, event_pipe):
        os.set_inheritable(descriptor, False)
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(request_pipe, requests), name="requests", daemon=True).start()
    faulthandler.enable()
    emit = _emitter(event_pipe)
    try:
        while True:
            request = requests.get()
            _serve(request, partial(emit, request.pop("token")))
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(1)  # threads and exit handlers of plugins must not keep it


def _emitter(descriptor: int) -> Callable[[str, Event], None]:
    """Returns the function that sends an event of a request, given by its token; safe to use from any thread.

    It raises `PluginError` if the event is longer than a line may be. In a process that a plugin has forked it ends
    that process, which must not report in the worker's name.
    """
    lock, process = threading.Lock(), os.getpid()

    def emit(token: str, event: Event) -> None:
        if os.getpid() != process:
            os._exit(1)
        line = encode({"token": token, **event})
        if len(line) > LARGEST_LINE:
            size = f"{len(line) / 2**20:.0f} MiB"
            raise PluginError(f"event {event['event']!r} has {size}, more than {LARGEST_LINE >> 20} MiB")
        with lock:
            try:
                write_all(descriptor, line)
            except BrokenPipeError:  # the parent is gone
                os._exit(0)

    return emit


def _serve(request: dict[str, Any], emit: Emit) -> None:
    ask = request.pop("ask")
    if ask == "run":
        _redirect_output(Path(request["workdir"]) / "log.txt", request["cell_id"])
        if request["offline"]:
            refuse_network()
        from fcilbench.worker import jobs  # imports torch

        jobs.serve(request, emit)
    elif ask in ("probe", "verify", "inspect"):
        from fcilbench.worker import probe

        emit({"event": "answer", "answer": probe.answer(ask, request, emit)})
    else:
        from fcilbench.worker import describe

        emit({"event": "answer", "answer": describe.answer({"ask": ask, **request})})


def _listen(descriptor: int, requests: queue.SimpleQueue[dict[str, Any]]) -> None:
    with os.fdopen(descriptor, "rb") as lines:
        for line in lines:
            requests.put(json.loads(line))
    os._exit(0)  # even amid a cell: an orphan must not write into a store that others use


def _die_with_parent() -> None:
    """Asks Linux to kill this process when its parent dies: the closed pipe says so too, but needs the GIL."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _redirect_output(log: Path, cell_id: str) -> None:
    """Sends file descriptors 1 and 2, and so all that Python and C code print, to the end of a cell's log."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # an earlier plugin may have closed it
            stream.flush()
    with suppress(OSError):  # a full disk is reported by the cell itself
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for number in (1, 2):
            os.dup2(descriptor, number)
            os.set_inheritable(number, True)  # a stream that a plugin has closed may be `descriptor` itself
        if descriptor > 2:
            os.close(descriptor)
    with suppress(OSError, ValueError):
        print(f"--- {datetime.now(UTC).isoformat(timespec='seconds')} cell {cell_id} process {os.getpid()}", flush=True)


@functools.cache  # an audit hook cannot be removed
def refuse_network() -> None:
    """Refuses, from now on and for the whole process, connections and name look-ups beyond this host.

    It listens to Python's audit events, so C extensions that go through the `socket` module are covered as well;
    a library that calls the system by itself is not, nor is the name look-up inside a bare `socket.connect` (the
    connection that follows is). Unix sockets and the loopback interface stay allowed.
    """
    sys.addaudithook(_hook)


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
        target = arguments[1]
        host = target[0] if isinstance(target, tuple) and target else None
    elif event in ("socket.getaddrinfo", "socket.gethostbyname"):
        host = arguments[0]
    else:
        return
    if isinstance(host, bytes):
        host = host.decode(errors="replace")
    if isinstance(host, str) and not _here(host):
        raise PrerequisiteError(
            f"offline: connection to {host} refused", hint="fetch what is needed first, or run without --offline"
        )


def _here(host: str) -> bool:
    if host in ("", "localhost"):
        return True
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


if __name__ == "__main__":
    main()
