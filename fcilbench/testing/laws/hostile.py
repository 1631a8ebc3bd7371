"""Laws of hard days: clients with NaN, with one class, with nothing; uneven tasks; few participants."""

from __future__ import annotations

import torch

from fcilbench.api.aggregator import Aggregator
from fcilbench.api.message import Message
from fcilbench.api.server import Server
from fcilbench.testing.bench import UNEVEN, Poison, one_class_first
from fcilbench.testing.law import LawBroken, Laws
from fcilbench.testing.subject import AggregatorSubject, Run

LAWS: Laws[AggregatorSubject] = Laws()


def expect_finite(run: Run) -> None:
    """Every deployed vector is finite, of the global vector's shape and type.

    Raises:
        LawBroken: If one is not.
    """
    for end in run.ends:
        for name, vector in {"theta": end.theta, **end.modules}.items():
            if vector.shape != end.theta.shape or vector.dtype != torch.float32:
                raise LawBroken(f"{name} is {vector.dtype} {list(vector.shape)}, not float32 {list(end.theta.shape)}")
            if not bool(torch.isfinite(vector).all()):
                raise LawBroken(f"{name} has values that are not finite after task {end.tasks - 1}")


@LAWS.law(
    "finite",
    "the global model and every deployed module stay finite vectors of the same shape",
    fix="guard divisions (`clamp(min=...)`) and change `server.vector` through `server.step` only, which refuses NaN",
)
def finite(subject: AggregatorSubject) -> None:
    """Looks at the undisturbed run."""
    expect_finite(subject.whole)


@LAWS.law(
    "nan-client",
    "a client that sends NaN spoils nothing: the round goes on with the others",
    fix="count the rows of `updates`, not registered clients: a client that sent NaN has no row",
)
def nan_client(subject: AggregatorSubject) -> None:
    """Client 1 sends NaN in every round."""
    expect_finite(subject.run(stressor=Poison([1]), rounds=1))


@LAWS.law(
    "no-update",
    "a task in which no client sends a finite update leaves the global model as it was",
    fix="do not rely on `aggregate` having been called when `end_task` and `predictors` are; set up state in `begin`",
)
def no_update(subject: AggregatorSubject) -> None:
    """All clients send NaN in every round; the statistics of a task's end may still move the model."""
    moved: list[int] = []

    def watch(aggregator: Aggregator) -> None:
        own = aggregator.end_task

        def end_task(server: Server, statistics: dict[int, Message]) -> None:
            before = server.vector.clone()
            own(server, statistics)
            if not statistics and not torch.equal(server.vector, before):
                moved.append(server.task.index)

        aggregator.end_task = end_task  # type: ignore[method-assign]

    expect_finite(subject.run(watch, stressor=Poison([0, 1, 2]), tasks=(5, 5), rounds=1))
    if moved:
        raise LawBroken(f"the global model moved without an update, at the end of task {moved[0]}")


@LAWS.law(
    "one-class-client",
    "a client with one class, and a client with one sample, are clients like others",
    fix="do not divide by variances, counts or sums that one class or one sample makes zero",
)
def one_class_client(subject: AggregatorSubject) -> None:
    """Client 0 has one class of each task, client 1 one sample."""
    expect_finite(subject.run(edit=one_class_first(), rounds=1))


@LAWS.law(
    "partial-participation",
    "rounds in which only some clients take part work",
    fix="key client state by `client.id`, and do not expect a client that took part to do so again",
)
def partial_participation(subject: AggregatorSubject) -> None:
    """Two of five clients a round."""
    expect_finite(subject.run(clients=5, participation=0.4, tasks=(4, 6)))


@LAWS.law(
    "uneven-tasks",
    "tasks of unequal size, one of a single class among them, train and evaluate",
    fix="take labels from `batch.task.local(labels)` and classes from `task.classes`, never from t times a size",
)
def uneven_tasks(subject: AggregatorSubject) -> None:
    """A task of one class is answered without error where the task is known."""
    outcome = subject.whole.outcome
    expect_finite(subject.whole)
    last = outcome.accuracy["oracle"][-1]
    if len(last) != len(UNEVEN):
        raise LawBroken(f"{len(last)} of {len(UNEVEN)} tasks were measured")
    single = last[UNEVEN.index(1)]
    if single != 1.0:
        raise LawBroken(f"the task of one class has accuracy {single} under `oracle`, where only one answer is left")


@LAWS.law(
    "accuracy-matrix",
    "after each task the method answers for every task seen so far",
    fix="keep one phase per task in `build_schedule`; a centralised reference declares the law in `breaks`",
)
def accuracy_matrix(subject: AggregatorSubject) -> None:
    """The matrix of accuracies is complete below its diagonal."""
    for identity, matrix in subject.whole.outcome.accuracy.items():
        for task, row in enumerate(matrix):
            if None in row or len(row) != task + 1:
                raise LawBroken(f"after task {task} there are no accuracies under {identity!r}")
