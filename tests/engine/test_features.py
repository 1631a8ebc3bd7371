"""Passes of the network as it was before training: what is read, what never is, and what a cell notices of it."""

import logging
import os

import pytest
import torch
from torch import nn

from fcilbench.engine import features
from fcilbench.engine.features import StartingPasses, evict, structure
from fcilbench.engine.meters import Stopwatch


class Body(nn.Module):
    """A linear layer, whose passes are counted; its output is a view, as the class token of a transformer is."""

    def __init__(self, width=3):
        super().__init__()
        self.layer = nn.Linear(4, width)
        self.scale, self.dropout = 1.0, nn.Dropout(0.5)

    def forward(self, inputs):
        COUNTS.append(len(inputs))
        return self.dropout(self.scale * torch.stack([self.layer(inputs), inputs[:, :3]], dim=1))[:, 0]


COUNTS = []


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FCILBENCH_CACHE", str(tmp_path / "cache"))
    COUNTS.clear()
    return tmp_path / "cache" / "features"


def opened(trained=(), seed=0, **facts):
    """A body as a new cell builds it, and what keeps its passes; training changes the tensors named in `trained`."""
    torch.manual_seed(seed)
    body = Body().eval()
    initial = torch.cat([body.get_parameter(name).detach().flatten() for name in trained] or [torch.zeros(0)])
    parts = torch.split(initial, [body.get_parameter(name).numel() for name in trained])
    named = {n: part.view(body.get_parameter(n).shape) for n, part in zip(trained, parts, strict=True)}
    return body, StartingPasses(body, body, structure(body), initial=initial, named=named, facts=facts)


@torch.no_grad()
def passed(body, passes, *batches):
    """What the body answers, and how many of the passes were made."""
    before = len(COUNTS)
    with passes():
        found = [body(batch) for batch in batches]
    return found, len(COUNTS) - before


BATCHES = [torch.arange(20.0).view(5, 4), torch.ones(2, 4), torch.zeros(5, 4)]


def test_the_next_cell_reads_what_one_has_made_with_the_same_bits_layout_and_seconds(folder):
    first, made = passed(*opened(), *BATCHES)
    body, passes = opened()
    again, read = passed(body, passes, *BATCHES)
    assert (made, read) == (3, 1)  # the largest batch is always computed, for the peak of memory
    assert all(torch.equal(one, two) and one.stride() == two.stride() for one, two in zip(first, again, strict=True))
    assert not first[0].is_contiguous()
    assert passes.saved > 0
    assert len(list(folder.iterdir())) == 3


def test_a_larger_batch_than_any_before_is_computed():
    passed(*opened(), *BATCHES)
    assert passed(*opened(), BATCHES[1], BATCHES[0], BATCHES[2])[1] == 2


@pytest.mark.parametrize(
    "other",
    [lambda: opened(seed=1), lambda: opened(weights="another"), lambda: opened(trained=["layer.bias"], seed=2)],
    ids=["weights", "facts", "trained weights"],
)
def test_another_network_has_passes_of_its_own(other):
    passed(*opened(), *BATCHES)
    assert passed(*other(), *BATCHES)[1] == 3


def test_another_batch_precision_or_number_of_threads_is_another_pass(folder):
    passed(*opened(), BATCHES[0])
    passed(*opened(), BATCHES[0][:4])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        passed(*opened(), BATCHES[0])
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    passed(*opened(), BATCHES[0])
    torch.set_num_threads(before)
    assert len(list(folder.iterdir())) == 4


def _trained(body):
    with torch.no_grad():
        body.layer.weight.add_(1.0)


def _watched(body):
    body.layer.register_forward_pre_hook(lambda module, seen: None)


CHANGES = {
    "trained": _trained,
    "training mode": lambda body: body.train(),
    "a watched layer": _watched,
    "another attribute": lambda body: setattr(body, "scale", 2.0),
    "another layer": lambda body: setattr(body, "layer", nn.Linear(4, 3)),
    "another forward": lambda body: setattr(body.layer, "forward", lambda inputs: inputs[:, :3]),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("trained", [(), ("layer.weight",)], ids=["frozen", "trainable"])
def test_a_network_that_is_not_as_it_was_built_is_never_answered_from_files(folder, change, trained):
    passed(*opened(trained), *BATCHES)
    kept = len(list(folder.iterdir()))
    body, passes = opened(trained)
    change(body)
    assert passed(body, passes, *BATCHES)[1] == 3
    assert len(list(folder.iterdir())) == kept


def test_trainable_weights_that_are_back_where_they_were_count_again():
    passed(*opened(["layer.weight"]), *BATCHES)
    body, passes = opened(["layer.weight"])
    before = body.layer.weight.detach().clone()
    _trained(body)
    assert passed(body, passes, *BATCHES)[1] == 3
    with torch.no_grad():
        body.layer.weight.copy_(before)
    assert passed(body, passes, *BATCHES)[1] == 1


def test_gradients_vmap_and_passes_outside_of_the_block_are_computed(folder):
    body, passes = opened()
    with passes():
        body(BATCHES[0]).sum().backward()
        with torch.no_grad():
            torch.func.vmap(lambda row: body(row[None])[0])(BATCHES[0])
    with torch.no_grad():
        body(BATCHES[0])
    assert not folder.exists()
    assert "forward" not in vars(body)


@pytest.mark.parametrize("damage", [lambda data: data[:-3], lambda data: data[:-1] + b"\0\1", lambda data: b""])
def test_a_damaged_file_is_made_again(folder, damage):
    expected, _ = passed(*opened(), *BATCHES)
    good = {path: path.read_bytes() for path in folder.iterdir()}
    for path, data in good.items():
        path.write_bytes(damage(data))
    found, made = passed(*opened(), *BATCHES)
    assert made == 3
    assert all(torch.equal(one, two) for one, two in zip(found, expected, strict=True))
    assert passed(*opened(), *BATCHES)[1] == 1


def test_a_sound_file_that_the_network_contradicts_ends_the_reading(folder, caplog):
    expected, _ = passed(*opened(), *BATCHES)
    with torch.no_grad():
        body, passes = opened()
        path = folder / f"{passes._key(BATCHES[0])}.pass"
        passes._write(path, torch.zeros(5, 3), 0.1)
    with caplog.at_level(logging.WARNING):
        found, made = passed(body, passes, *BATCHES)
    assert made == 3
    assert torch.equal(found[0], expected[0])
    assert "is not what the network computes now" in caplog.text


def test_a_folder_that_cannot_be_written_costs_time_and_nothing_else(folder, caplog):
    folder.parent.mkdir()
    folder.write_text("no folder")
    found, made = passed(*opened(), *BATCHES)
    assert made == 3
    assert found[0].shape == (5, 3)
    assert caplog.text.count("features are not kept") == 1


def test_what_was_not_used_for_longest_is_removed(tmp_path, folder, monkeypatch):
    for number in range(4):
        (tmp_path / str(number)).write_bytes(bytes(100))
        os.utime(tmp_path / str(number), (1000 - number, 1000 - number))
    evict(tmp_path, 250)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]
    monkeypatch.setattr(features, "LIMIT", 0)
    passed(*opened(), *BATCHES[:1])
    assert list(folder.iterdir()) == []


def test_seconds_that_were_saved_count_as_if_the_work_had_been_done():
    saved = 0.0
    watch = Stopwatch(torch.device("cpu"), lambda: saved)
    with watch("training"):
        saved += 100.0
    with watch("evaluation"):
        pass
    assert 100 <= watch.seconds["training"] < 110
    assert watch.seconds["evaluation"] < 10
