"""Whoever cannot see a colour, hold a mouse or buy a large screen reads the same page."""

from __future__ import annotations

from importlib.resources import files

import pytest

TUNED = "small-tuned/index.html"
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}


def violations(page):
    """Returns what axe finds, with the first element of each."""
    axe = pytest.importorskip("axe_playwright_python", reason="needs axe-playwright-python")
    page.evaluate(files(axe).joinpath("axe.min.js").read_text(encoding="utf-8"))
    found = page.evaluate("rules => axe.run(document, rules)", RULES)
    return [(each["id"], each["nodes"][0]["html"][:160]) for each in found["violations"]]


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (390, "dark")])
def test_axe_finds_nothing(visit, scheme, width):
    page = visit(TUNED, color_scheme=scheme, width=width)
    for details in page.locator("details").all():
        details.evaluate("node => { node.open = true; }")
    assert violations(page) == []
    opened = visit(TUNED, "#cell=sum&at=eurosat&task=inferred", color_scheme=scheme, width=width)
    assert opened.locator("dialog[open]").is_visible()
    assert violations(opened) == []
    assert violations(visit("index.html", color_scheme=scheme, width=width, ready="")) == []


@pytest.mark.parametrize("width", [320, 1280])
@pytest.mark.parametrize("name", [TUNED, "hostile/index.html", "index.html"])
def test_nothing_but_tables_scrolls_sideways(visit, name, width):
    page = visit(name, width=width, height=800, ready="" if name == "index.html" else "all")
    for details in page.locator("details").all():
        details.evaluate("node => { node.open = true; }")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize(("width", "height"), [(1400, 900), (390, 844)])
def test_the_first_screen_has_the_finding_and_the_first_plot(visit, width, height):
    page = visit(TUNED, width=width, height=height)
    assert page.locator("#finding").bounding_box()["y"] < height / 2
    box = page.locator("#panels figure").first.bounding_box()
    assert box["y"] + min(box["height"], 250) <= height


def test_pictures_say_what_they_show_and_everything_is_reached_by_keyboard(visit):
    page = visit(TUNED)
    told = page.locator("main [role=graphics-document]").evaluate_all(
        "all => all.map(each => each.getAttribute('aria-label'))"
    )
    assert all(told)
    assert told[0].startswith("FAA in % of 18 methods on cifar100, best first: ncm (control) 36.00")
    reached = set()
    for _ in range(120):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.textContent"))
    assert {"skip", "share", "csv", "theme", "table", "versus", "sum", "cite"} - reached <= {"cite"}


def test_the_theme_changes_by_button(visit):
    page = visit(TUNED)
    back = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(back) == "rgb(255, 255, 255)"
    page.locator("#theme").click()
    assert page.evaluate(back) == "rgb(21, 24, 28)"
    page.locator("#theme").click()
    assert page.evaluate(back) == "rgb(255, 255, 255)"
