"""Each forgery of a published result is named at its line; what cannot be seen so is seen by training again."""

import json
import re
from pathlib import Path

import pytest

from fcilbench.execution.data_check import data_problems
from fcilbench.registry import catalog
from fcilbench.results.compare import compare
from fcilbench.results.store import Store
from fcilbench.results.verify import verify

from . import forge
from .forgeries import FORGERIES, SEEN_BY_TRAINING, plausible

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT / "leaderboards" / "quickstart"


def problems(store):
    found = verify(store)
    return [*found.problems, *data_problems(found.rows, lambda _: None)]


@pytest.fixture(scope="module", autouse=True)
def one_worker():
    """One process answers for all tests: its start takes longer than all of them."""
    with catalog.session():
        yield


@pytest.fixture(scope="module")
def published():
    return json.dumps(vars(forge.read(PUBLISHED)))


@pytest.fixture
def folder(published):
    return forge.Folder(**json.loads(published))


def test_what_is_written_back_unchanged_has_no_problem(folder, tmp_path):
    assert problems(forge.write(folder, tmp_path / "mine")) == []


def test_a_rule_may_set_an_option_of_the_data(folder, tmp_path):
    """An honest row, whose entry of the data leaves the option at its default."""
    row, suite = folder.row, folder.suite
    suite["tuned"] = [{"where": {"aggregator": "fedavg"}, "set": {"dataset.train_per_class": 20}}]
    row["params"]["dataset"]["train_per_class"] = row["plugins"]["dataset"]["identity"]["train_per_class"] = 20
    folder.with_suite(suite)
    folder.renamed()
    found = problems(forge.write(folder, tmp_path / "mine"))
    assert [text for number, text in found if number == 1 and "suite" in text] == []


def test_a_rule_about_the_protocol_reads_the_value_of_the_entry(folder, tmp_path):
    """The suite excludes its own number of rounds; the row's entry has another one."""
    suite, own = folder.suite, folder.row["params"]["protocol"]["rounds"]
    (entry,) = [each for each in suite["grid"]["aggregator"] if each["use"] == folder.row["coords"]["aggregator"]]
    entry["protocol.rounds"], suite["protocol"]["rounds"] = own, own + 3
    suite["exclude"] = [{"protocol.rounds": own + 3, "because": "long"}]
    folder.with_suite(suite)
    assert not [text for _, text in problems(forge.write(folder, tmp_path / "mine")) if "excludes" in text]
    suite["exclude"] = [{"protocol.rounds": own, "because": "short"}]
    folder.with_suite(suite)
    found = [text for _, text in problems(forge.write(folder, tmp_path / "other")) if "excludes" in text]
    assert "its suite excludes this cell: short" in found[0]


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forgery_is_named_at_its_line(name, folder, tmp_path):
    change, says, line = FORGERIES[name]
    change(folder)
    found = problems(forge.write(folder, tmp_path / "mine"))
    assert any(number == line and says in text for number, text in found), found
    assert not [text for _, text in found if "cannot be checked" in text]


SUITE = """\
fcilbench: 1
name: tiny
protocol: {clients: 2, rounds: 2, local_epochs: 1, lr: 0.001}
grid:
  dataset: [{use: digits, tasks: 2, train_per_class: 4, test_per_class: 5}]
  backbone:
    - use: timm
      label: tiny
      model: vit_tiny_patch16_224
      args: {img_size: 8, patch_size: 4, embed_dim: 16, depth: 1, num_heads: 1, class_token: false, global_pool: avg}
      weights: none
  partition: [iid]
  aggregator: [ewc]
"""


@pytest.fixture(scope="module")
def made(new_cli, tmp_path_factory):
    """A folder with one small cell of a method that sends statistics at the end of a task, and its results again."""
    (shared := tmp_path_factory.mktemp("made")).joinpath("site").mkdir()
    cli = new_cli(tmp_path_factory.mktemp("work"), shared)
    (cli.folder / "tiny.yaml").write_text(SUITE)
    for out in ("results", "again"):
        done = cli("run", "tiny.yaml", "--tracking", "none", "--jobs", "1", "--out", out)
        assert done.returncode == 0, done.stderr
    assert cli("results", "export", "published").returncode == 0
    return cli


def test_a_new_curve_adds_up_exactly(made, tmp_path):
    folder = forge.read(made.folder / "published")
    ends = [each for each in folder.curve if each["event"] == "task"]
    assert [each["bytes_up"] > 0 for each in ends] == [True, False]  # nothing is learned after the last task
    assert [each["visits"] for each in folder.rounds] == [2, 2, 2, 2]
    assert problems(forge.write(folder, tmp_path / "mine")) == []
    folder.row["cost"]["bytes_up"] += 1  # more than the rounds add up to: only the ends of tasks could tell
    assert "but its curve adds up to" in problems(forge.write(folder, tmp_path / "mine"))[0][1]
    folder.row["cost"]["bytes_up"] -= 1
    folder.row["cost"]["visits"] = 9
    assert "cost: visits is 9, but its curve adds up to 8" in problems(forge.write(folder, tmp_path / "mine"))[0][1]


@pytest.mark.parametrize(("name", "sees"), SEEN_BY_TRAINING.items())
def test_what_cannot_be_seen_is_seen_by_training_again(name, sees, made, tmp_path):
    folder = forge.read(made.folder / "published")
    (honest,), (again,) = (Store(made.folder / each).scan() for each in ("published", "again"))
    assert not compare(honest, again).conflicting
    plausible(name, folder)
    store = forge.write(folder, tmp_path / "mine")
    assert problems(store) == []
    (forged,) = store.scan()
    found = compare(forged, again, given={} if sees.startswith("faa") else {"*": 1.0})  # no tolerance is about costs
    assert found.conflicting
    assert sees in {*(each.metric for each in found.differences), *found.digests}


def test_the_command_trains_the_sample_again_and_names_the_line(made):
    folder = forge.read(made.folder / "published")
    plausible("bytes of a task's end left out", folder)
    forge.write(folder, made.folder / "forged")
    assert made("results", "verify", "forged", "--sample", "0").returncode == 0
    done = made("results", "verify", "forged", "--sample", "1", "--tolerance", "*=1")
    assert done.returncode == 3, done.stderr
    assert re.search(r"^forged/rows.jsonl:1: cell \w{12}: not reproduced: cost/bytes_up \d+ published, ", done.stdout)


def test_the_page_lists_these_forgeries():
    """docs/trust.md has a line for each of them, with what commit 2257fa2 said and what is said now."""
    text = (ROOT / "docs" / "trust.md").read_text(encoding="utf-8")
    listed = dict(
        re.findall(r"^\| (.+?) \| (?:clean|named|traceback|by training again) \| (.+?) \|$", text, re.MULTILINE)
    )
    assert listed == {**dict.fromkeys(FORGERIES, "named"), **dict.fromkeys(SEEN_BY_TRAINING, "by training again")}
