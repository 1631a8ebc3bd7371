"""Checks of the server half: what it makes of updates, and how its models answer."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from fcilbench.api import Message, Server, Updates
from fcilbench.errors import DivergedError
from fcilbench.testing.bench import UNEVEN, Faulty, no_samples_in_task, one_class_first, spread
from fcilbench.testing.check import CheckFailed, Checks, NotApplicable
from fcilbench.testing.subject import AggregatorSubject, Run, copies, gap, same_bits

CHECKS: Checks[AggregatorSubject] = Checks()

_TOLERANCE = 1e-3
"""Relative to the largest entry of the update, because merges solve linear systems."""


@partial(CHECKS.add, required=True)
def runs(subject: AggregatorSubject) -> None:
    """An experiment with unequal tasks runs on one of the kit's networks, and all deployed models are finite.

    Fix: see the traceback (`plugins test --verbose`); guard divisions (`clamp(min=...)`), and change `server.vector`
    through `server.step`. A method that needs another network sets `backbone = ...` in its conformance class.
    """
    _expect_finite(subject.whole)


def _expect_finite(run: Run) -> None:
    if not run.ends:
        raise CheckFailed("`predictors` was never called: the schedule has no phase")
    for end in run.ends:
        shape = list(end.vector.shape)
        for name, vector in {"server.vector": end.vector, **{k: m.vector for k, m in end.modules.items()}}.items():
            if vector.shape != end.vector.shape or vector.dtype != torch.float32:
                raise CheckFailed(f"{name} is {vector.dtype} {list(vector.shape)}, not float32 {shape}")
            if not bool(torch.isfinite(vector).all()):
                raise CheckFailed(f"{name} has values that are not finite after task {len(end.tasks) - 1}")


# ---------------------------------------------------------------- one client, equal clients, no client, another order


@CHECKS.add
def one_client(subject: AggregatorSubject) -> None:
    """A round with one client ends at that client's model.

    Fix: normalise the merge weights to sum 1; if the method scales or projects by nature, name the check in `breaks`.
    """
    _expect_own_step(subject, 1)


@CHECKS.add
def identical_clients(subject: AggregatorSubject) -> None:
    """Clients that all send the same model give that model.

    Fix: average, do not add; if equal updates cancel or add up by nature, name the check in `breaks`.
    """
    _expect_own_step(subject, 3)


def _expect_own_step(subject: AggregatorSubject, count: int) -> None:
    subject.require_training()
    stage = subject.stage(spread([1.0]))
    one, before = stage.updates, stage.server.vector
    clients = tuple(range(count))
    same = Updates(
        one.delta.expand(count, -1).clone(), one.samples * count, clients, one.statistics * count, one.layout
    )
    after, step = stage.merge(same), one.delta[0]
    if not (wrong := gap(after, before + step, step)) <= _TOLERANCE:
        ratio = float((after - before) @ step / (step @ step))
        raise CheckFailed(f"the step is {ratio:.3g} times the client's update along it, off by up to {wrong:.2g} of it")


@CHECKS.add
def empty_client(subject: AggregatorSubject) -> None:
    """A client without samples changes nothing, bit for bit.

    Fix: count the rows of `updates`, not registered clients; `updates.clients` says whose they are.
    """
    two = subject.run(edit=spread([0.6, 0.4]), tasks=(4, 6), rounds=1)
    three = subject.run(edit=spread([0.6, 0.4, 0.0]), tasks=(4, 6), rounds=1)
    if difference := same_bits(two, three):
        raise CheckFailed(f"with and without the empty client, {difference}")


@CHECKS.add
def permutation(subject: AggregatorSubject) -> None:
    """The order of the clients does not matter.

    Fix: treat rows alike and take weights from `updates.weights`; if clients have a topology, name the check in
    `breaks`.
    """
    stage = subject.stage(spread([0.3, 0.1, 0.25, 0.2, 0.15]), clients=5, tasks=(5, 5))
    given = stage.updates
    order = [*range(1, len(given.clients), 2), *range(0, len(given.clients), 2)]  # no two neighbours stay neighbours

    def shuffle(values: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(values[i] for i in order)

    shuffled = Updates(
        given.delta[order], shuffle(given.samples), shuffle(given.clients), shuffle(given.statistics), given.layout
    )
    one, two = stage.merge(given), stage.merge(shuffled)
    step = one - stage.server.vector
    if not (wrong := gap(two, one, step if bool(step.any()) else one)) <= _TOLERANCE:
        raise CheckFailed(f"in another order the step differs by up to {wrong:.2g} of its largest entry")


@CHECKS.add
def inputs_untouched(subject: AggregatorSubject) -> None:
    """Merging changes neither the clients' updates nor their statistics.

    Fix: clone before an in-place operation: `updates.delta.clone()`; `weights @ delta` and `delta * x` need none.
    """
    stage = subject.stage()
    updates = stage.updates
    delta, statistics = updates.delta.clone(), [copies(message) for message in updates.statistics]
    stage.merge(replace(updates))
    if not torch.equal(updates.delta, delta):
        raise CheckFailed("`updates.delta` was changed in place")
    for client, before, after in zip(updates.clients, statistics, updates.statistics, strict=True):
        for name, value in before.items():
            if name not in after or not torch.equal(after[name], value):
                raise CheckFailed(f"statistics {name!r} of client {client} were changed in place")


# ---------------------------------------------------------------- bad uploads, few samples, few clients


@CHECKS.add
def faulty_client(subject: AggregatorSubject) -> None:
    """A client that sends NaN, or does not answer, spoils nothing: the round goes on with the others.

    Fix: count the rows of `updates`, not registered clients: a client that sent NaN has no row.
    """
    _expect_finite(subject.run(stressor=Faulty([1]), rounds=2, tasks=(4, 6)))


@CHECKS.add
def no_update(subject: AggregatorSubject) -> None:
    """A task in which no client sends a finite update leaves the global model as it was.

    Fix: do not rely on `aggregate` having been called when `end_task` and `predictors` are; set up state in `begin`.
    """

    def end_task(own: Any, server: Server, statistics: dict[int, Message]) -> None:
        before = server.vector.clone()
        own(server, statistics)
        if not statistics and not torch.equal(server.vector, before):
            raise CheckFailed(f"the global model moved without an update, at the end of task {server.task.index}")

    everyone, tasks = Faulty([0, 1, 2]), (5, 5)
    with suppress(DivergedError):  # a run that never merged an update ends so, after all its tasks
        _expect_finite(subject.run({"end_task": end_task}, stressor=everyone, tasks=tasks))


@CHECKS.add
def idle_task(subject: AggregatorSubject) -> None:
    """A task in which no client has samples changes the modules of no other task.

    Fix: treat a task vector whose norm is rounding noise (1e-6 of the model's change) as zero.
    """
    run = subject.run(edit=no_samples_in_task(2), tasks=(4, 3, 3))
    if len(run.ends) != 3:
        raise NotApplicable("the method does not evaluate after each task")
    first, before, after = run.ends
    for task in before.tasks:
        for name in after.predictors.rules["oracle"].modules(after.tasks, task):
            if name in before.modules:
                learned = before.vector - first.vector
                wrong = gap(after.modules[name].vector, before.modules[name].vector, learned)
                if not wrong <= _TOLERANCE:
                    raise CheckFailed(f"module {name!r} of task {task.index} moved by {wrong:.2g} of what was learned")


@CHECKS.add
def one_class_client(subject: AggregatorSubject) -> None:
    """Clients with samples of one class and clients with one sample work like others.

    Fix: do not divide by variances, counts or sums that one class or one sample makes zero.
    """
    _expect_finite(subject.run(edit=one_class_first, rounds=1))


@CHECKS.add
def partial_participation(subject: AggregatorSubject) -> None:
    """Rounds in which only some clients take part work.

    Fix: key client state by `client.id`, and do not expect a client that took part to do so again.
    """
    _expect_finite(subject.run(clients=5, participation=0.4, tasks=(4, 6)))


# ---------------------------------------------------------------- answers


@CHECKS.add
def uneven_tasks(subject: AggregatorSubject) -> None:
    """Tasks of unequal size train and evaluate; one of a single class is answered without error under `oracle`.

    Fix: take labels from `batch.task.local(labels)` and classes from `task.classes`, never from t times a size.
    """
    last = subject.whole.outcome.accuracy["oracle"][-1]
    if len(last) != len(UNEVEN):
        raise CheckFailed(f"{len(last)} of {len(UNEVEN)} tasks were measured")
    if (single := last[UNEVEN.index(1)]) != 1.0:
        raise CheckFailed(f"the task of one class has accuracy {single} under `oracle`, where only one answer is left")


@CHECKS.add
def accuracy_matrix(subject: AggregatorSubject) -> None:
    """After each task the method answers for every task seen so far.

    Fix: keep one phase per task in `build_schedule`; a centralised reference names the check in `breaks`.
    """
    for identity, matrix in subject.whole.outcome.accuracy.items():
        for task, row in enumerate(matrix):
            if None in row or len(row) != task + 1:
                raise CheckFailed(f"after task {task} there are no accuracies under {identity!r}")


@CHECKS.add
def answers(subject: AggregatorSubject) -> None:
    """The method answers under `none`, `inferred` and `oracle`: classes seen, and for `oracle` of the true task.

    Fix: give `Predictors.rules` all three keys and deploy every module that a rule names; add `task.offset` to
    positions inside a slice.
    """
    for asked in (answer for end in subject.whole.ends for answer in end.answers):
        (count,) = {len(each) for each in asked.logits.values()}
        low, high = (asked.true.offset, asked.true.seen) if asked.true else (0, asked.tasks[-1].seen)
        labels, where = asked.labels, f"{asked.identity!r}"
        if labels.dtype != torch.int64 or labels.shape != (count,):
            raise CheckFailed(f"{where}: the answer is {labels.dtype} {list(labels.shape)}, not one int64 a sample")
        if count and not (low <= int(labels.min()) and int(labels.max()) < high):
            raise CheckFailed(f"{where}: labels {int(labels.min())}..{int(labels.max())} leave {low}..{high - 1}")


@CHECKS.add
def answers_per_sample(subject: AggregatorSubject) -> None:
    """An answer depends on its sample alone, not on the batch around it.

    Fix: compute confidence per row; no batch means, no sorting across samples, no majority vote.
    """
    for asked in subject.whole.ends[-1].answers:
        count = len(asked.labels)
        slices = [slice(0, count // 2), *(slice(i, i + 1) for i in range(count // 2, count))]
        apart = torch.cat(
            [asked.rule({k: v[part] for k, v in asked.logits.items()}, asked.tasks, asked.true) for part in slices]
        )
        if wrong := int((asked.labels != apart).sum()):
            raise CheckFailed(f"{asked.identity!r}: {wrong} of {count} answers change with the batch")


@partial(CHECKS.add, gpu=True)
def cpu_gpu(subject: AggregatorSubject) -> None:
    """CPU and GPU merge the same updates to the same model, and a run on the GPU ends.

    Fix: create tensors on the device of what they meet (`zeros_like`, `.to(updates.delta)`), and call .cpu() before
    .numpy().
    """
    if not torch.cuda.is_available():
        raise NotApplicable("there is no CUDA device")
    here, there = subject.stage(), subject.stage(device="cuda")
    given = here.updates
    statistics = tuple({name: value.cuda() for name, value in message.items()} for message in given.statistics)
    moved = Updates(given.delta.cuda(), given.samples, given.clients, statistics, given.layout)
    one, two = here.merge(given), there.merge(moved)
    step = one - here.server.vector
    if not (wrong := gap(two.cpu(), one, step if bool(step.any()) else one)) <= _TOLERANCE:
        raise CheckFailed(f"the step on the GPU differs by up to {wrong:.2g} of its largest entry")
    run = subject.run(device="cuda")
    if len(run.outcome.accuracy["none"]) != len(UNEVEN):
        raise CheckFailed("the run on the GPU did not measure all tasks")
    for name, value in run.ends[-1].server.state.items():
        for tensor in value if isinstance(value, list) else [value]:
            # Small numbers may stay on the CPU.
            if isinstance(tensor, torch.Tensor) and tensor.device.type == "cpu" and tensor.numel() > 256:
                raise CheckFailed(f"`server.state[{name!r}]` holds a large tensor on the CPU after a run on the GPU")
