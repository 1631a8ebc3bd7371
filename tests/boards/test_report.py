"""The HTML report and the figures; in a real browser where there is one."""

from __future__ import annotations

import base64
import gzip
import json
import re
import shutil
from random import Random

import pytest

from fcilbench.boards.build import AccuracyBoard, OverheadBoard
from fcilbench.boards.figures import FIGURES, draw
from fcilbench.boards.report import render_report
from fcilbench.errors import NothingSelectedError, UsageError
from fcilbench.files import write_atomic
from fcilbench.results.store import Store

MATRIX = [[0.9], [0.6, 0.8]]


@pytest.fixture
def stored(tmp_path, make_cell, make_row):
    """A folder with two methods, three seeds each, and matrices; one label tries to end the script."""
    store = Store(tmp_path / "results")
    for number, method in enumerate(("fedavg", "</script><b>x")):
        for seed in range(3):
            matrix = [[value - 0.01 * seed - 0.1 * number for value in line] for line in MATRIX]
            cell = make_cell(method, seed, evaluate=("none",))
            store.append(make_row(cell, {"faa/none": 0.7}, accuracy={"none": matrix}))
    return store


@pytest.fixture
def report(stored):
    rows = list(stored.latest_light(("faa", "aia", "forgetting")).values())
    return render_report([AccuracyBoard().build(rows), OverheadBoard().build(rows)], rows, stored)


def test_it_is_one_file_with_every_cell_and_no_label_ends_the_script(report):
    assert not re.findall(r"(?:src|href)=\"(?!#)", report)
    assert report.count("</script>") == 1
    data = json.loads(gzip.decompress(base64.b64decode(re.search(r'atob\("([^"]*)"', report).group(1))))
    assert len(data["cells"]) == 6
    assert len(data["params"]) == 1  # which all of them share
    assert data["cells"][0]["matrix"]["none"] == MATRIX
    assert data["cells"][0]["seeds"] == {"order": "11", "partition": "12", "train": "13"}


def test_a_thousand_cells_take_less_than_two_megabytes(tmp_path, make_cell, make_row):
    """Ten tasks, three identities and 50 rounds a cell, as in the paper's protocol."""
    identities = ("none", "inferred", "oracle")
    random = Random(0)
    store = Store(tmp_path / "results")
    rows = []
    for number in range(1000):
        protocol = {"rounds": 2 + number // 33}
        cell = make_cell(f"method-{number // 3 % 11}", number % 3, evaluate=identities, protocol=protocol)
        metrics = {f"{name}/{key}": 0.5 for key in identities for name in ("faa", "aia", "forgetting")}
        matrices = {key: [[random.random() for _ in range(t + 1)] for t in range(10)] for key in identities}
        rows.append(make_row(cell, metrics, accuracy=matrices))
    store.extend(rows)
    for row in rows:
        events = ({"event": "round", "loss": random.random()} for _ in range(50))
        write_atomic(store.cell_dir(row.cell_id) / "rounds.jsonl", "\n".join(map(json.dumps, events)))
    boards = [AccuracyBoard().build(rows), OverheadBoard().build(rows)]
    assert 500_000 < len(render_report(boards, rows, store).encode()) < 2_000_000


@pytest.mark.parametrize("width", [1300, 390])
def test_in_a_browser_it_sorts_filters_and_opens_cells_by_keyboard(report, tmp_path, width):
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("needs chromium")
    path = tmp_path / "report.html"
    path.write_text(report, encoding="utf-8")
    with playwright.sync_playwright() as driver:
        window = driver.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        page = window.new_page(viewport={"width": width, "height": 800})
        errors = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(path.as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= width  # only tables scroll sideways
        first = page.locator("#accuracy tbody tr td:first-child").first
        head = page.locator("#accuracy th button", has_text="FAA").first
        head.click()
        assert first.inner_text() == "fedavg"  # the better one: 0.69 against 0.59
        head.click()
        assert first.inner_text() == "</script><b>x"
        page.locator("#filter").fill("fedavg")
        assert page.locator("#accuracy tbody tr:visible").count() == 1
        page.locator("#accuracy td button:visible").first.focus()
        page.keyboard.press("Enter")
        assert page.locator("dialog h3").count() == 3  # three seeds
        assert "order 11, partition 12, train 13" in page.locator("dialog dl").first.inner_text()
        page.keyboard.press("Escape")
        assert not page.locator("dialog").is_visible()
        page.locator("details[data-charts] summary").first.click()
        page.locator("details[data-charts] svg[role=img]").nth(1).wait_for()
        window.close()
    assert errors == []


def test_figures_are_drawn_and_say_what_they_need(stored, tmp_path):
    rows = list(stored.latest().values())
    board = AccuracyBoard().build(rows)
    for name in ("curves", "critical-difference"):
        draw(name, board, rows, "none", tmp_path / f"{name}.svg")
    text = (tmp_path / "critical-difference.svg").read_text()
    # fedavg leads in each of three seeds: ranks 1 and 2, CD = 1.960 sqrt(2 * 3 / (6 * 3)) = 1.13, one tie group
    assert all(part in text for part in ("fedavg 1.00", "2.00", "critical difference 1.13"))
    with pytest.raises(UsageError, match="shows one method"):
        draw("forgetting", board, rows, "none", tmp_path / "f.svg")
    one = [row for row in rows if row.coords["aggregator"] == "fedavg"]
    draw("forgetting", AccuracyBoard().build(one), one, "none", tmp_path / "f.png")
    with pytest.raises(NothingSelectedError, match="no ranks under none"):
        draw("critical-difference", AccuracyBoard().build(one), one, "none", tmp_path / "f.svg")
    with pytest.raises(UsageError, match=r"no figure is written to '.gif'"):
        draw("curves", board, rows, "none", tmp_path / "f.gif")
    assert set(FIGURES) == {"curves", "forgetting", "critical-difference"}
