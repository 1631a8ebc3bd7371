import pytest

from fcilbench.errors import UsageError
from fcilbench.suite.check import CHECKS, run_checks

IDS = list(CHECKS)


def ran(report):
    return [result.id for result in report.results if result.ran]


@pytest.fixture
def valid(lab, write, base):
    """Writes the valid suite with one change."""
    return lambda old, new: write(base.replace(old, new, 1))


def test_a_valid_suite_passes_all_static_checks(lab, write, base):
    report = run_checks(write(base + "seeds: 3\n"))
    assert (report.problems, report.expansion.prerequisites, len(report.expansion.cells)) == ([], [], 6)
    assert ran(report) == IDS[:-1] == [result.id for result in report.results]


@pytest.mark.parametrize(
    ("change", "check", "complete"),
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
def test_a_problem_belongs_to_its_check_and_stops_what_builds_on_it(valid, change, check, complete):
    report = run_checks(valid(*change))
    assert [problem.check for problem in report.problems] == [check]
    assert ran(report) == complete
    (result,) = (result for result in report.results if result.problems)
    assert result.id == check


def test_missing_file(write):
    write("")
    report = run_checks("t.yaml")
    assert [str(problem) for problem in report.problems] == [
        "t.yaml: suite t.yaml does not exist (did you mean 's.yaml'?)"
    ]
    assert ran(report) == ["parse"]


def test_malformed_overrides_are_no_problem_of_the_suite(write, base):
    with pytest.raises(UsageError):
        run_checks(write(base), ["rounds"])


def test_prerequisites_are_not_problems(lab, write, base):
    report = run_checks(write(base.replace("[net]", "[{use: net, weights: /no/such/file}]")))
    assert report.problems == []
    assert report.expansion.prerequisites == ["s.yaml:6:14: weights /no/such/file are missing (fetch them)"]
    assert report.expansion.blocked == 2


def test_public_12_deep_probes_each_combination_once_and_names_what_is_wrong_once(lab, write, base):
    probed, broken = [], {"ring"}

    def probe(cells):
        probed[:] = [(cell.aggregator.label, cell.partition.label, cell.seeds.index) for cell in cells]
        return ["it fell over" if cell.aggregator.label in broken else None for cell in cells]

    text = base.replace("[{dirichlet: 0.5}]", "[iid, {dirichlet: 0.5}]") + "seeds: 2\n"
    report = run_checks(write(text), (), probe)
    assert probed == [("mean", "iid", 0), ("ring", "iid", 0)]
    assert [str(problem) for problem in report.problems] == ["s.yaml: ten + net + ring + clean: it fell over"]
    assert ran(report) == IDS
    broken.add("mean")
    (problem,) = run_checks(write(text), (), probe).problems
    assert str(problem) == "s.yaml: ten + net + mean + clean and 1 more: it fell over"


def test_deep_does_not_run_on_an_invalid_suite(lab, write, base):
    report = run_checks(write(base.replace("[ten]", "[tne]")), (), lambda cells: ["never"])
    assert "deep" not in ran(report)
    assert report.results[-1].id == "deep"
