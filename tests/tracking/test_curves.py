from fcilbench.tracking.mlflow import curve_points, flat_params


def test_rounds_are_numbered_through_all_tasks_and_the_later_record_counts():
    records = [
        {"task": 0, "round": 0, "loss": 3.0},
        {"task": 0, "round": 1, "loss": 9.0},
        {"task": 0, "round": 1, "loss": 2.0, "logs": {"alpha": 0.5}},
        {"task": 1, "round": 0, "loss": 1.0},
    ]
    assert curve_points(records) == [
        ("round/loss", 3.0, 1),
        ("round/loss", 2.0, 2),
        ("round/logs/alpha", 0.5, 2),
        ("round/loss", 1.0, 3),
    ]


def test_task_records_give_means_of_lists():
    records = [
        {"event": "task", "task": 0, "accuracy": {"none": [1.0]}},
        {"task": 1, "accuracy": {"none": [0.5, None, 1.0]}},
    ]
    assert curve_points(records) == [("task/accuracy/none", 1.0, 1), ("task/accuracy/none", 0.75, 2)]


def test_what_is_no_finite_number_is_no_point():
    record = {"task": 0, "round": 0, "loss": float("nan"), "done": True, "note": "x", "empty": [], "n": 3}
    assert curve_points([record, {"loss": 1.0}]) == [("round/n", 3.0, 1)]


def test_params_name_labels_plugins_and_seeds(make_cell, make_row):
    flat = flat_params(make_row(make_cell("sum", 1, lambda_s=0.4), {}))
    assert flat["aggregator"] == "sum"
    assert flat["aggregator.plugin"] == "fcilbench/sum 1"
    assert flat["aggregator.lambda_s"] == "0.4"
    assert (flat["seed"], flat["seeding.base"], flat["seeds.order"]) == ("1", "0", "11")
    assert flat["tasks"] == "[5,5]"
    assert not any(key.startswith("runtime") for key in flat)
