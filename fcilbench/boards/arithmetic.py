"""What a reader must know where results of one block were computed by different instruction sets."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from fcilbench.boards.scenario import BoardCell

_UNKNOWN = "an instruction set that was not recorded"


def arithmetic_notes(methods: Mapping[str, Sequence[BoardCell]], computed: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the note of a block whose results were not all computed by the same instruction set.

    Args:
        methods: The cells of the block, by method.
        computed: What computed a row (`fcilbench.results.agreement.computed_by`), by cell id.
    """
    counts: Counter[str] = Counter()
    own: dict[str, set[str]] = defaultdict(set)
    for label, cells in methods.items():
        for cell in cells:
            if cell.row is not None and cell.status == "ok" and cell.row.cell_id in computed:
                name = computed[cell.row.cell_id] or _UNKNOWN
                counts[name] += 1
                own[name].add(label)
    if len(counts) < 2:
        return ()
    parts = [f"{name} ({number} results of {', '.join(sorted(own[name]))})" for name, number in counts.most_common()]
    return (
        f"computed by different instruction sets: {'; '.join(parts)}. That changes results about as much as another "
        "seed does (docs/portability.md), so methods that were computed by different ones are compared with care",
    )
