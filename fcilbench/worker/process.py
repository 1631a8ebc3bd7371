"""The parent's side of a worker process: starts it, sends requests, and receives events until it dies.

There is one kind of worker, `python -P -m fcilbench.worker.main`. It answers `describe`, `resolve`, `probe`, `verify`,
`inspect` and `run`. A request is one JSON object with a `token`; every event of its answer carries the same token.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fcilbench.files import write_all
from fcilbench.worker.events import Died, Event, died
from fcilbench.worker.wire import LineBuffer, encode, events_of

WORKER = (sys.executable, "-P", "-m", "fcilbench.worker.main")
ANSWER_SECONDS = 600.0
"""How long a worker may be silent about a question; a cold import of a deep-learning package takes a minute."""

_CHUNK, _CHUNKS_PER_READ = 1 << 16, 16
_LAST_WORDS = 2000


def worker_environment() -> dict[str, str]:
    """Returns the environment of a worker, with the search path of this process, but without the working folder."""
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path if entry)
    return {**os.environ, "PYTHONPATH": path}


class WorkerProcess:
    """One worker process with its two pipes, whose numbers end its command line.

    It runs in a session of its own, so that a Ctrl-C reaches the parent alone and a kill reaches all processes that the
    worker started. When the parent dies, the pipe of requests closes, and that ends the worker.
    """

    def __init__(self, environment: Mapping[str, str] | None = None, command: Sequence[str] = WORKER) -> None:
        request_read, self._requests = os.pipe()
        self.events, event_write = os.pipe()
        os.set_blocking(self.events, False)
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self._mark = f"FCILBENCH_WORKER={uuid.uuid4().hex}"
        name, _, value = self._mark.partition("=")
        own = {name: value, "PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8:replace"}
        try:
            self._process = subprocess.Popen(
                [*command, str(request_read), str(event_write)],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                pass_fds=(request_read, event_write),
                env={**(worker_environment() if environment is None else environment), **own},
                start_new_session=True,
            )
        except OSError:
            self._close_pipes()
            raise
        finally:
            os.close(request_read)
            os.close(event_write)
        self._lines = LineBuffer()
        self._deaf = False

    def send(self, request: Mapping[str, Any]) -> None:
        """Sends a request; if the worker is dead, `death` says so."""
        with contextlib.suppress(BrokenPipeError):
            write_all(self._requests, encode(request))

    def receive(self, token: str) -> list[Event]:
        """Returns the events of one request that have arrived, without their token, at most a megabyte of them.

        The last one is `died` if the process has ended.
        """
        death = self.death()  # before reading: its last events came before its death
        events = events_of(token, self._read())
        return events if death is None else [*events, death]

    def _read(self) -> list[bytes]:
        lines: list[bytes] = []
        with contextlib.suppress(BlockingIOError):
            for _ in range(_CHUNKS_PER_READ):
                chunk = os.read(self.events, _CHUNK)
                if not chunk:
                    self._deaf = True
                    break
                lines += self._lines.feed(chunk)
        return lines

    def death(self) -> Died | None:
        """Returns the `died` event once the process has ended, else `None`.

        It kills a process whose event pipe is closed, of which no event can come any more.
        """
        if self._deaf:
            self._kill()  # does not change the exit code of a process that is ending
            self._process.wait()
        code = self._process.poll()
        return None if code is None else _obituary(code, self._last_words())

    def close(self) -> None:
        """Kills the worker and the processes that it started, also those in a session of their own."""
        self._kill()
        self._process.wait()
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):  # it is gone, or another user's
                if self._mark.encode() in path.read_bytes().split(b"\0"):
                    os.kill(int(path.parent.name), signal.SIGKILL)
        self._close_pipes()

    def _close_pipes(self) -> None:
        os.close(self._requests)
        os.close(self.events)
        self._output.close()

    def _kill(self) -> None:
        # The group exists while any of its processes lives, even after the worker itself has ended.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _last_words(self) -> str:
        size = self._output.seek(0, os.SEEK_END)
        self._output.seek(max(0, size - _LAST_WORDS))
        return self._output.read().decode(errors="replace").strip()


def _obituary(code: int, last_words: str) -> Died:
    """Returns the `died` event of a worker, from the exit code of `Popen` and the end of the output."""
    if code >= 0:
        last = last_words.rpartition("\n")[2]
        return died(f"the worker exited with code {code}" + (f": {last}" if last else ""))
    known = -code in {number.value for number in signal.Signals}
    name = signal.Signals(-code).name if known else f"signal {-code}"
    hint = "; the machine may have run out of memory" if name == "SIGKILL" else ""
    return died(f"the worker died of {name}{hint}", name)


def wait_for(workers: Iterable[WorkerProcess], seconds: float) -> None:
    """Waits until one of these workers has something to read, at most so many seconds."""
    waiting = select.poll()
    for worker in workers:
        waiting.register(worker.events, select.POLLIN)
    waiting.poll(1000 * seconds)


class Asker:
    """Asks one worker questions; it starts with the first one and is replaced when it dies."""

    def __init__(self) -> None:
        self._worker: WorkerProcess | None = None

    def ask(self, question: Mapping[str, Any], on_progress: Callable[[Event], None] | None = None) -> dict[str, Any]:
        """Returns the answer to a question, or `{"problem": reason}` if the worker died or was silent for too long.

        `on_progress` is called with each event before the answer.
        """
        self._worker = worker = self._worker or WorkerProcess()
        token = uuid.uuid4().hex
        worker.send({**question, "token": token})
        deadline = time.monotonic() + ANSWER_SECONDS
        while time.monotonic() < deadline:
            wait_for([worker], 0.1)
            for event in worker.receive(token):
                if event["event"] == "answer":
                    return event["answer"]
                if event["event"] == "died":
                    self.close()
                    return {"problem": event["reason"]}
                deadline = time.monotonic() + ANSWER_SECONDS
                if on_progress is not None:
                    on_progress(event)
        self.close()
        return {"problem": f"no answer within {ANSWER_SECONDS:g} s"}

    def close(self) -> None:
        """Ends the worker; the next question starts another one."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()
