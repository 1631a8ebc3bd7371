"""A federation of many clients: seconds of a round and peak memory with 100, 1,000 and 10,000 registered clients.

One client in a hundred takes part in a round. All federations have the same 50,000 images, so that memory that grows
with the number of clients shows. Each runs in a process of its own, since peak memory never falls.

python benchmarks/scale.py
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from benchmarks import common

CLIENTS = (100, 1_000, 10_000)
IMAGES, ROUNDS = 50_000, 5


def measure(method: str, clients: int) -> None:
    """Runs one federation in this process and prints its row as a line of JSON."""
    from fcilbench.federation.run import run_experiment
    from fcilbench.registry import entrypoints
    from fcilbench.spec.protocol import Partition

    work = replace(common.WORKLOADS["vit-mini"], clients=clients, images=IMAGES // clients)
    aggregator = entrypoints.load(entrypoints.lookup("aggregators", method))()
    experiment = common.experiment(work, aggregator, "cpu", "fp32")
    protocol = experiment.protocol.model_copy(update={"participation": 0.01, "rounds": ROUNDS})
    experiment = replace(experiment, protocol=protocol, partition=Partition(kind="dirichlet", value=0.5))
    with tempfile.TemporaryDirectory() as folder:
        outcome = run_experiment(experiment, Path(folder))
        checkpoint = (Path(folder) / "checkpoint.pt").stat().st_size
    cost = outcome.cost
    row = {
        "method": method,
        "clients": clients,
        "a round": max(1, clients // 100),
        "seconds_a_round": cost.wall_s / ROUNDS,
        "peak_GB": (cost.peak_mem) / 1e9,
        "up_MB_a_client": cost.bytes_up / ROUNDS / max(1, clients // 100) / 1e6,
        "checkpoint_MB": checkpoint / 1e6,
    }
    print(json.dumps(row))


def main() -> None:
    """Prints the table and, if asked, writes it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--methods", default="fedavg,sum,fedproto", help="comma-separated names")
    parser.add_argument("--one", nargs=2, metavar=("METHOD", "CLIENTS"), help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    if options.one:
        measure(options.one[0], int(options.one[1]))
        return
    rows = []
    for method in options.methods.split(","):
        for clients in CLIENTS:
            command = [sys.executable, "-m", "benchmarks.scale", "--one", method, str(clients)]
            answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            rows.append(json.loads(answer.splitlines()[-1]))
    print(common.table(rows))
    common.write(options.json, "scale", "cpu", rows)


if __name__ == "__main__":
    main()
