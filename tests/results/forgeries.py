"""Forgeries of a published result, one function each: what somebody who submits rows might change, and the answer.

The first row of the folder is a FedAvg result of five tasks with four rounds each; `NCM` is one of a method that trains
nothing. A function returns nothing; what it does is its name.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

from .forge import Folder

NCM = 6
"""Index of the first row of ncm."""
FORGERIES: dict[str, tuple[Callable[[Folder], None], str, int]] = {}
"""By name: the change, what `verify` says of it, and the line at which it says so."""


def caught(name: str, says: str, line: int = 1) -> Callable[[Callable[[Folder], None]], Callable[[Folder], None]]:
    def add(forge: Callable[[Folder], None]) -> Callable[[Folder], None]:
        assert name not in FORGERIES
        FORGERIES[name] = (forge, says, line)
        return forge

    return add


def edit(name: str, says: str, *path: object, to: object) -> None:
    """Adds the forgery that puts a value at a path of the first row."""

    def forge(folder: Folder) -> None:
        value = folder.row
        for step in path[:-1]:
            value = value[step]
        value[path[-1]] = to

    caught(name, says)(forge)


# ------------------------------------------------------------------ accuracies, test sizes, classes, metrics


def accuracy(name: str, value: float, says: str) -> None:
    def forge(folder: Folder) -> None:
        folder.row["accuracy"]["none"][4][0] = value
        folder.consistent()

    caught(name, says)(forge)


accuracy("an accuracy of 1.7, in matrix, metrics and curve", 1.7, "accuracy/none[4][0] is 1.7, not between 0 and 1")
accuracy("an accuracy of -3, in matrix, metrics and curve", -3.0, "accuracy/none[4][0] is -3, not between 0 and 1")
accuracy("an accuracy that is no share of the test samples", 0.905, "63.35 of 70 test samples: not a whole number")
edit("a metric that its matrix does not give", "faa/none is 0.99, but ", "metrics", "faa/none", "value", to=0.99)
edit("a metric that does not exist", "'fame/none' is no metric", "metrics", "fame/none", to={"value": 1.0})
edit("a metric with its direction turned", "lower is better; it is in", "metrics", "faa/none", "better", to="lower")
edit("an AUROC of 1.2", "oos_auroc/none is 1.2", "metrics", "oos_auroc/none", to={"value": 1.2})
edit("a metric that is not finite", "not a row: ", "metrics", "faa/none", "value", to=float("nan"))
edit("a matrix that is text", "not a row: accuracy.none", "accuracy", "none", to="high")
edit("no matrices at all", "a result without accuracy matrix", "accuracy", to={})
edit("test sizes of 0", "task 1 has 0 test samples", "test_sizes", to=[0, 0, 0, 0, 0])


@caught("a matrix other than its curve", "its curve has other accuracies under none after task 5")
def _(folder):
    folder.row["accuracy"]["none"][4].reverse()


@caught("the matrix of one task identity left out", "it evaluates none, inferred, oracle, but has matrices of none")
def _(folder):
    folder.row["accuracy"].pop("inferred")


@caught("a matrix without its first task", "oracle does not fit 5 tasks")
def _(folder):
    folder.row["accuracy"]["oracle"].pop(0)


@caught("one entry of a matrix not measured", "is not measured, but others after task 5 are")
def _(folder):
    folder.row["accuracy"]["none"][4][0] = None


@caught("the last task not measured", "always after the last task")
def _(folder):
    for matrix in folder.row["accuracy"].values():
        matrix[4] = [None] * 5
    folder.row["metrics"] = {}


@caught("test sizes of 1, with accuracy_micro computed from them", "test samples: not a whole number")
def _(folder):
    folder.row["test_sizes"] = [1, 1, 1, 1, 1]
    folder.consistent()


@caught("twice as many test samples", "718 test samples, its data set has 359")
def _(folder):
    folder.row["test_sizes"] = [2 * size for size in folder.row["test_sizes"]]
    folder.consistent()


@caught("test samples moved between tasks", "test_sizes are not those of its data here: 70, 72, 73, 72, 72")
def _(folder):
    folder.row["test_sizes"] = [71, 71, 73, 72, 72]
    for matrix in folder.row["accuracy"].values():
        for own in matrix:
            own[:2] = [0.0, 0.0][: len(own)]
    folder.consistent()


@caught("a class twice", "a class has its name twice")
def _(folder):
    folder.row["classes"][0][0] = folder.row["classes"][1][0]


@caught("classes of another order", "classes are not those that its order seed draws")
def _(folder):
    folder.row["classes"][0].reverse()


@caught("a task with fewer classes", "tasks hold 1, 2, 2, 2, 2 classes, its parameters ask for 2, 2, 2, 2, 2")
def _(folder):
    folder.row["classes"][0].pop()


# ------------------------------------------------------------------ place in the grid, parameters, identity

edit("a label of another method", "coords.aggregator is 'sum', which is sum in its suite, but its aggregator is "
     "fcilbench/fedavg", "coords", "aggregator", to="sum")  # fmt: skip
edit("a label of no entry", "coords.dataset is 'imagenet', which its suite's grid does not have", "coords", "dataset",
     to="imagenet")  # fmt: skip
edit("the label of another partition", "coords.partition is 'iid', which its suite's grid", "coords", "partition",
     to="iid")  # fmt: skip
edit("another seed in coords", "coords.seed is 7, its seed is 0", "coords", "seed", to=7)
edit("an axis that does not exist", "a cell has dataset, backbone, partition", "coords", "place", to="first")
edit("coords that are a list", "not a row: coords", "coords", to=[1])
edit("the name of another suite", "it is of suite 'grand', its resolved suite is 'quickstart'", "suite", to="grand")
edit("another learning rate", "its parameters are those of cell", "params", "protocol", "lr", to=0.5)
edit("a learning rate that is text", "params.protocol.lr is \"0.001\", which stands for 0.001", "params", "protocol",
     "lr", to="0.001")  # fmt: skip
edit("a parameter of the method", "params.aggregator are not those of its identity", "params", "aggregator",
     "weighting", to="uniform")  # fmt: skip
edit("a parameter of the data set", "params.dataset are not those of its identity", "params", "dataset",
     "train_per_class", to=4)  # fmt: skip
edit("parameters that are text", "not a row: params.aggregator", "params", "aggregator", to="default")
edit("another train seed", "seeds of train do not follow from seed 0", "seeds", "train", to=7)
edit("an axis without plugin", "not a row: it has no aggregator, backbone, dataset, stress", "plugins", to={})
edit("an identity version of the past", "identity version 1, which this fcilbench", "identity_version", to=1)
edit("an engine of the future", "engine version 99, which this fcilbench", "code", "engine_version", to=99)
edit("a schema of the future", "not a row: row", "schema", to=99)


@caught("a coordinate left out", "a cell has dataset, backbone, partition")
def _(folder):
    folder.row["coords"].pop("stress")


@caught("another method, with its cell id", "coords.aggregator is 'fedavg', which is fedavg in its suite")
def _(folder):
    folder.row["plugins"]["aggregator"]["name"] = "fcilbench/fisheravg"
    folder.renamed()


@caught("another learning rate, with its cell id", "protocol.lr is 0.5, in its suite 0.001")
def _(folder):
    folder.row["params"]["protocol"]["lr"] = 0.5
    folder.renamed()


@caught("a seed beyond the suite's, with its cell id", "its seed is 5, its suite has 3 from 0")
def _(folder):
    folder.row["seed"] = folder.row["coords"]["seed"] = 5
    folder.renamed()


@caught("data without declared digest, with its cell id", "its data set declares sha256:b8a3")
def _(folder):
    folder.row["data"]["declared"] = ""
    folder.renamed()


@caught("another suite under the old digest", "its resolved suite is another")
def _(folder):
    suite = folder.suite
    suite["protocol"]["lr"] = 0.5
    folder.suites[folder.row["suite_digest"]] = suite


@caught("another suite under its digest", "protocol.lr is 0.001, in its suite 0.5")
def _(folder):
    suite = folder.suite
    suite["protocol"]["lr"] = 0.5
    folder.with_suite(suite)


@caught("a suite whose label means another method", "coords.aggregator is 'sum', which is sum in its suite")
def _(folder):
    suite = folder.suite
    suite["grid"]["aggregator"][0]["label"] = "fedavg (ours)"
    folder.row["coords"]["aggregator"] = "sum"
    folder.with_suite(suite)


@caught("a suite that excludes the cell", "its suite excludes this cell: it lost")
def _(folder):
    suite = folder.suite
    suite["exclude"] = [{"aggregator": "fedavg", "because": "it lost"}]
    folder.with_suite(suite)


@caught("a suite that is none", "its resolved suite is none: fcilbench: Field required")
def _(folder):
    folder.with_suite({"grid": 5, "tuned": "much"})


@caught("no suite", "its resolved suite is missing")
def _(folder):
    folder.row["suite_digest"] = "sha256:" + "0" * 64


# ------------------------------------------------------------------ the curve


@caught("no curve", "its curve is missing")
def _(folder):
    folder.curves.pop(folder.row["cell_id"])


@caught("no rounds in the curve", "record 1 of its curve ends task 1, where round 1 of task 1 is due")
def _(folder):
    folder.curves[folder.row["cell_id"]] = [each for each in folder.curve if each["event"] == "task"]


@caught("the last round left out", "where round 4 of task 5 is due")
def _(folder):
    del folder.curve[-2]


@caught("a round twice", "record 2 of its curve is round 1 of task 1, where round 2 of task 1 is due")
def _(folder):
    folder.curve.insert(0, folder.curve[0])


@caught("two rounds in another order", "record 1 of its curve is round 2 of task 1, where round 1 of task 1 is due")
def _(folder):
    folder.curve[:2] = folder.curve[1::-1]


@caught("one round a task, as if there were no more", "its curve has not the 4 rounds of the protocol in tasks 1, 2, 3")
def _(folder):
    kept = [each for each in folder.curve if each["event"] == "task" or each["round"] == 0]
    folder.curves[folder.row["cell_id"]] = kept
    for each in folder.rounds:
        each["rounds"] = 1
    cost = folder.row["cost"]
    cost["rounds"] = 5
    for name in ("bytes_up", "bytes_down"):
        cost[name] = sum(each[name] for each in folder.rounds)
    for name in ("training", "aggregation", "task_end", "evaluation"):
        cost[f"{name}_s"] = sum(each["seconds"].get(name, 0.0) for each in kept)


@caught("a loss of 0 in every round", "its curve has a loss of exactly 0 in every round")
def _(folder):
    for each in folder.rounds:
        each["loss"] = 0


@caught("a loss that is text", "record 1 of its curve: not an event of a curve: loss: ")
def _(folder):
    folder.curve[0]["loss"] = "small"


@caught("a loss that is not finite", "curves.jsonl:1: not a curve: not JSON")
def _(folder):
    folder.curve[0]["loss"] = float("inf")


@caught("no loss", "its curve has no loss in round 1 of task 1, and nothing says why")
def _(folder):
    for each in folder.rounds:
        each["loss"] = None


@caught("an option that its suite leaves at its default", "of its suite: weighting is uniform, there samples")
def _(folder):
    folder.row["params"]["aggregator"]["weighting"] = folder.row["plugins"]["aggregator"]["identity"]["weighting"] = (
        "uniform"
    )
    folder.renamed()


@caught("an option of the data that its suite leaves at its default", "of its suite: train_per_class is 20, there ")
def _(folder):
    row = folder.row
    row["params"]["dataset"]["train_per_class"] = row["plugins"]["dataset"]["identity"]["train_per_class"] = 20
    folder.renamed()


@caught("a field of the protocol that its suite leaves at its default", "protocol.clip_norm is 5.0, in its suite None")
def _(folder):
    folder.row["params"]["protocol"]["clip_norm"] = 5.0
    folder.renamed()


edit("numbers that are not portable any more", "runtime.portable is ", "params", "runtime", "portable", to=False)
edit("a word for a number of threads", "runtime.threads is many", "params", "runtime", "threads", to="many")


@caught("a loss of a method that trains nothing", "its curve has losses, but the method trains nothing", NCM + 1)
def _(folder):
    folder.curves[folder.rows[NCM]["cell_id"]][0]["loss"] = 0.5


@caught("a record of the curve that is none", "record 3 of its curve: not an event of a curve")
def _(folder):
    folder.curve.insert(2, {"event": "nonsense"})


@caught("a curve of ten tasks", "record 1 of its curve is of 10 tasks, the row has 5")
def _(folder):
    for each in folder.curve:
        each["tasks"] = 10


# ------------------------------------------------------------------ costs

edit("one byte sent", "cost: bytes_up is 1, but its curve adds up to", "cost", "bytes_up", to=1)
edit("no bytes received", "cost: bytes_down is 0, but its curve adds up to", "cost", "bytes_down", to=0)
edit("fewer rounds in the cost", "cost: rounds is 1, but its curve has 20", "cost", "rounds", to=1)
edit("fewer tasks in the cost", "cost: tasks is 1, but its curve has 5", "cost", "tasks", to=1)
edit("a wall time of -5 s", "cost: wall_s is -5.0, below 0", "cost", "wall_s", to=-5)


@caught("seconds saved before rows counted them", "cost: saved_s is 5.0, which rows of schema 5 do not")
def _(folder):
    folder.row["schema"] = 5
    folder.row["cost"]["saved_s"] = 5.0


edit("a wall time shorter than its parts", "less than its parts", "cost", "wall_s", to=1.0)
edit("a wall time longer than from start to end", "cost: wall_s is 9000.0, but from start to end", "cost", "wall_s",
     to=9000.0)  # fmt: skip
edit("less training time than its curve", "cost: training_s is 0.001000, but its curve", "cost", "training_s", to=0.001)
edit("device time on a CPU", "cost: device_s is 5.0", "cost", "device_s", to=5.0)
edit("a model of 0 bytes", "cost: module is 0, but a result deploys a model", "cost", "module", to=0)
edit("a number that no table holds", "not a row: a number has 20 digits or more", "cost", "peak_mem", to=10**30)


@caught("one byte sent in each round, too", "cost: visits is 15, but its curve adds up to 0", NCM + 1)
def _(folder):
    for each in folder.curves[folder.rows[NCM]["cell_id"]]:
        if each["event"] == "round":
            each.update(bytes_up=1, visits=0)
    folder.rows[NCM]["cost"]["bytes_up"] = 5


@caught("bytes of each task's end left open", "cost: bytes_up is 1,000,000,000,000, but its curve adds up to")
def _(folder):
    for each in folder.curve:
        if each["event"] == "task":
            each["bytes_up"] = None
    folder.row["cost"]["bytes_up"] = 10**12


@caught("one visit", "cost: visits is 1, but 5 rounds have between 5 and 15", NCM + 1)
def _(folder):
    folder.rows[NCM]["cost"]["visits"] = 1


@caught("more visits than clients and rounds", "cost: visits is 100, but 5 rounds have between 5 and 15", NCM + 1)
def _(folder):
    folder.rows[NCM]["cost"]["visits"] = 100


# ------------------------------------------------------------------ digests, times, status, texts, paths

edit("a model digest that is text", "model_digest: 'trust me' is not sha256:", "model_digest", to="trust me")
edit("no model digest", "a result without accuracy matrix or model digest", "model_digest", to=None)
edit("a lock digest that is text", "tuned_from: 'by hand' is not sha256:", "tuned_from", to="by hand")
edit("a lock file that its suite does not have", "tuned_from is sha256:000", "tuned_from", to="sha256:" + "0" * 64)
edit("an environment digest that is text", "env: 'mine' is not sha256:", "env", to="mine")
edit("a code digest that is text", "code.digest: 'new' is not 64 hexadecimal digits", "code", "digest", to="new")
edit("a code digest of other plugins", "code.digest is not that of its plugins", "code", "digest", to="0" * 64)
edit("a commit that is text", "code.git_sha: 'main' is not the 40 hexadecimal", "code", "git_sha", to="main")
edit("data that are not the declared ones", "are not the declared sha256", "data", "fingerprint",
     to="sha256:" + "0" * 64)  # fmt: skip
edit("an end before the start", "before it started at", "ended", to="2020-01-01T00:00:00Z")
edit("an end in the future", "which is in the future", "ended", to="2999-01-01T00:00:00Z")
edit("no attempt", "a result without device, attempt or data", "attempts", to=0)
edit("a GPU that its environment does not have", "its device is 'NVIDIA H200', but its environment has no GPU",
     "device", to="NVIDIA H200")  # fmt: skip
edit("a warning of two lines", "warnings: 'fine Rank 1' is no plain line", "warnings", to=["fine\nRank 1"])
edit("a curve outside the folder", "curve_ref: '../../etc/passwd' is no file of cells/", "curve_ref",
     to="../../etc/passwd")  # fmt: skip
edit("a status that does not exist", "not a row: status", "status", to="good")
edit("a result that failed", "it is killed, so it has no metrics, accuracy", "status", to="killed")


def lost(folder: Folder, status: str, **fields: object) -> None:
    """Makes the first row one without a result."""
    row = folder.row
    row.update(status=status, metrics={}, accuracy={}, test_sizes=[], classes=[], model_digest=None, device=None)
    row.update(cost={"wall_s": 1.0}, data={**row["data"], "fingerprint": None}, **fields)


@caught("a failure that nobody is to blame for", "failure.kind is 'weather' (one of: plugin")
def _(folder):
    lost(folder, "failed", failure={"kind": "weather", "type": "Rain", "message": "wet"})


@caught("a skipped cell that failed", "it is skipped, so it has no failure")
def _(folder):
    lost(folder, "skipped", skipped="no", failure={"kind": "plugin", "type": "ValueError", "message": "no"})


@caught("a skipped cell without reason", "not a row: Value error, `skipped` holds")
def _(folder):
    lost(folder, "skipped")


@caught("a lost cell with traffic", "it is timeout, so it has no cost.bytes_up")
def _(folder):
    lost(folder, "timeout")
    folder.row["cost"]["bytes_up"] = 5


@caught("a row twice", "it repeats line 1", 13)
def _(folder):
    folder.rows.append(copy.deepcopy(folder.row))


@caught("two results of one cell", "another result than line 1: ", 13)
def _(folder):
    folder.rows.append(copy.deepcopy(folder.row))
    folder.row["accuracy"]["none"][4][0] = 69 / 70
    folder.consistent()


@caught("a line that is no JSON", "not a row: ", 13)
def _(folder):
    folder.lines.append("{")


@caught("a line of brackets", "not a row: ", 13)
def _(folder):
    folder.lines.append("[" * 100_000)


@caught("a line that is no object", "not a row: not an object", 13)
def _(folder):
    folder.rows.append([1, 2])


# ------------------------------------------------------------------ the environment


@caught("no environment", "its environment sha256:000000000000 is missing")
def _(folder):
    folder.row["env"] = "sha256:" + "0" * 64


@caught("another environment under the old digest", " is another")
def _(folder):
    folder.environments[folder.row["env"]] = {**folder.environment, "python": "4.0"}


@caught("packages: 5 in an environment", " is none: packages: ")
def _(folder):
    folder.with_environment({**folder.environment, "packages": 5})


@caught("a worker that is text in an environment", " is none: worker: ")
def _(folder):
    folder.with_environment({**folder.environment, "worker": "fast"})


@caught("a package without version in an environment", " is none: packages.torch: ")
def _(folder):
    folder.with_environment({**folder.environment, "packages": {"torch": None}})


@caught("an environment with lines of a terminal", "which is no plain line")
def _(folder):
    folder.with_environment({**folder.environment, "cpu": "fast\x1b[2J"})


@caught("another processor", "its hardware digest is not that of its environment")
def _(folder):
    record = {**folder.environment, "cpu": "Cray-1"}
    before = folder.row["hardware_digest"]
    folder.with_environment(record)
    folder.row["hardware_digest"] = before


SEEN_BY_TRAINING = {
    "one more test sample right, in matrix, metrics and curve": "faa/none",
    "another digest of the model": "model",
    "a model of one byte": "cost/module",
    "a server without state": "cost/server_state",
    "bytes of a task's end left out": "cost/bytes_up",
}
"""What is seen by training the cell again only, with what then differs."""


def plausible(name: str, folder: Folder) -> None:
    """Makes one of the forgeries of `SEEN_BY_TRAINING` in the first row."""
    row, cost = folder.row, folder.row["cost"]
    match SEEN_BY_TRAINING[name]:
        case "faa/none":
            own, size = row["accuracy"]["none"][-1], row["test_sizes"][0]
            right = round(own[0] * size)
            own[0] = (right + 1 if right < size else right - 1) / size
            folder.consistent()
        case "model":
            row["model_digest"] = "sha256:" + "0" * 64
        case "cost/module":
            cost["module"] = 1
        case "cost/server_state":
            cost["server_state"] = 0
        case _:
            end = next(each for each in folder.curve if each["event"] == "task")
            cost["bytes_up"] -= end["bytes_up"]
            end["bytes_up"] = 0
