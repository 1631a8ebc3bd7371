"""The classes of each task."""

from __future__ import annotations


def split_classes(tasks: int | list[int] | None, classes: int, default: int | list[int]) -> tuple[int, ...]:
    """Returns the number of classes of each task.

    Args:
        tasks: Number of equal tasks, or classes of each task; `None` takes the data set's default.
        classes: Classes of the data set.
        default: Its default split.

    Raises:
        ValueError: If the split does not use every class exactly once; it proposes one that does.

    Example:
        >>> split_classes(5, 10, 2)
        (2, 2, 2, 2, 2)
    """
    wanted = default if tasks is None else tasks
    if isinstance(wanted, list):
        if sum(wanted) != classes:
            raise ValueError(f"tasks {wanted} hold {sum(wanted)} classes, the data set has {classes}")
        return tuple(wanted)
    if wanted > classes:
        raise ValueError(f"{wanted} tasks are more than the data set's {classes} classes")
    if classes % wanted:
        size, larger = divmod(classes, wanted)
        proposal = [size + 1] * larger + [size] * (wanted - larger)
        raise ValueError(f"{classes} classes do not split into {wanted} equal tasks; list them: tasks: {proposal}")
    return (classes // wanted,) * wanted
