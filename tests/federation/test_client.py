"""What a client's hooks see: its network, its batches in each form, and the server's random streams."""

from dataclasses import replace

import torch

from fcilbench.api.dataset import Augmentation
from fcilbench.api.schedule import Schedule
from fcilbench.federation.client import ClientSession
from fcilbench.federation.experiment import RoundContext, build
from fcilbench.federation.round import sample_clients


def session(federation, client=0, round_=0):
    return ClientSession(federation, RoundContext(federation.schedule.phases[0], round_), client)


def inputs(batches):
    return torch.cat([batch.inputs for batch in batches])


def test_batches_are_plain_or_augmented(make_experiment):
    federation = build(make_experiment())
    federation.train.augmentation = Augmentation(crop_padding=1, flip=True)
    client = session(federation)
    plain, pixels = inputs(client.batches()), federation.train.pixels[client.index] / 255.0
    assert torch.allclose(plain, (pixels - 0.5) / 0.5, atol=1e-6)
    one = inputs(client.batches(augment=client.random("a")))
    assert torch.equal(one, inputs(client.batches(augment=client.random("a"))))
    assert not torch.equal(one, plain)
    generator = client.random("a")
    assert torch.equal(inputs(client.batches(augment=generator)), one)
    assert not torch.equal(inputs(client.batches(augment=generator)), one)  # a second pass draws anew


def test_augmented_batches_do_not_depend_on_the_batch_size(make_experiment):
    draws = []
    for size in (3, 256):
        experiment = make_experiment()
        experiment = replace(experiment, runtime=experiment.runtime.model_copy(update={"eval_batch_size": size}))
        federation = build(experiment)
        federation.train.augmentation = Augmentation(crop_padding=1, flip=True)
        client = session(federation)
        draws.append(inputs(client.batches(augment=client.random("a"))))
    assert torch.equal(*draws)


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


def test_a_phase_may_ask_every_client(make_experiment):
    federation = build(make_experiment(clients=6, participation=0.5))
    phase = federation.schedule.phases[0]
    assert len(sample_clients(federation, RoundContext(phase, 0))) == 3
    everyone = replace(phase, participation=1.0)
    assert sample_clients(federation, RoundContext(everyone, 0)) == [0, 1, 2, 3, 4, 5]
    assert Schedule((everyone,)).phases[0].sampled(0.5) == 6
