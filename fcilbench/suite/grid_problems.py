"""What is wrong with a grid as it is written, before there are cells: zipped axes, partitions, and boards."""

from __future__ import annotations

from fcilbench.errors import UsageError
from fcilbench.registry.entrypoints import lookup
from fcilbench.suite.load import LoadedSuite
from fcilbench.suite.parse import locate
from fcilbench.suite.problems import Problem


def grid_problems(loaded: LoadedSuite) -> list[Problem]:
    """Returns boards that do not exist, zipped axes that do not fit and partitions that are named alike."""
    return _boards(loaded) + _zip_problems(loaded) + _partition_problems(loaded)


def _boards(loaded: LoadedSuite) -> list[Problem]:
    problems = []
    for index, name in enumerate(loaded.suite.boards):
        try:
            lookup("boards", name)
        except UsageError as error:
            where = locate(loaded.tree, ("boards", index))
            problems.append(Problem(error.message, where, error.hint, check="plugins"))
    return problems


def _zip_problems(loaded: LoadedSuite) -> list[Problem]:
    grid = loaded.suite.grid
    where = locate(loaded.tree, ("grid", "zip"))
    sizes = {axis: len(getattr(grid, axis)) for axis in grid.zip}
    if grid.zip and (len(sizes) != len(grid.zip) or len(sizes) < 2):
        return [Problem("grid.zip needs two or more different axes", where, check="cells")]
    if len(set(sizes.values())) > 1:
        shown = ", ".join(f"{axis} {size}" for axis, size in sizes.items())
        return [Problem(f"zipped axes must have equally many entries: {shown}", where, check="cells")]
    return []


def _partition_problems(loaded: LoadedSuite) -> list[Problem]:
    problems, seen = [], dict[str, int]()
    for index, partition in enumerate(loaded.suite.grid.partition):
        first = seen.setdefault(partition.label, index)
        if first != index:
            message = f"grid.partition.{index} and grid.partition.{first} are both {partition.label!r}"
            problems.append(Problem(message, locate(loaded.tree, ("grid", "partition", index)), check="cells"))
    return problems
