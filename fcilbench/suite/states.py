"""What the store knows of a cell, and whether that is reason to run it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, get_args

from fcilbench.errors import UsageError, nearest
from fcilbench.spec.cell import Cell, PluginUse
from fcilbench.spec.row import PluginRecord, Row

State = Literal["new", "done", "stale", "failed", "running"]
STATES: tuple[State, ...] = get_args(State)

FAILURES = ("failed", "oom", "timeout", "killed")
"""Statuses of a row without a result that is a verdict on the cell."""

POLICIES = ("stale", "failed", "never", "all")
"""Values of `--rerun`. New cells always run. `stale` adds finished cells whose code changed, `failed` adds failed ones,
`all` adds both and the finished ones, `never` adds nothing. Cells that broke off or lacked something on this machine
are taken up again unless the policy is `never`."""


_BROKEN_OFF = {"interrupted": "interrupted, goes on", "killed": "killed, taken up again"}


def parse_rerun(policy: str) -> frozenset[State]:
    """Returns the states that a policy runs again, beside what is taken up by itself.

    Args:
        policy: One of `POLICIES`, or several with commas between them.

    Raises:
        UsageError: If there is no such policy.
    """
    states: set[State] = set()
    words = [word.strip() for word in policy.split(",")]
    for word in words:
        if word not in POLICIES:
            raise UsageError(f"--rerun {policy!r}: unknown policy {word!r}{nearest(word, POLICIES)}")
        if word == "all":
            states |= {"done", "stale", "failed"}
        elif word == "stale":
            states.add("stale")
        elif word == "failed":
            states.add("failed")
    if "never" in words and len(words) > 1:
        raise UsageError(f"--rerun {policy!r}: 'never' stands alone")
    return frozenset(states)


def state_of_status(status: str | None) -> State:
    """Returns the state that follows from a row's status alone."""
    if status is None or status == "interrupted":
        return "new"
    return "failed" if status in FAILURES else "done"


def judge(cell: Cell, row: Row | None, owner: str | None = None) -> tuple[State, str]:
    """Returns the state of a cell and its reason, "" where the state says it all.

    Args:
        cell: The cell.
        row: Its latest row.
        owner: Who else works on it right now.
    """
    if owner is not None:
        return "running", f"running elsewhere: {owner}"
    state = state_of_status(row.status if row else None)
    if row is None or row.status in _BROKEN_OFF:
        return state, _BROKEN_OFF[row.status] if row else ""
    changed = changed_plugins(cell, row)
    if changed:
        before = "" if state == "done" else f" (was {row.status})"
        return "stale", f"code changed: {', '.join(changed)}{before}"
    return state, _failure(row) if state == "failed" else ""


def _failure(row: Row) -> str:
    if row.failure is None:
        return row.status
    return f"{row.failure.kind}: {row.failure.type}: {row.failure.message}"


def changed_plugins(cell: Cell, row: Row) -> list[str]:
    """Returns the full names of the plugins whose code, or a default that the cell relies on, is not the row's."""
    uses = {"dataset": cell.dataset, "backbone": cell.backbone, "aggregator": cell.aggregator, "stress": cell.stress}
    records = {str(kind): record for kind, record in row.plugins.items()}
    return [use.name for kind, use in uses.items() if _changed(use, records.get(kind), getattr(row.params, kind))]


def _changed(use: PluginUse, record: PluginRecord | None, params: Mapping[str, Any]) -> bool:
    if record is None or record.code_digest != use.code_digest:
        return True
    # Options in an identity are equal, or the row would be another cell's; they may be paths that differ.
    relied_on = params.keys() & use.params.keys() - use.identity.keys() - record.identity.keys()
    return any(params[name] != use.params[name] for name in relied_on)


def to_run(state: State, row: Row | None, again: Iterable[State], never: bool) -> bool:
    """Says whether a run would train a cell.

    Args:
        state: Its state.
        row: Its latest row.
        again: States that the policy runs again.
        never: Whether the policy is `never`.
    """
    if state == "new" or state in again:
        return True
    if state != "failed" or row is None or never:
        return False
    # Not a verdict on the method: the process died, or something was missing on the machine.
    return row.status == "killed" or (row.failure is not None and row.failure.kind == "prerequisite")
