"""DualPrompt as a method: prefixes and keys by hand, what trains and travels in a task, what a sample answers by."""

import pytest
import torch
import torch.nn.functional as F
from timm.models.vision_transformer import Block, ParallelScalingBlock

from fcilbench.api.aggregator import Request
from fcilbench.api.client import Batch
from fcilbench.engine.model import FlatModel, Network
from fcilbench.federation.evaluation import as_module
from fcilbench.federation.experiment import build
from fcilbench.federation.visit import uploaded
from fcilbench.plugins.aggregators import dualprompt
from fcilbench.plugins.aggregators.dualprompt import DualPrompt, DualViT, cosines, nearest
from fcilbench.spec.protocol import Partition, Protocol

QUERY, KEYS = torch.tensor([[3.0, 4.0]]), torch.tensor([[1.0, 0.0], [0.0, 2.0]])


def dual(**params):
    return DualPrompt(DualPrompt.Params(**{"length_g": 3, "length_e": 2} | params))


# ---------------------------------------------------------------- by hand


@pytest.mark.parametrize(("prefix", "expected"), [([0.0, -1.0], 1.193176), ([0.0, 0.0], 1.462117), (None, 2.0)])
def test_one_token_of_one_number_attends_to_a_prefix(prefix, expected):
    """q = k = 1 and v = 2: (e 2 + value) / (e + 1) with a prefix key of 0. A prefix of zeros is not neutral."""
    block = Block(1, 1, qkv_bias=True)
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.zero_()
        block.attn.qkv.bias.copy_(torch.tensor([1.0, 1.0, 2.0]))
        block.attn.proj.weight.fill_(1.0)
        token = torch.zeros(1, 1, 1)
        found = block(token)
        if prefix is not None:
            found = dualprompt.with_prefix(block, token, torch.tensor(prefix).view(1, -1, 1))
    assert found.item() == pytest.approx(expected, abs=1e-6)


def test_keys_by_hand():
    """Cosines .6 and .8; the gradient of -cos(q, k_0) at k_0 = (1, 0) is (0, -.8)."""
    assert cosines(QUERY, KEYS)[0].tolist() == pytest.approx([0.6, 0.8])
    assert nearest(torch.cat([QUERY, QUERY.flip(1)]), KEYS).tolist() == [1, 0]
    key = KEYS[:1].clone().requires_grad_()
    (-cosines(QUERY, key)).sum().backward()
    assert key.grad[0].tolist() == pytest.approx([0.0, -0.8], abs=1e-6)


def test_keys_of_tasks_that_have_not_begun_are_never_chosen():
    later = torch.cat([-KEYS[:1], torch.zeros(2, 2)])  # the cosine -.6 of the only real key is below theirs of 0
    assert nearest(QUERY, later).tolist() == [0]
    assert nearest(torch.zeros(1, 2), later).tolist() == [0]
    assert nearest(QUERY, KEYS[[1, 1]]).tolist() == [0]


def test_the_key_ends_in_the_direction_of_the_mean_query():
    queries = torch.randn(40, 6, generator=torch.Generator().manual_seed(0)) + 0.5
    key = torch.tensor([[1.0, -1.0, 0.5, 0.2, 0.9, -0.3]], requires_grad=True)
    optimiser = torch.optim.SGD([key], lr=0.5)
    for _ in range(400):
        optimiser.zero_grad()
        (-cosines(queries, key).mean()).backward()
        optimiser.step()
    expected = F.normalize(F.normalize(queries).mean(dim=0), dim=0)
    torch.testing.assert_close(F.normalize(key[0].detach(), dim=0), expected, atol=1e-4, rtol=0)


def test_each_sample_gets_the_keys_and_values_of_its_own_prompt(tiny_vit, monkeypatch):
    """Keys 10, 11, 12 and values 20, 21, 22: four samples that want 1 all get 11 and 21, and others theirs."""
    network = DualViT(tiny_vit(depth=5).build(), 3, (1, 2))
    with torch.no_grad():
        for number, task in enumerate(network.tasks):
            task.prompt[:, :2], task.prompt[:, 2:] = 10 + number, 20 + number
            task.key[number] = 1.0
    given, run = [], dualprompt.with_prefix
    monkeypatch.setattr(dualprompt, "with_prefix", lambda *args: given.append(args[2]) or run(*args))
    wants = torch.eye(16)[[1, 1, 1, 1, 0, 2]]
    network.outputs(torch.randn(6, 1, 8, 8), {"memo": wants})
    assert [tuple(prefix.shape) for prefix in given] == 2 * [(6, 2, 16)] + 3 * [(6, 4, 16)]
    for prefix in given[2:]:
        assert prefix[:, :2].flatten(1).unique(dim=1)[:, 0].tolist() == [11, 11, 11, 11, 10, 12]
        assert prefix[:, 2:].flatten(1).unique(dim=1)[:, 0].tolist() == [21, 21, 21, 21, 20, 22]


@pytest.mark.parametrize(("depth", "shared", "own"), [(1, 0, 1), (2, 1, 1), (3, 1, 2), (4, 2, 2), (5, 2, 3), (7, 2, 3)])
def test_blocks_of_shallow_transformers(tiny_vit, depth, shared, own):
    network = DualViT(tiny_vit(depth=depth).build(), 2, (3, 2))
    assert network.general.shape == (shared, 6, 16)
    assert network.tasks[1].prompt.shape == (own, 4, 16)


# ---------------------------------------------------------------- loss and answers


@pytest.fixture
def federation(make_experiment, tiny_vit):
    """Two tasks that have begun, with keys and prompts as drawn."""

    def make(**params):
        made = build(make_experiment(dual(**params), backbone=tiny_vit(depth=5), tasks=(4, 6)))
        for task in made.stream.tasks:
            made.server.enter(task, task.index)
            made.experiment.aggregator.begin_task(made.server)
        made.model.load(made.server.vector, made.server.counters)
        made.model.network.eval()
        return made

    return make


def test_the_loss_and_what_learns_from_it(federation):
    made = federation(inherit=False, lambda_key=0.5)
    model, train, task = made.model, made.train, made.stream.tasks[1]
    rows = torch.from_numpy(made.schedule.phases[1].clients[0])[:3]
    mask = torch.tensor([1.0, 1.0, 0.0])
    batch = Batch(train.plain(rows), train.labels[rows], mask, task, train.memo[rows])
    with torch.no_grad():
        forced = made.model.under(model.vector, {"extractor.forced": torch.tensor(1.0)}).logits(batch.inputs)
        pull = cosines(train.memo[rows], model.piece("extractor.tasks.1.key")[None])[:2].mean()
        cross = F.cross_entropy(forced[:2, 4:], batch.labels[:2] - 4)
    loss = made.experiment.aggregator.loss(model, batch, {})
    torch.testing.assert_close(loss.detach(), cross - 0.5 * pull)
    loss.backward()
    moved = {piece.name for piece in model.layout.pieces if model.gradient[piece.span].any()}
    assert moved == {
        "extractor.general",
        "extractor.tasks.1.prompt",
        "extractor.tasks.1.key",
        "head.weight.1",
        "head.bias.1",
    }


@torch.no_grad()
def test_an_answer_does_not_depend_on_the_batch_and_oracle_fixes_the_prompt(federation):
    made = federation(inherit=False, init="centred")
    model, images = made.model, made.test.plain(torch.arange(12))
    vector = made.server.vector
    for task in (0, 1):  # prompts that matter, and keys that part the images
        span = made.server.layout.piece(f"extractor.tasks.{task}.prompt").span
        vector[span] = 3.0 * torch.randn(span.stop - span.start, generator=torch.Generator().manual_seed(task))
    query = model.network.extractor.body(images)
    apart = query[0] / query[0].norm() - query[1] / query[1].norm()
    for task, sign in ((0, 1.0), (1, -1.0)):
        vector[made.server.layout.piece(f"extractor.tasks.{task}.key").span] = sign * apart
    modules = made.experiment.aggregator.predictors(made.server).modules
    found = {}
    for name, make in modules.items():
        module = as_module(make())
        net = model.under(module.vector, module.frozen)
        found[name] = net.logits(images)
        alone = torch.cat([net.logits(image[None]) for image in images])
        torch.testing.assert_close(found[name], alone, atol=1e-5, rtol=1e-4)
    chosen = nearest(query, torch.stack([apart, -apart]))
    assert chosen[:2].tolist() == [0, 1]
    expected = torch.stack([found["task-0"], found["task-1"]])[chosen, torch.arange(12)]
    torch.testing.assert_close(found["global"], expected, atol=1e-5, rtol=1e-4)
    assert not torch.allclose(found["task-0"], found["task-1"], atol=1e-2)


@torch.no_grad()
def test_without_prompts_it_is_the_bare_transformer(federation):
    made = federation(length_g=0, length_e=0)
    images = made.test.plain(torch.arange(4))
    bare = made.model.network.extractor.body(images)
    torch.testing.assert_close(made.model.features(images), bare, atol=1e-5, rtol=1e-4)
    made = federation()
    assert not torch.allclose(made.model.features(images), made.model.network.extractor.body(images), atol=1e-4)


# ---------------------------------------------------------------- tasks, bytes, runs


class Watched(DualPrompt):
    """Keeps the global vector as each task begins and as it ends."""

    def begin_task(self, server):
        super().begin_task(server)
        self.layout, self.began = server.layout, [*getattr(self, "began", []), server.vector.clone()]

    def aggregate(self, updates, server):
        super().aggregate(updates, server)
        keys = [server.vector[server.layout.piece(f"extractor.tasks.{t.index}.key").span] for t in server.tasks]
        found = [float(F.cosine_similarity(keys[-1], key, dim=0)) for key in keys[:-1]]
        assert server.logs.get("dual/key_cosine") == (pytest.approx(max(found), abs=1e-6) if found else None)

    def end_task(self, server, statistics):
        self.ended = [*getattr(self, "ended", []), server.vector.clone()]

    def part(self, vector, name):
        return vector[self.layout.piece(name).span]


@pytest.mark.parametrize("inherit", [True, False])
def test_a_task_changes_what_is_its_own_and_what_is_shared(play, tiny_vit, inherit):
    method = Watched(dual(inherit=inherit).params)
    play(method, backbone=tiny_vit(depth=5), weight_decay=0.1)
    for task, (began, ended) in enumerate(zip(method.began, method.ended, strict=True)):
        moved = {piece.name for piece in method.layout.pieces if not torch.equal(began[piece.span], ended[piece.span])}
        own = {
            f"extractor.tasks.{task}.prompt",
            f"extractor.tasks.{task}.key",
            f"head.weight.{task}",
            f"head.bias.{task}",
        }
        assert moved <= own | {"extractor.general"}
        assert own - {f"head.weight.{task}", f"head.bias.{task}"} <= moved | {f"extractor.tasks.{task}.prompt"}
        assert task == 1 or moved == own | {"extractor.general"}  # of task 1 the loss is 0: it has one class
        if task:
            old = method.part(method.ended[task - 1], f"extractor.tasks.{task - 1}.prompt")
            assert torch.equal(method.part(began, f"extractor.tasks.{task}.prompt"), old) == inherit


@pytest.mark.parametrize(("init", "low", "high"), [("centred", -0.02, 0.02), ("positive", 0, 0.01)])
def test_what_is_drawn(federation, init, low, high):
    made = federation(init=init, inherit=False)
    for piece in made.server.layout.pieces:
        if "extractor" in piece.name:
            values = made.server.vector[piece.span]
            middle, reach = (low + high) / 2, (high - low) / 2
            assert 0.6 * reach < float((values - middle).abs().max()) <= reach
            assert float((values - middle).abs().min()) < 0.4 * reach


def test_keys_without_the_term_stay_as_drawn(play, tiny_vit):
    for weight, equal in ((0.0, True), (1.0, False)):
        method = Watched(dual(lambda_key=weight).params)
        play(method, backbone=tiny_vit(depth=5), tasks=(5, 5))
        for task, (began, ended) in enumerate(zip(method.began, method.ended, strict=True)):
            name = f"extractor.tasks.{task}.key"
            assert torch.equal(method.part(began, name), method.part(ended, name)) == equal


def test_bytes_of_a_run(play, tiny_vit):
    """Up: G of 2 x 6 rows, E of 3 x 4 rows and a key of 16 numbers, and the task's head rows.

    Down: everything once, then what has moved since; each later task adds its prompt and key as it begins.
    """
    settings = {"clients": 2, "partition": Partition(kind="iid"), "backbone": tiny_vit(depth=5), "tasks": (3, 3, 2, 2)}
    cost = play(dual(), **settings).cost
    general, own, row = 2 * 6 * 16 * 4, (3 * 4 + 1) * 16 * 4, 17 * 4
    assert cost.bytes_up == 2 * 2 * (4 * (general + own) + 10 * row)
    moved = 7 * general + 7 * own + (2 * 10 - 2) * row  # the last round's result is never sent
    assert cost.bytes_down == 2 * (general + 4 * own + 10 * row + moved + 3 * own)


@pytest.mark.parametrize(("length", "megabytes"), [(5, 0.187), (20, 0.464)])
def test_bytes_of_vit_b16(vit_b16, length, megabytes):
    """G 15,360, E 4,608 a key and value, key 768 and ten rows of 769 floats."""
    with torch.device("meta"):
        request = Request("vision", 100, (10,) * 10, 10, Protocol(), {})
        assert DualPrompt(DualPrompt.Params(length_e=length)).prepare(vit_b16, request) is None
    layout = FlatModel(vit_b16, torch.device("meta")).layout

    class Server:
        task = type("Task", (), {"index": 3})

    sent = sum(piece.span.stop - piece.span.start for piece in uploaded(DualPrompt().wire(Server()), layout))
    assert sent == 15_360 + 4_608 * length + 768 + 7_690
    assert 4e-6 * sent == pytest.approx(megabytes, abs=5e-4)


def test_an_interrupted_run_ends_bit_equal(play, tiny_vit):
    settings = {"partition": Partition(kind="dirichlet", value=0.05, min_samples=0), "backbone": tiny_vit(depth=3)}
    whole = play(dual(), **settings)
    resumed = play(dual(), 5, **settings)
    assert (whole.model_digest, whole.accuracy) == (resumed.model_digest, resumed.accuracy)
    assert (whole.cost.bytes_up, whole.cost.bytes_down) == (resumed.cost.bytes_up, resumed.cost.bytes_down)


def test_attention_that_takes_no_prefix_is_declined(tiny_vit):
    extractor = tiny_vit().build()
    extractor.body.blocks[1] = ParallelScalingBlock(16, 2)
    answer = dual().prepare(Network(extractor, 10), Request("vision", 10, (5, 5), 3, Protocol(), {}))
    assert "timm's plain attention" in answer.reason
