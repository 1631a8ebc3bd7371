"""An aggregator of a third party that misbehaves; tests install it by a folder with metadata."""

import os
import resource
import sys
import threading
import time
import urllib.request

import torch
from torch.nn import functional as F

from fcilbench.api import Field, No, Params, Request, Server, Updates
from fcilbench.plugins.aggregators.fedavg import FedAvg


class Evil(FedAvg):
    version = "1"

    class Params(Params):
        do: str = Field("print", description="how it misbehaves")

    def prepare(self, network: object, request: Request) -> No | None:
        return No("needs text") if self.params.do == "refuse" else None

    def aggregate(self, updates: Updates, server: Server) -> None:  # noqa: PLR0912
        match self.params.do:
            case "print":
                print("from python")
                os.write(1, b'{"event": "finished"}\n')
                os.system("echo from a child")
                sys.stderr.write("to standard error\n")
            case "raise":
                raise ValueError("no\ngood")
            case "exit":
                sys.exit(0)
            case "memory":
                raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")
            case "cpu_memory":
                torch.ones(10**13)
            case "fork":  # the child goes on with the cell, and would finish the next one's
                if os.fork() == 0:
                    time.sleep(0.5)
            case "fork_exit":
                if os.fork() == 0:
                    sys.exit(0)
            case "thread" if server.last_task:  # late: while the worker runs the next cell
                emit = _emit_of_the_worker()
                threading.Timer(1.5, emit, [{"event": "skipped", "reason": "late"}]).start()
            case "switch" if server.last_task:
                torch.set_float32_matmul_precision("medium")
                torch.backends.mkldnn.enabled = False
                torch.set_default_dtype(torch.float64)
                torch.set_grad_enabled(False)
                torch.use_deterministic_algorithms(True, warn_only=True)
            case "patch":
                F.cross_entropy = torch.nn.CrossEntropyLoss.forward = lambda *args, **kwargs: 0 / 0
            case "nan":
                server.vector.fill_(torch.nan)
            case "nan_log":
                server.log("x", float("nan"))
            case "disk":
                resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
            case "surrogate":
                raise ValueError("bad \udce4 name " + "x" * 10**7)
            case "log":
                server.log("y" * (1 << 25), 1.0)
            case "fetch":
                urllib.request.urlopen("http://example.invalid/weights")
            case "crash":
                os.kill(os.getpid(), 11)
            case "close":
                raise OSError("closed") if (os.close(1), os.close(2)) else AssertionError
        server.step(updates.mean())


def _emit_of_the_worker():
    """Returns what the worker emits events with, from the stack of its main thread."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "serve":
            return frame.f_locals["emit"]
        frame = frame.f_back
    raise AssertionError
