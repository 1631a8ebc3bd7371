import pytest

from fcilbench.errors import UsageError
from fcilbench.spec.cell import split_classes
from fcilbench.spec.identity import cell_id
from fcilbench.suite.expand import expand, missing_lines
from fcilbench.suite.load import load_suite
from fcilbench.suite.resolve import route
from fcilbench.suite.yaml import InvalidSuiteError


@pytest.fixture
def cells(lab, write):
    def make(text, *overrides):
        return expand(load_suite(write(text), overrides)).cells

    return make


def test_order_is_the_product_with_seeds_innermost(cells, base):
    found = cells(base, "seeds=2", "grid.dataset=[ten, cars]", "grid.partition=[iid, {dirichlet: 1}]")
    coords = [tuple(cell.coords.values()) for cell in found]
    assert coords == [
        (data, "net", part, agg, "clean", seed)
        for data in ("ten", "cars")
        for part in ("iid", "dirichlet-1")
        for agg in ("mean", "ring")
        for seed in (0, 1)
    ]


def test_a_cell_is_resolved_completely(cells, base):
    mean, ring = cells(base, "seeds={count: 1, base: 7, vary: [train]}", "limits={wall: 1h30m, retries: 2}")
    assert (mean.suite, mean.tasks, mean.data_fingerprint) == ("test", (2, 2, 2, 2, 2), "sha256:ten")
    assert (mean.protocol.clients, mean.protocol.rounds, mean.protocol.batch_size) == (4, 2, 16)
    assert (mean.seeds.base, mean.seeds.index, mean.seeds.vary) == (7, 0, ("train",))
    assert (mean.limits.wall_seconds, mean.limits.retries) == (5400.0, 2)
    assert ring.aggregator.name == "lab/ring"
    assert ring.aggregator.version == "3"
    assert ring.aggregator.params == {"lambda_s": 0.5, "k_pct": 0.1, "mode": "fast"}
    assert ring.aggregator.identity == {}
    assert len(ring.aggregator.code_digest) == 64


def test_equal_splits_have_equal_identity(cells, base):
    ways = ["grid.dataset.0.tasks=5", "grid.dataset.0.tasks=[2, 2, 2, 2, 2]", "name=other"]
    ids = {cell_id(cells(base, way)[0]) for way in ways}
    assert ids == {cell_id(cells(base)[0])}
    assert cell_id(cells(base, "grid.dataset.0.tasks=2")[0]) not in ids
    assert cell_id(cells(base, "grid.dataset.0.tasks=[1, 9]")[0]) not in ids


@pytest.mark.parametrize("way", ["protocol.lr=1e-4", "grid.backbone.0.width=9", "seeds={count: 1, base: 1}"])
def test_other_values_are_another_cell(cells, base, way):
    assert cell_id(cells(base, way)[0]) != cell_id(cells(base)[0])


def test_a_data_set_by_parameters_has_its_own_classes_and_digest(cells, base):
    found = cells(base, "grid.dataset=[{use: own, size: 4}, {use: own, size: 6}]", "grid.aggregator=[mean]")
    assert [(cell.tasks, cell.data_fingerprint) for cell in found] == [((4,), "sha256:4"), ((6,), "sha256:6")]
    rules = "tuned=[{where: {stress: clean}, set: {dataset.size: 8}}, {where: {seed: 1}, set: {dataset.size: 9}}]"
    found = cells(base, "grid.dataset=[{use: own}]", "grid.aggregator=[mean]", "seeds=2", rules)
    assert [cell.tasks for cell in found] == [(8,), (9,)]


@pytest.mark.parametrize(
    ("tasks", "message"),
    [("[3, 3]", "tasks [3, 3] hold 6 classes, the data set has 10"), ("11", "11 tasks do not fit")],
)
def test_splits_that_do_not_fit(problems, base, tasks, message):
    (found,) = problems(base.replace("[ten]", f"[{{use: ten, tasks: {tasks}}}]"))
    assert found.startswith("s.yaml:5:31: dataset 'ten': ")
    assert message in found


def test_labels(cells, base):
    found = cells(
        base.replace(
            "[mean, ring]", "[mean, ring, {use: ring, lambda_s: 0.2, mode: /a/b.x}, {use: ring, label: best, k_pct: 1}]"
        )
    )
    labels = [cell.aggregator.label for cell in found]
    assert labels == ["mean", "ring", "ring[lambda_s=0.2,mode=b.x]", "best"]
    found = cells(base.replace("[mean, ring]", '[ring, {use: ring, mode: "\\e[31m"}]'))
    assert found[1].aggregator.label == "ring[mode=\\u001b[31m]"


def test_split_is_part_of_a_label(cells, base):
    found = cells(base.replace("[ten]", "[{use: ten, tasks: 2}, {use: ten, tasks: [1, 9]}]"))
    assert [cell.dataset.label for cell in found][::2] == ["ten[tasks=2]", "ten[tasks=[1,9]]"]


def test_aggregator_entry_may_set_protocol_fields(cells, base):
    mean, ring = cells(base.replace("[mean, ring]", "[mean, {use: ring, lr: 0.01, lambda_s: 0.2, protocol.rounds: 9}]"))
    assert (mean.protocol.lr, mean.protocol.rounds) == (1e-5, 2)
    assert (ring.protocol.lr, ring.protocol.rounds) == (0.01, 9)
    assert ring.aggregator.params["lambda_s"] == 0.2


def test_zip_advances_axes_together(cells, base):
    text = base.replace("[ten]", "[ten, cars]").replace(
        "[net]", "[{use: net, label: a}, {use: net, label: b, width: 1}]"
    )
    found = cells(text.replace("stress: [clean]", "zip: [backbone, dataset]\n  stress: [clean]"))
    pairs = [(cell.dataset.label, cell.backbone.label, cell.aggregator.label) for cell in found]
    assert pairs == [("ten", "a", "mean"), ("ten", "a", "ring"), ("cars", "b", "mean"), ("cars", "b", "ring")]


def test_a_grid_may_not_be_endless(problems, base):
    assert problems(base + "seeds: 6000\n") == ["s.yaml:4:1: the grid has 12,000 cells, more than 10,000"]
    assert problems(base + "seeds: 60000\n") == ["s.yaml:4:1: the grid has 120,000 cells, more than 10,000"]


def test_zip_of_unequal_axes(problems, base):
    (found,) = problems(base, "grid.zip=[dataset, aggregator]")
    assert found.endswith("zipped axes must have equally many entries: dataset 1, aggregator 2")
    (found,) = problems(base, "grid.zip=[dataset]")
    assert found.endswith("grid.zip: needs 2 or more entries")


TUNED = """\
tuned:
  - {where: {aggregator: ring}, set: {lambda_s: 0.1, k_pct: 0.2, lr: 0.001}}
  - {where: {aggregator: lab/ring, partition.dirichlet: 0.05}, set: {lambda_s: 0.3}}
  - {where: {aggregator: ring, seed: 1}, set: {aggregator.lambda_s: 0.4, protocol.rounds: 7, backbone.width: 5}}
"""


def test_last_matching_rule_wins_per_key(cells, base):
    text = base.replace("[{dirichlet: 0.5}]", "[{dirichlet: 0.5}, {dirichlet: 0.05}]") + "seeds: 2\n" + TUNED
    found = [cell for cell in cells(text) if cell.aggregator.label == "ring"]
    values = [
        (
            cell.partition.label,
            cell.seeds.index,
            *cell.aggregator.params.values(),
            cell.protocol.lr,
            cell.protocol.rounds,
        )
        for cell in found
    ]
    assert values == [
        ("dirichlet-0.5", 0, 0.1, 0.2, "fast", 0.001, 2),
        ("dirichlet-0.5", 1, 0.4, 0.2, "fast", 0.001, 7),
        ("dirichlet-0.05", 0, 0.3, 0.2, "fast", 0.001, 2),
        ("dirichlet-0.05", 1, 0.4, 0.2, "fast", 0.001, 7),
    ]
    assert [cell.backbone.params["width"] for cell in found] == [8, 5, 8, 5]
    means = [cell for cell in cells(text) if cell.aggregator.label == "mean"]
    assert {cell.protocol.lr for cell in means} == {1e-5}


def test_where_on_parameters_and_lists(cells, base):
    text = base.replace("ring]", "{use: ring, lambda_s: 0.4}, {use: ring, label: other}]") + (
        "tuned:\n"
        "  - {where: {aggregator.lambda_s: 0.4}, set: {k_pct: 0.9}}\n"
        "  - {where: {aggregator: [mean, other]}, set: {lr: 0.5}}\n"
        "  - {where: {backbone.width: 8.0, protocol.clients: 4, partition: dirichlet}, set: {weight_decay: 0.25}}\n"
    )
    mean, first, second = cells(text)
    assert (first.aggregator.params["k_pct"], second.aggregator.params["k_pct"]) == (0.9, 0.1)
    assert (mean.protocol.lr, first.protocol.lr, second.protocol.lr) == (0.5, 1e-5, 0.5)
    assert {cell.protocol.weight_decay for cell in (mean, first, second)} == {0.25}


def test_a_rule_about_the_protocol_reads_the_value_of_the_entry(cells, base):
    text = base.replace("[mean, ring]", "[mean, {use: ring, protocol.rounds: 9}]")
    kept = cells(text + "exclude: [{protocol.rounds: 9, because: too long}]\n")
    assert [cell.aggregator.label for cell in kept] == ["mean"]
    mean, ring = cells(text + "tuned: [{where: {protocol.rounds: 9}, set: {lr: 0.5}}]\n")
    assert (mean.protocol.lr, ring.protocol.lr) == (1e-5, 0.5)


def test_required_parameter_may_come_from_a_rule(cells, problems, base):
    text = base.replace("[mean, ring]", "[needy]")
    assert problems(text) == ["s.yaml:8:16: aggregator 'needy': missing key 'must'"]
    (cell,) = cells(text + "tuned: [{where: {aggregator: needy}, set: {must: 4}}]\n")
    assert cell.aggregator.params == {"must": 4, "batch_size": 3}


WRONG_RULES = """\
{where: {dataset: ten}, set: {lambda_s: 0.2}} => s.yaml:10:39: unknown key 'lambda_s' (one of:
{where: {aggregator: ring}, set: {lambda_S: 0.2}} => unknown key 'lambda_S' (did you mean 'lambda_s'?)
{where: {aggregator: ring}, set: {protocol.ruonds: 2}} => unknown key 'protocol.ruonds' (did you mean 'protocol.rounds'
{where: {aggregator: ring}, set: {agregator.mode: x}} => unknown key 'agregator.mode' (did you mean 'aggregator.mode'
{where: {aggregator: ring}, set: {backbone.widht: 2}} => backbone 'net': unknown key 'widht' (did you mean 'width'
{where: {aggregator: ring}, set: {lambda_s: 2}} => aggregator 'ring': lambda_s: 2 is not less than or equal to 1
{where: {aggregator: ring}, set: {lr: -1}} => protocol.lr: -1 is not greater than 0
{where: {aggregator.lambda_S: 1}, set: {lr: 1}} => unknown condition 'aggregator.lambda_S' (did you mean 'aggregator.l
{where: {agg: x}, set: {lr: 1}} => s.yaml:10:18: unknown condition 'agg' (one of: aggregator, backbone
{where: {partition.beta: 1}, set: {lr: 1}} => s.yaml:10:18: unknown condition 'partition.beta' (did you mean 'partition.
"""


@pytest.mark.parametrize("line", WRONG_RULES.splitlines())
def test_wrong_rules(problems, base, line):
    rule, message = line.split(" => ")
    (found,) = problems(base + f"tuned: [{rule}]\n")
    assert found.startswith("s.yaml:10:")
    assert message in found


def test_ambiguous_bare_key_wants_the_dotted_form(problems, cells, base):
    text = base.replace("[mean, ring]", "[{use: needy, must: 1}]")
    (found,) = problems(text + "tuned: [{where: {aggregator: needy}, set: {batch_size: 2}}]\n")
    assert "key 'batch_size' is ambiguous: write 'aggregator.batch_size' or 'protocol.batch_size'" in found
    (cell,) = cells(text + "tuned: [{where: {aggregator: needy}, set: {protocol.batch_size: 2}}]\n")
    assert (cell.protocol.batch_size, cell.aggregator.params["batch_size"]) == (2, 3)


def test_a_rule_does_not_override_what_an_entry_says(problems, base):
    text = base.replace("ring]", "{use: ring, lambda_s: 0.2}]")
    (found,) = problems(text + "tuned: [{where: {aggregator: ring}, set: {lambda_s: 0.3}}]\n")
    assert found.startswith(
        "s.yaml:10:43: 'lambda_s' would override what 'ring' is given as grid.aggregator.1.lambda_s"
    )


def test_exclude_keeps_the_reason(lab, write, base):
    text = (
        base + "seeds: 2\nexclude: [{aggregator: ring, seed: 1, because: not run}, {stress: shift, because: never}]\n"
    )
    found = expand(load_suite(write(text)))
    assert len(found.cells) == 3
    assert found.excluded == [
        (
            {
                "dataset": "ten",
                "backbone": "net",
                "partition": "dirichlet-0.5",
                "aggregator": "ring",
                "stress": "clean",
                "seed": 1,
            },
            "not run",
        )
    ]
    assert found.axes == {"dataset": 1, "backbone": 1, "partition": 1, "aggregator": 2, "stress": 1, "seed": 2}
    (unused,) = found.unused
    assert str(unused).startswith("s.yaml:11:58: exclude.1 matches no cell: the grid has no stress 'shift'")
    assert unused.check == "rules"


def test_a_rule_shadowed_by_exclude_matches_no_cell(lab, write, base):
    text = base + (
        "exclude: [{aggregator: ring, because: not run}]\ntuned: [{where: {aggregator: rnig}, set: {lr: 1}},"
        " {where: {aggregator: ring}, set: {lr: 1}}]\n"
    )
    found = expand(load_suite(write(text))).unused
    assert [problem.message for problem in found] == [
        "tuned.0 matches no cell: the grid has no aggregator 'rnig' (did you mean 'ring'?)",
        "tuned.1 matches no cell",
    ]


def test_a_rule_names_entries_of_the_grid_only(lab, write, base):
    # The rule matches cells by its first word; the second would leave cells in that somebody meant to leave out.
    rule = "exclude: [{aggregator: [ring, rnig], partition: [dirichlet-0.5], because: not run}]\n"
    found = expand(load_suite(write(base + rule)))
    assert found.excluded
    (problem,) = found.unused
    assert problem.message == "exclude.0: the grid has no aggregator 'rnig' (did you mean 'ring'?)"
    assert problem.check == "rules"


def test_missing_weights_block_their_cells_only(lab, write, base, tmp_path):
    text = base.replace("[net]", f"[net, {{use: net, weights: {tmp_path}/w}}]")
    found = expand(load_suite(write(text)))
    assert (len(found.cells), len(found.blocked)) == (2, 2)
    assert missing_lines(found.blocked) == [f"s.yaml:6:19: weights {tmp_path}/w are missing (fetch them)"]
    (tmp_path / "w").write_text("content")
    found = expand(load_suite("s.yaml"))
    assert (len(found.cells), found.blocked) == (4, [])
    assert found.cells[2].backbone.identity["weights"] == "content"
    assert found.cells[2].backbone.params["weights"] == f"{tmp_path}/w"


def test_broken_plugin_blocks_its_cells_only(lab, install, write, base):
    install("bad", {"bad_plugin.py": "import no_such_thing"}, {"aggregators": {"bad": "bad_plugin:Bad"}})
    found = expand(load_suite(write(base.replace("ring]", "{use: bad, lambda: 1}]"))))
    assert [cell.aggregator.label for cell in found.cells] == ["mean"]
    assert found.blocked[0].coords["aggregator"] == "bad"
    (missing,) = missing_lines(found.blocked)
    assert missing.startswith("s.yaml:8:22: plugin bad/bad is broken: ModuleNotFoundError: No module named 'no_such")


def test_names_keys_and_boards_are_reported_together(problems, base):
    text = base.replace("[ten]", "[tenn]").replace("[mean, ring]", "[maen, {use: ring, lambda_S: x}]")
    assert problems(text + "boards: [acuracy]\n") == [
        "s.yaml:5:13: unknown dataset 'tenn' (did you mean 'ten'?)",
        "s.yaml:8:16: unknown aggregator 'maen' (did you mean 'mean'?)",
        "s.yaml:8:34: aggregator 'ring': unknown key 'lambda_S' (did you mean 'lambda_s'?)",
        "s.yaml:10:10: unknown board 'acuracy' (did you mean 'accuracy'?)",
    ]


def test_wrong_values_of_several_plugins_are_reported_together(problems, base):
    text = base.replace("[net]", "[{use: net, widht: 3}]").replace("ring]", "{use: ring, k_pct: x}]")
    assert problems(text) == [
        "s.yaml:6:25: backbone 'net': unknown key 'widht' (did you mean 'width'?)",
        "s.yaml:8:41: aggregator 'ring': k_pct: \"x\" is not a valid number",
    ]


def test_one_experiment_twice_is_refused(problems, base):
    (found,) = problems(base.replace("ring]", "ring, {use: ring, lambda_s: 0.5}]"))
    assert found == "s.yaml:8:28: aggregator 'ring[lambda_s=0.5]' is the same experiment as aggregator 'ring'"
    (found,) = problems(base.replace("ring]", "mean]"))
    assert found == "s.yaml:8:22: grid.aggregator.1 and grid.aggregator.0 are both 'mean'"
    (found,) = problems(base.replace("[{dirichlet: 0.5}]", "[iid, {kind: iid}]"))
    assert found == "s.yaml:7:20: grid.partition.1 and grid.partition.0 are both 'iid'"


def test_a_backbone_that_does_not_read_the_data_is_refused_with_the_rule_that_leaves_it_out(lab, write, base, cells):
    mixed = base.replace("[net]", "[net, reader]")
    with pytest.raises(InvalidSuiteError) as refused:
        cells(mixed)
    (found,) = refused.value.problems
    assert str(found) == "s.yaml:6:19: backbone 'reader' reads texts and arrays, and dataset 'ten' has images"
    rule = "{dataset: ten, backbone: reader, because: it does not read them}"
    assert found.hint.startswith(f"leave the pair out with a line under `exclude`: - {rule}; or ")
    assert found.check == "inputs"
    assert len(cells(f"{mixed}exclude:\n  - {rule}\n")) == 2


def test_arrays_of_another_shape_are_refused(problems, base, cells):
    waves = base.replace("[net]", "[reader]").replace("[ten]", "[waves]")
    assert len(cells(waves)) == 2
    (found,) = problems(waves.replace("[waves]", "[{use: waves, steps: 31}]"))
    assert "backbone 'reader' reads arrays of shape [2, 30], and dataset 'waves" in found
    assert "has [2, 31]" in found


def test_rules_of_a_shared_file_need_not_match_every_suite(lab, write, base):
    write("tuned: [{where: {aggregator: other}, set: {lr: 1}}]\n", "shared.yaml")
    found = expand(load_suite(write(base + "extends: shared.yaml\n")))
    assert found.unused == []


def test_edge_11_too_few_declared_samples_are_told_before_anything_runs(problems, base):
    few = ("grid.dataset=[ten]", "grid.partition=[{quantity: 1, min_samples: 100000}]")
    (found,) = problems(base, *few)
    assert "dataset 'ten': 1000 samples do not give each client 100000 of each task" in found


def test_an_option_that_another_one_excludes_is_told_at_the_entry_that_sets_it(problems, base):
    (found,) = problems(base.replace("ring]", "{use: ring, momentum: 0.9}]"))
    assert found.startswith("s.yaml:8:44: protocol.momentum has no effect on adamw")


TARGETS = """\
lambda_s => aggregator lambda_s
lr => protocol lr
protocol.rounds => protocol rounds
aggregator.rounds => aggregator rounds
protocol.batch_size => protocol batch_size
backbone.anything => backbone anything
dataset.train_per_class => dataset train_per_class
stress.clients => stress clients
"""
UNKNOWN = """\
rounds => ambiguous: write 'aggregator.rounds' or 'protocol.rounds'
lamda_s => unknown key 'lamda_s' (did you mean 'lambda_s'?)
aggregator.lr => unknown key 'aggregator.lr' (did you mean 'aggregator.
protocol.lambda_s => unknown key 'protocol.lambda_s'
partition.value => unknown key 'partition.value'
protocl.lr => unknown key 'protocl.lr' (did you mean 'protocol.lr'?)
"""


@pytest.mark.parametrize("line", TARGETS.splitlines())
def test_route(line):
    key, target = line.split(" => ")
    assert route(key, ["lambda_s", "rounds"]) == tuple(target.split())


@pytest.mark.parametrize("line", UNKNOWN.splitlines())
def test_keys_that_nothing_has(line):
    key, message = line.split(" => ")
    with pytest.raises(ValueError, match="key") as hit:
        route(key, ["lambda_s", "rounds"])
    assert message in str(hit.value)


def test_split_by_hand():
    assert split_classes(None, 10, 2) == (5, 5)
    assert split_classes(None, 10, [3, 7]) == (3, 7)
    assert split_classes(10, 100, 5) == (10,) * 10
    assert split_classes([20] * 9 + [16], 196, 1) == (*[20] * 9, 16)
    assert split_classes(1, 3, 3) == (3,)


@pytest.mark.parametrize("count", [2, 3, 7, 10, 99])
def test_the_proposed_split_is_valid(count):
    with pytest.raises(UsageError, match="list them: tasks: ") as hit:
        split_classes(count, 101, 1)
    proposal = [int(word) for word in str(hit.value).rpartition("[")[2].rstrip("]").split(", ")]
    assert len(split_classes(proposal, 101, 1)) == count
    assert max(proposal) - min(proposal) <= 1
