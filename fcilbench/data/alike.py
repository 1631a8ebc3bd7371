"""Class names that look alike: what nobody can tell apart, and what most probably means one class."""

from __future__ import annotations

import itertools
import math
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping

from fcilbench.errors import DataError
from fcilbench.escape import line

_TWINS = str.maketrans("АВЕКМНОРСТУХаеорсухіјѕΑΒΕΖΗΙΚΜΝΟΡΤΥΧο", "ABEKMHOPCTYXaeopcyxijsABEZHIKMNOPTYXo")
"""Cyrillic and Greek letters that look like Latin ones."""


def look(name: str) -> str:
    r"""Returns what is seen of a name: without invisible characters, in one form of accents, with single blanks.

    Example:
        >>> look("a\u00a0"), look("e\u0301") == "\u00e9"
        ('a', True)
    """
    seen = "".join(each for each in unicodedata.normalize("NFC", name) if unicodedata.category(each) != "Cf")
    return " ".join(seen.split())


def sense(name: str) -> str:
    """Returns what a name most probably means: without case, spelling of blanks and width, a number by its value.

    Example:
        >>> sense("New_York") == sense("new york"), sense("0") == sense("0.0"), sense("1") == sense("2")
        (True, True, False)
    """
    text = unicodedata.normalize("NFKC", look(name)).translate(_TWINS).casefold().replace("_", " ")
    if text.startswith("-") or "-" not in text:
        try:
            number = float(text)
        except ValueError:
            pass
        else:
            return repr(number) if math.isfinite(number) else text
    return " ".join(text.replace("-", " ").split())


def class_name(name: str) -> str:
    """Returns a label, or the name of a folder, as the name of a class: as it is seen.

    Raises:
        DataError: If it holds characters that cannot be shown, so that rows with it could not be verified.
    """
    seen = look(name)
    if not seen or line(seen) != seen:
        raise DataError(
            f"{name!a} is no name of a class: it cannot be shown as it is", hint="give the class another name"
        )
    return seen


def respelt_remarks(names: Mapping[str, str]) -> tuple[str, ...]:
    """Returns a line about labels that are no names of classes as they are written; `names` are those by label."""
    odd = [(label, name) for label, name in names.items() if label != name]
    if not odd:
        return ()
    shown = ", ".join(f"{label!a} as {name!r}" for label, name in odd[:3])
    more = f" and {len(odd) - 3} more" if len(odd) > 3 else ""
    return (line(f"labels are read without blanks around them, accents in one form: {shown}{more}"),)


def unseen_pairs(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yields pairs of different names between which no difference can be seen."""
    return _pairs(names, look)


def alike(names: Iterable[str]) -> list[tuple[str, str]]:
    """Returns pairs of different names that most probably mean one class, such as `a` and `A`, or `0` and `0.0`."""
    return list(_pairs(names, sense))


def alike_remarks(names: Iterable[str]) -> tuple[str, ...]:
    """Returns a line about class names that most probably mean one class; none if there are no such names."""
    pairs = alike(names)
    if not pairs:
        return ()
    shown = ", ".join(f"{one!r} and {other!r}" for one, other in pairs[:3])
    more = f" and {len(pairs) - 3} more pairs" if len(pairs) > 3 else ""
    return (line(f"classes look alike and are kept apart: {shown}{more}"),)


def _pairs(names: Iterable[str], key: Callable[[str], str]) -> Iterator[tuple[str, str]]:
    groups: dict[str, list[str]] = defaultdict(list)
    for name in dict.fromkeys(names):
        groups[key(name)].append(name)
    for group in groups.values():
        yield from itertools.pairwise(group)
