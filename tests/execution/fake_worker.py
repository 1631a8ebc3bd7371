"""A worker without torch that speaks the worker's protocol and behaves as its cell tells it to.

The cell's aggregator has `params: {"script": [behaviour of attempt 1, of attempt 2, ...]}`; the last one repeats.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

job_pipe, event_pipe = int(sys.argv[-2]), int(sys.argv[-1])
OUTCOME = {
    "metrics": {"faa/none": {"value": 0.5, "unit": "ratio", "better": "higher"}},
    "accuracy": {"none": [[0.5]]},
    "test_sizes": [10],
    "classes": [["a", "b"]],
    "cost": {"wall_s": 1.0},
    "seeds": {"order": 1, "partition": 2, "train": 3},
    "model_digest": "0" * 64,
    "data_fingerprint": "f",
    "device": "fake",
}


job: dict[str, Any] = {}


def emit(**event: object) -> None:
    os.write(event_pipe, json.dumps({"token": job.get("token"), **event}).encode() + b"\n")


def rounds(workdir: Path, total: int, pause: float) -> None:
    """Counts rounds in a checkpoint and goes on from it; notes each in a diary."""
    checkpoint = workdir / "checkpoint.pt"
    done = int(checkpoint.read_text()) if checkpoint.exists() else 0
    for number in range(done, total):
        time.sleep(pause)
        with (workdir / "diary.txt").open("a") as diary:
            diary.write(f"{number}\n")
        temporary = workdir / "checkpoint.tmp"
        temporary.write_text(str(number + 1))
        os.replace(temporary, checkpoint)
        emit(event="round", task=0, tasks=1, round=number, rounds=total, loss=0.5)


def behave(what: str, workdir: Path) -> None:  # noqa: PLR0912
    match what.split(":"):
        case ["ok"]:
            emit(event="finished", outcome=OUTCOME)
        case ["crash"]:
            os.kill(os.getpid(), signal.SIGKILL)
        case ["slay"]:
            os.kill(os.getppid(), signal.SIGKILL)  # the supervisor
            time.sleep(600)
        case ["exit", code]:
            print("last words", flush=True)
            os._exit(int(code))
        case ["daemon"]:
            child = subprocess.Popen(["sleep", "600"], start_new_session=True)
            (workdir / "daemon.txt").write_text(str(child.pid))
            while not Path(f"/proc/{child.pid}/environ").read_bytes():  # Popen returns before the kernel has set it
                time.sleep(0.001)
            behave("crash", workdir)
        case ["hang"]:
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # deaf to a polite end
            time.sleep(600)
        case ["deaf"]:
            os.close(event_pipe)
            time.sleep(600)
        case ["rubbish"]:
            print("rubbish on stdout", flush=True)
            os.write(event_pipe, b'no json\n\xff\xfe\n[1, 2]\n{"event": 3}\n\n')
            emit(event="finished", outcome=OUTCOME)
        case ["lie"]:
            emit(event="finished", outcome={"metrics": "none"})
        case ["oom"]:
            emit(event="oom", kind="oom", type="OutOfMemoryError", message="CUDA out of memory")
        case ["stale"]:
            emit(token="of another job", event="finished", outcome=OUTCOME)
            emit(event="skipped", reason="mine")
        case ["flood"]:
            line = b"x" * (1 << 20)
            for _ in range(64):
                os.write(event_pipe, line)
            emit(event="finished", outcome=OUTCOME)
            time.sleep(600)
        case ["skip"]:
            emit(event="skipped", reason="needs text")
        case ["disk"]:
            emit(event="failed", kind="environment", type="OSError", message="No space left on device: /cells/x")
        case ["fail", kind]:
            emit(event="failed", kind=kind, type="ValueError", message="two\nlines", traceback_path="traceback.txt")
        case ["rounds", total, pause]:
            rounds(workdir, int(total), float(pause))
            emit(event="finished", outcome=OUTCOME)
        case ["rounds", total, pause, after]:
            rounds(workdir, int(total), float(pause))
            behave(after, workdir)
        case _:
            raise SystemExit(f"unknown behaviour {what}")


def work() -> None:
    while True:
        jobs_ready.acquire()
        job.update(queue.pop(0))
        emit(event="ready", environment={"torch": "none", "visible": os.environ.get("CUDA_VISIBLE_DEVICES")})
        workdir = Path(job["workdir"])
        with (workdir / "pids.txt").open("a") as pids:
            pids.write(f"{os.getpid()}\n")
        script = job["cell"]["aggregator"]["params"]["script"]
        attempt = len((workdir / "pids.txt").read_text().split())
        emit(event="started", pid=os.getpid())
        behave(script[min(attempt, len(script)) - 1], workdir)


if len(sys.argv) > 3:
    time.sleep(float(sys.argv[1]))  # as an import does
queue: list[dict] = []
jobs_ready = threading.Semaphore(0)
threading.Thread(target=work, daemon=True).start()
rest = b""
while chunk := os.read(job_pipe, 65536):
    *lines, rest = (rest + chunk).split(b"\n")
    for line in lines:
        queue.append(json.loads(line))
        jobs_ready.release()
os._exit(0)
