"""The worker: a child process that runs one cell after the other and says how they go.

Started by an executor as `python -m fcilbench.execution.worker JOBS EVENTS`, where the two numbers are the pipes it
reads jobs from and writes events to. Standard output and error belong to whatever the plugins print: they go to the
log of the cell. When the pipe of jobs closes, the supervisor is gone and the worker ends itself.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import queue
import signal
import sys
import threading
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from fcilbench.execution.messages import Event, Job, LineBuffer, decode_job, encode

_PR_SET_PDEATHSIG = 1


class Channel:
    """The worker's end of the event pipe; safe to use from any thread."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def emit(self, event: Event) -> None:
        """Sends an event; without a supervisor to hear it the process ends."""
        line = encode(event)
        with self._lock:
            try:
                while line:
                    line = line[os.write(self._descriptor, line) :]
            except BrokenPipeError:
                os._exit(0)


def main(arguments: list[str] | None = None) -> None:
    """Serves jobs until the supervisor closes the pipe.

    Args:
        arguments: The numbers of the job pipe and the event pipe; the process's own by default.
    """
    job_pipe, event_pipe = (int(argument) for argument in (arguments or sys.argv[1:]))
    for descriptor in (job_pipe, event_pipe):
        os.set_inheritable(descriptor, False)
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is the supervisor's to handle
    jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(job_pipe, jobs), name="jobs", daemon=True).start()
    channel = Channel(event_pipe)
    faulthandler.enable()

    from fcilbench.execution import jobs as work  # imports torch

    channel.emit({"event": "ready", "pid": os.getpid(), "environment": work.environment()})
    while True:
        job = jobs.get()
        _redirect_output(Path(job.workdir) / "log.txt", job.cell_id)
        work.serve(job, channel.emit)


def _listen(descriptor: int, jobs: queue.SimpleQueue[Job]) -> None:
    buffer = LineBuffer()
    while chunk := os.read(descriptor, 1 << 16):
        for line in buffer.feed(chunk):
            jobs.put(decode_job(line))
    os._exit(0)  # also in the middle of a cell: an orphan must not write on into a store that others use


def _die_with_parent() -> None:
    """Asks Linux to kill this process when its supervisor dies: the closed pipe says so too, but needs the GIL."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _redirect_output(log: Path, cell_id: str) -> None:
    """Sends file descriptors 1 and 2, and so all that Python and C code print, to the end of a cell's log."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # the plugin before may have closed it
            stream.flush()
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    if descriptor > 2:
        os.close(descriptor)
    with suppress(OSError, ValueError):
        print(f"--- {datetime.now(UTC).isoformat(timespec='seconds')} cell {cell_id} process {os.getpid()}", flush=True)


if __name__ == "__main__":
    main()
