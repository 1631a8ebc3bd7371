"""A lock file is a record: what was edited by hand, or set by no study, is refused or said."""

import copy
import json
import re
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from fcilbench.boards.tuning import tuning_notes
from fcilbench.errors import SuiteError
from fcilbench.spec.identity import cell_id
from fcilbench.suite.expand import expand, run_checks
from fcilbench.suite.load import load_suite
from fcilbench.suite.lock import UNSEALED, content_digest
from fcilbench.suite.schema import TunedRule
from fcilbench.workflow.prepare import describe, prepare

STUDY = {
    "digest": "sha256:" + "a" * 64,
    **{"trials": 5, "losers": 4, "pruned": 2, "failed": 1, "budget": 50, "rounds": 30, "seconds": 1.5},
    **{"score": 0.5, "scored": "faa/inferred"},
}
DRAWS = [
    {"set": {"protocol.lr": 0.002, "aggregator.lambda_s": 0.25}, "rounds": 10, "score": 0.5},
    *({"set": {"protocol.lr": 0.001}, "rounds": rounds, "ended": "pruned"} for rounds in (6, 4)),
    {"set": {"protocol.lr": 0.003}, "rounds": 0, "ended": "failed"},
    {"set": {"protocol.lr": 0.004}, "rounds": 10, "score": 0.25},
]
WHERE = {"dataset": "ten", "backbone": "net", "partition": "dirichlet-0.5", "aggregator": "ring"}
CONTENT = {
    "fcilbench": 1,
    "tuned": [
        {"where": WHERE, "set": {"protocol.lr": 0.002, "aggregator.lambda_s": 0.25}, "study": STUDY},
        {
            "where": {**WHERE, "aggregator": "mean"},
            "set": {},
            "study": {"digest": "sha256:" + "b" * 64, "trials": 0, "losers": 0, "budget": 0},
        },
    ],
}
FITS = content_digest(CONTENT)


def changed(path, value):
    """Returns what a lock file says after one change, by a dotted path."""
    content = copy.deepcopy(CONTENT)
    *above, last = [int(step) if step.isdigit() else step for step in path.split("/")]
    holder = content
    for step in above:
        holder = holder[step]
    holder[last] = value
    return content


@pytest.fixture
def lock(lab, write):
    """Returns `lock(content, digest)`: writes a lock file; `digest` None leaves it out."""

    def make(content, digest):
        head, *others = content.items()
        lines = dict([head, *([("digest", digest)] if digest else []), *others])
        return write(
            "# a comment\n" + "".join(f"{key}: {json.dumps(value)}\n" for key, value in lines.items()), "l.yaml"
        )

    return make


EDITS = {
    "another rate under the old study": (("tuned/0/set/protocol.lr", 0.01), None),
    "a score of 7.5": (("tuned/0/study/score", 7.5), "tuned.0.study.score: 7.5 is not less than or equal to 1"),
    "99 losers of 5": (("tuned/0/study/losers", 99), "tuned.0.study: 99 losers of 5 trials, of which one has a score"),
    "one more loser than trials lost": (("tuned/0/study/losers", 5), "tuned.0.study: 5 losers of 5 trials, of which"),
    "more pruned than lost": (("tuned/0/study/pruned", 4), "tuned.0.study: 4 pruned and 1 failed trials, but 4 losers"),
    "less rounds than trials": (("tuned/0/study/budget", 4), "tuned.0.study: a budget of 4 rounds for 5 trials"),
    "free text as a digest": (("tuned/0/study/digest", "x"), "tuned.0.study.digest: string should match"),
    "free text as what was scored": (("tuned/0/study/scored", "mine"), "tuned.0.study.scored: string should match"),
    "values where nothing won": (
        ("tuned/1/set", {"lr": 1.0}),
        "tuned.1: sets values, though no trial of its study won",
    ),
    "a winner without values": (("tuned/0/set", {}), "tuned.0: sets nothing, though a trial won"),
    "rounds": (("tuned/0/set/protocol.rounds", 9), "'protocol.rounds' is nothing that tuning searches"),
    "an option without a space": (("tuned/0/set/mode", "slow"), "'mode' is nothing that tuning searches"),
    "an option of the data": (("tuned/0/set/dataset.train_per_class", 5), "'dataset.train_per_class' is nothing that"),
    "a seed as condition": (("tuned/0/where/seed", 0), "a study is about one label of each axis"),
    "a parameter as condition": (("tuned/0/where/protocol.rounds", 2), "a study is about one label of each axis"),
    "several labels": (("tuned/0/where/aggregator", ["ring", "mean"]), "a study is about one label of each axis"),
    "a grid": (("grid", {"dataset": ["ten"]}), "unknown key 'grid' in a lock file (one of: digest, fcilbench, tuned)"),
    "seeds": (("seeds", 9), "unknown key 'seeds' in a lock file"),
    "a seal of its own": (("tuned/0/sealed", True), "unknown key 'sealed' in a rule"),
    "a rule of its own": (("tuned/1", {"where": WHERE, "set": {"lr": 1}}), "a rule without `study`, which"),
    "no version": (("fcilbench", 2), "a lock file begins with `fcilbench: 1`"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_file_is_refused_at_its_place(lock, write, base, edit):
    """Beside the old digest always; with none, or one that fits, where what it says makes no sense."""
    change, told = EDITS[edit]
    content = changed(*change)
    path, suite = lock(content, FITS), write(base)
    with pytest.raises(SuiteError, match=r"l\.yaml:3:9: the lock file was edited by hand") as hit:
        load_suite(suite, params=path)
    assert "put values of your own into a `tuned:` rule of your suite" in hit.value.hint
    for digest in (None, content_digest(content)) if told else ():
        with pytest.raises(SuiteError) as hit:
            expand(load_suite(suite, params=lock(content, digest)))
        (line,) = str(hit.value).splitlines()
        assert line.startswith("l.yaml:")
        assert told in line


def test_a_record_with_draws_keeps_them_and_one_without_keeps_the_digest_that_rows_cite(lock, write, base):
    """`draws` came later: of an older file nothing is added, as its rows cite a digest of all that its rules say."""
    loaded = load_suite(write(base), params=lock(CONTENT, FITS)).suite
    assert [rule.study.model_dump(mode="json", exclude_unset=True) for rule in loaded.tuned] == [
        rule["study"] for rule in CONTENT["tuned"]
    ]
    content = changed("tuned/0/study/draws", DRAWS)
    found = load_suite(write(base), params=lock(content, content_digest(content))).suite
    assert found.tuned[0].study.model_dump(mode="json")["draws"] == DRAWS
    assert found.lock_digest != loaded.lock_digest
    for rule in found.tuned:  # as it travels with rows
        assert TunedRule.model_validate(rule.model_dump(mode="json", exclude_none=True)) == rule


WRONG = {
    "a draw is missing": (DRAWS[:4], "5 trials, but its draws are 4"),
    "one more was pruned": ([*DRAWS[:4], {**DRAWS[1]}], "2 pruned, but its draws are 3"),
    "a better one lost": (
        [*DRAWS[:4], {**DRAWS[4], "score": 0.75}],
        "a score of 0.5, but the best of its draws has 0.75",
    ),
    "no end": ([*DRAWS[:4], {"set": {}}], "a draw has either a score, or `ended` says why it has none"),
    "another won": (
        [DRAWS[4], *DRAWS[1:4], {**DRAWS[4], "score": 0.5}],
        "sets other values than the draw with the best",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_draws_that_contradict_the_record_are_refused(lock, write, base, case):
    draws, told = WRONG[case]
    content = changed("tuned/0/study/draws", draws)
    with pytest.raises(SuiteError, match=re.escape(told)):
        load_suite(write(base), params=lock(content, content_digest(content)))


def test_run_plan_and_check_refuse_it_and_a_layout_does_not_matter(lock, write, base, tmp_path):
    suite, path = write(base), lock(CONTENT, FITS)
    plan = prepare(suite, None, tmp_path / "out", params=path).plan
    rates = {item.cell.aggregator.label: item.cell.protocol.lr for item in plan.items}
    assert rates == {"mean": 1e-5, "ring": 0.002}
    assert describe(prepare(suite, None, tmp_path / "out", params=path), 1)[-1].startswith("  to run: 2 cells")
    data = YAML(typ="safe").load(path.read_text())
    with path.open("w") as file:
        YAML().dump(data, file)  # block style, without the comment
    assert (
        load_suite(suite, params=path).suite.lock_digest
        == load_suite(suite, params=lock(CONTENT, FITS)).suite.lock_digest
    )
    edited = lock(changed("tuned/0/set/protocol.lr", 0.01), FITS)
    with pytest.raises(SuiteError, match="edited by hand"):
        prepare(suite, None, tmp_path / "out", params=edited)
    results, expansion = run_checks(suite, params=edited)
    assert [str(each) for result in results for each in result.problems] == [
        "l.yaml:3:9: the lock file was edited by hand: its digest is not that of what it says"
    ]
    assert expansion.cells == []


def test_a_file_of_before_digests_is_read_and_plan_check_and_board_say_so(lock, write, base, make_row):
    suite = write(base)
    old, new = (load_suite(suite, params=lock(CONTENT, digest)) for digest in (None, FITS))
    assert (old.unsealed, new.unsealed) == (["l.yaml"], [])
    assert old.suite.lock_digest == new.suite.lock_digest  # what rows cite
    assert [*map(cell_id, expand(old).cells)] == [*map(cell_id, expand(new).cells)]
    said = f"l.yaml: {UNSEALED}"
    prepared = prepare(suite, None, Path("out"), params=lock(CONTENT, None))
    assert f"  {said}" in describe(prepared, 1)
    assert run_checks(suite, params=lock(CONTENT, None))[1].remarks == [said]
    warnings = []
    for loaded in (old, new):
        resolved = loaded.suite.model_dump(mode="json", exclude_none=True)
        (cell,) = [each for each in expand(loaded).cells if each.aggregator.label == "ring"]
        row = make_row(cell, {"faa/none": 0.5}, suite_digest="sha256:suite")
        marked, _ = tuning_notes([row], {"sha256:suite": resolved})
        warnings.append(marked[0].warnings)
    assert warnings == [[UNSEALED], []]


def test_a_study_that_a_suite_cites_itself_is_said_and_its_resolved_suite_keeps_the_seal(lock, write, base):
    rules = json.dumps(CONTENT["tuned"])
    assert load_suite(write(f"{base}tuned: {rules}\n")).unsealed == ["s.yaml"]
    rules = load_suite(write(base), params=lock(CONTENT, FITS)).suite.tuned
    assert [rule.sealed for rule in rules] == [True, True]
    resolved = [rule.model_dump(mode="json", exclude_none=True) for rule in rules]
    assert tuple(map(TunedRule.model_validate, resolved)) == rules


def test_no_override_reaches_the_rules_of_a_lock_file(lock, write, base):
    with pytest.raises(SuiteError, match="tuned"):
        load_suite(write(base), ["tuned.0.set.protocol.lr=0.5"], params=lock(CONTENT, FITS))


HOSTILE = {
    "an alias bomb": "a: &a [" + "x, " * 500 + "]\nb: &b [" + "*a, " * 500 + "]\ntuned: [" + "*b, " * 500 + "]\n",
    "brackets": "tuned: " + "[" * 100_000,
    "a large file": "tuned: [" + "1, " * 100_000 + "]",
    "an endless list": "tuned: &r [*r]",
    "a tag": "tuned: !!python/object:os.system [ls]",
    "text": "tuned",
    "a list": "- 1",
    "nothing": "",
    "rules that are no maps": "fcilbench: 1\ntuned: [1, {study: {}}]",
    "a study that is no map": "fcilbench: 1\ntuned: [{where: {dataset: ten}, set: {lr: 1}, study: 5}]",
    "conditions that are no map": "fcilbench: 1\ntuned: [{where: 5, set: {lr: 1}, study: {}}]",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_files_end_in_an_error_with_a_place(lab, write, base, kind):
    path = write(HOSTILE[kind], "l.yaml")
    with pytest.raises(SuiteError, match=r"l\.yaml") as hit:
        load_suite(write(base), params=path)
    assert len(str(hit.value)) < 2000
