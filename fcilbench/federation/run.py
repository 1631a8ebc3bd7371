"""Runs an experiment from its first round, or its last checkpoint, to an outcome."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch

from fcilbench.engine.meters import Stopwatch, peak_memory, reset_peak_memory
from fcilbench.engine.precision import forbid_tf32
from fcilbench.federation import checkpoint, final
from fcilbench.federation.build import build, remember
from fcilbench.federation.checkpoint import Event, Progress
from fcilbench.federation.decoding import decoding_events
from fcilbench.federation.evaluation import evaluate
from fcilbench.federation.experiment import Experiment, Federation, RoundContext
from fcilbench.federation.outcome import outcome
from fcilbench.federation.outside import outside_auroc
from fcilbench.federation.placing import as_message, place
from fcilbench.federation.round import collect_task_statistics, run_round, update_rows
from fcilbench.federation.server import tree_nbytes
from fcilbench.spec.outcome import Outcome

Listener = Callable[[Event], None]


def run_experiment(experiment: Experiment, workdir: Path, on_event: Listener | None = None) -> Outcome:
    """Runs (or resumes) an experiment.

    The checkpoint of a finished experiment is left to the caller, who removes it once the outcome is safe.

    Args:
        experiment: What to run.
        workdir: Existing folder for `checkpoint.pt` and `rounds.jsonl`, and for `final.pt` where the runtime asks for
            it; a checkpoint found there is continued.
        on_event: Told of every round and task as it ends, and of data that are decoded first.

    Returns:
        The measured outcome.

    Raises:
        Unsupported: If the method does not run on this cell.
        PrerequisiteError: If data, weights or the device are missing.
    """
    started = time.perf_counter()
    torch.set_num_threads(experiment.runtime.threads)
    forbid_tf32()
    reset_peak_memory(torch.device(experiment.device))
    on_event = on_event or _ignore
    federation = build(experiment, decoding_events(on_event))
    final.forget(workdir)
    path = workdir / "checkpoint.pt"
    progress = checkpoint.restore(path, federation)
    if progress is None:
        progress = Progress()
        experiment.aggregator.begin(federation.server)
    run = _Run(federation, progress, workdir, on_event, started)
    run.phases()
    if experiment.runtime.keep_model:
        final.save(workdir, federation.server)
    return outcome(federation, progress)


def _ignore(event: Event) -> None:
    """Listens to nothing."""


class _Run:
    """The loops over phases and rounds, and what is recorded around them."""

    def __init__(
        self, federation: Federation, progress: Progress, workdir: Path, on_event: Listener, started: float
    ) -> None:
        self._federation, self._progress = federation, progress
        self._experiment, self._server = federation.experiment, federation.server
        self._workdir, self._on_event = workdir, on_event
        self._device = federation.model.vector.device
        self._watch = Stopwatch(self._device)
        self._watch.seconds = progress.seconds
        self._mark = started
        self._rows = update_rows(federation)

    def phases(self) -> None:
        """Trains every phase that is left."""
        phases = self._federation.schedule.phases
        while self._progress.phase < len(phases):
            index = self._progress.phase
            phase = phases[index]
            self._server.enter(phase.task, phase.after)
            if phase.restart and self._progress.round == 0 and index > 0:
                self._server.reset(self._federation.initial)
            if self._progress.round == 0:
                self._server.round = 0
                self._experiment.aggregator.begin_task(self._server)
                self._federation.channel.publish(self._server.vector, self._server.counters)
            self._replay()
            self._on_event({"event": "phase", "task": phase.after, "tasks": len(self._federation.stream.sizes)})
            for round_ in range(self._progress.round, phase.rounds):
                self._round(RoundContext(phase, round_))
                if round_ + 1 < phase.rounds:
                    self._progress.round = round_ + 1
                    self._keep("round")
            self._end(RoundContext(phase, phase.rounds))
            self._progress.phase, self._progress.round = index + 1, 0
            self._keep("task")

    def _replay(self) -> None:
        """Puts the samples that clients mix into this task on the device."""
        federation = self._federation
        self._server.round = 0
        samples = self._experiment.aggregator.replay(self._server)
        federation.replay, federation.replay_message = None, {}
        if samples is None:
            return
        nhwc = federation.model.network.extractor.channels_last
        data = place(self._experiment.backbone, samples, self._experiment.dataset.augmentation, self._device, nhwc)
        federation.model.load(federation.initial, self._server.counters)
        remember(self._experiment, federation.model, data)
        federation.replay, federation.replay_message = data, as_message(samples)

    def _round(self, context: RoundContext) -> None:
        before, channel = dict(self._watch.seconds), self._federation.channel
        sent = (channel.bytes_up, channel.bytes_down)
        loss = run_round(self._federation, context, self._rows, self._watch)
        self._progress.server_state = max(self._progress.server_state, tree_nbytes(self._server.state))
        self._record(
            {
                "event": "round",
                "task": context.phase.after,
                "tasks": len(self._federation.stream.sizes),
                "round": context.round,
                "rounds": context.phase.rounds,
                "loss": loss,
                "seconds": self._since(before),
                "bytes_up": channel.bytes_up - sent[0],
                "bytes_down": channel.bytes_down - sent[1],
                "logs": dict(self._server.logs),
            }
        )

    def _end(self, context: RoundContext) -> None:
        """Does the method's task end, then evaluates."""
        before, aggregator = dict(self._watch.seconds), self._experiment.aggregator
        self._server.logs = {}
        with self._watch("task_end"):
            statistics = (
                collect_task_statistics(self._federation, context)
                if aggregator.wants_task_statistics(self._server)
                else {}
            )
            aggregator.end_task(self._server, statistics)
            self._federation.channel.publish(self._server.vector, self._server.counters)
        self._progress.server_state = max(self._progress.server_state, tree_nbytes(self._server.state))
        with self._watch("evaluation"):
            predictors = aggregator.predictors(self._server)
            accuracy = evaluate(self._federation, predictors)
            if context.phase is self._federation.schedule.phases[-1]:
                self._progress.outside_auroc = outside_auroc(self._federation, predictors)
            self._federation.features.forget_trained()
        for identity, row in accuracy.items():
            self._progress.accuracy.setdefault(identity, {})[context.phase.after] = row
        self._record(
            {
                "event": "task",
                "task": context.phase.after,
                "tasks": len(self._federation.stream.sizes),
                "accuracy": accuracy,
                "seconds": self._since(before),
                "logs": dict(self._server.logs),
            }
        )

    def _since(self, before: dict[str, float]) -> dict[str, float]:
        return {name: total - before.get(name, 0.0) for name, total in self._watch.seconds.items() if name != "wall"}

    def _record(self, event: Event) -> None:
        self._progress.curve.append(event)
        self._on_event(event)

    def _keep(self, point: str) -> None:
        """Writes the curve and, as the runtime asks, a checkpoint."""
        now = time.perf_counter()
        self._progress.seconds["wall"] = self._progress.seconds.get("wall", 0.0) + now - self._mark
        self._mark = now
        self._progress.peak_memory = max(self._progress.peak_memory, peak_memory(self._device))
        lines = "".join(json.dumps(event) + "\n" for event in self._progress.curve)
        temporary = self._workdir / "rounds.tmp"
        temporary.write_text(lines, encoding="utf-8")
        os.replace(temporary, self._workdir / "rounds.jsonl")
        wanted = self._experiment.runtime.checkpoint
        if wanted == "round" or (wanted == "task" and point == "task"):
            checkpoint.save(self._workdir / "checkpoint.pt", self._federation, self._progress)
