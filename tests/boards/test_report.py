"""The HTML report; in a real browser where there is one."""

from __future__ import annotations

import base64
import gzip
import json
import re
import shutil
from random import Random

import pytest

from fcilbench.boards.build import AccuracyBoard, OverheadBoard
from fcilbench.boards.report import render_report
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
    rows = list(stored.latest().values())
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
    for row in rows:
        losses = ({"task": n // 5, "round": n % 5, "rounds": 5, "loss": random.random()} for n in range(50))
        events = ({"event": "round", **each} for each in losses)
        write_atomic(store.cell_dir(row.cell_id) / "rounds.jsonl", "\n".join(map(json.dumps, events)), durable=False)
    boards = [AccuracyBoard().build(rows), OverheadBoard().build(rows)]
    assert 500_000 < len(render_report(boards, rows, store).encode()) < 2_000_000


@pytest.fixture
def browse(tmp_path):
    """Returns a function that opens a report in a browser of some width; no script may have failed by the end."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("needs chromium")
    errors = []
    with playwright.sync_playwright() as driver:
        window = driver.chromium.launch(executable_path=browser, args=["--no-sandbox"])

        def visit(report, width):
            path = tmp_path / "report.html"
            path.write_text(report, encoding="utf-8")
            page = window.new_page(viewport={"width": width, "height": 800})
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.goto(path.as_uri())
            return page

        yield visit
        window.close()
    assert errors == []


@pytest.mark.parametrize("width", [1300, 390])
def test_in_a_browser_it_sorts_filters_and_opens_cells_by_keyboard(report, browse, width):
    page = browse(report, width)
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


def test_in_a_browser_accuracy_is_drawn_against_a_hyperparameter(tmp_path, make_cell, make_row, browse):
    """Three values of lambda_s, two seeds each, and a method without a parameter; a point opens its cells."""
    store = Store(tmp_path / "results")
    for seed in range(2):
        for value in (0.4, 0.05, 1.0):
            cell = make_cell("sum", seed, lambda_s=value, evaluate=("none",))
            store.append(make_row(cell, {}, accuracy={"none": [[0.5], [0.5, 0.3 + value / 10 + 0.1 * seed]]}))
        store.append(
            make_row(make_cell("fedavg", seed, evaluate=("none",)), {}, accuracy={"none": [[0.5], [0.5, 0.4]]})
        )
    rows = list(store.latest().values())
    page = browse(render_report([AccuracyBoard().build(rows)], rows, store), 390)
    page.locator("summary", has_text="learning curves, sensitivity").click()
    chart = page.locator("figure", has_text="none: accuracy against sum: lambda_s")
    points = chart.locator("[role=button]")
    points.nth(2).wait_for()  # it is drawn when the section is opened
    # FAA (0.5 + 0.3 + lambda / 10 + 0 or 0.1) / 2, so 0.425 + lambda / 20 with s = 0.05 / sqrt 2; t = 12.706: ± 31.8.
    labels = [points.nth(number).get_attribute("aria-label").partition(": ")[2] for number in range(points.count())]
    assert labels == ["42.8 ± 31.8 %, 0.05", "44.5 ± 31.8 %, 0.4", "47.5 ± 31.8 %, 1"]
    points.nth(1).focus()
    page.keyboard.press("Enter")
    assert page.locator("dialog h3").count() == 2
    assert page.locator("dialog dd", has_text=re.compile(r"^0\.4$")).count() == 2  # lambda_s among the parameters
