"""What a curve says: every round of every task once and in order, with the row's accuracies, bytes and seconds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fcilbench.escape import line
from fcilbench.results.check_result import tasks_of
from fcilbench.results.records import Round, TaskEnd, read_event, reason
from fcilbench.spec.row import Row
from fcilbench.tables import cut

_HELD_OUT, _BEST_ROUND = "held_out/accuracy", "held_out/round"
_PARTS = ("training", "aggregation", "task_end", "selection", "evaluation")
"""The seconds of a record that a row's cost adds up."""


def curve_problems(row: Row, records: Sequence[Mapping[str, Any]], method: Mapping[str, Any] | None) -> Iterator[str]:
    """Yields what is wrong with the curve of a result.

    `method` are the facts that the installed plugin of the row's method declares; `None` if it is not here.
    """
    if not records:
        yield "its curve is missing"
        return
    events: list[Round | TaskEnd] = []
    for number, record in enumerate(records, start=1):
        try:
            events.append(read_event(record))
        except (ValueError, RecursionError) as error:
            yield f"record {number} of its curve: not an event of a curve: {reason(error)}"
            return
    disorder = next(_order(row, events), None) or next(_phases(row, events, method or {}), None)
    if disorder:
        yield disorder
    yield from _accuracies(row, events)
    yield from _losses(row, [event for event in events if isinstance(event, Round)], method)
    yield from _totals(row, events, method or {})


def _order(row: Row, events: Sequence[Round | TaskEnd]) -> Iterator[str]:
    """Yields the places at which another record of the curve is due."""
    tasks, task, due, rounds = tasks_of(row), -1, 0, 0
    held_out: list[float | None] = []
    for number, event in enumerate(events, start=1):
        where = f"record {number} of its curve"
        if event.tasks != tasks:
            yield f"{where} is of {event.tasks} tasks, the row has {tasks}"
        if isinstance(event, TaskEnd):
            if event.task != task or not (due == rounds or _converged(event, held_out)):
                yield f"{where} ends task {event.task + 1}, where {_due(task, due, rounds)} is due"
            due, rounds, held_out = 0, 0, []
            continue
        if due == 0 and event.task > task:  # a method may train on several tasks at once, after the last of them
            task, rounds = event.task, event.rounds
        if (event.task, event.round, event.rounds) != (task, due, rounds):
            yield f"{where} is round {event.round + 1} of task {event.task + 1}, where {_due(task, due, rounds)} is due"
        due += 1
        held_out.append(event.logs.get(_HELD_OUT))
    if due or task != tasks - 1:
        yield f"its curve ends where {_due(task, due, rounds)} is due"


def _converged(end: TaskEnd, held_out: Sequence[float | None]) -> bool:
    """Says whether training until convergence (`fcilbench.federation.convergence`) may have ended a task early.

    Then every round has the accuracy on held-out samples, and the task's end names the best one and its first round.
    """
    known = [value for value in held_out if value is not None]
    best = max(known, default=None)
    if best is None or len(known) < len(held_out):
        return False
    return (end.logs.get(_HELD_OUT), end.logs.get(_BEST_ROUND)) == (best, known.index(best) + 1)


def _due(task: int, due: int, rounds: int) -> str:
    if not rounds:
        return f"round 1 of task {task + 2}"
    return f"the end of task {task + 1}" if due >= rounds else f"round {due + 1} of task {task + 1}"


def _phases(row: Row, events: Sequence[Round | TaskEnd], method: Mapping[str, Any]) -> Iterator[str]:
    """Yields tasks without the rounds of the protocol, if the method makes no schedule of its own."""
    ends = [event.task for event in events if isinstance(event, TaskEnd)]
    measured = next(iter(row.accuracy.values()), [])
    if ends != [t for t, own in enumerate(measured) if None not in own]:
        yield f"its curve ends tasks {_tasks(ends)}, its matrices are of other ones"
    if method.get("own_schedule") is not False:
        return
    wanted = row.params.protocol.get("rounds")
    wrong = sorted({event.task for event in events if isinstance(event, Round) and event.rounds != wanted})
    if wrong:
        yield f"its curve has not the {wanted} rounds of the protocol in tasks {_tasks(wrong)}"
    if ends != [*range(tasks_of(row))]:
        yield f"its curve ends tasks {_tasks(ends)} of {tasks_of(row)}"


def _tasks(tasks: Sequence[int]) -> str:
    shown = ", ".join(str(task + 1) for task in tasks[:5])
    return f"{shown or 'none'}{', ...' if len(tasks) > 5 else ''}"


def _accuracies(row: Row, events: Sequence[Round | TaskEnd]) -> Iterator[str]:
    """Yields task identities of which curve and matrix differ, and measurements within tasks that cannot be."""
    measured = {event.task: event.accuracy for event in events if isinstance(event, TaskEnd)}
    for identity, matrix in row.accuracy.items():
        wrong = [t for t, own in enumerate(matrix) if measured.get(t, {}).get(identity, [None] * len(own)) != own]
        if wrong:
            yield f"its curve has other accuracies under {identity} after task {wrong[0] + 1}"
    midway = [(event, own) for event in events if isinstance(event, Round) for own in event.accuracy.values()]
    for event, own in midway:
        if len(own) != event.task + 1 or not all(0.0 <= value <= 1.0 for value in own):
            yield f"its curve has accuracies in round {event.round + 1} of task {event.task + 1} that cannot be"
            return


def _losses(row: Row, rounds: Sequence[Round], method: Mapping[str, Any] | None) -> Iterator[str]:
    """Yields rounds without the loss of a method that trains, or with that of one that does not."""
    if method is not None and method.get("trains") is False:
        if any(round_.loss is not None for round_ in rounds):
            yield "its curve has losses, but the method trains nothing"
        return
    lost = [round_ for round_ in rounds if round_.loss is None]
    # Without a loss is also a round in which no client had samples, or none answered: warnings and logs say so.
    silent = [
        round_ for round_ in lost if not (row.warnings or any(name.startswith("clients/") for name in round_.logs))
    ]
    trains = method is not None or len(lost) < len(rounds)
    if trains and silent:
        yield f"its curve has no loss in round {silent[0].round + 1} of task {silent[0].task + 1}, and nothing says why"
    # Of a task with one class the cross-entropy is 0.
    several = [round_ for round_ in rounds if any(len(own) > 1 for own in row.classes[round_.task : round_.task + 1])]
    if several and all(round_.loss == 0.0 for round_ in several):
        yield "its curve has a loss of exactly 0 in every round"


def _totals(row: Row, events: Sequence[Round | TaskEnd], method: Mapping[str, Any]) -> Iterator[str]:
    """Yields costs that are not the sum of what the curve's records say."""
    cost, rounds = row.cost, [event for event in events if isinstance(event, Round)]
    ends = [event for event in events if isinstance(event, TaskEnd)]
    for name in ("bytes_up", "bytes_down"):
        whole, late = getattr(cost, name), [getattr(end, name) for end in ends]
        total = sum(getattr(round_, name) for round_ in rounds) + sum(sent or 0 for sent in late)
        old = row.schema_version < 5  # whose curves do not have what clients send at the end of a task
        if total > whole or (total < whole and not (old and None in late)):
            yield f"cost: {name} is {whole:,}, but its curve adds up to {total:,}"
    for label in sorted({*cost.selectors, *(label for end in ends for label in end.selectors)}):
        bills = [end.selectors[label] for end in ends if label in end.selectors]
        summed = (sum(bill.bytes_up for bill in bills), sum(bill.bytes_down for bill in bills))
        total_bill = cost.selectors.get(label)
        if total_bill is None or (total_bill.bytes_up, total_bill.bytes_down) != summed:
            named = cut(line(label), 40)
            yield f"cost: selector {named} has not the bytes of its curve, {summed[0]:,} up and {summed[1]:,} down"
    if row.schema_version >= 3:
        if cost.rounds != len(rounds):
            yield f"cost: rounds is {cost.rounds}, but its curve has {len(rounds)}"
        if cost.tasks != len(ends):
            yield f"cost: tasks is {cost.tasks}, but its curve has {len(ends)}"
    for name in _PARTS:
        total = math.fsum(event.seconds.get(name, 0.0) for event in events)
        own = getattr(cost, f"{name}_s")
        if abs(total - own) > 1e-6 * max(1.0, own):
            yield f"cost: {name}_s is {own:.6f}, but its curve adds up to {total:.6f}"
        if any(event.seconds.get(name, 0.0) < 0.0 for event in events):
            yield f"its curve has {name} of less than 0 seconds"
    yield from _visits(row, rounds, method)


def _visits(row: Row, rounds: Sequence[Round], method: Mapping[str, Any]) -> Iterator[str]:
    """Yields visits that are not those of the curve, or more or fewer than the protocol asks for."""
    visits, counted = row.cost.visits, [round_.visits for round_ in rounds]
    if row.schema_version < 4:
        if visits:
            yield f"cost: visits is {visits}, which rows of schema {row.schema_version} do not count"
        return
    known = [count for count in counted if count is not None]
    if len(known) == len(counted) and sum(known) != visits:
        yield f"cost: visits is {visits}, but its curve adds up to {sum(known)}"
    clients, share = row.params.protocol.get("clients", 1), row.params.protocol.get("participation", 1.0)
    own = method.get("own_schedule") is not False
    most = clients if own else max(1, round(share * clients))
    everyone = not own and row.params.partition.get("min_samples", 1) > 0
    least = most * len(rounds) if everyone else sum(round_.loss is not None or round_.bytes_up > 0 for round_ in rounds)
    if not least <= visits <= most * len(rounds):
        wanted = f"{least:,}" if everyone else f"between {least:,} and {most * len(rounds):,}"
        yield f"cost: visits is {visits:,}, but {len(rounds)} rounds have {wanted}"
