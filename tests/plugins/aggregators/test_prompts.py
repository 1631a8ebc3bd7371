"""What methods with prompts share: a frozen transformer, one query a sample, answers that do not depend on a batch."""

import pytest
import torch
import torch.nn.functional as F

from fcilbench.federation.experiment import Unsupported, build
from fcilbench.federation.run import run_experiment
from fcilbench.plugins.aggregators.codap import CodaPrompt
from fcilbench.plugins.aggregators.dualprompt import DualPrompt
from fcilbench.plugins.aggregators.hgp import Hgp
from fcilbench.plugins.aggregators.l2p import L2p

METHODS = {
    "l2p": lambda: L2p(L2p.Params(length=2, selected=3)),
    "coda-prompt": lambda: CodaPrompt(CodaPrompt.Params(components=10, length=4)),
    "dualprompt": lambda: DualPrompt(DualPrompt.Params(length_g=3, length_e=2)),
    "hgp": lambda: Hgp(Hgp.Params(length=4, samples=8, epochs=1)),
}


@pytest.fixture(params=METHODS)
def trained(request, make_experiment, one_round, tiny_vit):
    """A federation after one round of its first task, and the frozen transformer as it was before."""
    federation = build(make_experiment(METHODS[request.param](), backbone=tiny_vit(depth=6), lr=0.1))
    before = {name: value.clone() for name, value in federation.model.network.extractor.body.state_dict().items()}
    federation.experiment.aggregator.begin_task(federation.server)
    one_round(federation)
    federation.model.load(federation.server.vector, federation.server.counters)
    federation.model.network.eval()
    return federation, before


def test_the_backbone_is_untouched_bit_for_bit(trained):
    federation, before = trained
    assert not torch.equal(federation.server.vector, federation.initial)
    assert all(torch.equal(v, before[name]) for name, v in federation.model.network.extractor.body.state_dict().items())
    assert not any("body" in piece.name for piece in federation.server.layout.pieces)


@pytest.mark.parametrize("name", METHODS)
def test_a_run_computes_the_query_once_a_sample_or_never(make_experiment, tiny_vit, tmp_path, name):
    rows, method = [], METHODS[name]()
    prepare = method.prepare

    def watched(network, request):
        prepare(network, request)
        network.extractor.body.register_forward_hook(lambda _, inputs, output: rows.append(len(output)))

    method.prepare = watched
    run_experiment(make_experiment(method, backbone=tiny_vit(depth=5)), tmp_path)
    assert sum(rows) == (0 if name == "hgp" else 200 + 100)


@pytest.mark.parametrize("name", METHODS)
def test_networks_without_such_tokens_and_adapters_are_declined(make_experiment, norm_backbone, tiny_vit, name):
    adapted = tiny_vit({"use": "lora"})
    for backbone, reason in ((norm_backbone, "tokens of a timm vision transformer"), (adapted, "leave out `adapter`")):
        with pytest.raises(Unsupported, match=reason):
            build(make_experiment(METHODS[name](), backbone=backbone))


# ---------------------------------------------------------------- a second, plain implementation


def norm(x, layer):
    x = x - x.mean(-1, keepdim=True)
    return x / (x.square().mean(-1, keepdim=True) + layer.eps).sqrt() * layer.weight.double() + layer.bias.double()


def linear(x, layer):
    return x @ layer.weight.double().T + layer.bias.double()


def plain_vit(body, image, prompts=None, prefixes=()):
    """Returns the final tokens of one image `[C, H, W]` in float64, one head after the other."""
    patches = F.conv2d(image[None].double(), body.patch_embed.proj.weight.double(), stride=4)[0].flatten(1).T
    patches = patches + body.patch_embed.proj.bias.double()
    x = torch.cat([body.cls_token[0].double(), patches]) + body.pos_embed[0].double()
    x = x if prompts is None else torch.cat([prompts, x])
    for number, block in enumerate(body.blocks):
        q, k, v = linear(norm(x, block.norm1), block.attn.qkv).chunk(3, dim=1)
        if number < len(prefixes):
            half = len(prefixes[number]) // 2
            k, v = torch.cat([prefixes[number][:half], k]), torch.cat([prefixes[number][half:], v])
        heads = []
        for own_q, own_k, own_v in zip(q.chunk(2, 1), k.chunk(2, 1), v.chunk(2, 1), strict=True):
            heads.append(torch.softmax(own_q @ own_k.T / 8**0.5, dim=1) @ own_v)
        x = x + linear(torch.cat(heads, dim=1), block.attn.proj)
        hidden = linear(norm(x, block.norm2), block.mlp.fc1)
        x = x + linear(0.5 * hidden * (1 + torch.erf(hidden / 2**0.5)), block.mlp.fc2)
    return norm(x, body.norm)


@torch.no_grad()
def test_features_are_those_of_a_plain_implementation(trained):
    federation, _ = trained
    extractor, images = federation.model.network.extractor, federation.test.plain(torch.arange(4))
    found = federation.model.outputs(images)["features"]
    for image, features in zip(images, found, strict=True):
        query = plain_vit(extractor.body, image)[0]
        if isinstance(federation.experiment.aggregator, L2p):
            keys = extractor.keys.double()
            cosines = (keys @ query) / keys.norm(dim=1) / query.norm()
            order = sorted(range(10), key=lambda m: -float(cosines[m]))[:3]
            prompts = torch.cat([extractor.prompts[m].double() for m in order])
            expected = plain_vit(extractor.body, image, prompts)[:6].mean(dim=0)
        elif isinstance(federation.experiment.aggregator, Hgp):
            assert extractor.prompts.shape == (5, 4, 16)
            expected = plain_vit(extractor.body, image, prefixes=extractor.prompts.double())[0]
        elif isinstance(federation.experiment.aggregator, DualPrompt):
            prefixes = [*extractor.general.double(), *extractor.tasks[0].prompt.double()]
            assert [len(prefix) for prefix in prefixes] == [6, 6, 4, 4, 4]
            expected = plain_vit(extractor.body, image, prefixes=prefixes)[0]
        else:
            prefixes = []
            for block in range(5):
                own = torch.zeros(4, 16, dtype=torch.float64)
                for p, k, a in zip(*(part[block].double() for part in extractor.tasks[0].parameters()), strict=True):
                    own += torch.dot(query * a, k) / (query * a).norm() / k.norm() * p
                prefixes.append(own)
            expected = plain_vit(extractor.body, image, prefixes=prefixes)[0]
        torch.testing.assert_close(features.double(), expected, atol=2e-5, rtol=1e-4)
