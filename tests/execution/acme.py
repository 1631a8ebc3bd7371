"""Aggregators of a third party that misbehave; installed for the worker's tests by a folder with metadata."""

import os
import sys
import urllib.request

from fcilbench.api import Field, No, Params, Request, Server, Updates
from fcilbench.plugins.aggregators.fedavg import FedAvg


class Acme(FedAvg):
    version = "1"

    class Params(Params):
        do: str = Field("print", description="how it misbehaves")

    def prepare(self, network: object, request: Request) -> No | None:
        return No("needs text") if self.params.do == "refuse" else None

    def aggregate(self, updates: Updates, server: Server) -> None:
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
            case "fetch":
                urllib.request.urlopen("http://example.invalid/weights")
            case "crash":
                os.kill(os.getpid(), 11)
            case "close":
                raise OSError("closed") if (os.close(1), os.close(2)) else AssertionError
        server.step(updates.mean())
