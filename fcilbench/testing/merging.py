"""Checks of the server half: how it merges updates, and how its models answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from fcilbench.api import DecisionRule, Message, Predictors, Server, Task
from fcilbench.errors import DivergedError
from fcilbench.federation.evaluation import as_module
from fcilbench.testing.bench import Faulty, Opposite, no_samples_in_task, one_class_first, spread
from fcilbench.testing.check import CheckFailed, Checks, NotApplicable
from fcilbench.testing.subject import AggregatorSubject, Run, Stopped, difference, gap

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
    for task, end in enumerate(run.ends):
        for name, vector in {"server.vector": end.vector, **end.modules}.items():
            if vector.shape != end.vector.shape or vector.dtype != torch.float32:
                expected = list(end.vector.shape)
                raise CheckFailed(f"{name} is {vector.dtype} {list(vector.shape)}, not float32 {expected}")
            if not bool(torch.isfinite(vector).all()):
                raise CheckFailed(f"{name} has values that are not finite after task {task}")


# ---------------------------------------------------------------- one round


@CHECKS.add
def one_client(subject: AggregatorSubject) -> None:
    """A round in which one client has samples ends at that client's model.

    Fix: normalise the merge weights to sum 1, and count the rows of `updates`, not registered clients; if the method
    scales or projects by nature, name the check in `breaks`.
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
    stage = subject.stage(spread([1.0, 0.0, 0.0]))
    one, before = stage.updates, stage.server.vector
    if not bool(one.delta.any()):
        raise NotApplicable("clients send no update of the model, so there is no client's model to end at")
    delta, clients = one.delta.expand(count, -1).clone(), tuple(range(count))
    same = replace(one, delta=delta, samples=one.samples * count, clients=clients, statistics=one.statistics * count)
    after, step = stage.merge(same), one.delta[0]
    if not (wrong := gap(after, before + step, step)) <= _TOLERANCE:
        ratio = float((after - before) @ step / (step @ step))
        raise CheckFailed(f"the step is {ratio:.3g} times the client's update along it, off by up to {wrong:.2g} of it")


@CHECKS.add
def permutation(subject: AggregatorSubject) -> None:
    """The order of the clients does not matter.

    Fix: treat rows alike and take weights from `updates.weights`; if clients have a topology, name the check in
    `breaks`.
    """
    stage = subject.stage(spread([0.3, 0.1, 0.25, 0.2, 0.15]), clients=5, tasks=(5, 5))
    given = stage.updates
    # No two neighbours stay neighbours.
    order = [*range(1, len(given.clients), 2), *range(0, len(given.clients), 2)]

    names = ("samples", "clients", "statistics")
    shuffled: dict[str, Any] = {name: tuple(getattr(given, name)[i] for i in order) for name in names}
    one, two = stage.merge(given), stage.merge(replace(given, delta=given.delta[order], **shuffled))
    step = one - stage.server.vector
    if not (wrong := gap(two, one, step if bool(step.any()) else one)) <= _TOLERANCE:
        raise CheckFailed(f"in another order the step differs by up to {wrong:.2g} of its largest entry")


# ---------------------------------------------------------------- bad uploads, few samples, few clients


@CHECKS.add
def faulty_client(subject: AggregatorSubject) -> None:
    """A client that sends NaN, or does not answer, spoils nothing; without any finite update the model stays.

    Fix: count the rows of `updates`, not registered clients, and do not rely on `aggregate` having been called when
    `end_task` and `predictors` are: set up state in `begin`.
    """

    def end_task(own: Any, server: Server, statistics: dict[int, Message]) -> None:
        before = server.vector.clone()
        own(server, statistics)
        if not statistics and not torch.equal(server.vector, before):
            raise CheckFailed(f"the global model moved without an update, at the end of task {server.task.index}")

    _expect_finite(subject.run(stressor=Faulty([1]), tasks=(4, 6)))
    with suppress(DivergedError):  # raised at the end of a run that never merged an update
        _expect_finite(subject.run({"end_task": end_task}, stressor=Faulty([0, 1, 2]), tasks=(5, 5)))


@CHECKS.add
def attack_felt(subject: AggregatorSubject) -> None:
    """Clients that all send the opposite of what they computed change the outcome, or the cell is declined.

    Fix: compress an update in `encode`, and encode what it is given, never what `client.net` holds: stressors act on
    the update before `encode`. A method that such clients cannot hurt by nature names the check in `breaks`.
    """
    if not subject.whole.outcome.cost.bytes_up:
        raise NotApplicable("clients upload nothing")
    ends = iter(subject.whole.ends)

    def predictors(own: Callable[[Server], Predictors], server: Server) -> Predictors:
        given, honest = own(server), next(ends).modules
        if any(not torch.equal(as_module(build()).vector, honest[name]) for name, build in given.modules.items()):
            raise Stopped  # it was felt in this task, so the rest need not be trained
        return given

    try:
        attacked = subject.run({"predictors": predictors}, stressor=Opposite())
    except (NotApplicable, CheckFailed):
        raise
    except Exception:  # an attack may make a model diverge, or a matrix singular: it was felt
        return
    if not difference(subject.whole, attacked):
        raise CheckFailed("a sign flip of all clients changes no bit: the method would pass every attack as robust")


@CHECKS.add
def idle_task(subject: AggregatorSubject) -> None:
    """A task in which no client has samples changes the modules of no other task.

    Fix: treat a task vector whose norm is rounding noise (1e-6 of the model's change) as zero.
    """
    run = subject.run(edit=no_samples_in_task(2), tasks=(4, 3, 3))
    if len(run.ends) != 3:
        raise NotApplicable("the method does not evaluate after each task")
    first, before, after = run.ends
    for name in before.modules.keys() & after.modules.keys():
        wrong = gap(after.modules[name], before.modules[name], before.vector - first.vector)
        if not wrong <= _TOLERANCE:
            raise CheckFailed(f"module {name!r} moved by {wrong:.2g} of what was learned")


@CHECKS.add
def few_samples(subject: AggregatorSubject) -> None:
    """Clients with samples of one class, clients with one sample and rounds of some clients work like others.

    Fix: do not divide by variances, counts or sums that one class or one sample makes zero; key client state by
    `client.id`, and do not expect a client that took part to do so again.
    """
    _expect_finite(subject.run(edit=one_class_first, rounds=1))
    _expect_finite(subject.run(clients=5, participation=0.4, tasks=(4, 6)))


# ---------------------------------------------------------------- answers


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
    """Answers under `none`, `inferred` and `oracle` are classes seen, of the true task for `oracle`, one by one.

    Fix: give `Predictors.rules` all three keys and deploy every module that a rule names; add `task.offset` to
    positions inside a slice; look at each row alone: no batch means, no sorting across samples, no majority vote.
    """

    def predictors(own: Callable[[Server], Predictors], server: Server) -> Predictors:
        given = own(server)
        return replace(given, rules={name: _CheckedRule(name, rule) for name, rule in given.rules.items()})

    subject.run({"predictors": predictors})


@dataclass(frozen=True)
class _CheckedRule:
    """A decision rule whose answers are checked."""

    identity: str
    rule: DecisionRule

    @property
    def features(self) -> bool:
        return bool(getattr(self.rule, "features", False))

    def modules(self, tasks: Sequence[Task], true: Task | None) -> Sequence[str]:
        return self.rule.modules(tasks, true)

    def __call__(
        self, logits: Mapping[str, torch.Tensor], tasks: Sequence[Task], true: Task | None, **more: Any
    ) -> torch.Tensor:
        labels = self.rule(logits, tasks, true, **more)
        (count,) = {len(each) for each in logits.values()}
        low, high = (true.offset, true.seen) if true else (0, tasks[-1].seen)
        if labels.dtype != torch.int64 or labels.shape != (count,):
            raise CheckFailed(f"{self.identity!r}: the answer is {labels.dtype} {list(labels.shape)}, not int64 [n]")
        if not (low <= int(labels.min()) and int(labels.max()) < high):
            raise CheckFailed(f"{self.identity!r}: {int(labels.min())}..{int(labels.max())} leave {low}..{high - 1}")
        alone = []
        for i in range(count):
            row, own = (
                {name: value[i : i + 1] for name, value in each.items()} for each in (logits, more.get("features", {}))
            )
            alone.append(self.rule(row, tasks, true, **({"features": own} if more else {})))
        apart = torch.cat(alone)
        if wrong := int((labels != apart).sum()):
            raise CheckFailed(f"{self.identity!r}: {wrong} of {count} answers change with the batch")
        return labels


@CHECKS.add
def deployed(subject: AggregatorSubject) -> None:
    """What a method deploys is what it exports, so that its bytes are counted.

    Fix: override `export` beside `predictors`: return all tensors that the answers need, packed if you pack them, with
    the scalar `dense_bytes` if you do.
    """

    def predictors(own: Callable[[Server], Predictors], server: Server) -> Predictors:
        given = own(server)
        for name, build in given.modules.items():
            module = as_module(build())
            if module.frozen or not torch.equal(module.vector, server.vector):
                raise CheckFailed(f"module {name!r} is not the global vector, which is all that `export` returns")
        return given

    if not subject.keeps("predictors") and subject.keeps("export"):
        subject.run({"predictors": predictors}, tasks=(4, 6), rounds=1)


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
    one, two = here.merge(given), there.merge(replace(given, delta=given.delta.cuda(), statistics=statistics))
    step = one - here.server.vector
    if not (wrong := gap(two.cpu(), one, step if bool(step.any()) else one)) <= _TOLERANCE:
        raise CheckFailed(f"the step on the GPU differs by up to {wrong:.2g} of its largest entry")
    _expect_finite(subject.run(device="cuda"))
