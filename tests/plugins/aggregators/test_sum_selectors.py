"""Picking a task per sample."""

import pytest
import torch

from fcilbench.api.task import Task
from fcilbench.plugins.aggregators.sum import PROTOTYPES, LargestEnergy, NearestPrototype, selector

TASKS = (Task(0, 0, 2), Task(1, 2, 1), Task(2, 3, 2))


def logits(*rows):
    return torch.tensor(rows)


def test_energy_takes_the_slice_with_the_largest_logsumexp():
    # Slices: (1, 1) has energy 1.69, (1.5) has 1.5, (0, 1.6) has 1.78; outside its slice a module is not read.
    given = {
        "task-0": logits([1.0, 1.0, 9.0, 9.0, 9.0]),
        "task-1": logits([9.0, 9.0, 1.5, 9.0, 9.0]),
        "task-2": logits([9.0, 9.0, 9.0, 0.0, 1.6]),
    }
    assert LargestEnergy()(given, TASKS, None).tolist() == [4]
    given["task-1"][0, 2] = 2.0
    assert LargestEnergy()(given, TASKS, None).tolist() == [2]
    assert list(LargestEnergy().modules(TASKS, None)) == ["task-0", "task-1", "task-2"]


def test_prototype_takes_the_task_of_the_nearest_mean_and_the_class_of_its_module():
    given = {
        "task-0": logits([0.0, 1.0, 0, 0, 0]).repeat(3, 1),
        "task-1": logits([0.0, 0.0, 1, 0, 0]).repeat(3, 1),
        "task-2": logits([0.0, 0.0, 0, 1, 0]).repeat(3, 1),
        PROTOTYPES: logits([5.0, 0, 0, 0, 0], [0.0, 0, 5, 0, 0], [0.0, 0, 0, 0, 5]),
    }
    assert NearestPrototype()(given, TASKS, None).tolist() == [1, 2, 3]


@pytest.mark.parametrize("name", ["confidence", "energy", "prototype"])
def test_predictions_do_not_depend_on_the_batch(name):
    generator = torch.Generator().manual_seed(0)
    rule = selector(name)
    given = {module: torch.randn(64, 5, generator=generator) for module in rule.modules(TASKS, None)}
    together = rule(given, TASKS, None)
    alone = [int(rule({m: v[i : i + 1] for m, v in given.items()}, TASKS, None)) for i in range(64)]
    shuffled = torch.randperm(64, generator=generator)
    assert together.tolist() == alone
    assert rule({m: v[shuffled] for m, v in given.items()}, TASKS, None).tolist() == together[shuffled].tolist()
