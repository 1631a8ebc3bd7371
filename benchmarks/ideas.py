"""The table of a board of `suites/field-ideas.yaml`: each method beside what it is without its key idea.

    python -m benchmarks.ideas leaderboards/field-ideas

FAA is in per cent under `none` / `inferred` / `oracle`; memory is the peak of the resident set over that of FedAvg. The
seconds of a method beside those of FedAvg have a table of their own (`benchmarks.methods`): cells of a board share
their machine with others.
"""

from __future__ import annotations

import sys
from pathlib import Path

from fcilbench.pages.papers import paper_of
from fcilbench.registry.entrypoints import find, load
from fcilbench.results.store import Store
from fcilbench.spec.row import Row

WITHOUT = {
    **dict.fromkeys(("fedprox", "fedadam", "fedyogi", "fedadagrad", "moon", "signsgd", "er"), "fedavg"),
    **dict.fromkeys(("scaffold sgd", "fednova sgd"), "fedavg sgd"),
    **dict.fromkeys(("trimmed-mean", "median", "krum", "multi-krum", "geometric-median"), "fedavg uniform"),
    **dict.fromkeys(("mfcl (reduced)", "dgr (reduced)"), "fedavg"),
    **{"re-fed": "er", "ffa-lora": "ffa-lora mean", "fed-cprompt": "coda-prompt", "ridge": "ncm"},
}
"""The entry that a method is without its key idea, where that is not the entry `METHOD off`."""


def main(folder: Path) -> None:
    """Prints the table of a board."""
    rows = {str(row.coords["aggregator"]): row for row in Store(folder).latest().values()}
    files = {ref.name: Path(str(sys.modules[load(ref).__module__].__file__)) for ref in find("aggregators")}
    memory = rows["fedavg"].cost.figures["peak_mem"]
    print("| method | source | lines | FAA | idea off, or its control | FAA there | memory / FedAvg | up, MB |")
    print("|---|---|---:|---|---|---|---:|---:|")
    without = {"fedavg uniform", "fedavg sgd", "ffa-lora mean", "coda-prompt"}  # shown beside others alone
    for name, row in rows.items():
        other = WITHOUT.get(name, f"{name} off")
        if name in without or name.endswith(" off"):
            continue
        plugin = row.plugins["aggregator"].name
        paper, lines = paper_of(plugin), len(files[plugin].read_text(encoding="utf-8").splitlines())
        beside = (other, faa(rows[other])) if other in rows else ("", "")
        cost = row.cost.figures
        shares = f"{cost['peak_mem'] / memory:.2f} | {cost['bytes_up'] / 1e6:.4g}" if row.status == "ok" else " | "
        print(f"| {name} | {paper.source if paper else ''} | {lines} | {faa(row)} | {' | '.join(beside)} | {shares} |")


def faa(row: Row) -> str:
    """Returns the accuracies of a cell, or its status if it has none."""
    if row.status != "ok":
        return row.status
    values = [row.metrics[f"faa/{identity}"].value for identity in ("none", "inferred", "oracle")]
    return " / ".join("–" if value is None else f"{100 * value:.1f}" for value in values)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
