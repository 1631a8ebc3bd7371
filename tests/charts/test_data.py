"""The rows behind the charts, against values worked out by hand."""

from __future__ import annotations

import json
import math

import pytest

from fcilbench.boards.build import AccuracyBoard
from fcilbench.boards.render import format_estimate
from fcilbench.charts import budget, forgetting, matrix, partition, slices
from fcilbench.charts.bytes import sent
from fcilbench.errors import NothingSelectedError, UsageError
from fcilbench.results.store import Store
from fcilbench.spec.outcome import SelectorCost

T2 = 4.302653
"""The 97.5 % quantile of Student's t with two degrees of freedom."""


def by_id(rows):
    return {row["id"]: row for row in rows}


def test_forest_is_sorted_and_only_accuracies_end_at_0_and_100(fill, data_of, make_cell, make_row):
    """0.9, 0.99, 0.99: mean 0.96, s = 0.09 / sqrt 3, half width 4.302653 * 0.03 = 0.12908, so 83.1 to 108.9."""
    store = fill(
        {"fedavg": (0.5, 0.6, 0.7), "sum": (0.9, 0.99, 0.99), "ncm": (0.8, 0.8, 0.8), "joint": (0.7, 0.8, 0.93)}
    )
    store.append(make_row(make_cell("moon", 0, evaluate=("none",)), "failed"))
    found = data_of("forest", store)
    assert [row["label"] for row in found["rows"]] == ["sum", "joint (reference)", "ncm (control)", "fedavg", "moon"]
    rows = by_id(found["rows"])
    assert rows["sum"]["lo"] == pytest.approx(96 - 100 * T2 * 0.03, abs=1e-4)
    assert rows["sum"]["hi"] == 100
    assert rows["sum"]["values"] == pytest.approx([90, 99, 99])
    assert rows["fedavg"]["hi"] - rows["fedavg"]["lo"] == pytest.approx(2 * 24.8414, abs=1e-3)
    assert (rows["ncm"]["lo"], rows["ncm"]["text"]) == (None, "80.00 (n=3)")  # equal in all seeds: no interval
    assert (rows["moon"]["mean"], rows["moon"]["text"]) == (None, "–")
    assert rows["fedavg"]["tip"] == (
        "fedavg\nFAA 60.00 ± 24.84 %\nplaces [2–3] of 3\nseeds 0: 50.00, 1: 60.00, 2: 70.00"
    )
    assert [(line["id"], line["mean"]) for line in found["lines"]] == [
        ("ncm", pytest.approx(80)),
        ("joint", pytest.approx(81)),
    ]
    assert found["layout"] == [{"rows": 5, "room": 13, "axis": "FAA in %"}]
    # Forgetting -0.1, 0.1, 0.3: mean 0.1, s 0.2, half width 4.302653 * 0.2 / sqrt 3 = 0.4968: from below 0.
    for seed, value in enumerate((-0.1, 0.1, 0.3)):
        store.append(make_row(make_cell("ewc", seed, evaluate=("none",)), {"faa/none": 0.1, "forgetting/none": value}))
    lost = data_of("forest", store, "forgetting")
    assert by_id(lost["rows"])["ewc"]["lo"] == pytest.approx(10 - 49.683, abs=1e-2)
    assert lost["layout"][0]["axis"] == "Forgetting in %"


def test_texts_are_those_of_the_boards_digit_by_digit(fill, data_of):
    """0.1225 and 0.12245 are the halves that languages round in different ways."""
    store = fill({"fedavg": (0.1225, 0.12245, 0.1), "sum": (0.12345, 0.12355, 0.1), "ewc": (0.5,), "lwf": (0.3, 0.3)})
    (block,) = AccuracyBoard().build(store.latest().values()).blocks
    column = block.groups[0].columns[0]
    expected = {e.aggregator: format_estimate(e.estimates["none"]["faa"], column, e.seeds) for e in block.entries}
    for name in ("forest", "bytes"):
        assert {row["id"]: row["text"] for row in data_of(name, store)["rows"]} == expected


def test_bytes_have_a_front_and_what_sends_nothing_is_a_line(fill, data_of, make_cell, make_row, make_outcome):
    """Bytes up 80 and down 160 in every row; others are set here. The reference is on no front."""
    store = fill({"fedavg": (0.5, 0.5), "sum": (0.6, 0.6), "ncm": (0.4, 0.4), "ewc": (0.3, 0.3), "joint": (0.9, 0.9)})
    sent = {"fedavg": (80, 160), "sum": (1000, 1000), "ncm": (5, 5), "ewc": (500, 500), "joint": (0, 0)}
    for row in list(store.latest().values()):
        up, down = sent[str(row.coords["aggregator"])]
        cost = row.cost.model_copy(update={"bytes_up": up, "bytes_down": down})
        store.append(row.model_copy(update={"cost": cost}))
    found = data_of("bytes", store)
    rows = by_id(found["rows"])
    assert {name: row["bytes"] for name, row in rows.items()} == {"fedavg": 240, "sum": 2000, "ncm": 10, "ewc": 1000}
    assert {name for name, row in rows.items() if row["front"]} == {"ncm", "fedavg", "sum"}
    front = [(row["bytes"], pytest.approx(row["mean"])) for row in found["front"]]
    assert front == [(10, 40), (240, 50), (2000, 60), (2000, 60)]
    assert [(line["id"], line["name"], line["mean"]) for line in found["lines"]] == [("joint", "joint, no bytes", 90)]
    # ln 10 = 2.3, ln 240 = 5.48, ln 1000 = 6.9, ln 2000 = 7.6: the middle is 4.95.
    assert {name for name, row in rows.items() if row["side"] == "right"} == {"ncm"}
    assert rows["sum"]["tip"] == "sum\nFAA 60.00 (n=2) %\n2 kB up and down"


def test_bytes_under_a_selector_have_those_of_the_selector(make_cell, make_row):
    row = make_row(make_cell(), {"faa/none": 0.5})
    bill = SelectorCost(bytes_up=1000, bytes_down=7, state=1, module=1)
    row = row.model_copy(update={"cost": row.cost.model_copy(update={"selectors": {"ridge": bill}})})
    shown = {key: sent(row, key) for key in ("none", "inferred", "inferred:confidence", "inferred:ridge")}
    assert shown == {"none": 240, "inferred": 240, "inferred:confidence": 240, "inferred:ridge": 1247}


def test_curves_show_what_was_measured_during_tasks_and_losses_every_round(fill, data_of, record):
    """Two tasks of two rounds; two of three seeds have accuracies after each task's first round."""
    store = fill({"fedavg": (0.7, 0.69, 0.68)})
    rows = list(store.latest().values())
    for row in rows[:2]:
        events = [
            {
                "event": "round",
                "task": t,
                "round": r,
                "rounds": 2,
                "loss": None if t == 0 < r else 4 - 2 * t - r + row.seed,
            }
            | ({"accuracy": {"none": [0.2 + 0.1 * row.seed] * (t + 1)}} if r == 0 else {})
            for t in range(2)
            for r in range(2)
        ]
        record(store, row, events)
    whole = data_of("curves", store)["rows"]
    assert [(row["x"], row["mean"]) for row in whole] == [(1, 90), (2, pytest.approx(69))]  # what every seed has
    assert [row["last"] for row in whole] == [False, True]
    half = T2 * 1 / math.sqrt(3)  # 68, 69, 70: s = 1
    assert (whole[1]["lo"], whole[1]["hi"]) == (pytest.approx(69 - half, abs=1e-4), pytest.approx(69 + half, abs=1e-4))
    losses = data_of("loss", store)
    assert losses["tasks"] == [{"x": 2.5}]
    # 4 and 5, 2 and 3, 1 and 2 in the rounds 1, 3 and 4; nobody trained in the second.
    assert [(row["x"], row["mean"]) for row in losses["rows"]] == [(1, 4.5), (3, 2.5), (4, 1.5)]
    assert losses["rows"][0]["tip"] == "fedavg\n4.5 ± 6.353 after round 1"  # 12.7062 * (1 / sqrt 2) / sqrt 2


def test_curves_between_tasks_are_means_over_the_seeds_that_measured_them(fill, data_of, record):
    store = fill({"fedavg": (0.7, 0.69)})
    for row in store.latest().values():
        accuracy = {"none": [0.2 + 0.1 * row.seed]}
        record(store, row, [{"event": "round", "task": 0, "round": 0, "rounds": 2, "loss": 1.0, "accuracy": accuracy}])
    drawn = data_of("curves", store)
    assert [(row["x"], row["mean"]) for row in drawn["rows"]] == [
        (0.333333, pytest.approx(25)),
        (1, 90),
        (2, pytest.approx(69.5)),
    ]
    assert drawn["rows"][0]["tip"].endswith("during task 1")
    assert drawn["layout"][0]["ticks"] == [1, 2]


def test_eight_of_many_methods_have_a_colour(fill, data_of):
    store = fill(
        {**{f"m{n:02}": (0.5 - n / 100,) for n in range(12)}, "ncm": (0.1,), "ridge": (0.05,), "joint": (0.02,)}
    )
    slots = {row["id"]: row["slot"] for row in data_of("curves", store)["rows"]}
    bright = [name for name, slot in sorted(slots.items(), key=lambda each: each[1]) if slot >= 0]
    assert bright == ["m00", "m01", "m02", "m03", "m04", "m05", "ncm", "joint"]


def test_matrices_are_means_over_seeds_and_what_one_lacks_is_left_out():
    one, other = [[0.9], [0.5, 0.8]], [[0.7], [0.3, None]]
    rows = matrix.data([one, other])["rows"]
    values = {(row["after"], row["task"]): row["value"] for row in rows}
    assert values == {(1, 1): pytest.approx(80), (2, 1): pytest.approx(40)}
    assert [(row["text"], row["dark"]) for row in rows] == [("80", True), ("40", False)]
    assert rows[1]["tip"] == "accuracy 40.00 % on task 1 after task 2"
    lost = {(row["after"], row["task"]): row["value"] for row in forgetting.data([one, other])["rows"]}
    assert lost == {(1, 1): 0, (2, 1): pytest.approx(40), (2, 2): 0}  # 0.9 - 0.5 and 0.7 - 0.3
    with pytest.raises(NothingSelectedError):
        matrix.data([[[None]]])


def test_a_matrix_shows_one_method(fill, data_of):
    store = fill({"fedavg": (0.5,), "sum": (0.6,)})
    for name in ("matrix", "forgetting"):
        with pytest.raises(UsageError, match="shows one method, here are fedavg, sum"):
            data_of(name, store)


def test_diagnostics_are_lines_of_what_a_method_logs(fill, data_of, record):
    store = fill({"sum": (0.7, 0.6), "fedavg": (0.5, 0.5)})
    for row in store.latest().values():
        if row.coords["aggregator"] == "sum":
            logs = [{"sum/cosine": 0.1 * n + row.seed, "sum/flips": n, "sum/name": "text"} for n in range(4)]
            events = [
                {"event": "round", "task": n // 2, "round": n % 2, "rounds": 2, "loss": 1.0, "logs": logs[n]}
                for n in range(4)
            ]
            record(store, row, [*events, {"event": "task", "task": 1, "logs": {"sum/end": 7.0}}])
    with pytest.raises(UsageError, match="there are several: name a diagnostic"):
        data_of("diagnostics", store)
    found = data_of("diagnostics", store, "sum/cosine")
    assert [(row["x"], row["mean"]) for row in found["rows"]] == [
        (n + 1, pytest.approx(0.1 * n + 0.5)) for n in range(4)
    ]
    assert (found["tasks"], found["layout"][0]["axis"]) == ([{"x": 2.5}], "sum/cosine")
    both = data_of("diagnostics", store, "sum/end,sum/flips")["rows"]
    assert {row["name"]: row["x"] for row in both} == {"end": 4, "flips": 4}
    with pytest.raises(NothingSelectedError, match="no method here logs sum/none"):
        data_of("diagnostics", store, "sum/none")


def test_severity_begins_at_the_clean_cells(fill, data_of, make_cell, make_row):
    """Label shift of one and two clients; what a stressor does nothing at is its start."""
    store = fill({"sum": (0.8, 0.7)})
    for clients, loss in ((1, 0.1), (2, 0.3)):
        for seed in range(2):
            cell = make_cell("sum", seed, evaluate=("none",), stress="label-shift")
            params = {"clients": clients, "shift": 1}
            use = cell.stress.model_copy(update={"params": params, "identity": params, "label": f"shift-{clients}"})
            faa = 0.8 - 0.1 * seed - loss
            stressed = cell.model_copy(update={"stress": use})
            store.append(make_row(stressed, {"faa/none": faa}, accuracy={"none": [[0.9], [faa, faa]]}))
    found = data_of("severity", store)
    assert [(row["x"], row["mean"]) for row in found["rows"]] == [
        (0, pytest.approx(75)),
        (1, pytest.approx(65)),
        (2, pytest.approx(45)),
    ]
    assert (found["layout"][0]["axis"], found["layout"][0]["ticks"]) == ("label-shift: clients", [0, 1, 2])
    with pytest.raises(UsageError, match="no stressor 'dropout'"):
        data_of("severity", store, "dropout")
    with pytest.raises(NothingSelectedError, match="no stressed cells"):
        data_of("severity", _clean(store))


def _clean(store):
    """The same folder without stressed rows, as a store of its own."""
    clean = Store(store.root.parent / "clean")
    for row in store.latest().values():
        if row.plugins["stress"].name == "fcilbench/none":
            clean.append(row)
    return clean


def test_a_sweep_has_a_point_for_each_value_of_what_alone_differs(fill, data_of):
    """FAA 0.5 + lambda / 10 + 0 or 0.1, so a mean of 55 + 10 lambda."""
    store = fill({"fedavg": (0.4, 0.4)})
    with pytest.raises(NothingSelectedError, match="no hyperparameter with three values"):
        data_of("sweep", store)
    for value in (0.4, 0.05, 1.0):
        fill({"sum": (0.5 + value / 10, 0.6 + value / 10)}, lambda_s=value)
    found = data_of("sweep", store)
    assert [(row["x"], row["mean"]) for row in found["rows"]] == [
        (value, pytest.approx(55 + 10 * value)) for value in (0.05, 0.4, 1.0)
    ]
    assert found["layout"][0] | {"span": 0} == {
        **{"room": 0, "span": 0, "dots": True, "axis": "sum: lambda_s", "score": "FAA in %"},
        **{"log": False, "ticks": [0.05, 0.4, 1.0]},
    }
    assert len({row["id"] for row in found["rows"]}) == 3  # a point opens its own method


def test_the_budget_has_the_best_score_so_far():
    draws = {"sum": [(4, 0.2), (2, None), (4, 0.1), (4, 0.5)], "fedavg": [(3, None)], "ewc": [(6, 0.3)]}
    found = budget.data(draws, "faa/inferred")
    assert [(row["id"], row["x"], row["mean"]) for row in found["rows"]] == [
        *[("sum", 4, 20), ("sum", 6, 20), ("sum", 10, 20), ("sum", 14, 50)],
        ("ewc", 6, 30),
    ]
    assert found["layout"][0]["axis"] == "best faa/inferred so far in %"
    with pytest.raises(NothingSelectedError, match="no score of a tuning study"):
        budget.data({"fedavg": [(3, None)]}, "")


def test_slices_have_a_row_for_each_draw_and_hyperparameter():
    draws = [
        ({"protocol.lr": 0.001, "aggregator.mask": "on"}, 0.5),
        ({"protocol.lr": 0.1, "aggregator.mask": "off"}, 0.7),
    ]
    found = slices.data(draws, ["protocol.lr"], "faa/none")
    assert [(row["slice"], row["value"], row["score"], row["best"]) for row in found["rows"]] == [
        *[(0, "on", 50, False), (1, 0.001, 50, False)],
        *[(0, "off", 70, True), (1, 0.1, 70, True)],
    ]
    assert [axis["log"] for axis in found["layout"][0]["axes"]] == [False, True]


def test_critical_difference_over_seeds_and_what_it_needs(fill, data_of):
    """In each of five seeds fedavg leads: ranks 1 and 2, CD = 1.960 sqrt(2 * 3 / (6 * 5)) = 0.88: not tied."""
    store = fill({"fedavg": (0.7, 0.71, 0.72), "sum": (0.6, 0.61, 0.62)})
    with pytest.raises(NothingSelectedError, match="two methods need 5 seeds in common"):
        data_of("critical-difference", store)
    fill({name: [value + 0.01 * n for n in range(5)] for name, value in (("fedavg", 0.7), ("sum", 0.6))})
    found = data_of("critical-difference", store)
    assert [(row["id"], row["rank"], row["side"], row["level"]) for row in found["rows"]] == [
        ("fedavg", 1, "left", 1),
        ("sum", 2, "right", 1),
    ]
    assert found["bars"] == []
    assert found["layout"][0]["axis"][1] == "critical difference 0.88 (Nemenyi, 5 %)"
    # Two are better in turn: ewc 0.705, 0.705, 0.735, 0.735, 0.735 against 0.70 to 0.74; mean ranks 1.4 and 1.6.
    fill({"ewc": (0.705, 0.705, 0.735, 0.735, 0.735)})
    tied = data_of("critical-difference", store)
    assert [(row["id"], row["rank"]) for row in tied["rows"]] == [("ewc", 1.4), ("fedavg", 1.6), ("sum", 3)]
    # CD = 2.343 sqrt(3 * 4 / 30) = 1.48: sum is 1.4 from fedavg and 1.6 from ewc.
    assert tied["bars"] == [{"from": 1.4, "to": 1.6, "level": 1}, {"from": 1.6, "to": 3, "level": 2}]


def test_a_partition_has_the_counts_of_each_client(fill, data_of):
    tasks = [
        {"classes": ["cat", "dog"], "counts": [[3, 0], [1, 5]]},
        {"classes": ["eel"], "counts": [[0], [7]]},
    ]
    drawn = {"clients": 2, "problem": None, "tasks": tasks}
    found = partition.data(drawn)
    assert [(row["client"], row["class"], row["samples"]) for row in found["rows"]] == [
        *[(1, 0, 3), (2, 0, 1), (2, 1, 5)],
        (2, 2, 7),
    ]
    assert [row["text"] for row in found["totals"]] == ["3", "13"]
    assert [(row["start"], row["middle"], row["text"]) for row in found["tasks"]] == [
        (0, 1, "task 1"),
        (2, 2.5, "task 2"),
    ]
    assert found["rows"][0]["tip"] == "3 samples of cat\nclient 1, task 1"
    with pytest.raises(NothingSelectedError, match="too few"):
        partition.data({**drawn, "problem": "too few"})
    store = fill({"fedavg": (0.5,)})
    with pytest.raises(NothingSelectedError, match="drawn from the data set"):
        data_of("partition", store)
    assert data_of("partition", store, spread=lambda row: drawn) == found


def test_data_is_plain_json(fill, data_of):
    store = fill({"fedavg": (0.5, 0.6), "sum": (0.7,)})
    for name in ("forest", "bytes", "curves"):
        found = data_of(name, store)
        assert json.loads(json.dumps(found, allow_nan=False)) == found
