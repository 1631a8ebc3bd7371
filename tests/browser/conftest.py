"""Pages in a real browser: the system's Chromium, driven by Playwright. Without either these tests are skipped."""

from __future__ import annotations

import functools
import shutil
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fcilbench.boards.build import AccuracyBoard, OverheadBoard, RobustnessBoard
from fcilbench.pages.index import line_of, render_index
from fcilbench.pages.report import Beside, render_report, site_code
from fcilbench.results.store import Store

LEADERBOARDS = Path(__file__).parents[2] / "leaderboards"
ARGUMENTS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
]
HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(1)</script>",
    "{{ 7*7 }} ${7*7} datum.x || true",
    "=1+1, \"quoted\" & 'more'",
    "constructor",
    "m" * 70,
)
"""Labels of methods that a stranger's rows may have."""


@pytest.fixture(scope="session")
def chromium():
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright (pip install playwright)")
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.skip("needs Chromium (apt-get install chromium)")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()


def boards_of(rows):
    built = [board().build(rows) for board in (AccuracyBoard, OverheadBoard, RobustnessBoard)]
    return [board for board in built if board.blocks]


@pytest.fixture(scope="session")
def tuned():
    """The largest committed board: its folder, rows and boards."""
    store = Store(LEADERBOARDS / "small-tuned")
    rows = list(store.latest().values())
    return store, rows, boards_of(rows)


@pytest.fixture(scope="session")
def hostile():
    """The rows of the quick start under labels that are not kind."""
    store = Store(LEADERBOARDS / "quickstart")
    names = iter(HOSTILE)
    labels, rows = {}, []
    for row in store.latest().values():
        own = row.coords["aggregator"]
        if own not in labels:
            labels[own] = next(names)
        rows.append(row.model_copy(update={"coords": {**row.coords, "aggregator": labels[own]}}))
    extra = [row for row in rows if row.coords["aggregator"] == HOSTILE[0]]
    for label in names:  # two methods more than the quick start has
        for row in extra:
            options = {**row.plugins["aggregator"].identity, "weighting": label}
            plugins = {**row.plugins, "aggregator": row.plugins["aggregator"].model_copy(update={"identity": options})}
            cell_id = f"{len(rows):064x}"
            coords = {**row.coords, "aggregator": label}
            rows.append(row.model_copy(update={"coords": coords, "plugins": plugins, "cell_id": cell_id}))
    return store, rows, boards_of(rows)


@pytest.fixture(scope="session")
def site(tmp_path_factory, tuned, hostile):
    """A folder with the pages of two boards, the index, the code beside them, and both as reports of one file."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "charts.js").write_text(site_code(), encoding="utf-8")
    lines = []
    for name, (store, rows, boards) in {"small-tuned": tuned, "hostile": hostile}.items():
        (folder / name).mkdir()
        links = (("All boards", "../index.html"), ("Rows", "rows.jsonl"), ("As text", "README.md"))
        page = render_report(boards, rows, store, name, Beside("About it.", links, f"leaderboards/{name}"))
        (folder / name / "index.html").write_text(page, encoding="utf-8")
        (folder / f"{name}.html").write_text(render_report(boards, rows, store, name), encoding="utf-8")
        lines.append(line_of(name, "About it.", [("seeds", "4")], boards[0], rows))
    (folder / "index.html").write_text(render_index("Leaderboards", lines), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def served(site):
    """The address of the folder on a web server."""
    handler = functools.partial(Quiet, directory=str(site))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@pytest.fixture
def visit(chromium, site):
    """Returns `visit(page, hash, width=..., ...)`, which opens a page of the site; it may not fail or log an error.

    `page.requests` are the addresses that it asked for.
    """
    contexts, errors = [], []

    def opened(page, choices="", *, base=None, width=1400, height=900, ready="all", **options):
        context = chromium.new_context(viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        window = context.new_page()
        window.requests = []
        window.on("request", lambda request: window.requests.append(request.url))
        window.on("pageerror", lambda error: errors.append(str(error)))
        window.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        window.goto(f"{base or site.as_uri()}/{page}{choices}")
        if ready:
            settled(window, ready)
        return window

    yield opened
    for context in contexts:
        context.close()
    assert errors == []


def settled(window, ready="all"):
    """Waits until everything is drawn."""
    window.wait_for_selector(f"body[data-ready={ready}]", timeout=60_000)


@pytest.fixture(scope="session")
def wait():
    """Returns `settled`."""
    return settled


@pytest.fixture(scope="session")
def labels():
    """The labels of the page `hostile`."""
    return HOSTILE
