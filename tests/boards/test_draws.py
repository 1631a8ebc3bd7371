"""What the draws of a study bought, from the records that travel with rows."""

import pytest

from fcilbench.boards.build import AccuracyBoard
from fcilbench.boards.draws import best_so_far, order_kept
from fcilbench.boards.quotes import Leaderboard, Quotes
from fcilbench.boards.records import read_suite
from fcilbench.boards.tuning import tuning_notes
from fcilbench.errors import UsageError

SCORES = {
    "a": (0.25, 0.75, None, 0.5),
    "b": (0.5, None, 0.5625, 0.625),
    "c": (0.375, 0.25, 0.25, 0.25),
    "d": (None, 0.75),
}
"""Of each draw; `None` was pruned or failed."""


def suite(scores):
    """Returns what boards read of the suite of tuned rows: a study of each method, an earlier one of `a`."""

    def rule(name, own):
        where = {"dataset": "digits", "backbone": "vit", "partition": "dirichlet-0.5", "aggregator": name}
        draws = [{"set": {}, "rounds": 4, **({"ended": "pruned"} if x is None else {"score": x})} for x in own]
        return {"where": where, "set": {}, "study": {"trials": 4, "budget": 40, "draws": draws}}

    return {"tuned": [rule("a", (0.875,) * 4), *(rule(name, own) for name, own in scores.items())]}


@pytest.fixture
def tuned(make_cell, make_row):
    """A row of each method, that cites the lock file."""
    cells = [make_cell(name).model_copy(update={"tuned_from": "sha256:lock"}) for name in (*SCORES, "e")]
    return [make_row(cell, {"faa/none": 0.5}, suite_digest="sha256:suite") for cell in cells]


def test_the_best_score_after_each_draw_is_of_the_last_study_and_needs_the_first_draw(tuned):
    suites = {"sha256:suite": read_suite(suite(SCORES))}
    best = {row.coords["aggregator"]: best_so_far(row, suites) for row in tuned}
    assert best == {
        "a": (0.25, 0.75, 0.75, 0.75),
        "b": (0.5, 0.5, 0.5625, 0.625),
        "c": (0.375,) * 4,
        "d": (),  # its first draw, the suite's own values, failed
        "e": (),  # not tuned
    }
    assert best_so_far(tuned[0].model_copy(update={"tuned_from": None}), suites) == ()


def test_a_board_says_what_tuning_bought(tuned):
    """50, 12.5 and 0 points."""
    _, notes = tuning_notes(tuned, {"sha256:suite": suite(SCORES)})
    told = "in points of the validation score that chose the values, from the suite's own values to the best draw"
    place = "digits / vit / dirichlet-0.5"
    assert notes[-1] == f"{place}: what tuning bought, {told}: 12.5 in the median of 3 methods, at most 50.0 (a)"
    _, notes = tuning_notes(tuned[:1], {"sha256:suite": suite(SCORES)})
    assert notes[-1] == f"{place}: what tuning bought, {told}: 50.0 (a)"


def test_kendalls_tau_of_two_budgets():
    """Of b, c, a and a, b, c two of three pairs are reversed: 1/3 - 2/3."""
    assert order_kept((0.25, 0.5, 0.375), (0.75, 0.625, 0.375)) == pytest.approx(-1 / 3)
    assert order_kept((1, 2, 3), (4, 5, 6)) == 1
    assert order_kept((1, 1, 1), (4, 5, 6)) is None
    assert order_kept((1,), (4,)) is None


def test_texts_quote_scores_and_orders_by_number_of_draws(tuned):
    rows = {row.cell_id: row for row in tuned}
    board = AccuracyBoard().build(tuned)
    quotes = Quotes([Leaderboard("b", rows, {"accuracy": board}, {"sha256:suite": read_suite(suite(SCORES))})])
    assert [quotes.validation("b", "digits", "b", draws) for draws in (1, 3, 4)] == ["50.0", "56.3", "62.5"]
    assert (quotes.tau("b", "digits", 1, 4), quotes.tau("b", "digits", 2, 4)) == ("-0.33", "1.00")
    with pytest.raises(UsageError, match="c in b / digits has 4 draws, so there is no score after 5"):
        quotes.validation("b", "digits", "c", 5)
    with pytest.raises(UsageError, match="d in b / digits has 0 draws"):
        quotes.validation("b", "digits", "d", 1)
