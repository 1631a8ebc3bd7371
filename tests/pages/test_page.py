"""The page of a board without a browser: what it holds, what it says, its size, and that it is the same every time."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from decimal import ROUND_HALF_EVEN, Decimal
from importlib.resources import files
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from fcilbench.boards.build import AccuracyBoard, OverheadBoard, RobustnessBoard
from fcilbench.boards.model import Block
from fcilbench.files import write_atomic
from fcilbench.pages.cite import AUTHORS, SOFTWARE, bibtex
from fcilbench.pages.finding import found_in, sentence
from fcilbench.pages.index import findings_of
from fcilbench.pages.pack import MODULES, packed, unpacked
from fcilbench.pages.papers import paper_of
from fcilbench.pages.places import places_of
from fcilbench.pages.report import Beside, render_report, site_code
from fcilbench.pages.tables import scenario_table
from fcilbench.pages.versus import fair_control, versus
from fcilbench.results.store import Store

ROOT = Path(__file__).parents[2]
MATRIX = [[0.9], [0.6, 0.8]]
HOSTILE = "</script><b>x"


@pytest.fixture
def stored(tmp_path, make_cell, make_row):
    """A folder with two methods and a control, three seeds each, and matrices; one label tries to end the script."""
    store = Store(tmp_path / "results")
    for number, method in enumerate(("fedavg", HOSTILE, "ncm")):
        for seed in range(3):
            matrix = [[value - 0.01 * seed - 0.1 * number for value in line] for line in MATRIX]
            store.append(make_row(make_cell(method, seed, evaluate=("none",)), {}, accuracy={"none": matrix}))
    return store


def boards_of(rows):
    built = [board().build(rows) for board in (AccuracyBoard, OverheadBoard, RobustnessBoard)]
    return [board for board in built if board.blocks]


def made(store, **options):
    rows = list(store.latest().values())
    return render_report(boards_of(rows), rows, store, **options)


def data_of(page):
    return json.loads(unpacked(re.search(r'id="data">([^<]*)<', page).group(1)))


def records(columns):
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def test_a_report_is_one_file_with_every_cell(stored):
    page = made(stored)
    assert re.findall(r'(?:src|href)="(?!#)([^"]*)"', page) == []
    data = data_of(page)
    cells = records(data["cells"])
    assert len(cells) == 9
    assert len(data["params"]) == 1  # which all of them share
    assert cells[0]["matrix"]["none"] == [["90.00"], ["60.00", "80.00"]]
    assert ["seeds", "order 11, partition 12, train 13"] in cells[0]["about"]
    names = data["names"]["metrics"]
    # (0.6 + 0.8) / 2, and forgetting 0.9 - 0.6
    assert dict(zip(names, cells[0]["metrics"], strict=False)).items() >= {
        ("faa/none", "70.00"),
        ("forgetting/none", "30.00"),
    }


def test_no_label_ends_a_script_and_only_named_scripts_run(stored):
    page = made(stored)
    assert page.count("</script>") == 3  # the data, the packed code, and what unpacks it
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    packed_code = re.search(r'id="code">([^<]*)<', page).group(1)
    digests = [
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (*scripts, unpacked(packed_code))
    ]
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page).group(1).replace("&#39;", "'")
    allowed = re.search(r"script-src ([^;]*)", policy).group(1)
    assert allowed == " ".join(f"'sha256-{each}'" for each in digests)
    assert policy.startswith("default-src 'none';")
    assert unpacked(packed_code) == site_code()


def test_a_page_of_a_site_names_one_file_of_code(stored):
    page = made(stored, beside=Beside("about", (("Rows", "rows.jsonl"),), "leaderboards/x"))
    assert re.findall(r'(?:src|href)="(?!#)([^"]*)"', page) == ["../charts.js", "rows.jsonl", "README.md"]
    assert "script-src &#39;self&#39;;" in page
    assert data_of(page)["source"] == "leaderboards/x"


def test_two_builds_are_equal_and_the_order_of_rows_does_not_matter_to_figures(stored):
    assert made(stored) == made(stored)
    rows = list(stored.latest().values())
    one = data_of(render_report(boards_of(rows), rows, stored))
    other = data_of(render_report(boards_of(rows[::-1]), rows[::-1], stored))
    assert {key: one[key] for key in ("views", "tables", "findings")} == {
        key: other[key] for key in ("views", "tables", "findings")
    }


@given(st.text())
def test_what_is_packed_comes_back_and_is_no_markup(text):
    try:
        text.encode()
    except UnicodeEncodeError:
        return
    assert unpacked(packed(text)) == text
    assert not set("<>&\"'") & set(packed(text))


def test_the_files_of_the_code_share_no_name():
    """They are joined into one scope, where the second of two functions of a name would replace the first."""
    room = files("fcilbench.pages")
    texts = {name: room.joinpath(f"{name}.js").read_text() for name in MODULES}
    declared = re.compile(r"^(?:export )?(?:async )?(?:function|const|let|class) ([\w$]+)", re.MULTILINE)
    names = [each for text in texts.values() for each in declared.findall(text)]
    assert sorted(names) == sorted(set(names))
    place = {name: number for number, name in enumerate(MODULES)}
    for name, text in texts.items():
        imported = re.findall(r'^import \{([^}]*)\} from "\./(\w+)\.js";$', text, re.MULTILINE)
        assert text.count("import ") == len(imported)
        assert all(place[other] < place[name] for _, other in imported)
        for wanted, other in imported:
            exported = re.findall(r"^export (?:async )?(?:function|const|let) ([\w$]+)", texts[other], re.MULTILINE)
            assert {each.strip() for each in wanted.split(",")} <= set(exported)


def test_descriptions_are_of_the_schema_and_compile(stored):
    """With their data in them; what a page changes of them (slots) is as the data have it at first."""
    import altair
    import vl_convert

    data = data_of(made(stored))
    drawn = [view[kind] for view in data["views"].values() for kind in ("forest", "bytes")] + [*data["curves"].values()]
    for each in {one["chart"]: one for one in drawn}.values():
        description = {**data["charts"][each["chart"]], "$schema": altair.SCHEMA_URL}
        description["datasets"] = {name: records(columns) for name, columns in each["data"].items()}
        altair.LayerChart.from_dict(description)
        assert vl_convert.vegalite_to_vega(description)["marks"]
    assert "fedavg" not in json.dumps(data["charts"])


def test_the_largest_committed_report_takes_less_than_600_kilobytes():
    store = Store(ROOT / "leaderboards" / "small-tuned")
    page = made(store, title="small-tuned")
    assert len(data_of(page)["cells"]["id"]) == 276
    assert 400_000 < len(page.encode()) < 600_000


@pytest.mark.slow
def test_a_thousand_cells_take_less_than_two_megabytes(tmp_path, make_cell, make_row):
    """Ten tasks, three identities, 31 scenarios and 50 rounds a cell, as in the paper; one method logs much."""
    identities = ("none", "inferred", "oracle")
    random = Random(0)
    store = Store(tmp_path / "results")
    rows = []
    for number in range(1000):
        protocol = {"rounds": 2 + number // 33}
        cell = make_cell(f"method-{number // 3 % 11}", number % 3, evaluate=identities, protocol=protocol)
        matrices = {key: [[random.random() for _ in range(t + 1)] for t in range(10)] for key in identities}
        rows.append(make_row(cell, {}, accuracy=matrices).model_copy(update={"test_sizes": [10] * 10}))
    for row in rows:
        logged = [f"sum/cosine_{number}" for number in range(8)] if row.coords["aggregator"] == "method-0" else []
        events = [
            {"event": "round", "task": n // 5, "round": n % 5, "rounds": 5, "loss": random.random()}
            | {"logs": {name: random.random() for name in logged}}
            for n in range(50)
        ]
        write_atomic(store.cell_dir(row.cell_id) / "rounds.jsonl", "\n".join(map(json.dumps, events)), durable=False)
    page = render_report([AccuracyBoard().build(rows), OverheadBoard().build(rows)], rows, store)
    assert len({place["name"] for place in data_of(page)["places"]}) == 31
    assert 500_000 < len(page.encode()) < 2_000_000
    logs = data_of(page)["cells"]["logs"]
    assert [len(own) for own in logs[:4]] == [8, 8, 8, 0]
    assert [step for step, _ in logs[0]["sum/cosine_7"]] == [*range(1, 51)]


def faa(make_cell, make_row, values):
    """Rows of methods with a FAA for each seed."""
    return [
        make_row(make_cell(method, seed, evaluate=("none",)), {"faa/none": value})
        for method, own in values.items()
        for seed, value in enumerate(own)
    ]


def test_the_finding_is_computed_from_means_and_paired_tests(make_cell, make_row):
    """sum is 10.00, 10.50 and 9.50 points above ncm: s 0.5, t = 10 / (0.5 / sqrt 3) = 34.6, p 0.0008, times 3 by Holm.

    fedavg is 20, -5 and 0 above: mean 5, s = sqrt(350 / 2 ... ) > 13, t < 1.
    """
    values = {"ncm": [0.5, 0.5, 0.5], "sum": [0.6, 0.605, 0.595], "fedavg": [0.7, 0.45, 0.5]}
    rows = faa(make_cell, make_row, values)
    (block,) = AccuracyBoard().build(rows).blocks
    column = block.groups[0].columns[0]
    found = found_in(block, "digits", "none", column)
    assert (found.above, found.told, found.control) == (("sum", "fedavg"), ("sum",), ("ncm", "50.00"))
    lead, rest = sentence([found], "none", "none", column)
    assert lead == "2 of 2 methods are above the best control, and the seeds tell it of 1"
    # 4.302653 * 0.5 / sqrt 3
    assert rest == " in FAA without task identity: digits ncm 50.00 against sum 60.00\u00a0±\u00a01.24 %."
    several = sentence([found, found], "none", "dropout", column)
    assert several[0] == "In 2 of 2 scenarios a method is above the best control, and in 2 of them the seeds tell it"
    assert ", under dropout:" in several[1]
    worse = faa(make_cell, make_row, {"ncm": [0.9] * 3, "sum": [0.8, 0.7, 0.6]})
    (block,) = AccuracyBoard().build(worse).blocks
    assert sentence([found_in(block, "d", "none", column)], "none", "none", column)[0] == (
        "No method is above the best control"
    )
    without = faa(make_cell, make_row, {"fedavg": [0.5] * 3, "sum": [0.8, 0.7, 0.6]})
    (block,) = AccuracyBoard().build(without).blocks
    told = sentence([found_in(block, "d", "none", column)], "none", "none", column)
    assert told == ("Highest FAA", " without task identity: d sum 70.00\u00a0±\u00a024.84 %.")
    level = faa(
        make_cell, make_row, {"fedavg": [0.5] * 3, "ncm": [0.2] * 3, "ewc": [0.4, 0.6, 0.5], "sum": [0.3, 0.7, 0.5]}
    )
    (block,) = AccuracyBoard().build(level).blocks
    told = sentence([found_in(block, "d", "none", column)], "none", "none", column)[1]
    assert re.search(r": d ncm 20.00 against \w+, level with \w+ and \w+, 50.00", told)
    assert sentence([], "none", "none", column) == ("Nothing was measured for this choice.", "")


def test_the_seeds_tell_nothing_of_two_methods_that_are_equal_in_all_of_them(make_cell, make_row):
    """Class means and another rule without training: no test says which is better."""
    (block,) = AccuracyBoard().build(faa(make_cell, make_row, {"ncm": [0.5] * 3, "fedavg": [0.9] * 3})).blocks
    column = block.groups[0].columns[0]
    lead, _ = sentence([found_in(block, "digits", "none", column)], "none", "none", column)
    assert lead == "fedavg is above the best control, and the seeds do not tell it"


def test_a_method_with_fewer_seeds_than_others_makes_no_headline(make_cell, make_row):
    values = {"ncm": [0.5, 0.52, 0.51], "sum": [0.4, 0.42, 0.41], "fedavg": [0.9]}
    (block,) = AccuracyBoard().build(faa(make_cell, make_row, values)).blocks
    found = found_in(block, "digits", "none", block.groups[0].columns[0])
    assert (found.above, found.method[0]) == ((), "sum")


def test_stressed_cells_stand_beside_the_clean_ones_of_their_version(make_cell, make_row):
    """Version 2 of a data set was trained under stress, version 1 was not."""

    def row(version, stress):
        cell = make_cell("sum", 0, stress=stress)
        return make_row(
            cell.model_copy(update={"dataset": cell.dataset.model_copy(update={"version": version})}), {"faa/none": 0.5}
        )

    board = AccuracyBoard().build([row("1", "none"), row("2", "none"), row("2", "dropout")])
    assert sorted(sorted(place.blocks) for place in places_of(board)) == [["dropout", "none"], ["none"]]


def test_head_to_head_has_the_paired_difference_and_the_boards_own_test(make_cell, make_row):
    values = {"ncm": [0.5, 0.5, 0.5], "sum": [0.62, 0.60, 0.64], "fedavg": [0.6, 0.55, 0.5]}
    (block,) = AccuracyBoard().build(faa(make_cell, make_row, values)).blocks
    found = versus(block, block.groups[0])
    assert found["methods"] == ["sum", "fedavg", "ncm"]
    p_values = {(pair.first, pair.second): f"{pair.p:.3f}" for pair in block.tests["none"]}
    # 0.02, 0.05, 0.14: mean 7, s = sqrt((25 + 4 + 49) / 2) = 6.244998, 4.302653 * s / sqrt 3 = 15.5135
    assert found["pairs"][0] == ["+7.00 ± 15.51", p_values["sum", "fedavg"], False]
    # 0.12, 0.10, 0.14: mean 12, s 2, 4.302653 * 2 / sqrt 3; t = 10.39, p = 0.0091, times 3 by Holm
    assert found["pairs"][1] == ["+12.00 ± 4.97", p_values["sum", "ncm"], True]
    assert p_values["sum", "ncm"] == "0.027"
    assert (found["tests"], found["untested"], found["higher"]) == (3, [], True)


def test_a_difference_of_zero_has_no_sign(make_cell, make_row):
    """0.1 + 0.2 - 0.3 is not 0: what rounding alone tells apart is level."""
    rows = faa(make_cell, make_row, {"sum": [0.1 + 0.2] * 3, "fedavg": [0.3] * 3})
    (block,) = AccuracyBoard().build(rows).blocks
    assert versus(block, block.groups[0])["pairs"] == [["0.00", "", False]]


def test_figures_have_the_paired_difference_to_the_fair_control_under_their_identity(make_cell, make_row):
    told = {"sum": [0.62, 0.60, 0.64], "fedavg": [0.60, 0.55, 0.50], "ncm": [0.5] * 3}
    rows = [
        make_row(make_cell(method, seed), {"faa/none": 0.5, "faa/oracle": value})
        for method, values in told.items()
        for seed, value in enumerate(values)
    ]
    (block,) = AccuracyBoard().build(rows).blocks
    assert fair_control(block).aggregator == "fedavg"  # class means are a control without task identity, too
    below = [
        {row["method"]: row["cells"][0][3] for row in scenario_table(block, group, {})["rows"]}
        for group in block.groups
    ]
    assert below[0] == {"sum": "0.00", "fedavg": "", "ncm": "0.00"}
    # 0.02, 0.05, 0.14, as above; and -0.10, -0.05, 0: half width 4.302653 * 0.05 / sqrt 3
    assert below[1] == {"sum": "+7.00 ± 15.51", "fedavg": "", "ncm": "-5.00 ± 12.42"}


def test_places_are_named_by_what_tells_them_apart(make_cell, make_row):
    def block(facts, **labels):
        scenario = {"dataset": "a", "backbone": "b", "partition": "p", "stress": "none", **labels}
        return Block(scenario=scenario, digest="", facts={"protocol.rounds": "2", **facts}, groups=(), entries=())

    def names(*blocks):
        board = AccuracyBoard().build([]).model_copy(update={"blocks": blocks})
        return [(place.name, place.about) for place in places_of(board)]

    assert names(block({}), block({}, dataset="c")) == [("a", "b, p"), ("c", "b, p")]
    assert names(block({}), block({}, backbone="d")) == [("a / b", "p"), ("a / d", "p")]
    assert names(block({}), block({"protocol.rounds": "5"})) == [("a (rounds 2)", "b, p"), ("a (rounds 5)", "b, p")]
    assert names(block({}), block({})) == [("a", "b, p"), ("a #2", "b, p")]
    stressed = places_of(
        AccuracyBoard().build([]).model_copy(update={"blocks": (block({}), block({}, stress="dropout"))})
    )
    assert [list(place.blocks) for place in stressed] == [["none", "dropout"]]


def test_the_index_answers_each_question(make_cell, make_row):
    rows = [
        make_row(make_cell(method, seed, stress=stress), {"faa/none": value, "faa/oracle": value})
        for method, value in (("sum", 0.5), ("ncm", 0.4))
        for seed in range(3)
        for stress in ("none", "dropout")
    ]
    found = findings_of(AccuracyBoard().build(rows))
    assert [(each.key, each.address) for each in found] == [
        ("none", "#"),
        ("oracle", "#task=oracle"),
        ("stress dropout", "#stress=dropout"),
    ]
    assert found[0].lead.startswith("sum is above the best control")


def test_tables_have_the_digits_of_the_board():
    """Of the committed quick start, by decimal numbers."""
    store = Store(ROOT / "leaderboards" / "quickstart")
    rows = list(store.latest().values())
    boards = boards_of(rows)
    data = data_of(render_report(boards, rows, store))
    (block,) = boards[0].blocks
    for number, group in enumerate(block.groups):
        table = data["tables"][f"0.{number}"]
        shown = {row["method"]: [cell[0] for cell in row["cells"]] for row in table["rows"]}
        for entry in block.entries:
            for place, column in enumerate(group.columns):
                found = entry.estimates[group.key][column.metric]
                if found.mean is not None:
                    text = Decimal(100 * found.mean).quantize(Decimal("0.01"), ROUND_HALF_EVEN)
                    assert shown[entry.aggregator][place].split(" ")[0] == str(text)
                else:
                    assert shown[entry.aggregator][place] == "–"


def test_papers_are_those_of_built_ins_alone():
    assert paper_of("fcilbench/fedavg") == ("McMahan et al. 2017, AISTATS", "https://arxiv.org/abs/1602.05629")
    assert paper_of("fcilbench/ncm").address == ""
    assert paper_of("acme/fedavg") is None


def test_the_citation_is_that_of_the_repository(make_cell, make_row):
    read = YAML(typ="safe").load((ROOT / "CITATION.cff").read_text())
    assert (read["title"], read["authors"]) == (SOFTWARE, [{"name": AUTHORS}])
    text = bibtex("a & {b}", "50 % of it", [make_row(make_cell("sum"), {"faa/none": 0.5})])
    assert text.startswith("@misc{fcilbench-board-a-b,\n  title = {{a \\& \\{b\\}: a board of fcilbench}},\n")
    assert "  year = {2026},\n  month = jan,\n  note = {50 \\% of it; 1 cells of demo},\n" in text
    assert f"  version = {{{read['version']}}},\n" in text
