"""What two results of one cell are held to. The spreads are given by hand: 0.02 and 0.05 for FedAvg, 0.1 for SUM."""

import json

import pytest

from fcilbench.results import agreement
from fcilbench.results.agreement import (
    Expectation,
    computed_by,
    computed_rows,
    expected,
    off_in_the_mean,
    spread_of,
)

TABLE = {
    "measured": "by hand",
    "spread": {
        "fcilbench/fedavg": {"faa/none": 0.02, "faa/oracle": 0.05},
        "fcilbench/sum": {"faa/none": 0.1, "faa/oracle": 0.01},
    },
}
PROCESSOR = {"vendor": "AuthenticAMD", "family": "25", "model": "17", "instruction_sets": ["avx2", "avx512f"]}
RECORD = {
    "machine": "x86_64",
    "libc": "glibc 2.36",
    "processor": PROCESSOR,
    "packages": {"torch": "2.14.1", "numpy": "2.4.6", "timm": "1.0.31", "typer": "0.15"},
    "worker": {"torch": "2.14.1+cu130", "capability": "AVX512", "blas": "MKL 2024.2", "onednn": "3.12"},
}


@pytest.fixture(autouse=True)
def table(tmp_path, monkeypatch):
    path = tmp_path / "spread.json"
    path.write_text(json.dumps(TABLE))
    monkeypatch.setattr(agreement, "SPREAD", path)
    agreement._measured.cache_clear()
    yield
    agreement._measured.cache_clear()


@pytest.fixture
def row(make_cell, make_row):
    def make(method="fedavg", device="cpu", code=None, **runtime):
        made = make_row(make_cell(method), {"faa/none": 0.5})
        params = made.params.model_copy(update={"runtime": {"threads": 1, "portable": False, **runtime}})
        return made.model_copy(
            update={
                "device": device,
                "params": params,
                "code": made.code.model_copy(update=code or {}),
                "test_sizes": [1000, 1000],
            }
        )

    return make


def changed(**worker):
    return {**RECORD, "worker": {**RECORD["worker"], **worker}}


def test_the_same_machine_and_code_give_equal_bits(row):
    kernel = {**RECORD, "platform": "Linux 6.1", "packages": {**RECORD["packages"], "typer": "0.16"}}
    found = expected(row(), row(), (RECORD, kernel))  # neither the kernel nor typer computes anything
    assert found == Expectation(True, "code, libraries and processor are the same (AVX512, AMD)")
    assert found.tolerance == {}


@pytest.mark.parametrize("dirty", [(True, False), (False, True)])
def test_uncommitted_changes_of_either_row_explain_a_difference(row, dirty):
    """`merge` must not find another conflict when its folders are named in another order."""
    one, other = (row(code={"dirty": each}) for each in dirty)
    assert not expected(one, other, (RECORD, RECORD)).exact


def test_a_row_that_does_not_say_how_it_rounds_is_held_to_the_rest(row):
    """Rows of earlier versions have no digits: what they do record decides, as it did."""
    assert expected(row(), row(), (RECORD, changed(rounding="0a1b"))).exact
    assert expected(row(), row(), (changed(rounding="0a1b"), changed(rounding="0a1b"))).exact


def test_portable_numbers_are_equal_on_another_processor(row):
    intel = {**RECORD, "processor": {"vendor": "GenuineIntel", "instruction_sets": ["sse4_2"]}}
    found = expected(row(portable=True), row(portable=True), (RECORD, intel))
    assert found == Expectation(True, "portable numbers are equal on every x86-64 processor")
    arm = expected(row(portable=True), row(portable=True), (RECORD, {**RECORD, "machine": "aarch64"}))
    assert not arm.exact


REASONS = {
    "the row was computed with AVX512, AMD, and here with AVX2, AMD": {"record": changed(capability="AVX2")},
    "the row was computed with AVX512, AMD, and here with AVX512, Intel": {
        "record": {**RECORD, "processor": {**PROCESSOR, "vendor": "GenuineIntel"}}
    },
    "the processors differ, though both compute with AVX512, AMD": {
        "record": {**RECORD, "processor": {**PROCESSOR, "model": "97"}}
    },
    "sums are rounded otherwise there (0a1b) than here (2c3d), though both compute with AVX512, AMD": {
        "first": changed(rounding="0a1b"),
        "record": changed(rounding="2c3d"),
    },
    "the row was computed with AVX512, AMD, and here with portable numbers": {"here": {"portable": True}},
    "the row was computed with 1 threads, and here with 2": {"here": {"threads": 2}},
    "torch 2.14.1+cu130 there, 2.15.0 here": {"record": changed(torch="2.15.0")},
    "libc glibc 2.36 there, glibc 2.41 here": {"record": {**RECORD, "libc": "glibc 2.41"}},
    "timm 1.0.31 there, 1.1.0 here": {"record": {**RECORD, "packages": {**RECORD["packages"], "timm": "1.1.0"}}},
    "engine version 2 there, 9 here": {"here": {"code": {"engine_version": 9}}},
    "the code of a plugin has changed": {"here": {"code": {"digest": "other"}}},
    "an environment is not known": {"record": None},
    "a row does not record the instruction set that computed it": {"record": changed(capability="")},
    "sums on a GPU (NVIDIA H100) may be added up in another order": {
        "there": {"device": "NVIDIA H100"},
        "here": {"device": "NVIDIA H100"},
    },
    "the row was computed with AVX512, AMD, and here with NVIDIA H100": {"here": {"device": "NVIDIA H100"}},
}


@pytest.mark.parametrize("reason", REASONS)
def test_whatever_else_computes_gives_the_measured_spread_and_says_why(row, reason):
    case = REASONS[reason]
    there, here = (row(**{"code": {"engine_version": 2}, **case.get(which, {})}) for which in ("there", "here"))
    found = expected(there, here, (case.get("first", RECORD), case.get("record", RECORD)))
    assert found == Expectation(False, reason, {"faa/none": 0.02, "faa/oracle": 0.05})
    assert found.tolerance == pytest.approx({"faa/none": 0.08, "faa/oracle": 0.2, "*": None})


def test_a_spread_is_at_least_one_test_sample(row):
    """Two tasks of 5 and 10 test samples: one of the former is 1 / 2 x 1 / 5 = 0.1 of the mean over tasks."""
    few = row().model_copy(update={"test_sizes": [5, 10]})
    assert expected(few, few, (RECORD, None)).spread == {"faa/none": 0.1, "faa/oracle": 0.1}


def test_a_method_that_was_not_measured_has_the_largest_spread_of_all():
    assert spread_of("acme-fcil/gossip") == {"faa/none": 0.1, "faa/oracle": 0.05}


def test_several_cells_are_held_to_less_in_their_mean():
    """Spread 0.02 each: four cells may be 3 x 0.02 / 2 = 0.03 off in the mean, where one alone may be 0.08 off."""
    apart = Expectation(False, "", {"faa/none": 0.02})
    assert off_in_the_mean([(apart, {"faa/none": d}) for d in (0.05, -0.05, 0.07, 0.0)]) == {}
    off = off_in_the_mean([(apart, {"faa/none": 0.035, "aia/none": 0.5})] * 4)
    assert off == {"faa/none": pytest.approx((0.035, 0.03))}
    assert off_in_the_mean([(apart, {"faa/none": 0.07})]) == {}  # one cell is judged by itself


def test_what_computed_a_row_is_named(row):
    assert computed_by(row(), RECORD) == "AVX512, AMD"
    assert computed_by(row(portable=True), RECORD) == "portable numbers"
    assert computed_by(row(device="NVIDIA H200"), RECORD) == "NVIDIA H200"
    assert computed_by(row(), changed(capability=None)) == ""
    assert computed_by(row(), {"worker": 5, "processor": [1]}) == ""
    assert computed_by(row(), None) == ""


def test_rows_of_one_name_that_round_otherwise_are_told_apart(row):
    """One processor, two sets of digits: another BLAS was loaded, or told what to do by a variable."""
    records = {"old": RECORD, "a": changed(rounding="0a1b"), "b": changed(rounding="2c3d")}

    def named(*envs, **runtime):
        rows = [row(**runtime).model_copy(update={"env": env, "cell_id": f"{n}"}) for n, env in enumerate(envs)]
        return [*computed_rows(rows, records).values()]

    assert named("a", "a") == named("old", "old") == ["AVX512, AMD"] * 2
    known = ["AVX512, AMD, rounding 0a1b", "AVX512, AMD, rounding 2c3d", "AVX512, AMD, rounding not recorded"]
    assert named("a", "b", "old") == known
    assert named("a", "old") == [known[0], known[2]]
    assert named("a", "b", portable=True) == ["portable numbers"] * 2
    assert named("a", "b", device="NVIDIA H100") == ["NVIDIA H100"] * 2
