import pytest

from fcilbench.api.aggregator import Aggregator, No
from fcilbench.federation.probe import probe
from fcilbench.plugins.aggregators.joint import Joint
from fcilbench.plugins.aggregators.sum import Sum


@pytest.mark.parametrize("method", [Sum, Joint])
def test_the_built_in_methods_pass(make_experiment, method):
    probe(make_experiment(method()))


def test_a_broken_server_half_is_found_and_a_refusal_is_not_an_error(make_experiment):
    class Broken(Aggregator):
        def end_task(self, server, statistics):
            raise KeyError("basis")

    class Picky(Aggregator):
        def supports(self, request):
            return No("no")

    with pytest.raises(KeyError, match="basis"):
        probe(make_experiment(Broken()))
    probe(make_experiment(Picky()))
