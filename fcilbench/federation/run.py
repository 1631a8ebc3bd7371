"""Runs an experiment from its first round, or its last checkpoint, to an outcome."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from fcilbench.api.predict import Predictors
from fcilbench.api.schedule import Phase
from fcilbench.engine.meters import Stopwatch, peak_memory, reset_peak_memory
from fcilbench.engine.precision import all_finite, forbid_tf32
from fcilbench.errors import DivergedError, PluginError
from fcilbench.federation import checkpoint
from fcilbench.federation.checkpoint import Progress
from fcilbench.federation.convergence import Best, held_out_accuracy
from fcilbench.federation.evaluation import Evaluator, needed
from fcilbench.federation.experiment import Experiment, Federation, RoundContext, Unsupported, build, place_replay
from fcilbench.federation.geometry import geometry
from fcilbench.federation.outcome import MODULE, model_digest, outcome, save_module
from fcilbench.federation.round import collect_task_statistics, run_round, update_rows
from fcilbench.federation.selection import selections
from fcilbench.federation.server import tree_nbytes
from fcilbench.files import write_atomic
from fcilbench.spec.events import Accuracy, CurveEvent, ExperimentEvent, RoundEnded, TaskEnded
from fcilbench.spec.outcome import Outcome
from fcilbench.spec.protocol import Scored

Listener = Callable[[ExperimentEvent], None]


def run_experiment(experiment: Experiment, workdir: Path, on_event: Listener | None = None) -> Outcome:
    """Runs an experiment, or resumes it from the checkpoint in `workdir`.

    The checkpoint of a finished experiment is left to the caller, who removes it once the outcome is safe.

    The folder exists and gets `checkpoint.pt`, `rounds.jsonl` and, if the runtime asks for it, the module file.
    `on_event` is called with each round and task as it ends, and while data are decoded.

    Raises:
        Unsupported: If the method does not run on this cell.
        PrerequisiteError: If data, weights or the device are missing.
        PluginError: If a plugin breaks its contract, e.g. leaves a model that is not finite.
        DivergedError: If no round merged an update: the final model would be the initial one.
    """
    started = time.perf_counter()
    torch.set_num_threads(experiment.runtime.threads)
    forbid_tf32()
    reset_peak_memory(torch.device(experiment.device))
    on_event = on_event or (lambda _: None)
    federation = build(experiment, decoding_events(on_event))
    (workdir / MODULE).unlink(missing_ok=True)
    progress = checkpoint.restore(workdir / "checkpoint.pt", federation)
    if progress is None:
        progress = Progress()
        experiment.aggregator.begin(federation.server)
    elif progress.phase:  # between two tasks, or after the last one, the server is where the task before has left it
        before = federation.schedule.phases[progress.phase - 1]
        federation.server.enter(before.task, before.after)
    _Run(federation, progress, workdir, on_event, started).phases()
    if not progress.merged:
        first = progress.not_finite
        why = f"first not finite was {first} (a lower lr may help)" if first else "none arrived"
        raise DivergedError(f"no update was ever merged: {why}")
    if reason := federation.channel.stress.end(experiment.aggregator.trains):
        raise Unsupported(f"stress: {reason}")
    if experiment.runtime.keep_model:
        tensors = experiment.aggregator.export(federation.server)
        save_module(workdir / MODULE, tensors, federation.server, progress.model_digest)
    return outcome(federation, progress)


def decoding_events(on_event: Listener) -> Callable[[int, int], None]:
    """Returns a progress callback for `open_dataset` that emits `decoding` events."""
    return lambda done, total: on_event({"event": "decoding", "done": done, "total": total})


class _Run:
    """The loops over phases and rounds, and what is recorded around them."""

    def __init__(
        self, federation: Federation, progress: Progress, workdir: Path, on_event: Listener, started: float
    ) -> None:
        self._federation, self._experiment, self._server = federation, federation.experiment, federation.server
        self._progress, self._workdir, self._on_event, self._mark = progress, workdir, on_event, started
        self._tasks, self._rows = len(federation.stream.sizes), update_rows(federation)
        self._judge: Evaluator | None = None
        self._selections = selections(federation, progress)
        self._watch = Stopwatch(federation.model.vector.device, self._saved)
        self._watch.seconds = progress.seconds
        self._counted = 0.0

    def phases(self) -> None:
        """Trains every phase that is left, or stops after one if all that was ever sent was not finite."""
        phases = self._federation.schedule.phases
        while self._progress.phase < len(phases):
            index = self._progress.phase
            phase = phases[index]
            self._begin(RoundContext(phase, self._progress.round), index)
            self._on_event({"event": "phase", "task": phase.after, "tasks": self._tasks})
            for round_ in range(self._progress.round, phase.rounds):
                self._round(RoundContext(phase, round_))
                if self._federation.best is not None and self._federation.best.plateau.reached:
                    break
                if round_ + 1 < phase.rounds:
                    self._progress.round = round_ + 1
                    self._keep("round")
            self._end(RoundContext(phase, phase.rounds))
            self._progress.phase, self._progress.round = index + 1, 0
            self._keep("task")
            if self._progress.not_finite and not self._progress.merged:
                break

    def _begin(self, context: RoundContext, index: int) -> None:
        """Enters a phase, at its start or in the middle of it after a resume."""
        server, aggregator, phase = self._server, self._experiment.aggregator, context.phase
        server.enter(phase.task, phase.after)
        server.round = 0
        self._judge = self._federation.held_out_evaluator(index) if phase.until else None
        if context.round == 0:
            if phase.restart and index > 0:
                server.vector.copy_(self._federation.initial)
            aggregator.begin_task(server)
            self._federation.best = Best.start(phase, server.vector, server.counters)
            self._federation.channel.publish(server.vector, server.counters)
        self._federation.replay = place_replay(self._federation, aggregator.replay(server))

    def _round(self, context: RoundContext) -> None:
        before, channel = dict(self._watch.seconds), self._federation.channel
        sent = (channel.bytes_up, channel.bytes_down)
        result = run_round(self._federation, context, self._rows, self._watch)
        self._offer(context.phase)
        self._progress.merged += result.merged
        self._progress.visits += result.visited
        self._progress.not_finite = self._progress.not_finite or result.not_finite
        self._measure_state()
        measured: Accuracy | None = None
        if "curve" in self._experiment.runtime.analysis and context.round in (0, (context.phase.rounds - 1) // 2):
            with self._watch("evaluation"):
                measured = self._accuracy_midway()
        event: RoundEnded = {
            "event": "round",
            "task": context.phase.after,
            "tasks": self._tasks,
            "round": context.round,
            "rounds": context.phase.rounds,
            "loss": result.loss if result.loss is not None and math.isfinite(result.loss) else None,
            "seconds": self._since(before),
            "bytes_up": channel.bytes_up - sent[0],
            "bytes_down": channel.bytes_down - sent[1],
            "visits": result.visited,
            "logs": _logs(self._server.logs),
        }
        if measured is not None:
            event["accuracy"] = measured
        self._record(event)
        self._server.logs = {}  # what is logged as the next task begins is of its first round

    def _measure_state(self) -> None:
        """Notes what server and clients keep at this moment, where it is more than ever before."""
        progress, sizes = self._progress, [record.nbytes for record in self._federation.clients.values()]
        progress.server_state = max(progress.server_state, tree_nbytes(self._server.state))
        progress.client_state = max([progress.client_state, *sizes])
        progress.client_state_mean = max(progress.client_state_mean, sum(sizes) / self._server.clients)

    def _offer(self, phase: Phase) -> None:
        """Measures the global model on the held-out samples of a phase that trains until convergence."""
        best, server = self._federation.best, self._server
        if best is not None and self._judge is not None:
            with self._watch("evaluation"):
                accuracy = held_out_accuracy(self._judge, phase, server.vector)
                best.offer(accuracy, server.vector, server.counters)
            server.log("held_out/accuracy", accuracy)

    def _accuracy_midway(self) -> dict[Scored, list[float]]:
        """Returns the accuracies during a task: what is deployed only at its end is the global model until then.

        Selectors learn of a task at its end, so there are no figures under them before.
        """
        server = self._server
        identities = [key for key in self._experiment.scored if key not in self._selections]
        predictors = self._experiment.aggregator.predictors(server)
        modules = dict.fromkeys(needed(predictors, identities, server.tasks), lambda: server.vector)
        predictors = Predictors({**modules, **predictors.modules}, predictors.rules)
        return self._federation.evaluator.accuracy(predictors, server.tasks, identities)

    def _end(self, context: RoundContext) -> None:
        """Ends a task with the method's own hook, then evaluates."""
        federation, server, aggregator = self._federation, self._server, self._experiment.aggregator
        before, channel = dict(self._watch.seconds), federation.channel
        sent = (channel.bytes_up, channel.bytes_down)
        self._take_best()
        with self._watch("task_end"):
            asked = aggregator.wants_task_statistics(server)
            aggregator.end_task(server, collect_task_statistics(federation, context) if asked else {})
        if reason := channel.stress.end_task():
            raise Unsupported(f"stress: {reason}")
        if not all_finite(server.vector):
            raise PluginError(f"the method left a global model that is not finite after task {server.task.index + 1}")
        federation.channel.publish(server.vector, server.counters)
        self._measure_state()
        margins = None
        bills = self._select(context)
        with self._watch("evaluation"):
            predictors, keys = aggregator.predictors(server), self._experiment.scored
            pickers = {key: each.picker(federation) for key, each in self._selections.items()}
            accuracy = federation.evaluator.accuracy(predictors, server.tasks, keys, pickers)
            if context.phase is federation.schedule.phases[-1]:
                auroc = federation.evaluator.ood_auroc(predictors, server.tasks)
                self._progress.metrics = {} if auroc is None else {"oos_auroc/none": auroc}
                if "geometry" in self._experiment.runtime.analysis:
                    metrics, margins = geometry(federation, predictors)
                    self._progress.metrics |= metrics
                self._progress.model_digest = model_digest(predictors, server)
        if federation.evaluator.unanswered:
            server.warn("a deployed model has logits of NaN or infinity; they count as wrong answers")
        for identity, row in accuracy.items():
            self._progress.accuracy.setdefault(identity, {})[context.phase.after] = row
        event: TaskEnded = {
            "event": "task",
            "task": context.phase.after,
            "tasks": self._tasks,
            "accuracy": accuracy,
            "seconds": self._since(before),
            "bytes_up": channel.bytes_up - sent[0],
            "bytes_down": channel.bytes_down - sent[1],
            "logs": _logs(server.logs),
        }
        if bills:
            event["selectors"] = bills
        if margins is not None:
            event["margins"] = margins
        self._record(event)
        server.logs = {}

    def _select(self, context: RoundContext) -> dict[str, dict[str, int]]:
        """Lets selectors learn of the task that ends; returns the bytes of each by label."""
        learning = [each for each in self._selections.values() if each.selector.learns()]
        if not learning:
            return {}
        with self._watch("selection"):
            return {each.label: each.collect(self._federation, context) for each in learning}

    def _take_best(self) -> None:
        """Makes the best round's model the global one again, where the phase trained until convergence."""
        best, server = self._federation.best, self._server
        if best is not None:
            server.vector.copy_(best.vector)
            server.counters.copy_(best.counters)
            server.log("held_out/accuracy", best.plateau.best)
            server.log("held_out/round", best.plateau.best_round)
            if best.doubt:
                server.warn(best.doubt)
        self._federation.best = None

    def _since(self, before: dict[str, float]) -> dict[str, float]:
        return {
            name: total - before.get(name, 0.0)
            for name, total in self._watch.seconds.items()
            if name not in ("wall", "saved")
        }

    def _record(self, event: CurveEvent) -> None:
        self._progress.curve.append(event)
        self._on_event(event)

    def _saved(self) -> float:
        """Returns the seconds so far of passes that were read instead of made."""
        passes = self._federation.model.passes
        return 0.0 if passes is None else passes.saved

    def _keep(self, point: str) -> None:
        """Writes the curve and, as the runtime asks, a checkpoint."""
        now = time.perf_counter()
        self._progress.seconds["wall"] = self._progress.seconds.get("wall", 0.0) + now - self._mark
        self._mark = now
        saved = self._saved()
        self._progress.seconds["saved"] = self._progress.seconds.get("saved", 0.0) + saved - self._counted
        self._counted = saved
        self._progress.peak_memory = max(self._progress.peak_memory, peak_memory(self._federation.model.vector.device))
        lines = "".join(json.dumps(event, allow_nan=False) + "\n" for event in self._progress.curve)
        write_atomic(self._workdir / "rounds.jsonl", lines, durable=False)
        wanted = self._experiment.runtime.checkpoint
        if wanted == "round" or (wanted == "task" and point == "task"):
            checkpoint.save(self._workdir / "checkpoint.pt", self._federation, self._progress)


def _logs(logs: Mapping[str, float]) -> dict[str, float | None]:
    """Returns a round's diagnostics with `None` for values that are not finite, which JSON does not have."""
    return {name: value if math.isfinite(value) else None for name, value in logs.items()}
