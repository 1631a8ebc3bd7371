from fcilbench.testing import AggregatorConformance


class TestGossip(AggregatorConformance):
    plugin = "acme-fcil/gossip"
