import hashlib
from pathlib import Path

import pytest
from pydantic import BaseModel

from fcilbench.spec.cell import Cell, PluginUse
from fcilbench.spec.identity import canonical, cell_id
from fcilbench.spec.params import Field, Params
from fcilbench.spec.plugin import Plugin
from fcilbench.spec.protocol import (
    Evaluation,
    Limits,
    Partition,
    Protocol,
    Runtime,
    Seeds,
    identity_field,
    runtime_field,
)


def plugin(name, **identity):
    return PluginUse(name=f"acme/{name}", label=name, version="1", params=dict(identity), identity=dict(identity))


def cell(**changes):
    fields: dict[str, object] = {
        "dataset": plugin("data"),
        "backbone": plugin("net"),
        "partition": Partition(kind="iid"),
        "aggregator": plugin("mean", lam=0.5),
        "stress": plugin("none"),
        "tasks": (5, 5),
    }
    return Cell(**{**fields, **changes})


class Inner(BaseModel):
    tagged: int = identity_field(1)
    untagged: int = 2


class Outer(BaseModel):
    inner: list[Inner | None] = identity_field(default_factory=lambda: [Inner()])
    tasks: None = identity_field(None)


def test_an_untagged_field_is_found_and_refused():
    with pytest.raises(TypeError, match=r"Inner\.untagged is neither"):
        canonical(Outer())


def test_record_by_hand():
    assert canonical(cell(seeds=Seeds(base=3, index=2, vary=("train",)), protocol=Protocol(rounds=2, lr=1e-5))) == {
        "versions": {"identity": 2, "protocol": 1, "engine": 2},
        "cell": {
            "protocol": {"rounds": 2},
            "dataset": {"name": "acme/data", "version": "1"},
            "tasks": [5, 5],
            "backbone": {"name": "acme/net", "version": "1"},
            "partition": {"kind": "iid"},
            "aggregator": {"name": "acme/mean", "version": "1", "identity": {"lam": 0.5}},
            "stress": {"name": "acme/none", "version": "1"},
            "seeds": {"base": 3, "index": 2, "vary": ["train"]},
        },
    }


def test_digest_by_hand():
    class Tiny(BaseModel):
        b: float = identity_field()
        a: str = identity_field("x")
        c: bool = identity_field(True)
        t: int = runtime_field(1)
        tasks: None = identity_field(None)

    text = '{"cell":{"a":"y","b":1e-05},"versions":{"engine":2,"identity":2,"protocol":1}}'
    assert cell_id(Tiny(a="y", b=1e-5)) == hashlib.sha256(text.encode()).hexdigest()


def test_a_new_option_with_a_neutral_default_changes_no_id():
    class Grown(Protocol):
        label_smoothing: float = identity_field(0.0)

    class GrownCell(Cell):
        protocol: Grown = identity_field(default_factory=Grown)
        audit: str = identity_field("off")

    old = cell(protocol=Protocol(rounds=2))
    fields = {**dict(old), "protocol": Grown(rounds=2)}
    assert cell_id(GrownCell(**fields)) == cell_id(old)
    assert cell_id(GrownCell(**{**fields, "protocol": Grown(rounds=2, label_smoothing=0.1)})) != cell_id(old)
    assert cell_id(GrownCell(**{**dict(cell()), "protocol": Grown()})) == cell_id(cell())


class Depth(Params):
    depth: int = 1


class Ring(Plugin):
    class Params(Params):
        must: int
        rate: float = Field(0, ge=0)
        flag: int | bool = 1
        shape: tuple[int, ...] = (1, 2)
        inner: Depth = Field(default_factory=Depth)
        weights: Path | None = None


def test_a_plugins_identity_is_what_is_not_at_its_default():
    assert Ring(Ring.Params(must=3)).identity() == {"must": 3}
    assert Ring(Ring.Params(must=3, rate=0.0, shape=(1, 2), inner=Depth(depth=1))).identity() == {"must": 3}
    chosen = Ring(Ring.Params(must=3, flag=True, shape=(1,), inner=Depth(depth=2), weights=Path("w")))
    assert chosen.identity() == {"must": 3, "flag": True, "shape": [1], "inner": {"depth": 2}, "weights": "w"}


def test_what_runs_it_does_not_count():
    base = cell()
    same = [
        cell(suite="other"),
        cell(runtime=Runtime(threads=7)),
        cell(limits=Limits(wall_seconds=1.0)),
        cell(aggregator=base.aggregator.model_copy(update={"label": "renamed", "code_digest": "abc"})),
        cell(aggregator=base.aggregator.model_copy(update={"params": {"lam": 0.5, "path": "/somewhere"}})),
    ]
    assert {cell_id(each) for each in same} == {cell_id(base)}
    assert len(cell_id(base)) == 64


def test_what_it_computes_counts():
    different = [
        cell(),
        cell(protocol=Protocol(lr=1e-4)),
        cell(tasks=(4, 6)),
        cell(partition=Partition(kind="dirichlet", value=0.5)),
        cell(partition=Partition(kind="quantity", value=0.5)),
        cell(partition=Partition(kind="iid", min_samples=0)),
        cell(aggregator=plugin("mean", lam=0.6)),
        cell(aggregator=plugin("median", lam=0.5)),
        cell(aggregator=plugin("mean", lam=0.5).model_copy(update={"version": "2"})),
        cell(seeds=Seeds(index=1)),
        cell(seeds=Seeds(base=1)),
        cell(seeds=Seeds(vary=("train",))),
        cell(evaluate=Evaluation(task_identity=("none",))),
        cell(data_fingerprint="sha256:x"),
    ]
    assert len({cell_id(each) for each in different}) == len(different)


def test_a_mended_rule_changes_the_cells_that_it_concerns():
    """The rule for a task of one class under `inferred` changed without a new engine version for all cells."""
    assert canonical(cell(tasks=(4, 1)))["versions"]["one_class_tasks"] == 2
    assert "one_class_tasks" not in canonical(cell(tasks=(4, 2)))["versions"]


def test_negative_zero_is_zero_and_key_order_does_not_count():
    assert cell_id(cell(aggregator=plugin("mean", lam=-0.0))) == cell_id(cell(aggregator=plugin("mean", lam=0.0)))
    one, two = plugin("mean", a=1, b=2), plugin("mean", b=2, a=1)
    assert cell_id(cell(aggregator=one)) == cell_id(cell(aggregator=two))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), {1: 2}])
def test_values_without_a_canonical_form_are_refused(value):
    use = plugin("mean").model_copy(update={"identity": {"x": value}})
    with pytest.raises((TypeError, ValueError)):
        cell_id(cell().model_copy(update={"aggregator": use}))
