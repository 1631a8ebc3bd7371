from __future__ import annotations

import hashlib

import pytest
from pydantic import BaseModel

from fcilbench.spec.cell import Cell, PluginUse
from fcilbench.spec.identity import IDENTITY_VERSION, canonical, cell_id, reachable, unclassified
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


def plugin(name: str, **identity: object) -> PluginUse:
    return PluginUse(name=f"acme/{name}", label=name, version="1", params=dict(identity), identity=dict(identity))


def cell(**changes: object) -> Cell:
    fields: dict[str, object] = {
        "dataset": plugin("data"),
        "backbone": plugin("net"),
        "partition": Partition(kind="iid"),
        "aggregator": plugin("mean", lam=0.5),
        "stress": plugin("none"),
        "tasks": (5, 5),
    }
    return Cell(**{**fields, **changes})


def test_every_field_of_every_model_in_a_cell_has_a_role():
    assert unclassified(Cell) == []
    assert {PluginUse, Protocol, Partition, Seeds, Evaluation, Runtime, Limits} <= set(reachable(Cell))


class Inner(BaseModel):
    tagged: int = identity_field(1)
    untagged: int = 2


class Outer(BaseModel):
    inner: list[Inner | None] = identity_field(default_factory=lambda: [Inner()])


def test_an_untagged_field_is_found_and_refused():
    assert unclassified(Outer) == ["Inner.untagged"]
    with pytest.raises(TypeError, match=r"Inner\.untagged is neither"):
        canonical(Outer())  # type: ignore[arg-type]


def test_record_by_hand():
    record = canonical(cell(seeds=Seeds(base=3, index=2, vary=("train",))))
    assert record["identity_version"] == IDENTITY_VERSION == 1
    assert set(record["cell"]) == {
        "protocol",
        "dataset",
        "tasks",
        "data_fingerprint",
        "backbone",
        "partition",
        "aggregator",
        "stress",
        "seeds",
        "evaluate",
    }
    assert record["cell"]["aggregator"] == {"name": "acme/mean", "version": "1", "identity": {"lam": 0.5}}
    assert record["cell"]["seeds"] == {"base": 3, "index": 2, "vary": ["train"]}
    assert record["cell"]["tasks"] == [5, 5]


def test_digest_by_hand():
    class Tiny(BaseModel):
        b: float = identity_field(1e-5)
        a: str = identity_field("x")
        t: int = runtime_field(1)

    text = '{"cell":{"a":"x","b":1e-05},"identity_version":1}'
    assert cell_id(Tiny()) == hashlib.sha256(text.encode()).hexdigest()  # type: ignore[arg-type]


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


def test_negative_zero_is_zero_and_key_order_does_not_count():
    assert cell_id(cell(aggregator=plugin("mean", lam=-0.0))) == cell_id(cell(aggregator=plugin("mean", lam=0.0)))
    one, two = plugin("mean", a=1, b=2), plugin("mean", b=2, a=1)
    assert cell_id(cell(aggregator=one)) == cell_id(cell(aggregator=two))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), {1: 2}])
def test_values_without_a_canonical_form_are_refused(value):
    use = plugin("mean").model_copy(update={"identity": {"x": value}})
    with pytest.raises((TypeError, ValueError)):
        cell_id(cell().model_copy(update={"aggregator": use}))
