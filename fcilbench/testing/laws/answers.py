"""Laws of inference: an answer under each task identity, in range, sample by sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from fcilbench.api.predict import DecisionRule
from fcilbench.api.task import Task
from fcilbench.federation.build import build
from fcilbench.federation.experiment import Federation
from fcilbench.testing.law import LawBroken, Laws
from fcilbench.testing.subject import AggregatorSubject, Deployed

LAWS: Laws[AggregatorSubject] = Laws()

_SAMPLES = 24


@LAWS.law(
    "answers",
    "the method answers under `none`, `inferred` and `oracle` with labels of classes seen; `oracle` stays in the task",
    fix="give `Predictors.rules` all three keys and deploy every module that an answer names; add `task.offset` to "
    "positions inside a slice",
)
def answers(subject: AggregatorSubject) -> None:
    """Asks after the last task, for test samples of every task."""
    end = subject.whole.ends[-1]
    federation, logits = _logits(subject, end)
    tasks = end.server.tasks
    for identity in ("none", "inferred", "oracle"):
        if identity not in end.predictors.rules:
            raise LawBroken(f"there is no answer under {identity!r}")
        answer, oracle = end.predictors.rules[identity], identity == "oracle"
        for task in tasks:
            given = _ask(answer, logits, tasks, task, oracle)
            low, high = (task.offset, task.seen) if oracle else (0, tasks[-1].seen)
            if given.dtype != torch.int64 or given.shape != (len(_rows(federation, task)),):
                raise LawBroken(f"{identity!r}: answers are {given.dtype} {list(given.shape)}, not one int64 a sample")
            if len(given) and not (low <= int(given.min()) and int(given.max()) < high):
                raise LawBroken(
                    f"{identity!r}: labels {int(given.min())}..{int(given.max())} leave {low}..{high - 1} (task "
                    f"{task.index})"
                )


@LAWS.law(
    "answers-per-sample",
    "an answer depends on its sample alone, not on the batch around it",
    fix="compute confidence per row; no batch means, no sorting across samples, no majority vote",
)
def answers_per_sample(subject: AggregatorSubject) -> None:
    """Asks for all samples at once, for the first half, and one by one."""
    end = subject.whole.ends[-1]
    _, logits = _logits(subject, end)
    tasks = end.server.tasks
    for identity, answer in end.predictors.rules.items():
        oracle = identity == "oracle"
        for task in tasks:
            together = _ask(answer, logits, tasks, task, oracle)
            half = (len(together) + 1) // 2
            pieces = [slice(0, half)] + [slice(i, i + 1) for i in range(half, len(together))]
            apart = torch.cat([_ask(answer, logits, tasks, task, oracle, piece=piece) for piece in pieces])
            if not torch.equal(together, apart):
                wrong = int((together != apart).sum())
                raise LawBroken(f"{identity!r}: {wrong} of {len(together)} answers change with the batch")


def _rows(federation: Federation, task: Task) -> torch.Tensor:
    return federation.test_index[task.index][:_SAMPLES]


def _logits(subject: AggregatorSubject, end: Deployed) -> tuple[Federation, Mapping[tuple[str, int], torch.Tensor]]:
    """Returns the logits of every deployed module on test samples of every task."""
    federation = build(subject.bench.experiment(subject.make()))
    model, tasks = federation.model, end.server.tasks
    model.network.eval()
    logits: dict[tuple[str, int], torch.Tensor] = {}
    for name, vector in end.modules.items():
        model.load(vector, end.server.counters)
        with torch.no_grad():
            for task in tasks:
                inputs = federation.test.plain(_rows(federation, task))
                logits[name, task.index] = model.logits(inputs)[:, : tasks[-1].seen].float()
    return federation, logits


def _ask(
    answer: DecisionRule,
    logits: Mapping[tuple[str, int], torch.Tensor],
    tasks: Sequence[Task],
    task: Task,
    oracle: bool,
    *,
    piece: slice = slice(None),
) -> torch.Tensor:
    true = task if oracle else None
    names = answer.modules(tasks, true)
    missing = [name for name in names if (name, task.index) not in logits]
    if missing:
        raise LawBroken(f"the answer reads module {missing[0]!r}, which is not deployed")
    return answer({name: logits[name, task.index][piece] for name in names}, tasks, true)
