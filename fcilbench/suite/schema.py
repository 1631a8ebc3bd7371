"""The schema of a suite file, version 1."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    WithJsonSchema,
    model_serializer,
    model_validator,
)

from fcilbench.spec.protocol import SELECTOR_LABEL, Closed, Evaluation, Partition, Protocol, Runtime, Scored, SeedRole

Axis = Literal["dataset", "backbone", "partition", "aggregator", "stress"]

AXES: tuple[Axis, ...] = get_args(Axis)
"""Axes of the grid in the order of the product; the seed is the innermost."""


def _printable(label: str) -> str:
    if not label.isprintable():
        raise ValueError(f"{label!r} holds characters that cannot be printed")
    return label


Word = Annotated[str, Field(min_length=1)]
Label = Annotated[str, Field(pattern=r"^[^\s,:][^,:]*$", max_length=100), AfterValidator(_printable)]


class PluginEntry(Closed):
    """One entry of an axis: the name of a plugin, or `{use: name, label: ..., <parameters>}`."""

    model_config = ConfigDict(extra="allow")

    use: Word = Field(description="name of the plugin, `name` or `dist/name`")
    label: Label | None = Field(None, description="what boards call it")

    @property
    def options(self) -> dict[str, Any]:
        """The parameters as they are written."""
        return dict(self.model_extra or {})


def _tasks(raw: Any) -> Any:
    counts = raw if isinstance(raw, list) else [raw]
    if not counts or not all(type(count) is int and 1 <= count <= 1_000_000 for count in counts):
        raise ValueError("must be a number of equal tasks, or a list of classes per task, each at least 1")
    return raw


class DatasetEntry(PluginEntry):
    """A data set with its split into tasks."""

    tasks: Annotated[int | list[int] | None, BeforeValidator(_tasks)] = Field(
        None, description="number of equal tasks, or classes per task; default: the data set's own"
    )


def _long_form(raw: Any) -> Any:
    return {"use": raw} if isinstance(raw, str) else raw


DatasetForms = Annotated[DatasetEntry, BeforeValidator(_long_form, json_schema_input_type=Word | DatasetEntry)]
PluginForms = Annotated[PluginEntry, BeforeValidator(_long_form, json_schema_input_type=Word | PluginEntry)]

_POSITIVE = {"type": "number", "exclusiveMinimum": 0}
_PARTITION_KEYS = dict.fromkeys(Partition.short_forms, _POSITIVE) | Partition.model_json_schema()["properties"]
_PARTITION_MAP = {"type": "object", "properties": _PARTITION_KEYS, "additionalProperties": False, "minProperties": 1}
_PARTITION = {
    "description": "`iid`, `{dirichlet: beta}` or `{quantity: beta}`",
    "anyOf": [{"const": "iid"}, _PARTITION_MAP],
}


class Grid(Closed):
    """The axes; cells are their product, except for axes that are zipped."""

    dataset: tuple[DatasetForms, ...] = Field(min_length=1)
    backbone: tuple[PluginForms, ...] = Field(min_length=1)
    partition: tuple[Annotated[Partition, WithJsonSchema(_PARTITION)], ...] = Field(min_length=1)
    aggregator: tuple[PluginForms, ...] = Field(min_length=1)
    stress: tuple[PluginForms, ...] = Field((PluginEntry(use="none"),), min_length=1)
    zip: tuple[Axis, ...] = Field(
        (), min_length=2, description="axes that advance together, entry by entry, instead of a product"
    )


Conditions = Annotated[dict[str, Any], Field(min_length=1)]


_FILE_DIGEST = r"^sha256:[0-9a-f]{64}$"


class Draw(Closed):
    """One draw of a study."""

    set: dict[str, Any] = Field(description="its values, with keys as in the rule")
    rounds: int = Field(0, ge=0, description="communication rounds that it took")
    score: float | None = Field(None, ge=0, le=1, description="its validation accuracy, if it came to its end")
    ended: Literal["pruned", "failed"] | None = Field(None, description="why it has no score")

    @model_validator(mode="after")
    def _has_one_end(self) -> Draw:
        if (self.score is None) != (self.ended is not None):
            raise ValueError("a draw has either a score, or `ended` says why it has none")
        return self


class StudyRecord(Closed):
    """What `fcilbench tune` spent on the values of a rule, and what came of it."""

    digest: str = Field(pattern=_FILE_DIGEST, description="SHA-256 of all finished trials: draws, states and scores")
    trials: int = Field(ge=0, description="draws that were tried, failed ones included; 0: nothing to tune")
    losers: int = Field(ge=0, description="draws that lost to the one in `set`, with those pruned and failed")
    pruned: int = Field(0, ge=0, description="losers that were ended early")
    failed: int = Field(0, ge=0, description="losers without a score")
    budget: int = Field(ge=0, description="communication rounds that the trials were allowed: trials x seeds x T x R")
    rounds: int = Field(0, ge=0, description="communication rounds that they took")
    seconds: float = Field(0.0, ge=0, description="wall-clock seconds that they took")
    score: float | None = Field(
        None, ge=0, le=1, description="mean over tuning seeds of the winner's validation accuracy"
    )
    scored: str = Field(
        "",
        pattern=rf"^(|faa/(none|inferred(:{SELECTOR_LABEL})?|oracle))$",
        description="what the score is: metric, task identity and selector",
    )
    draws: tuple[Draw, ...] = Field(
        (), description="all draws in their order, the first with the suite's own values; files of before have none"
    )

    @model_serializer(mode="wrap")
    def _as_before(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leaves out draws where an older file has none, so that its digest stays as rows cite it."""
        record: dict[str, Any] = dump(self)
        draws = [{key: value for key, value in each.items() if value is not None} for each in record.pop("draws", ())]
        return {**record, "draws": draws} if draws else record

    @model_validator(mode="after")
    def _makes_sense(self) -> StudyRecord:
        winners = 0 if self.score is None else 1
        if self.losers != self.trials - winners:
            won = "one has a score and won" if winners else "none has a score"
            raise ValueError(f"{self.losers} losers of {self.trials} trials, of which {won}")
        if self.pruned + self.failed > self.losers:
            raise ValueError(f"{self.pruned} pruned and {self.failed} failed trials, but {self.losers} losers")
        if self.budget < self.trials:
            raise ValueError(f"a budget of {self.budget} rounds for {self.trials} trials of a round or more")
        if self.draws:
            self._counts_its_draws()
        return self

    def _counts_its_draws(self) -> None:
        """Raises ValueError if the draws are not those that the rest of the record sums up."""
        ends = [each.ended for each in self.draws]
        counts = {"trials": len(ends), "pruned": ends.count("pruned"), "failed": ends.count("failed")}
        for name, number in counts.items():
            if getattr(self, name) != number:
                raise ValueError(f"{getattr(self, name)} {name}, but its draws are {number}")
        best = max((each.score for each in self.draws if each.score is not None), default=None)
        if self.score is not None and self.score != best:
            raise ValueError(f"a score of {self.score}, but the best of its draws has {best}")


class TunedRule(Closed):
    """Values for the cells that meet all conditions; the last rule that sets a key wins."""

    where: Conditions = Field(description="conditions: an axis or `axis.parameter`, with one value or a list of them")
    set: dict[str, Any] = Field(
        description="values: `axis.parameter`, `protocol.key`, or a bare key for the aggregator"
    )
    study: StudyRecord | None = Field(None, description="where the values come from, in a lock file")
    sealed: bool | None = Field(
        None, description="written by fcilbench: whether the rule was read from a lock file whose digest fits"
    )

    @model_validator(mode="after")
    def _sets_something(self) -> TunedRule:
        if not self.set and self.study is None:
            raise ValueError("set: no value, so the rule would change nothing")
        if self.study is not None and bool(self.set) != (self.study.score is not None):
            what = "sets values, though no trial of its study won" if self.set else "sets nothing, though a trial won"
            raise ValueError(what)
        study = self.study
        winners = [each.set for each in study.draws if each.score == study.score] if study else []
        if winners and self.set and self.set not in winners:
            raise ValueError("sets other values than the draw with the best score")
        return self


class ExcludeRule(Closed):
    """Cells that the suite leaves out, with the reason."""

    model_config = ConfigDict(extra="allow")

    because: str = Field(min_length=1, description="why these cells make no sense or are not wanted")

    @property
    def where(self) -> dict[str, Any]:
        """Conditions on a cell's axes and parameters: a cell that meets all of them is left out."""
        return dict(self.model_extra or {})

    @model_validator(mode="after")
    def _not_everything(self) -> ExcludeRule:
        if not self.model_extra:
            raise ValueError("no condition: it would exclude every cell")
        return self


class SeedPlan(Closed):
    """Repetitions, `{count, base, vary}` or their count alone; the seeds themselves derive from coordinates."""

    count: int = Field(1, ge=1, le=100_000, description="number of repetitions")
    base: int = Field(0, ge=0, lt=2**63, description="enters every seed; another base is another set of repetitions")
    vary: list[SeedRole] = Field(["order", "partition", "train"], description="roles that differ between them")


def _seed_plan(raw: Any) -> Any:
    return {"count": raw} if type(raw) is int else raw


SeedForms = Annotated[
    SeedPlan, BeforeValidator(_seed_plan, json_schema_input_type=Annotated[int, Field(ge=1)] | SeedPlan)
]


class Tuning(Closed):
    """The budget of `fcilbench tune`: equal for every method and scenario. The trials never see test data."""

    trials: int = Field(16, ge=1, le=100_000, description="draws of hyperparameters for each method and scenario")
    seeds: int = Field(1, ge=1, le=1_000, description="tuning seeds that each draw is trained with")
    validation: float = Field(
        0.2, gt=0.0, le=0.5, description="share of each class's training samples that is held out for the score"
    )
    task_identity: Scored = Field(
        "inferred",
        description="task identity whose final averaged accuracy scores; `inferred:ridge` under that selector",
    )


class Scoring(Evaluation):
    """What every method is scored under: task identities, and who picks the task under `inferred`."""

    selectors: tuple[PluginForms, ...] = Field(
        (PluginEntry(use="own"),),
        min_length=1,
        description="what picks the task of a sample under `inferred`: `own`, the method's own rule; any other, for "
        "every method alike, as figures `inferred:<label>`",
    )

    @model_validator(mode="after")
    def _picks_under_inferred(self) -> Scoring:
        if "selectors" in self.model_fields_set and "inferred" not in self.task_identity:
            raise ValueError("selectors pick the task under `inferred`, which task_identity does not name")
        return self


_DURATION = r"^(\d+(\.\d+)?h)?(\d+(\.\d+)?m)?(\d+(\.\d+)?s)?$"


def _duration(raw: Any) -> Any:
    """Returns seconds from a number of seconds, or from `90s`, `30m`, `2h`, `1h30m`."""
    if not isinstance(raw, str):
        return raw
    match = re.match(_DURATION, raw, re.ASCII)
    if not raw or match is None:
        raise ValueError(f"{raw!r} is not a duration; write seconds, or 90s, 30m, 2h, 1h30m")
    return sum(float(part[:-1]) * {"h": 3600, "m": 60, "s": 1}[part[-1]] for part in match.group(1, 3, 5) if part)


_DURATION_SCHEMA = {
    "description": "seconds, or 90s, 30m, 2h, 1h30m",
    "anyOf": [_POSITIVE, {"type": "string", "pattern": _DURATION, "minLength": 2}],
}
Duration = Annotated[float, BeforeValidator(_duration), WithJsonSchema(_DURATION_SCHEMA)]


class SuiteLimits(Closed):
    """What a cell may cost."""

    wall: Duration | None = Field(
        None, gt=0.0, le=366 * 86_400.0, description="wall-clock time after which an attempt is stopped; `null`: never"
    )
    retries: int = Field(1, ge=0, le=100, description="further attempts at a cell that was `killed` or `oom`")


class Suite(Closed):
    """A benchmark suite: what is compared, on what, how often, and what it may cost."""

    fcilbench: Literal[1] = Field(description="version of this schema")
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="short name for boards and tracking")
    description: str = ""
    extends: str | None = Field(None, description="suite that this one refines, relative to this file")
    protocol: Protocol = Protocol()
    grid: Grid
    tuned: tuple[TunedRule, ...] = ()
    tuning: Tuning = Tuning()
    exclude: tuple[ExcludeRule, ...] = ()
    seeds: SeedForms = SeedPlan()
    evaluate: Scoring = Scoring()
    limits: SuiteLimits = SuiteLimits()
    runtime: Runtime = Runtime()
    boards: tuple[str, ...] = Field(("accuracy",), max_length=100)

    @property
    def lock_digest(self) -> str | None:
        """SHA-256 of the rules that `fcilbench tune` wrote, which rows cite as `tuned_from`; `None` without any."""
        rules = [rule.model_dump(mode="json", exclude={"sealed"}) for rule in self.tuned if rule.study]
        record = json.dumps(rules, sort_keys=True, separators=(",", ":"))
        return f"sha256:{hashlib.sha256(record.encode()).hexdigest()}" if rules else None
