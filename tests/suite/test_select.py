import hashlib
import time

import pytest

from fcilbench.errors import UsageError
from fcilbench.suite.select import missing_cells, parse_selectors

CELL = {
    "dataset": "cifar100",
    "backbone": "timm",
    "partition": "dirichlet-0.1",
    "aggregator": "sum[k=1,lambda_s=0.2]",
    "stress": "none",
    "seed": 3,
}


@pytest.mark.parametrize(
    ("expressions", "selected"),
    [
        ([], True),
        (["dataset:cifar100"], True),
        (["dataset:cifar10"], False),
        (["dataset:cifar*"], True),
        (["dataset:cifar100,seed:3"], True),
        (["dataset:cifar100,seed:2"], False),
        (["seed:2", "seed:3"], True),
        (["seed:2", "seed:4"], False),
        (["seed:[2-4]"], True),
        (["aggregator:sum[k=1,lambda_s=0.2]"], True),
        (["aggregator:sum[k=1,lambda_s=0.2],seed:3"], True),
        (["aggregator:sum*"], True),
        (["aggregator:sum"], False),
        (["partition:dirichlet-0.1 , stress:none"], True),
        (["dataset:CIFAR100"], False),
    ],
)
def test_terms_and_alternatives(expressions, selected):
    assert parse_selectors(expressions).matches("", CELL) is selected


# expression | status of the row | state in the plan | selected
STATUS = """\
status:failed | oom | - | yes
status:oom | oom | - | yes
status:oom | timeout | - | no
status:done | ok | - | yes
status:ok | skipped | - | no
status:new | - | - | yes
status:new | interrupted | - | yes
status:interrupted | interrupted | - | yes
status:stale | ok | stale | yes
status:done | ok | stale | no
status:ok | ok | stale | yes
status:* | ok | - | yes
status:failed,dataset:x | oom | - | no
"""


@pytest.mark.parametrize("line", STATUS.splitlines())
def test_status_is_that_of_the_row_or_of_the_plan(line):
    expression, status, state, selected = line.split(" | ")
    known = (None if each == "-" else each for each in (status, state))
    found = parse_selectors([expression]).matches("", CELL, *known)
    assert found is (selected == "yes")


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("sum", "'sum' is not axis:value"),
        ("dataset:", "'dataset:' is not axis:value"),
        ("datset:x", "unknown axis 'datset' (did you mean 'dataset'?)"),
        ("status:faild", "unknown status 'faild' (did you mean 'failed'?)"),
        ("", "needs a term"),
        ("seed:1,,", None),
    ],
)
def test_wrong_expressions(expression, message):
    if message is None:
        assert parse_selectors([expression]).matches("", {"seed": 1})
        return
    with pytest.raises(UsageError) as hit:
        parse_selectors([expression])
    assert message in str(hit.value)


@pytest.mark.parametrize(
    ("expressions", "message"),
    [
        (["aggregator:smu"], "the grid has no aggregator 'smu' (did you mean 'sum'?)"),
        (["aggregator:lwf,seed:0"], "the grid has no aggregator 'lwf' (one of: fedavg, sum)"),
        (
            ["seed:7", "dataset:dig*,seed:8"],
            "the grid has no seed '7' (one of: 0, 1); the grid has no seed '8' (one of",
        ),
        (["aggregator:sum,seed:1", "status:oom"], "the grid has no cell with aggregator:sum,seed:1 or status:oom"),
        (["aggregator:sum,aggregator:fedavg"], "a cell has one aggregator; say --only once for each of several"),
    ],
)
def test_an_empty_selection_names_the_terms_that_no_cell_meets(expressions, message):
    cells = [
        {"dataset": "digits", "aggregator": "sum", "seed": 0},
        {"dataset": "digits", "aggregator": "fedavg", "seed": 1},
    ]
    assert parse_selectors(expressions).why_nothing("the grid", cells).startswith(f"--only: {message}")


def test_statuses():
    assert parse_selectors(["status:oom,seed:1", "status:stale", "seed:2"]).statuses == {"oom", "stale"}


def test_missing_cells_name_the_shards_that_they_are():
    """Twenty cells in five shards, of which the second (1, 6, 11, 16) and the fifth (4, 9, 14, 19) have no row."""
    ids = [f"{number:016x}{'0' * 48}" for number in range(20)]
    present = [each for number, each in enumerate(ids) if number % 5 not in (1, 4)]
    text = "8 of 20 planned cells have no row"
    assert missing_cells(ids, [*present, "f" * 64]) == f"{text}: exactly those of shard:2/5, shard:5/5"
    assert missing_cells(ids, present[1:]) == "9 of 20 planned cells have no row"  # the first shard is not empty
    assert missing_cells(ids, ids) is None
    selector = parse_selectors(["shard:2/5", "shard:5/5"])
    assert [each for each in ids if selector.matches(each, {})] == [each for each in ids if each not in present]


def test_missing_cells_of_a_large_plan_are_found_in_seconds():
    """20,000 cells took minutes: each number of shards was held against every cell."""
    ids = [hashlib.sha256(b"%d" % number).hexdigest() for number in range(20_000)]
    third = [each for each in ids if int(each[:16], 16) % 7 == 2]
    start = time.process_time()
    assert missing_cells(ids, ids[1:]) == "1 of 20000 planned cells have no row"
    assert missing_cells(ids, ids[::2]) == "10000 of 20000 planned cells have no row"
    rest = {*ids} - {*third}
    assert missing_cells(ids, rest) == f"{len(third)} of 20000 planned cells have no row: exactly those of shard:3/7"
    assert time.process_time() - start < 10
