"""One worker process seen from the supervisor: its pipes, its process group, its last words."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence

from fcilbench.execution.messages import Event, Job, LineBuffer, decode_event, encode

_LAST_WORDS = 2000
_CHUNK = 1 << 16
_DEAF_SECONDS = 5.0


class Child:
    """A worker process.

    It runs in a session of its own, so that a Ctrl-C on the terminal reaches the supervisor alone and a kill reaches
    all that the worker started. The pipe of jobs closes when the supervisor dies, whatever the cause; that ends the
    worker.

    Args:
        command: Command line; the numbers of its two pipes are appended (jobs to read, events to write).
        environment: Its environment.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        job_read, self._jobs = os.pipe()
        self.events, event_write = os.pipe()
        os.set_blocking(self.events, False)
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child
        try:
            self._process = subprocess.Popen(
                [*command, str(job_read), str(event_write)],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                pass_fds=(job_read, event_write),
                env=dict(environment),
                start_new_session=True,
            )
        except OSError:
            os.close(self._jobs)
            os.close(self.events)
            self._output.close()
            raise
        finally:
            os.close(job_read)
            os.close(event_write)
        self._lines = LineBuffer()
        self._deaf_since: float | None = None

    @property
    def deaf(self) -> bool:
        """Whether its event pipe is closed, so that nothing can come from it any more."""
        return self._deaf_since is not None

    def send(self, job: Job) -> None:
        """Hands over a job; a worker that is gone is noticed by `death`, not here."""
        line = encode(job)
        with contextlib.suppress(BrokenPipeError):
            while line:
                line = line[os.write(self._jobs, line) :]

    def read(self) -> list[Event]:
        """Returns the events that have come; what is not an event is dropped."""
        lines: list[bytes] = []
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self.events, _CHUNK):
                lines += self._lines.feed(chunk)
            self._deaf_since = self._deaf_since or time.monotonic()
        return [event for line in lines if (event := decode_event(line)) is not None]

    def death(self) -> Event | None:
        """Returns the `died` event once the process is gone, else `None`.

        A process that lives on without its event pipe is of no use to anybody and is killed.
        """
        code = self._process.poll()
        if code is None:
            if self._deaf_since is not None and time.monotonic() - self._deaf_since > _DEAF_SECONDS:
                self._signal(signal.SIGKILL)
            return None
        return {"event": "died", "signal": -code if code < 0 else None, "code": code, "output": self._last_words()}

    def terminate(self) -> None:
        """Asks the worker and what it started to end."""
        self._signal(signal.SIGTERM)

    def close(self) -> None:
        """Kills the worker and what it started, reaps it and closes the pipes."""
        self._signal(signal.SIGKILL)
        self._process.wait()
        os.close(self._jobs)
        os.close(self.events)
        self._output.close()

    def _signal(self, number: signal.Signals) -> None:
        # The group keeps its number while any member lives, even after the worker itself is gone.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def _last_words(self) -> str:
        size = self._output.seek(0, os.SEEK_END)
        self._output.seek(max(0, size - _LAST_WORDS))
        return self._output.read().decode(errors="replace").strip()
