"""Parent side of `fcilbench.registry.describe`: asks, and survives a plugin that kills the process."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Any

ANSWER_SECONDS = 300.0
"""How long one answer may take; importing a deep-learning package from a cold disk takes a minute."""


class Child:
    """One child process, started at the first question and stopped at the end of the `with` block."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - closed by __exit__

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()
        self._errors.close()

    def ask(self, questions: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Asks questions in order; one that ends the process is answered by `{"died": reason}` and hurts no other.

        Args:
            questions: See `fcilbench.registry.describe.answer`.
        """
        return [self._ask(question) for question in questions]

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        process = self._running()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(question) + "\n")
            process.stdin.flush()
            line = self._answers.get(timeout=ANSWER_SECONDS)
        except queue.Empty:
            self._stop()
            return {"died": f"no answer within {ANSWER_SECONDS:g} s"}
        except BrokenPipeError:
            line = ""
        if not line:
            return {"died": self._last_words()}
        reply: dict[str, Any] = json.loads(line)
        return reply

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            self._answers = queue.SimpleQueue()
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "fcilbench.registry.describe"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
                # The child must see exactly the packages that this process sees.
                env={**os.environ, "PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path)},
            )
            threading.Thread(target=_pump, args=(self._process, self._answers), daemon=True).start()
        return self._process

    def _last_words(self) -> str:
        """Stops a dead child and says what it left on stderr."""
        process = self._process
        assert process is not None
        self._stop()
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors if line.strip()]
        self._errors.seek(0)
        self._errors.truncate()
        return f"the process ended with exit code {process.returncode}" + (f": {lines[-1]}" if lines else "")

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()  # it holds nothing that a clean end would save
        process.wait()
        with contextlib.suppress(BrokenPipeError):
            if process.stdin is not None:
                process.stdin.close()


def _pump(process: subprocess.Popen[str], answers: queue.SimpleQueue[str]) -> None:
    assert process.stdout is not None
    with process.stdout as lines:
        for line in lines:
            answers.put(line)
    answers.put("")
