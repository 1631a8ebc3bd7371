import os
from pathlib import Path

import pytest

from fcilbench.errors import SuiteError, UsageError
from fcilbench.suite.load import load_suite
from fcilbench.suite.yaml import InvalidSuiteError


@pytest.fixture
def load(write):
    return lambda text, *overrides, name="s.yaml": load_suite(write(text, name), overrides)


def test_defaults(load, base):
    suite = load(base.replace("  stress: [clean]\n", "")).suite
    assert [entry.use for entry in suite.grid.stress] == ["none"]
    assert (suite.seeds.count, suite.seeds.base, suite.seeds.vary) == (1, 0, ["order", "partition", "train"])
    assert suite.evaluate.task_identity == ("none", "inferred", "oracle")
    assert (suite.limits.wall, suite.limits.retries) == (None, 1)
    assert suite.boards == ("accuracy",)


def test_short_and_long_forms_are_the_same(load, base):
    long = base.replace("[ten]", "[{use: ten}]").replace("[{dirichlet: 0.5}]", "[{kind: dirichlet, value: 0.5}]")
    assert load(base + "seeds: 2\n").suite == load(long + "seeds: {count: 2}\n").suite


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90.0), ("90s", 90.0), ("30m", 1800.0), ("2h", 7200.0), ("1h30m", 5400.0), ("1.5h", 5400.0), ("1m1s", 61.0)],
)
def test_durations(load, base, text, seconds):
    assert load(base + f"limits: {{wall: {text}}}\n").suite.limits.wall == seconds


@pytest.mark.parametrize("text", ["2x", "h", "''", "1s1h", "-1s", "true", "0", "0s"])
def test_durations_that_are_none(problems, base, text):
    (found,) = problems(base + f"limits: {{wall: {text}}}\n")
    assert found.startswith("s.yaml:10:16: limits.wall: ")


WRONG = r"""
aggregator: => agregator: => s.yaml:8:3: unknown key 'agregator' (did you mean 'aggregator'?) in grid
protocol: => protocl: => s.yaml:3:1: unknown key 'protocl' (did you mean 'protocol'?)
clients: => client: => s.yaml:3:12: unknown key 'client' (did you mean 'clients'?) in protocol
clients: 4 => clients: 0 => s.yaml:3:21: protocol.clients: 0 is not greater than or equal to 1
clients: 4 => clients: '4' => s.yaml:3:21: protocol.clients: "4" is not a valid integer
clients: 4 => clients: 4.5 => s.yaml:3:21: protocol.clients: 4.5 is not a valid integer
clients: 4 => clients: true => s.yaml:3:21: protocol.clients: true is not a valid integer
clients: 4 => augment: yes => s.yaml:3:21: protocol.augment: "yes" is not a valid boolean
clients: 4 => lr: .inf => s.yaml:3:16: protocol.lr: Infinity is not a finite number
clients: 4 => precision: bf61 => s.yaml:3:23: protocol.precision: "bf61" is not 'fp32' or 'bf16' (did you mean 'bf16'?)
fcilbench: 1 => fcilbench: 2 => s.yaml:1:12: fcilbench: 2 is not 1
fcilbench: 1\n =>  => s.yaml:1:1: missing key 'fcilbench'
  dataset: [ten]\n =>  => s.yaml:4:1: missing key 'dataset' in grid
[ten] => [] => s.yaml:5:12: grid.dataset: needs 1 or more entries
[ten] => ten => s.yaml:5:12: grid.dataset: write a list: [ten]
[ten] => [{name: ten}] => s.yaml:5:13: missing key 'use' in grid.dataset.0
[ten] => [{use: ten, tasks: 0}] => s.yaml:5:31: grid.dataset.0.tasks: must be a number of equal tasks, or a
[ten] => [{use: ten, tasks: [5, x]}] => s.yaml:5:31: grid.dataset.0.tasks: must be a number of equal tasks
[ten] => {use: ten} => s.yaml:5:12: grid.dataset: write a list: [{"use": "ten"}]
[{dirichlet: 0.5}] => iid => s.yaml:7:14: grid.partition: write a list: [iid]
{dirichlet: 0.5} => {dirichlet: -1} => s.yaml:7:27: grid.partition.0.dirichlet: -1 is not greater than 0
{dirichlet: 0.5} => {quantity: abc} => s.yaml:7:26: grid.partition.0.quantity: "abc" is not a valid number
{dirichlet: 0.5} => {dirichlt: 1} => s.yaml:7:16: unknown key 'dirichlt' (did you mean 'dirichlet'?) in grid.part
{dirichlet: 0.5} => idd => s.yaml:7:15: grid.partition.0: "idd" is not 'dirichlet', 'iid' or 'quantity' (did
{dirichlet: 0.5} => dirichlet => s.yaml:7:15: grid.partition.0: dirichlet takes a concentration, e.g. 0.5
name: test => name: a/b => s.yaml:2:7: name: string should match pattern
name: test => name: test\nname: again => s.yaml:3:1: duplicate key 'name'
name: test => name: test\n3: x => s.yaml:3:1: a key must be a word, not '3'
name: test => name: test\n<<: {a: 1} => s.yaml:3:1: a key must be a word, not '<<'
name: test => name: !x test => s.yaml:2:7: unknown tag !x
"""


@pytest.mark.parametrize("line", WRONG.strip().splitlines())
def test_one_mistake_is_one_problem_at_its_place(problems, base, line):
    old, new, expected = line.split(" => ")
    old, new = old.replace(r"\n", "\n"), new.replace(r"\n", "\n")
    assert old in base
    (found,) = problems(base.replace(old, new, 1))
    assert found.startswith(expected)


SECTIONS = r"""
seeds: 0 => s.yaml:10:8: seeds: 0 is not greater than or equal to 1
seeds: {count: 2, vry: []} => s.yaml:10:19: unknown key 'vry' (did you mean 'vary'?) in seeds
seeds: {vary: [trian]} => s.yaml:10:16: seeds.vary.0: "trian" is not 'order', 'partition' or 'train' (did you mean
exclude: [{dataset: ten}] => s.yaml:10:11: missing key 'because' in exclude.0
exclude: [{because: x}] => s.yaml:10:11: exclude.0: no condition: it would exclude every cell
tuned: [{where: {}, set: {lr: 1}}] => s.yaml:10:17: tuned.0.where: needs 1 or more entries
tuned: [{where: {seed: 1}}] => s.yaml:10:9: missing key 'set' in tuned.0
evaluate: {task_identity: [oracel]} => s.yaml:10:28: evaluate.task_identity.0: "oracel" is not 'none', 'inf
runtime: {threads: 0} => s.yaml:10:20: runtime.threads: 0 is not greater than or equal to 1
runtime: => s.yaml:11:1: runtime: null is not an object
date: 2024-01-01 => s.yaml:10:1: unknown key 'date'
seeds: 99999999999 => s.yaml:10:8: seeds: 99999999999 is not less than or equal to 100000
limits: {wall: 9999999999999h} => s.yaml:10:16: limits.wall: "9999999999999h" is not less than or equal to
limits: {retries: 1000} => s.yaml:10:19: limits.retries: 1000 is not less than or equal to 100
"a\nb\u202e": 1 => s.yaml:10:1: unknown key 'a\nb\u202e'
"""


@pytest.mark.parametrize(
    "line", [*SECTIONS.strip().splitlines(), f"limits: {{wall: {'x' * 9999}}} => s.yaml:10:16: lim"]
)
def test_mistakes_of_other_sections(problems, base, line):
    section, expected = line.split(" => ")
    (found,) = problems(base + section + "\n")
    assert found.startswith(expected)
    assert len(found) < 700


@pytest.mark.parametrize("label", ["\\e]0;pwned\\a", "a\\nb", "a\\u202eb", "\\ta", "a,b", "a:b"])
def test_labels_cannot_change_a_terminal_or_a_filter(problems, base, label):
    (found,) = problems(base.replace("[ten]", f'[{{use: ten, label: "{label}"}}]'))
    assert found.startswith("s.yaml:5:31: grid.dataset.0.label: ")
    assert found.isprintable()


def test_many_problems_are_cut_in_the_message_only(lab, write, base):
    with pytest.raises(InvalidSuiteError) as hit:
        load_suite(write(base + "".join(f"key{index}: 1\n" for index in range(500))))
    assert len(hit.value.problems) == 500
    assert str(hit.value).splitlines()[100:] == ["and 400 more"]


def test_all_problems_come_at_once_in_the_order_of_the_file(problems, base):
    found = problems(base.replace("clients: 4", "client: 4").replace("stress:", "stres:") + "seeds: -1\nsaeeds: 2\n")
    assert [each.split(": ")[0] for each in found] == ["s.yaml:3:12", "s.yaml:9:3", "s.yaml:10:8", "s.yaml:11:1"]


@pytest.mark.parametrize(
    ("text", "where", "message"),
    [
        ("a: [1", "s.yaml:1:6", ""),
        ("a: b: c", "s.yaml:1:5", ""),
        ("a: 1\n---\nb: 1\n", "s.yaml:2:1", ""),
        ("a:\n\t- 1\n", "s.yaml:2:1", "a tab stands here; YAML indents with spaces only"),
        ("a:\n  b: \t1\n", "s.yaml:2:6", "a tab stands here"),
        ("a: 1\nseeds 3\n\nb: 2\n", "s.yaml:2:1", "expected `key: value`"),
    ],
)
def test_not_yaml(problems, text, where, message):
    (found,) = problems(text)
    assert found.startswith(f"{where}: not valid YAML: {message}")


@pytest.mark.parametrize("text", ["", "3", "[a]", "# nothing\n"])
def test_not_a_map(problems, text):
    (found,) = problems(text)
    assert found == "s.yaml:1:1: a suite is a map of keys"


def test_missing_file_names_its_neighbour(write):
    write("a: 1", "vision.yaml")
    with pytest.raises(SuiteError, match=r"suite visoin.yaml does not exist \(did you mean 'vision.yaml'\?\)"):
        load_suite("visoin.yaml")
    with pytest.raises(SuiteError, match=r"lock file nolock.yaml does not exist$"):  # nothing here is called alike
        load_suite("vision.yaml", params=Path("nolock.yaml"))
    with pytest.raises(SuiteError, match="is no file"):
        load_suite(".")


class TestExtends:
    def test_maps_merge_and_lists_replace(self, write, base):
        write(base + "limits: {wall: 1h, retries: 3}\nboards: [accuracy]\n", "base.yaml")
        loaded = load_suite(
            write(
                "extends: base.yaml\nname: child\nprotocol: {rounds: 9}\ngrid: {aggregator: [mean]}\n"
                "limits: {retries: 0}\n",
                "child.yaml",
            )
        )
        suite = loaded.suite
        assert (suite.name, suite.protocol.clients, suite.protocol.rounds) == ("child", 4, 9)
        assert [entry.use for entry in suite.grid.aggregator] == ["mean"]
        assert [entry.use for entry in suite.grid.dataset] == ["ten"]
        assert (suite.limits.wall, suite.limits.retries) == (3600.0, 0)
        origins = loaded.origins
        assert origins["protocol.clients"] == "base.yaml:3:21"
        assert origins["protocol.rounds"] == "child.yaml:3:20"
        assert origins["grid.aggregator.0"] == "child.yaml:4:21"
        assert "protocol.lr" not in origins

    def test_relative_to_the_file_and_over_several_levels(self, write, base):
        write(base, "deep/er/one.yaml")
        write("extends: er/one.yaml\nprotocol: {rounds: 3}\n", "deep/two.yaml")
        suite = load_suite(write("extends: deep/two.yaml\nprotocol: {clients: 5}\n", "three.yaml")).suite
        assert (suite.protocol.clients, suite.protocol.rounds, suite.extends) == (5, 3, "deep/two.yaml")

    def test_a_mistake_in_the_base_is_placed_there(self, problems, write, base):
        write("protocol: {ruonds: 3}\n", "base.yaml")
        assert problems("extends: base.yaml\n" + base) == [
            "base.yaml:1:12: unknown key 'ruonds' (did you mean 'rounds'?) in protocol"
        ]

    def test_circle(self, problems, write):
        write("extends: s.yaml\n", "other.yaml")
        (found,) = problems("extends: other.yaml\n")
        assert found == "other.yaml:1:10: `extends` runs in a circle: s.yaml -> other.yaml -> s.yaml"
        (found,) = problems("extends: s.yaml\n")
        assert found == "s.yaml:1:10: `extends` runs in a circle: s.yaml -> s.yaml"

    def test_a_long_chain_is_one_error_with_its_place(self, problems, write, base):
        """1,200 files: the 51st extends one too many; a suite above 50 others is fine."""
        write(base, "f1199.yaml")
        for number in range(1199):
            write(f"extends: f{number + 1}.yaml\n", f"f{number}.yaml")
        (found,) = problems("extends: f0.yaml\n")
        assert found == (
            "f49.yaml:1:10: `extends` leads through more than 50 files: s.yaml -> f0.yaml -> f1.yaml -> ... -> "
            "f49.yaml -> f50.yaml"
        )
        assert load_suite(write("extends: f1150.yaml\nname: fine\n")).suite.name == "fine"

    @pytest.mark.parametrize(
        ("target", "message"),
        [
            ("bse.yaml", "suite bse.yaml does not exist (did you mean 'base.yaml'?)"),
            ("base.yaml", "base.yaml is no suite: a suite is a map of keys"),
            ("/dev/zero", "suite /dev/zero is no file"),
            ("fifo", "suite fifo is no file"),
            (".", "suite . is no file"),
            ('"a\\0b"', "suite a\\u0000b does not exist"),
            ("x" * 6000, "suite xxx"),
            ("large.yaml", "suite large.yaml is larger than 250 kB"),
        ],
    )
    def test_what_cannot_be_extended_is_one_line_at_its_place(self, write, base, target, message):
        write("just text\n", "base.yaml")
        write("# " + "x" * 250_000, "large.yaml")
        os.mkfifo("fifo")
        with pytest.raises(SuiteError) as hit:
            load_suite(write(f"extends: {target}\n" + base))
        assert str(hit.value).startswith(f"s.yaml:1:10: {message}")
        assert len(str(hit.value)) < 700


class TestOverrides:
    def test_last_wins_and_keeps_its_origin(self, load, base):
        loaded = load(base, "protocol.rounds=3", "protocol.rounds=4", "protocol.lr=1e-3", "name=other")
        assert (loaded.suite.protocol.rounds, loaded.suite.protocol.lr, loaded.suite.name) == (4, 1e-3, "other")
        assert loaded.origins["protocol.rounds"] == "-s protocol.rounds=4"
        assert loaded.origins["protocol.clients"] == "s.yaml:3:21"

    def test_values_are_yaml(self, load, base):
        suite = load(
            base, "grid.partition=[iid, {dirichlet: 0.1}]", "limits={wall: 2h}", "protocol.augment=false"
        ).suite
        assert [each.label for each in suite.grid.partition] == ["iid", "dirichlet-0.1"]
        assert (suite.limits.wall, suite.protocol.augment) == (7200.0, False)

    def test_short_forms_open_up(self, load, base):
        suite = load(base + "seeds: 3\n", "grid.backbone.0.weights=a=b.safetensors", "seeds.base=5").suite
        assert (suite.grid.backbone[0].use, suite.grid.backbone[0].options) == ("net", {"weights": "a=b.safetensors"})
        assert (suite.seeds.count, suite.seeds.base) == (3, 5)

    def test_new_sections_and_entries(self, load, base):
        suite = load(base, "runtime.threads=3", "grid.aggregator.1=mean").suite
        assert suite.runtime.threads == 3
        assert [entry.use for entry in suite.grid.aggregator] == ["mean", "mean"]

    def test_dotted_keys_of_rules(self, load, base):
        text = base + "tuned: [{where: {partition.dirichlet: 0.5}, set: {lr: 1}}]\n"
        suite = load(text, "tuned.0.where.partition.dirichlet=0.1").suite
        assert suite.tuned[0].where == {"partition.dirichlet": 0.1}

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("agregator=3", "-s agregator=3: unknown key 'agregator'"),
            ("protocol.ruonds=3", "-s protocol.ruonds=3: unknown key 'ruonds' (did you mean 'rounds'?) in protocol"),
            ("protocol.rounds=x", '-s protocol.rounds=x: protocol.rounds: "x" is not a valid integer'),
            ("grid.backbone.1.x=3", "-s grid.backbone.1.x=3: grid.backbone has no entry '1' (its entries: 0 to 0)"),
            ("grid.backbone.x=3", "-s grid.backbone.x=3: grid.backbone has no entry 'x'"),
            ("protocol.rounds.x=3", "-s protocol.rounds.x=3: protocol.rounds is 2, it has no key 'x'"),
        ],
    )
    def test_wrong_paths(self, problems, base, text, expected):
        (found,) = problems(base, text)
        assert found.startswith(expected)

    @pytest.mark.parametrize("text", ["rounds", "=3", "a..b=3", ".a=3", "a=[1", "a={b: 1, b: 2}"])
    def test_not_an_override(self, write, base, text):
        with pytest.raises(UsageError) as hit:
            load_suite(write(base), [text])
        assert not isinstance(hit.value, SuiteError)


def test_origins_are_those_of_the_suite_as_it_is_written(load, base):
    origins = load(base.replace("0.5}]", "0.5}, iid]") + "seeds: 2\n").origins
    assert origins["grid.partition.0"] == "s.yaml:7:27"
    assert origins["grid.partition.1"] == "s.yaml:7:33"
    assert origins["grid.dataset.0"] == "s.yaml:5:13"
    assert origins["seeds"] == "s.yaml:10:8"
    assert "protocol.lr" not in origins
