"""The samples of its own data that a client keeps, and the rules by which methods choose them.

A memory names samples of the client's own data by their positions, which the client's handles give
(`client.own`, `client.past`, `client.memory`). The engine keeps the samples themselves, and bills them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F


@dataclass(frozen=True)
class Memory:
    """Samples of a client's own data, in order.

    Attributes:
        positions: Where the samples are in the training data, int64 `[m]`; the client's handles give them.
        labels: Their internal labels, int64 `[m]`.
        fields: What is kept with each sample, by name `[m, ...]`, e.g. the logits of DER++.
    """

    positions: torch.Tensor
    labels: torch.Tensor
    fields: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.positions)

    def take(self, rows: Sequence[int] | npt.NDArray[np.int64]) -> Memory:
        """Returns the samples at `rows`, in that order."""
        index = torch.as_tensor(np.asarray(rows, dtype=np.int64), device=self.positions.device)
        fields = {name: values[index] for name, values in self.fields.items()}
        return Memory(self.positions[index], self.labels[index], fields)

    def join(self, other: Memory) -> Memory:
        """Returns these samples and then those of another memory.

        Raises:
            ValueError: If the two keep other fields with their samples, and neither is empty.
        """
        if not len(self) or not len(other):
            return other if not len(self) else self
        if self.fields.keys() != other.fields.keys():
            raise ValueError(
                f"one memory keeps {sorted(self.fields)} with its samples, the other {sorted(other.fields)}"
            )
        fields = {name: torch.cat([values, other.fields[name]]) for name, values in self.fields.items()}
        positions, labels = torch.cat([self.positions, other.positions]), torch.cat([self.labels, other.labels])
        return Memory(positions, labels, fields)


@dataclass(frozen=True)
class Rehearsal:
    """What each local step of a client draws from its memory.

    Attributes:
        draws: Independent draws of each step: `batch.memories`, of which `batch.memory` is the first.
        size: Samples of each draw, of which none occurs twice; `None`: the batch size. A smaller memory gives all.
    """

    memory: Memory
    draws: int = 1
    size: int | None = None


def reservoir(kept: Memory, offered: Memory, seen: int, size: int, random: np.random.Generator) -> Memory:
    """Offers samples to a reservoir one by one; each one offered so far is kept with the same probability.

    Vitter 1985, "Random Sampling with a Reservoir", algorithm R.

    Args:
        kept: The reservoir, of at most `size` samples.
        offered: The samples to offer, in their order; offer a sample once.
        seen: Number of samples that were offered before.
        size: Number of samples that it holds at most.
        random: The client's stream, e.g. `client.random("reservoir")`.
    """
    slots = list(range(len(kept)))
    for number in range(len(offered)):
        if len(slots) < size:
            slots.append(len(kept) + number)
        elif (slot := int(random.integers(0, seen + number + 1))) < size:
            slots[slot] = len(kept) + number
    return kept.join(offered).take(slots)


def quotas(available: Sequence[int], size: int) -> list[int]:
    """Returns how many samples each class gets of `size` places, as equal as its available samples allow.

    Places that do not come out even go to the first classes that have samples left.

    Example:
        >>> quotas([2, 9, 9], 10)
        [2, 4, 4]
    """
    given, left = [0] * len(available), min(size, sum(available))
    while left:
        unfilled = [i for i, count in enumerate(available) if given[i] < count]
        share = max(1, left // len(unfilled))
        for i in unfilled:
            more = min(share, available[i] - given[i], left)
            given[i], left = given[i] + more, left - more
    return given


def class_balanced(kept: Memory, offered: Memory, size: int, random: np.random.Generator) -> Memory:
    """Keeps at most `size` samples, of each class as many as of any other where it has them.

    Of a class of `offered` a uniform subset is taken; a class of `kept` that must give up samples keeps its first ones.
    """
    return _balanced(kept, offered, size, lambda rows, _: rows[random.permutation(len(rows))])


def herded(kept: Memory, offered: Memory, features: torch.Tensor, size: int) -> Memory:
    """Keeps at most `size` samples as `class_balanced` does, and of a new class those that herding takes first.

    `features` `[n, F]` are those of the offered samples. A class of `kept` that must give up samples keeps its first
    ones: that is herding's own reduction (Rebuffi et al. 2017, algorithm 5).
    """

    def order(rows: npt.NDArray[np.int64], quota: int) -> npt.NDArray[np.int64]:
        own = features[torch.from_numpy(rows).to(features.device)]
        return rows[np.array(herding(own, quota), dtype=np.int64)]

    return _balanced(kept, offered, size, order)


def herding(features: torch.Tensor, count: int) -> list[int]:
    """Returns the rows of features `[n, F]` whose mean stays nearest to the mean of all, the most important first.

    Rebuffi et al. 2017, "iCaRL", algorithm 4, on features of norm 1: the k-th row is the one with the least
    ||mu - (s + f_i) / k||, where s is the sum of those before. None is taken twice; ties go to the lower row.
    """
    units = F.normalize(features.double(), dim=1)
    mean, total, chosen = units.mean(dim=0), torch.zeros_like(units[0]), list[int]()
    for k in range(1, min(count, len(units)) + 1):
        distances = (mean - (total + units) / k).norm(dim=1)
        distances[chosen] = torch.inf
        chosen.append(int(distances.argmin()))
        total += units[chosen[-1]]
    return chosen


def _balanced(
    kept: Memory,
    offered: Memory,
    size: int,
    order: Callable[[npt.NDArray[np.int64], int], npt.NDArray[np.int64]],
) -> Memory:
    """Keeps `quotas` of each class; `order` puts a class's offered rows in order, given how many can be kept."""
    old, new = kept.labels.cpu().numpy(), offered.labels.cpu().numpy()
    classes = np.union1d(old, new)
    counts = [int((old == label).sum() + (new == label).sum()) for label in classes]
    rows = [np.zeros(0, dtype=np.int64)]
    for label, quota in zip(classes, quotas(counts, size), strict=True):
        held = np.flatnonzero(old == label)[:quota]
        fresh = np.flatnonzero(new == label)
        if len(fresh) and len(held) < quota:
            fresh = order(fresh, quota - len(held))[: quota - len(held)]
            rows += [held, len(old) + fresh]
        else:
            rows.append(held)
    return kept.join(offered).take(np.concatenate(rows))
