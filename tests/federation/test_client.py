"""What a client's hooks see: its network, its batches in each form, and the server's random streams."""

from dataclasses import replace

import torch
import torch.nn.functional as F

from fcilbench.api.aggregator import Aggregator, masked_cross_entropy
from fcilbench.api.backbone import FeatureExtractor, ImageInput
from fcilbench.federation.client import ClientSession
from fcilbench.federation.experiment import RoundContext, build


def session(federation, client=0, round_=0):
    return ClientSession(federation, RoundContext(federation.schedule.phases[0], round_), client)


def test_edge_3_statistics_do_not_depend_on_a_runtime_option(make_experiment):
    found = []
    for size in (3, 256):
        experiment = make_experiment()
        experiment = replace(experiment, runtime=experiment.runtime.model_copy(update={"eval_batch_size": size}))
        client = session(build(experiment))
        client.net.network.eval()
        found.append([len(batch.labels) for batch in client.batches()])
        found.append(client.grams(lambda name: False)["head"].total)
    assert found[0] == found[2] == [client.samples]
    assert torch.equal(found[1], found[3])


def test_a_client_knows_what_its_inputs_are(make_experiment):
    client = session(build(make_experiment()))
    assert client.image_input == ImageInput(size=8, channels=1, mean=(0.5,), std=(0.5,))
    (batch,) = client.batches()
    assert batch.inputs.shape == (client.samples, 1, 8, 8)


class NeedsItsMemo(Aggregator):
    """Scales features by what the initial network knows of a sample: 1 plus its mean."""

    def prepare(self, network, request):
        class Scaled(FeatureExtractor):
            def outputs(self, inputs, context):
                return {"features": self(inputs) * context["memo"]}

        network.extractor = Scaled(network.extractor.body, network.extractor.feature_dim)

    def query(self, net, inputs):
        return 1.0 + inputs.flatten(1).mean(dim=1, keepdim=True)


def test_fisher_and_gradient_batches_carry_the_memo(make_experiment):
    """By hand: with p the softmax, f the scaled features, the head's Fisher is the mean of (onehot - p)^2 f^2."""
    federation = build(make_experiment(NeedsItsMemo()))
    client, net = session(federation), federation.model
    net.network.eval()
    (batch,) = client.batches()
    assert torch.allclose(batch.memo, 1.0 + batch.inputs.flatten(1).mean(dim=1, keepdim=True))
    with torch.no_grad():
        features = net.network.extractor(batch.inputs) * batch.memo
        p = net.head(features)[:, client.task.classes].softmax(dim=1)
    residual = F.one_hot(client.task.local(batch.labels), client.task.size) - p
    expected = (residual**2).T @ features**2 / client.samples
    found = client.fisher("empirical")[net.layout.piece("head.weight").span].view(10, 16)[client.task.classes]
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-8)

    def loss(net, batch):
        return masked_cross_entropy(net.head(net.outputs(batch.inputs, {"memo": batch.memo})["features"]), batch)

    gradient = client.gradient(loss)[net.layout.piece("head.weight").span].view(10, 16)[client.task.classes]
    assert torch.allclose(gradient, -residual.T @ features / client.samples, rtol=1e-4, atol=1e-7)


def test_a_subset_for_the_fisher_is_drawn_by_coordinates(make_experiment):
    federation = build(make_experiment())
    federation.model.network.eval()
    client, later = session(federation), session(federation, round_=1)
    few = client.fisher("empirical", samples=3)
    assert torch.equal(few, client.fisher("empirical", samples=3))
    assert not torch.equal(few, later.fisher("empirical", samples=3))
    assert torch.equal(client.fisher("empirical", samples=10**6), client.fisher("empirical"))


def test_the_network_behind_the_net_is_open_to_hooks(make_experiment):
    client = session(build(make_experiment()))
    seen = []
    handle = client.network.head.register_forward_hook(lambda module, args, output: seen.append(args[0].shape))
    client.net.logits(next(iter(client.batches())).inputs)
    handle.remove()
    assert seen == [(client.samples, client.feature_dim)]


def test_the_servers_streams_are_coordinates(make_experiment):
    one, two = (build(make_experiment()).server for _ in range(2))
    assert one.random("a").integers(2**62) == two.random("a").integers(2**62)
    first = one.random("a").integers(2**62)
    assert one.random("b").integers(2**62) != first
    one.round = 1
    assert one.random("a").integers(2**62) != first
