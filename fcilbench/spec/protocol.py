"""The protocol of one experiment: everything that is not a plugin."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.fields import FieldInfo

from fcilbench.spec.params import SPACE, Space

TaskIdentity = Literal["none", "inferred", "oracle"]
"""How the task of a test sample is known in an evaluation, see `fcilbench.api.predict`."""

SELECTOR_LABEL = r"[A-Za-z0-9][A-Za-z0-9._+=\[\]-]{0,99}"
"""What the label of a selector may be: it is part of the names of figures and goes into files, pages and commands."""

_SCORED = rf"(none|inferred(:{SELECTOR_LABEL})?|oracle)"

Scored = Annotated[str, Field(pattern=rf"^{_SCORED}$")]
"""What a figure was measured under: a task identity, or `inferred:<label>` where a selector picked the task.

Plain `inferred` is the method's own rule. An example is `inferred:ridge`.
"""


def scored_under(identities: Iterable[TaskIdentity], picking: Iterable[Scored]) -> list[Scored]:
    """Returns everything that a cell is scored under: its task identities, with each selector in place of `inferred`.

    Example:
        >>> scored_under(["none", "inferred"], ["inferred", "inferred:ridge"])
        ['none', 'inferred', 'inferred:ridge']
    """
    return [key for identity in identities for key in (picking if identity == "inferred" else [identity])]


def scored_order(keys: Iterable[str]) -> list[str]:
    """Returns what figures were measured under as tables show it: `none`, `inferred` and selectors by name, `oracle`.

    Anything else among the keys, which a stranger's row may name, is left out.

    Example:
        >>> scored_order(["oracle", "inferred:ridge", "inferred"])
        ['inferred', 'inferred:ridge', 'oracle']
    """
    known = {key for key in keys if re.fullmatch(_SCORED, key)}
    return sorted(known, key=lambda key: (("none", "inferred", "oracle").index(key.partition(":")[0]), key))


Role = Literal["identity", "runtime"]
_KEY = "fcilbench_role"


def identity_field(default: Any = ..., *, space: Space | None = None, **constraints: Any) -> Any:
    """Declares a field that is part of a cell's identity.

    Args:
        default: Default value; `...` makes the field required.
        space: Search space for `fcilbench tune`.
        **constraints: Anything `pydantic.Field` takes (`ge`, `description`, `default_factory`, ...).
    """
    return _field("identity", default, constraints, {} if space is None else {SPACE: space.model_dump(mode="json")})


def runtime_field(default: Any = ..., **constraints: Any) -> Any:
    """Declares a field that changes how a cell is run but not what it computes: it is no part of the identity."""
    return _field("runtime", default, constraints)


def role_of(field: FieldInfo) -> Role | None:
    """Returns the declared role of a model field, or `None` if it has none."""
    extra = field.json_schema_extra
    role = extra.get(_KEY) if isinstance(extra, dict) else None
    return role if role in ("identity", "runtime") else None  # type: ignore[return-value]


def _field(role: Role, default: Any, constraints: dict[str, Any], extra: dict[str, Any] | None = None) -> Any:
    given = {} if "default_factory" in constraints else {"default": default}
    return Field(json_schema_extra={_KEY: role, **(extra or {})}, **given, **constraints)


class Closed(BaseModel):
    """A frozen model that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Protocol(Closed):
    """Federated training protocol, the same for all methods of a suite."""

    clients: int = identity_field(10, ge=1, le=100_000, description="number N of registered clients")
    rounds: int = identity_field(5, ge=1, le=100_000, description="communication rounds R of each task")
    local_epochs: int = identity_field(5, ge=1, le=10_000, description="epochs E that a client trains in a round")
    batch_size: int = identity_field(16, ge=1, le=1_000_000, description="samples of one local step")
    participation: float = identity_field(
        1.0, gt=0.0, le=1.0, description="share of the clients that is drawn anew for each round, at least one client"
    )
    lr: float = identity_field(
        1e-5, gt=0.0, description="learning rate of the local optimiser", space=Space(low=1e-5, high=1e-2, log=True)
    )
    optimizer: Literal["adamw", "adam", "sgd"] = identity_field(
        "adamw", description="local optimiser, made new for each client and round"
    )
    momentum: float = identity_field(
        0.0, ge=0.0, lt=1.0, description="momentum of `sgd`; the other optimisers take none"
    )
    schedule: Literal["constant", "cosine", "step"] = identity_field(
        "constant",
        description="learning rate in step s of a client's S local steps of a round: `constant`, lr; `cosine`, "
        "lr (1 + cos(pi s / S)) / 2; `step`, lr, a tenth of it from S / 2 on and a hundredth from 3 S / 4 on",
    )
    clip_norm: float | None = identity_field(
        None,
        gt=0.0,
        description="largest norm of a step's gradient, to which a longer one is shortened; `null`: none is",
    )
    weight_decay: float = identity_field(
        0.0,
        ge=0.0,
        description="weight decay, decoupled for `adamw` and added to the gradient for `adam` and `sgd`; the head of "
        "other tasks does not decay",
    )
    precision: Literal["fp32", "bf16"] = identity_field(
        "fp32",
        description="number format of the forward and backward pass; weights, updates and merging are always fp32",
    )
    augment: bool = identity_field(True, description="whether training images are augmented as the data set says")
    validation: float = identity_field(
        0.0,
        ge=0.0,
        le=0.5,
        description="share of each class's training samples that is held out, and that accuracy is then measured on; "
        "0: clients train on everything and accuracy is measured on the test samples",
    )

    @model_validator(mode="after")
    def _momentum_of_sgd(self) -> Self:
        if self.momentum and self.optimizer != "sgd":
            raise ValueError(f"momentum has no effect on {self.optimizer}: set optimizer: sgd, or momentum: 0")
        return self


class Partition(Closed):
    """How the samples of a task are distributed over the clients.

    Attributes:
        short_forms: Keys that stand for `kind` and `value` together.
    """

    short_forms: ClassVar = ("dirichlet", "quantity")

    kind: Literal["dirichlet", "iid", "quantity"] = identity_field(
        "dirichlet",
        description="what is skewed: `dirichlet`, the shares of each class; `quantity`, the number of samples; `iid`, "
        "nothing",
    )
    value: float | None = identity_field(
        None,
        gt=0.0,
        description="concentration beta of the Dirichlet distribution: smaller is more skewed; `iid` takes none",
    )
    min_samples: int = identity_field(
        1,
        ge=0,
        le=1_000_000,
        description="least number of samples of each task for each client; 0 allows empty clients",
    )

    @model_validator(mode="before")
    @classmethod
    def _shorthand(cls, raw: Any) -> Any:
        """Accepts `iid`, `{dirichlet: 0.5}` and `{quantity: 1.0, min_samples: 0}`."""
        if isinstance(raw, str):
            return {"kind": raw}
        if isinstance(raw, dict):
            for kind in cls.short_forms:
                if kind in raw:
                    return {"kind": kind, "value": raw[kind], **{k: v for k, v in raw.items() if k != kind}}
        return raw

    @model_validator(mode="after")
    def _value_fits_kind(self) -> Partition:
        if (self.kind == "iid") != (self.value is None):
            raise ValueError(f"{self.kind} takes {'no value' if self.kind == 'iid' else 'a concentration, e.g. 0.5'}")
        return self

    @property
    def label(self) -> str:
        """Short name for boards and `where` rules, e.g. `dirichlet-0.5`, `iid`, `dirichlet-0.1-min6`."""
        name = self.kind if self.value is None else f"{self.kind}-{self.value:g}"
        return name if self.min_samples == 1 else f"{name}-min{self.min_samples}"


SeedRole = Literal["order", "partition", "train"]


class Seeds(Closed):
    """The three seeds of one repetition, the same for all aggregators.

    `order` determines the class order, `partition` the clients' data, `train` everything else (head initialisation,
    client sampling, batch order, augmentation). Roles outside `vary` have the seed of repetition 0, so that the spread
    over seeds can be the spread of training alone.
    """

    base: int = identity_field(0, ge=0, lt=2**63)
    index: int = identity_field(0, ge=0, le=100_000)
    vary: tuple[SeedRole, ...] = identity_field(("order", "partition", "train"))

    def of(self, role: SeedRole) -> int:
        """Returns the 63-bit seed of a role: a hash of (base, role, index)."""
        index = self.index if role in self.vary else 0
        digest = hashlib.sha256(f"fcilbench/{self.base}/{role}/{index}".encode()).digest()
        return int.from_bytes(digest[:8], "big") >> 1


class Evaluation(Closed):
    """The task identities to evaluate with; they are never ranked together."""

    task_identity: tuple[TaskIdentity, ...] = identity_field(
        ("none", "inferred", "oracle"),
        min_length=1,
        description="how the task of a test sample is known: `none`, all classes seen so far compete in one model; "
        "`inferred`, the method picks the task of each sample; `oracle`, the true task is given",
    )


class Runtime(Closed):
    """How a cell is run: recorded in its row, but no part of its identity."""

    threads: int = runtime_field(
        1, ge=1, le=1_024, description="CPU threads of a cell; another number changes sums in their last digits"
    )
    eval_batch_size: int = runtime_field(
        256, ge=1, le=1_000_000, description="samples of one forward pass in evaluation"
    )
    checkpoint: Literal["round", "task", "never"] = runtime_field(
        "round", description="when the state is saved, from which an interrupted cell goes on"
    )
    capture: Literal["auto", "off"] = runtime_field(
        "auto",
        description="`auto` captures local steps in a CUDA graph where there is a GPU; `off` runs kernel by kernel",
    )
    portable: bool = runtime_field(
        False,
        description="whether the cell is computed on a CPU by code that every x86-64 processor has, so that each "
        "gives the same bits; about three times slower (docs/portability.md)",
    )
    keep_model: bool = runtime_field(
        False, description="whether the deployed module stays in the cell's folder, for `fcilbench module export`"
    )
    analysis: tuple[Literal["curve", "geometry"], ...] = runtime_field(
        (),
        description="also measured, without influence on the result: `curve`, accuracy after the first and the middle "
        "round of each task; `geometry`, sharpness, margins and separation of the final models",
    )

    @model_validator(mode="after")
    def _portable_on_one_thread(self) -> Self:
        if self.portable and self.threads != 1:
            raise ValueError(f"portable needs one thread, and threads is {self.threads}: set threads: 1")
        return self


class Limits(Closed):
    """What a cell may cost before the supervisor stops it."""

    wall_seconds: float | None = runtime_field(None, gt=0.0, description="wall-clock limit of one attempt")
    retries: int = runtime_field(1, ge=0, le=100, description="further attempts after `killed` or `oom`")
