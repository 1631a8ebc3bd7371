"""What a reader of a board must know: few seeds, failures, undefined figures, differing blocks, origin of the rows."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fcilbench.boards.model import Block, Entry, Group, Overall
from fcilbench.boards.records import read_suite
from fcilbench.boards.scenario import METHOD_FIELDS, BoardCell, recipe_of
from fcilbench.boards.stats import LEAST_SEEDS
from fcilbench.registry.entrypoints import normalise
from fcilbench.spec.cell import PLUGIN_KINDS, PluginKind
from fcilbench.spec.outcome import UNCONVERGED
from fcilbench.spec.row import Row
from fcilbench.suite.schema import AXES
from fcilbench.tables import cut

CONTROL_MARK = "‡"
"""Mark of a control."""
REFERENCE_MARK = "§"
"""Mark of the centralised reference."""
_SOUND = "the centralised reference: not ranked"
_DOUBT = "no reference"
_UNKNOWN = "an instruction set that was not recorded"
INTERVAL = "± is the half width of the 95 % confidence interval of the mean over seeds (Student t)"


def block_notes(
    groups: Sequence[Group], entries: Sequence[Entry], methods: Mapping[str, Sequence[BoardCell]]
) -> tuple[str, ...]:
    """Returns the notes of one block: of its column groups, its entries and the cells of each method."""
    ranked = [group for group in groups if group.ranked]
    competitors = [entry for entry in entries if not entry.reference]
    return (
        *_rank_notes(ranked, competitors),
        *_control_notes(ranked, competitors),
        *_reference_notes(ranked, entries, methods),
        *_seed_notes(entries, methods),
        *_undefined_notes(ranked or groups, entries),
        *_method_notes(methods),
    )


def arithmetic_notes(methods: Mapping[str, Sequence[BoardCell]], computed: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the note of a block whose results were not all computed by the same instruction set.

    Args:
        methods: The cells of the block, by method.
        computed: What computed a row (`fcilbench.results.agreement.computed_rows`), by cell id.
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


def board_notes(blocks: Sequence[tuple[Block, Mapping[str, str]]], overall: Sequence[Overall]) -> tuple[str, ...]:
    """Returns the notes of a board, from its blocks with their flattened scenarios and the board of the blocks."""
    if not blocks:
        return ("no rows to show",)
    notes = []
    if len(blocks) > 1:
        notes.append(
            f"{len(blocks)} scenarios in blocks of their own: data, protocol or hardware differ, so no figure is "
            "compared or averaged between blocks"
        )
    same_labels: dict[str, list[Mapping[str, str]]] = defaultdict(list)
    for block, facts in blocks:
        same_labels[block.heading].append(facts)
    for label, found in same_labels.items():
        if len(found) > 1:
            notes.append(f"{label} stands in {len(found)} blocks, which differ in {_differences(found)}")
    if any(sum(group.ranked for group in block.groups) > 1 for block, _ in blocks):
        notes.append(
            "column groups are task identities (what a method is told of a test sample's task); never ranked together"
        )
    keys = [group.key for block, _ in blocks for group in block.groups]
    picking = list(dict.fromkeys(key.partition(":")[2] for key in keys if key.startswith("inferred:")))
    if any(e.control for block, _ in blocks for e in block.entries):
        told = "where the task is told (oracle)" + (" or one selector picks it for all" if picking else "")
        notes.append(
            f"{CONTROL_MARK} marks controls, which a claim must beat: methods whose network is frozen, "
            "at the latest after the first task, and "
            f"{told} the head of FedAvg's one model, the fair control of task modules"
        )
    if picking:
        names = ", ".join(name for name in picking if ", by stressor" not in name)
        notes.append(
            "inferred is each method's own rule for the task of a sample; under inferred:NAME the selector NAME picks "
            f"it for every method alike ({names}), and the method gives its oracle answer for that task"
        )
    if any(key.startswith("selector ") for key in keys):
        notes.append(
            "a selector's bytes are its own and no part of the method's; one without columns of its own (own, "
            "confidence, energy) sends and deploys nothing, but may have to run the modules of all tasks on each sample"
        )
    if any(e.reference for block, _ in blocks for e in block.entries):
        doubted = any(_DOUBT in note for block, _ in blocks for note in block.notes)
        what = f"centralised training: not ranked, and {_DOUBT} where a note says so" if doubted else _SOUND
        notes.append(f"{REFERENCE_MARK} marks {what}")
    if overall:
        notes.append(
            "mean rank over scenarios without stress, of methods with a rank in every one of them; mean ranks that "
            "differ by less than the critical difference are not told apart (Nemenyi; Demšar 2006)"
        )
    return (*notes, INTERVAL)


def _differences(facts: Sequence[Mapping[str, str]]) -> str:
    keys = sorted({key for fact in facts for key in fact})
    parts = []
    for key in keys:
        values = [cut(fact.get(key, "absent"), 24) for fact in facts]
        if len(set(values)) > 1:
            parts.append(f"{key} ({' | '.join(dict.fromkeys(values))})")
    return ", ".join(parts)


def _rank_notes(groups: Sequence[Group], entries: Sequence[Entry]) -> list[str]:
    notes = []
    for group in groups:
        column = group.columns[0]
        estimates = {entry.aggregator: entry.estimates[group.key][column.metric] for entry in entries}
        few = [f"{name} n={each.n}" for name, each in estimates.items() if each.n < LEAST_SEEDS]
        alike = [name for name, each in estimates.items() if each.constant]
        found = [entry.ranks[group.key] for entry in entries if group.key in entry.ranks]
        texts = []
        if few:
            texts.append(f"n < {LEAST_SEEDS}: no rank ({', '.join(few)})")
        if alike:
            texts.append(f"equal in all seeds, which do not influence it: no interval ({', '.join(alike)})")
        if len(alike) > 1:
            texts.append("between two of these there is no test: the seeds say nothing of their difference")
        if not few and not found and len(alike) < len(entries) > 1:
            texts.append(f"no rank: the methods share fewer than {LEAST_SEEDS} seeds")
        if found:
            texts.append(
                f"rank is the range of places in {column.title} that the tests leave open (paired t over common seeds, "
                "Holm-corrected, p < 0.05): from 1 + methods significantly better to all but those significantly worse"
            )
        notes += [(group.key, text) for text in texts]
    return _merged(notes, groups)


def _control_notes(groups: Sequence[Group], entries: Sequence[Entry]) -> list[str]:
    """Names the best control of each group, and the methods whose mean does not exceed it."""
    notes = []
    for group in groups:
        column = group.columns[0]
        means = {e.aggregator: m for e in entries if (m := e.estimates[group.key][column.metric].mean) is not None}
        controls = [e.aggregator for e in entries if group.key in e.control and e.aggregator in means]
        if not controls or len(means) == len(controls):
            continue
        sign = 1 if column.better == "higher" else -1
        best = max(controls, key=lambda name: sign * means[name])
        below = [name for name in means if name not in controls and sign * means[name] <= sign * means[best]]
        verdict = f"not beaten by {', '.join(sorted(below))}" if below else "beaten by all others"
        notes.append((group.key, f"best control {best}: {verdict} in the mean"))
    return _merged(notes, groups)


def _reference_notes(
    groups: Sequence[Group], entries: Sequence[Entry], methods: Mapping[str, Sequence[BoardCell]]
) -> list[str]:
    """Says where centralised training is no reference: it did not converge, or a control has a better mean."""
    notes = []
    for entry in (each for each in entries if each.reference):
        rows = [cell.row for cell in methods[entry.aggregator] if cell.row and cell.row.status == "ok"]
        short = sum(any(warning.startswith(UNCONVERGED) for warning in row.warnings) for row in rows)
        if short:
            notes.append(f"{entry.aggregator} is {_DOUBT}: {UNCONVERGED} in {short} of {len(rows)} cells")
        worse = []
        for group in groups:
            column = group.columns[0]
            sign = 1 if column.better == "higher" else -1
            means = {
                e.aggregator: sign * m for e in entries if (m := e.estimates[group.key][column.metric].mean) is not None
            }
            own, controls = means.get(entry.aggregator), [e.aggregator for e in entries if group.key in e.control]
            above = [name for name in controls if own is not None and means.get(name, own) > own]
            if above:
                worse.append((group.key, f"{entry.aggregator} is {_DOUBT}: controls are above it ({', '.join(above)})"))
        notes += _merged(worse, groups)
    return notes


def _merged(notes: Sequence[tuple[str, str]], groups: Sequence[Group]) -> list[str]:
    """Merges notes that hold for every group; the others name their groups."""
    by_text: dict[str, list[str]] = defaultdict(list)
    for key, text in notes:
        by_text[text].append(key)
    return [text if len(found) == len(groups) else f"{', '.join(found)}: {text}" for text, found in by_text.items()]


def _seed_notes(entries: Sequence[Entry], methods: Mapping[str, Sequence[BoardCell]]) -> list[str]:
    notes = [
        f"{entry.aggregator}: figures cover {entry.ok} of {entry.planned} planned cells"
        for entry in entries
        if 0 < entry.ok < entry.planned
    ]
    seeds = {frozenset(s.seed for s in group if s.status == "ok") for group in methods.values()} - {frozenset()}
    if len(seeds) > 1:
        notes.append("methods have results on different seeds: compare their means with care")
    return notes


def _undefined_notes(groups: Sequence[Group], entries: Sequence[Entry]) -> list[str]:
    notes = []
    for group in groups:
        for column in group.columns:
            counts = [(entry, entry.seeds - entry.estimates[group.key][column.metric].n) for entry in entries]
            gaps = [f"{entry.aggregator} in {count} of {entry.seeds} seeds" for entry, count in counts if count]
            if gaps:
                notes.append((group.key, f"{column.title} is undefined (–), not 0: {', '.join(gaps)}"))
    return _merged(notes, groups)


def _method_notes(methods: Mapping[str, Sequence[BoardCell]]) -> list[str]:
    notes = []
    recipes = {label: recipe_of(group[0]) for label, group in sorted(methods.items())}
    for name in METHOD_FIELDS:
        values = {k: f"{v:g}" if isinstance(v := own[name], float) else v or "none" for k, own in recipes.items()}
        if len(set(values.values())) > 1:
            notes.append(f"{name} is set per method: {', '.join(f'{k} {v}' for k, v in values.items())}")
    return notes


@dataclass(frozen=True)
class Here:
    """This checkout and machine, against which the origin of rows is held.

    Attributes:
        commit: Commit of the fcilbench checkout; `None` if it is an installed package.
        stale: By cell id, why a row is stale (`fcilbench.results.stale`).
        environments: What of the software that matters differs between a row's environment and this machine's, by
            `Row.env`; "" where nothing does, absent where the record did not travel with the rows.
        computed: What computed the numbers of a result (`fcilbench.results.agreement.computed_rows`), by cell id.
    """

    commit: str | None
    stale: Mapping[str, Sequence[str]]
    environments: Mapping[str, str]
    computed: Mapping[str, str] = field(default_factory=dict)


def coverage_notes(rows: Iterable[Row], suites: Mapping[str, Mapping[str, Any] | None]) -> tuple[str, ...]:
    """Returns notes on what the rows lack of the resolved suites behind them: names of an axis, and seeds.

    `suites` has the stored suites by digest.
    """
    found = list(rows)
    by_digest = {digest: suite for digest, raw in suites.items() if (suite := read_suite(raw)) and suite.grid}
    known = list(by_digest.values())
    notes = []
    for axis in PLUGIN_KINDS:
        named = {each.label or each.use for suite in known for each in getattr(suite.grid, axis)}
        names = {name for row in found for name in _names(row, axis)}
        if absent := sorted(name for name in named if not {name, _normalised(name)} & names):
            notes.append(f"the suite names {', '.join(absent)} ({axis}), of which there are no rows")
    done: dict[tuple[str, ...], set[int]] = defaultdict(set)
    asked: dict[tuple[str, ...], int] = defaultdict(int)
    for row in found:
        key, suite = tuple(str(row.coords.get(axis, "")) for axis in AXES), by_digest.get(row.suite_digest or "")
        done[key] |= {row.seed} if row.status == "ok" else set()
        asked[key] = max(asked[key], suite.seeds.count if suite else 0)
    short = [
        f"{' / '.join(key)} {len(done[key])} of {most}" for key, most in sorted(asked.items()) if len(done[key]) < most
    ]
    if short:
        notes.append(f"results of fewer seeds than the suite has: {', '.join(short)}")
    return tuple(notes)


def _names(row: Row, axis: PluginKind) -> set[str]:
    """Returns all names by which a suite may mean the plugin of a row.

    These are its label, the label without the options that tell entries apart (`sum[lambda_s=0.2]`), and, unless the
    suite gave it a label of its own, the plugin's full and short name, of which a suite writes one.
    """
    label = str(row.coords.get(axis, ""))
    written, record = label.partition("[")[0], row.plugins.get(axis)
    names = {record.name, record.name.rpartition("/")[2]} if record else set()
    return {label, written} | (names if _normalised(written) in names else set())


def _normalised(name: str) -> str:
    """Returns `dist/name` with the distribution in its canonical form, as rows have it."""
    dist, slash, short = name.rpartition("/")
    return f"{normalise(dist)}{slash}{short}"


def origin_notes(rows: Iterable[Row], here: Here) -> tuple[str, ...]:
    """Returns notes on results that this checkout, on this machine, might not reproduce."""
    results = [row for row in rows if row.status == "ok"]
    reasons = Counter(reason for row in results for reason in here.stale.get(row.cell_id, ()))
    notes = []
    if reasons:
        old = "; ".join(f"{reason} ({number} rows)" for reason, number in sorted(reasons.items()))
        notes.append(f"rows are of older code than this checkout: {old}")
    commits = Counter(row.code.git_sha for row in results if row.code.git_sha is not None)
    if len(commits) > 1 or (here.commit and any(commit != here.commit for commit in commits)):
        named = ", ".join(f"{commit[:7]} ({count})" for commit, count in sorted(commits.items()))
        checkout = f"; this checkout is {here.commit[:7]}" if here.commit else ""
        notes.append(f"rows come from commits {named} of fcilbench{checkout}")
    if any(row.code.dirty for row in results):
        notes.append(f"{sum(bool(row.code.dirty) for row in results)} rows were made with uncommitted changes")
    return (*notes, *_environment_notes(results, here))


def _environment_notes(results: Sequence[Row], here: Here) -> list[str]:
    notes = []
    for env, count in sorted(Counter(row.env for row in results).items()):
        name = env.removeprefix("sha256:")[:12]
        difference = here.environments.get(env)
        if difference is None:
            notes.append(f"{count} rows of environment {name}: its record did not travel with them")
        elif difference:
            notes.append(f"{count} rows of environment {name}, which differs from this machine: {difference}")
    return notes
