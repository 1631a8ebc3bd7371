"""Which cells a command works on: the states of cells, `--only` and `--rerun`.

An `--only` is a comma-separated list of `axis:value` terms; a cell is selected if it meets all terms of one `--only`.
Values may hold `*`, `?` and `[...]`, and are compared with labels as boards show them. `shard:2/5` is the second of
five parts of the cells, by their ids, for machines that share no folder.
"""

from __future__ import annotations

import fnmatch
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from fcilbench.errors import UsageError, nearest
from fcilbench.spec.row import STATUSES
from fcilbench.suite.schema import AXES

State = Literal["new", "done", "stale", "failed", "running"]
STATES: tuple[State, ...] = get_args(State)

FAILURES = ("failed", "oom", "timeout", "killed")
"""Statuses of a row whose cell was tried and has no result."""

POLICIES: dict[str, frozenset[State]] = {
    "stale": frozenset({"stale"}),
    "failed": frozenset({"failed"}),
    "never": frozenset(),
    "all": frozenset({"done", "stale", "failed"}),
}
"""Values of `--rerun` and the states that they run again. New cells always run. Cells that were killed, or that missed
something on this machine, run again unless the policy is `never`."""

_KEYS = (*AXES, "seed", "status", "shard")
_SHARD = re.compile(r"([0-9]{1,4})/([0-9]{1,4})")
_MOST_SHARDS = 1000
"""Most shards for which is looked when some have no rows."""
_SOME = 64
"""Cells of which nearly always one shows that a number of shards does not fit."""
_EXAMPLE = "for example --only aggregator:sum,dataset:cifar100 or --only status:failed"


@dataclass(frozen=True)
class Selector:
    """Alternatives, each a list of terms `(key, value)`; without any, everything is selected."""

    alternatives: tuple[tuple[tuple[str, str], ...], ...] = ()

    def matches(
        self, cell_id: str, coords: Mapping[str, str | int], status: str | None = None, state: str | None = None
    ) -> bool:
        """Says whether a cell is selected, by its id, its labels and seed, and the status of its row.

        `state` is its state in a plan; `None` means the one that follows from the status. A cell whose id is not known
        (empty) may be in any shard.
        """
        known = {status, state or state_of_status(status)} - {None}

        def holds(key: str, value: str) -> bool:
            if key == "shard":
                part, parts = map(int, value.split("/"))
                return not cell_id or _number(cell_id) % parts == part - 1
            having = known if key == "status" else {coords.get(key)}
            return any(_equal(str(each), value) for each in having)

        return not self.alternatives or any(all(holds(*term) for term in terms) for terms in self.alternatives)

    def why_nothing(self, whose: str, coords: Iterable[Mapping[str, str | int]]) -> str:
        """Returns why none of these cells is selected: terms that no cell meets, with the nearest or legal values."""
        known, found = list(coords), []
        for key, value in dict.fromkeys(term for terms in self.alternatives for term in terms):
            legal = {str(each[key]) for each in known if key in each}
            if legal and not any(_equal(each, value) for each in legal):
                found.append(f"{whose} has no {key} {value!r}{nearest(value, legal)}")
        counts = (Counter(key for key, _ in terms) for terms in self.alternatives)
        if twice := [] if found else [key for each in counts for key, number in each.items() if number > 1]:
            found.append(f"a cell has one {twice[0]}; say --only once for each of several")
        wanted = " or ".join(",".join(map(":".join, terms)) for terms in self.alternatives)
        return f"--only: {'; '.join(found) or f'{whose} has no cell with {wanted}'}"

    @property
    def statuses(self) -> frozenset[str]:
        """Values of all `status:` terms."""
        return frozenset(value for terms in self.alternatives for key, value in terms if key == "status")


def parse_selectors(expressions: Sequence[str]) -> Selector:
    """Parses the values of `--only`, one for each use of the option.

    Raises:
        UsageError: If one is not of the form `axis:value,...`, or names an unknown axis or status.

    Example:
        >>> parse_selectors(["aggregator:s*,seed:0"]).matches("1a", {"aggregator": "sum", "seed": 0})
        True
    """
    return Selector(tuple(_terms(expression) for expression in expressions))


def parse_rerun(policy: str) -> frozenset[State]:
    """Returns the states that a policy, or several with commas between them, runs again."""
    words = [word.strip() for word in policy.split(",")]
    for word in words:
        if word not in POLICIES:
            raise UsageError(f"--rerun {policy!r}: unknown policy {word!r}{nearest(word, POLICIES)}")
    if "never" in words and len(words) > 1:
        raise UsageError(f"--rerun {policy!r}: 'never' stands alone")
    return frozenset().union(*(POLICIES[word] for word in words))


def missing_cells(planned: Collection[str], present: Collection[str]) -> str | None:
    """Says how many planned cells have no row, from the ids of all cells and of those with one; `None` if all have one.

    If these are just the cells of some shards, it names them, for the smallest number of shards of which that is true.
    """
    lacking, having = ([*map(_number, each)] for each in ({*planned} - {*present}, {*planned} & {*present}))
    if not lacking:
        return None
    text = f"{len(lacking)} of {len(planned)} planned cells have no row"
    few, many = sorted((lacking, having), key=len)
    # With more shards than half the cells, most would be of a single cell.
    for parts in range(2, min(len(planned) // 2, _MOST_SHARDS) + 1):
        if not _meet(few[:_SOME], many, parts) and not _meet(few, many, parts):
            empty = sorted({number % parts for number in lacking})
            return f"{text}: exactly those of {', '.join(f'shard:{part + 1}/{parts}' for part in empty)}"
    return text


def _meet(few: Sequence[int], many: Sequence[int], parts: int) -> bool:
    """Says whether a number of each group falls into the same shard."""
    own = {number % parts for number in few}
    return any(number % parts in own for number in many)


def _number(cell_id: str) -> int:
    """Returns the number by which a cell falls into a shard."""
    return int(cell_id[:16], 16)


def state_of_status(status: str | None) -> State:
    """Returns the state that follows from a row's status alone."""
    if status is None or status == "interrupted":
        return "new"
    return "failed" if status in FAILURES else "done"


def _terms(expression: str) -> tuple[tuple[str, str], ...]:
    terms = []
    # A label such as sum[k=1,lambda=2] holds commas itself.
    for part in re.findall(r"(?:\[[^\]]*\]|[^,\[]|\[)+", expression):
        key, colon, value = (each.strip() for each in part.partition(":"))
        if not colon or not value:
            raise UsageError(f"--only {expression!r}: {part.strip()!r} is not axis:value", hint=_EXAMPLE)
        if key not in _KEYS:
            raise UsageError(f"--only {expression!r}: unknown axis {key!r}{nearest(key, _KEYS)}", hint=_EXAMPLE)
        legal = {*STATUSES, *STATES}
        if key == "status" and not any(_equal(each, value) for each in legal):
            raise UsageError(f"--only {expression!r}: unknown status {value!r}{nearest(value, legal)}", hint=_EXAMPLE)
        shard = _SHARD.fullmatch(value)
        if key == "shard" and not (shard and 1 <= int(shard[1]) <= int(shard[2])):
            raise UsageError(f"--only {expression!r}: no shard {value!r}", hint="shard:2/5 is the second of five")
        terms.append((key, value))
    if not terms:
        raise UsageError("--only needs a term axis:value", hint=_EXAMPLE)
    return tuple(terms)


def _equal(text: str, pattern: str) -> bool:
    return text == pattern or fnmatch.fnmatchcase(text, pattern)
