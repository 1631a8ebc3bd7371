"""What a board shows in one sentence, for every case. Half widths are t(0.975, 2) s / sqrt(3) = 4.302653 s / 1.732051.

With two degrees of freedom p = 1 - t / sqrt(2 + t^2). The control `ncm` has 0.50, 0.51, 0.55: mean 0.52, s 0.0264575,
half width 0.065724.
"""

from __future__ import annotations

import pytest

from fcilbench.boards.build import AccuracyBoard, OverheadBoard
from fcilbench.boards.finding import finding, format_p, identity_words

NCM = (0.50, 0.51, 0.55)
LEAD = "FAA without task identity: "


@pytest.fixture
def board_of(make_cell, make_row):
    """Returns `board_of(method=values of the seeds, , {"faa)`; every method is scored under `none` alone."""

    def make(methods, evaluate=("none",), **cell):
        rows = [
            make_row(make_cell(name, seed, evaluate=evaluate, **cell), {f"faa/{key}": value for key in evaluate})
            for name, values in methods.items()
            for seed, value in enumerate(values)
            if value is not None
        ]
        return AccuracyBoard().build(rows)

    return make


def test_a_control_that_is_beaten(board_of):
    # differences 0.20 0.21 0.19: mean 0.2, s 0.01, half 0.024841; t = 20 sqrt(3) = 34.6, p = 0.00083
    # sum: mean 0.72, s 0.02, half 0.049683; the reference, which is above all, is not compared
    found = finding(board_of({"ncm": NCM, "sum": (0.70, 0.72, 0.74), "joint": (0.9, 0.91, 0.92)}))
    assert found == (
        f"{LEAD}sum (72.00 ± 4.97 %) beats the best control ncm (52.00 ± 6.57 %) (+20.00 ± 2.48, p < 0.001)."
    )


def test_a_control_that_is_not_beaten(board_of):
    # the same differences with the other sign; of two controls the better one counts
    found = finding(board_of({"ncm": NCM, "ridge": (0.1, 0.2, 0.4), "sum": (0.30, 0.30, 0.36)}))
    # sum: mean 0.32, s 0.034641, half 0.086053; differences -0.20 -0.21 -0.19. Three pairs: Holm's p is 3 * 0.000832
    assert found == (
        f"{LEAD}the best other method sum (32.00 ± 8.61 %) is worse than the best control ncm (52.00 ± 6.57 %) "
        "(-20.00 ± 2.48, p = 0.002)."
    )


def test_a_control_that_is_the_same_in_all_seeds_is_a_constant_to_test_against(board_of):
    # differences -0.20 -0.18 -0.16: s 0.02, half 0.049683, t = 9 sqrt(3), p = 1 - t / sqrt(2 + t^2) = 0.0041
    found = finding(board_of({"ncm": (0.5, 0.5, 0.5), "sum": (0.30, 0.32, 0.34)}))
    assert found == (
        f"{LEAD}the best other method sum (32.00 ± 4.97 %) is worse than the best control ncm (50.00 % (n=3)) "
        "(-18.00 ± 4.97, p = 0.004)."
    )


def test_methods_that_the_tests_do_not_tell_apart(board_of):
    # differences 0.03 -0.01 0.01: mean 0.01, s 0.02, half 0.049683; t = sqrt(3) / 2, p = 1 - 0.522233
    found = finding(board_of({"ncm": NCM, "sum": (0.53, 0.50, 0.56)}))
    assert found == (
        f"{LEAD}the tests do not tell the best other method sum (53.00 ± 7.45 %) from the best control "
        "ncm (52.00 ± 6.57 %) (+1.00 ± 4.97, p = 0.478)."
    )


@pytest.mark.parametrize(
    ("methods", "said"),
    [
        ({"sum": (0.7,)}, "no control has a result; the best method is sum (70.00 % (n=1))."),
        ({"ncm": (0.5,), "joint": (0.9,)}, "controls alone have results, the best of them is ncm (50.00 % (n=1))."),
        ({"joint": (0.9,)}, "neither a control nor another method has a result."),
        (
            {"ncm": (0.5,), "sum": (0.7,)},
            "the best other method sum (70.00 % (n=1)) has a better mean than the best control ncm (50.00 % (n=1)) "
            "(+20.00 (n=1)), no test: 1 common seed.",
        ),
        (
            {"ncm": (0.5, 0.5, 0.5), "sum": (0.5, 0.5, 0.5)},
            "the best other method sum (50.00 % (n=3)) has the same mean as the best control ncm (50.00 % (n=3)) "
            "(0.00 (n=3)), no test: ncm and sum are the same in all seeds.",
        ),
        (
            {"ncm": (0.5, None), "sum": (None, 0.7)},
            "the best other method sum (70.00 % (n=1)) and the best control ncm (50.00 % (n=1)) share no seed.",
        ),
        (
            {"sum": (0.7, 0.5), "fedavg": (0.5, 0.7), "ewc": (0.99,)},
            # s = 0.1 sqrt(2), half = 12.706205 * 0.1
            "no control has a result; the best method is fedavg (60.00 ± 127.06 %; the same mean as sum); with fewer "
            "seeds and left out: ewc.",
        ),
    ],
)
def test_cases_without_a_test(board_of, methods, said):
    assert finding(board_of(methods)) == LEAD + said


def test_no_test_because_a_third_method_lacks_seeds(board_of):
    """The boards test methods over the seeds that all of them share; here these are two."""
    found = finding(board_of({"ncm": NCM, "sum": (0.70, 0.72, 0.74), "ewc": (0.1, 0.2, None, 0.3)}))
    assert found.endswith("(+20.00 ± 2.48), no test: the methods share fewer than 3 seeds.")


def test_fedavg_is_a_control_where_the_task_is_told(board_of):
    found = finding(board_of({"fedavg": NCM, "sum": (0.70, 0.72, 0.74)}, evaluate=("oracle",)))
    assert found.startswith("FAA with the task told: sum (72.00 ± 4.97 %) beats the best control fedavg")


def test_several_scenarios_are_named_and_many_are_counted(make_cell, make_row):
    def rows(places, methods):
        return [
            make_row(make_cell(name, seed, evaluate=("none",), stress=stress, data=f"sha256:{place}"), {"faa/none": v})
            for place, stress in places
            for name, values in methods.items()
            for seed, v in enumerate(values)
        ]

    def relabelled(found):
        return [row.model_copy(update={"coords": {**row.coords, "dataset": row.data.declared[-1]}}) for row in found]

    beaten = rows([(f"data{n}", "none") for n in (1, 2)], {"ncm": NCM, "sum": (0.70, 0.72, 0.74)})
    open_ = rows([("data3", "none"), ("data3", "flip")], {"sum": (0.70, 0.72, 0.74)})
    board = AccuracyBoard().build(relabelled([*beaten, *open_]))
    assert finding(board) == (
        f"{LEAD}1: sum (72.00 ± 4.97 %) beats the best control ncm (52.00 ± 6.57 %) (+20.00 ± 2.48, p < 0.001); "
        "2: sum (72.00 ± 4.97 %) beats the best control ncm (52.00 ± 6.57 %) (+20.00 ± 2.48, p < 0.001); "
        "3: no control has a result; the best method is sum (72.00 ± 4.97 %)."
    )
    more = rows([("data4", "none")], {"ncm": NCM, "sum": (0.53, 0.50, 0.56)})
    assert finding(AccuracyBoard().build(relabelled([*beaten, *open_, *more]))) == (
        "FAA without task identity, in 4 scenarios: a method beats the best control in 2; the tests do not tell the "
        "best other method from the best control in 1; no control has a result in 1."
    )
    assert "digits / vit / dirichlet-0.5 / stress none (" in finding(AccuracyBoard().build([*beaten, *open_]))


def test_a_board_without_ranks_or_rows_has_no_finding(board_of, make_cell, make_row):
    assert finding(OverheadBoard().build([make_row(make_cell(), {"faa/none": 0.5})])) == ""
    assert finding(AccuracyBoard().build([])) == ""
    lost = finding(AccuracyBoard().build([make_row(make_cell(evaluate=("none",)), "failed")]))
    assert lost == f"{LEAD}neither a control nor another method has a result."


def test_words():
    assert identity_words("inferred:ridge") == "with the task picked by ridge for all methods"
    assert [format_p(p) for p in (0.0199, 0.001, 0.00099, 1.0)] == ["p = 0.020", "p = 0.001", "p < 0.001", "p = 1.000"]
