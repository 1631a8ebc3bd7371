from __future__ import annotations

import pytest

from fcilbench.suite.expand import split_classes
from fcilbench.suite.resolve import route

TARGETS = """\
lambda_s => aggregator lambda_s
lr => protocol lr
protocol.rounds => protocol rounds
aggregator.rounds => aggregator rounds
protocol.batch_size => protocol batch_size
backbone.anything => backbone anything
dataset.train_per_class => dataset train_per_class
stress.clients => stress clients
"""
UNKNOWN = """\
rounds => ambiguous: write 'aggregator.rounds' or 'protocol.rounds'
lamda_s => unknown key 'lamda_s' (did you mean 'lambda_s'?)
aggregator.lr => unknown key 'lr' of the aggregator (one of: lambda_s, rounds)
protocol.lambda_s => unknown key 'lambda_s' of the protocol
partition.value => unknown key 'partition.value'
protocl.lr => unknown key 'protocl.lr' (did you mean 'protocol'?)
"""


@pytest.mark.parametrize("line", TARGETS.splitlines())
def test_route(line):
    key, target = line.split(" => ")
    assert route(key, ["lambda_s", "rounds"]) == tuple(target.split())


@pytest.mark.parametrize("line", UNKNOWN.splitlines())
def test_keys_that_nothing_has(line):
    key, message = line.split(" => ")
    with pytest.raises(ValueError, match="key") as hit:
        route(key, ["lambda_s", "rounds"])
    assert message in str(hit.value)


def test_split_by_hand():
    assert split_classes(None, 10, 2) == (5, 5)
    assert split_classes(None, 10, [3, 7]) == (3, 7)
    assert split_classes(10, 100, 5) == (10,) * 10
    assert split_classes([20] * 9 + [16], 196, 1) == (*[20] * 9, 16)
    assert split_classes(1, 3, 3) == (3,)


@pytest.mark.parametrize("count", [2, 3, 7, 10, 99])
def test_the_proposed_split_is_valid(count):
    with pytest.raises(ValueError, match="list them: tasks: ") as hit:
        split_classes(count, 101, 1)
    proposal = [int(word) for word in str(hit.value).rpartition("[")[2].rstrip("]").split(", ")]
    assert len(split_classes(proposal, 101, 1)) == count
    assert max(proposal) - min(proposal) <= 1
