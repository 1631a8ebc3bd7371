"""Answers under the three task identities, by hand."""

import pytest
import torch

from fcilbench.api.predict import AllClasses, MostConfident, TrueTask
from fcilbench.api.schedule import Task

TASKS = (Task(0, 0, 2), Task(1, 2, 3))
#                          task 0     |  task 1
ROWS = torch.tensor([[2.0, 0.0, 5.0, 4.9, 4.8], [1.0, 0.9, -3.0, 4.0, 0.0]])


def test_all_classes_compete():
    assert AllClasses()({"global": ROWS}, TASKS, None).tolist() == [2, 3]


def test_true_task_restricts_to_its_slice():
    assert TrueTask()({"global": ROWS}, TASKS, TASKS[0]).tolist() == [0, 0]
    assert TrueTask()({"global": ROWS}, TASKS, TASKS[1]).tolist() == [2, 3]
    with pytest.raises(ValueError, match="oracle"):
        TrueTask()({"global": ROWS}, TASKS, None)


def test_most_confident_slice_wins():
    # Row 0: softmax(2, 0) peaks at .881; softmax(5, 4.9, 4.8) at .367: task 0 although its logits are smaller.
    # Row 1: softmax(1, .9) peaks at .525; softmax(-3, 4, 0) at .981: task 1.
    assert MostConfident()({"global": ROWS}, TASKS, None).tolist() == [0, 3]


def test_each_task_answers_with_its_own_module():
    answer = MostConfident("task-{}")
    assert tuple(answer.modules(TASKS, None)) == ("task-0", "task-1")
    logits = {"task-0": torch.tensor([[0.0, 9.0, 0, 0, 0]]), "task-1": torch.tensor([[0.0, 0, 1, 2, 1]])}
    assert answer(logits, TASKS, None).tolist() == [1]
    assert TrueTask("task-{}").modules(TASKS, TASKS[1]) == ("task-1",)


def test_a_one_class_task_competes_by_its_probability_among_all_classes():
    """Row 0: e / (e + e^2 + 1) = .245 against softmax(2, 0) = .881. Row 1: .999 against .881. Row 2: 1/3, 1/2."""
    tasks = (Task(0, 0, 1), Task(1, 1, 2))
    logits = torch.tensor([[1.0, 2.0, 0.0], [9.0, 2.0, 0.0], [0.0, 0.0, 0.0]])
    assert MostConfident()({"global": logits}, tasks, None).tolist() == [1, 0, 1]
    each_alone = tuple(Task(index, index, 1) for index in range(3))
    assert MostConfident()({"global": logits}, each_alone, None).tolist() == [1, 0, 0]
