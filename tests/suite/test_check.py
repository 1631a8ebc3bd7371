import pytest
import typer

from fcilbench.cli.check import check
from fcilbench.errors import UsageError
from fcilbench.suite import CHECKS
from fcilbench.suite.expand import run_checks

IDS = list(CHECKS)


def ran(results) -> list[str]:
    return [result.id for result in results if result.ran]


def problems_of(results) -> list:
    return [problem for result in results for problem in result.problems]


@pytest.fixture
def valid(lab, write, base):
    """Writes the valid suite with one change."""
    return lambda old, new: write(base.replace(old, new, 1))


def test_a_valid_suite_passes_all_static_checks(lab, write, base):
    results, expansion = run_checks(write(base + "seeds: 3\n"))
    assert (problems_of(results), expansion.blocked, len(expansion.cells)) == ([], [], 6)
    assert ran(results) == IDS[:-1] == [result.id for result in results]


@pytest.mark.parametrize(
    ("change", "check_id", "complete"),
    [
        (("name: test", "name: ["), "parse", ["parse"]),
        (("name: test", "name: test\nname: x"), "parse", ["parse"]),
        (("clients: 4", "client: 4"), "schema", ["parse", "schema"]),
        (("[ten]", "[tne]"), "plugins", ["parse", "schema", "plugins"]),
        (("ring]", "{use: ring, lambda_S: 1}]"), "params", ["parse", "schema", "plugins", "params"]),
        (("[ten]", "[{use: ten, tasks: 3}]"), "tasks", ["parse", "schema", "plugins", "params", "tasks"]),
        (("ring]", "mean]"), "cells", ["parse", "schema", "plugins", "cells"]),
        (("name: test", "name: test\ntuned: [{where: {dataset: x}, set: {lr: 1}}]"), "rules", IDS[:-1]),
        (("name: test", "name: test\nexclude: [{dataset: x, because: y}]"), "rules", IDS[:-1]),
        (
            ("name: test", "name: test\nexclude: [{datset: x, because: y}]"),
            "rules",
            ["parse", "schema", "plugins", "rules"],
        ),
    ],
)
def test_a_problem_belongs_to_its_check_and_stops_what_builds_on_it(valid, change, check_id, complete):
    results, _ = run_checks(valid(*change))
    assert [problem.check for problem in problems_of(results)] == [check_id]
    assert ran(results) == complete
    (result,) = (result for result in results if result.problems)
    assert result.id == check_id


def test_one_problem_is_counted_in_the_singular(valid, capsys):
    with pytest.raises(typer.Exit):
        check(valid("ring]", "mean]"))
    assert "  1 problem  " in capsys.readouterr().out


def test_the_help_lists_the_checks():
    assert all(f"{name}: {proof}" in (check.__doc__ or "") for name, proof in CHECKS.items())


def test_missing_file(write):
    write("")
    results, _ = run_checks("t.yaml")
    assert [str(problem) for problem in problems_of(results)] == [
        "suite t.yaml does not exist (did you mean 's.yaml'?)"
    ]
    assert ran(results) == ["parse"]


def test_malformed_overrides_are_no_problem_of_the_suite(write, base):
    with pytest.raises(UsageError):
        run_checks(write(base), ["rounds"])


def test_prerequisites_are_not_problems(lab, write, base):
    results, expansion = run_checks(write(base.replace("[net]", "[{use: net, weights: /no/such/file}]")))
    assert problems_of(results) == []
    assert [each.missing for each in expansion.blocked] == [
        ("s.yaml:6:14: weights /no/such/file are missing (fetch them)",)
    ] * 2


def test_public_12_deep_probes_each_combination_once_and_names_what_is_wrong_once(lab, write, base):
    probed, broken = [], {"ring"}

    def probe(cells):
        probed[:] = [(cell.aggregator.label, cell.partition.label, cell.seeds.index) for cell in cells]
        return ["it fell over" if cell.aggregator.label in broken else None for cell in cells]

    text = base.replace("[{dirichlet: 0.5}]", "[iid, {dirichlet: 0.5}]") + "seeds: 2\n"
    results, _ = run_checks(write(text), (), probe)
    assert probed == [("mean", "iid", 0), ("ring", "iid", 0)]
    assert [str(problem) for problem in problems_of(results)] == ["s.yaml: ten + net + ring + clean: it fell over"]
    assert ran(results) == IDS
    broken.add("mean")
    (problem,) = problems_of(run_checks(write(text), (), probe)[0])
    assert str(problem) == "s.yaml: ten + net + mean + clean and 1 more: it fell over"


def test_deep_does_not_run_on_an_invalid_suite(lab, write, base):
    results, _ = run_checks(write(base.replace("[ten]", "[tne]")), (), lambda cells: ["never"])
    assert "deep" not in ran(results)
    assert results[-1].id == "deep"
