"""The page of a board as its readers use it: choices, addresses, tables, pinned methods and cells."""

from __future__ import annotations

import re
from decimal import ROUND_HALF_EVEN, Decimal

import pytest

TUNED = "small-tuned/index.html"
MALFORMED = (
    "#",
    "#task=",
    "#task=none&task=oracle",
    "#data=%00&metric=__proto__",
    "#show=&show=constructor",
    "#sort=99.up",
    "#sort=x",
    "#cell=nobody&at=nowhere",
    "#%%%",
    "#stress=label-shift&data=cifar100&metric=oos_auroc",
)


def texts(page, selector):
    return page.locator(selector).all_inner_texts()


def forest(page):
    """The labels and figures of the forest plots, as the pictures' descriptions have them."""
    return page.locator("#panels figure:not(#f-bytes) [role=graphics-document]").evaluate_all(
        "all => all.map(each => each.getAttribute('aria-label'))"
    )


def column(page, number):
    return [each.split("\n")[0] for each in texts(page, f"#table tbody tr > :nth-child({number})")]


@pytest.mark.parametrize("way", ["file", "http"])
@pytest.mark.parametrize("name", [TUNED, "small-tuned.html"])
def test_it_asks_for_nothing_but_itself_and_its_code(visit, served, site, way, name):
    page = visit(name, base=served if way == "http" else None)
    base = served if way == "http" else site.as_uri()
    beside = [] if name.endswith("tuned.html") else [f"{base}/charts.js"]
    assert [url for url in page.requests if "favicon" not in url] == [f"{base}/{name}", *beside]


def test_the_policy_refuses_requests_and_evaluation(visit, site):
    page = visit("small-tuned.html")
    policy = page.locator("meta[http-equiv]").get_attribute("content")
    assert "unsafe-eval" not in policy
    assert "'unsafe-inline'" not in policy.partition("script-src")[2].partition(";")[0]
    refused = "() => fetch('x').then(() => 'sent', () => 'refused')"
    # Both are logged as errors, which this test expects and others do not: so they go to a page of their own.
    context = page.context.browser.new_context()
    window = context.new_page()
    window.goto(f"{site.as_uri()}/small-tuned.html")
    assert window.evaluate(refused) == "refused"
    script = "const s = document.createElement('script'); s.textContent = 'window.ran = 1'; document.head.append(s);"
    window.evaluate(f"() => {{ {script} }}")
    assert window.evaluate("() => window.ran ?? null") is None
    context.close()


def test_without_javascript_the_finding_and_the_way_to_the_text_are_there(visit):
    page = visit(TUNED, ready="", java_script_enabled=False)
    assert page.locator("#finding").inner_text().startswith("No method is above the best control in any of 3 scenarios")
    assert page.locator("noscript").inner_text().endswith("The same figures as text.")
    assert page.locator("noscript a").get_attribute("href") == "README.md"


def test_figures_are_those_of_the_board_digit_by_digit(visit, tuned):
    """A second implementation of the texts: decimal numbers, rounded half to even from the board's own."""
    page = visit(TUNED, "#data=eurosat&task=oracle")
    board = tuned[2][0].model_dump()
    (block,) = [
        each
        for each in board["blocks"]
        if each["scenario"]["dataset"] == "eurosat" and each["scenario"]["stress"] == "none"
    ]

    def shown(found):
        def text(value):
            return str(Decimal(100 * value).quantize(Decimal("0.01"), ROUND_HALF_EVEN))

        if found["half_width"] is None:
            return f"{text(found['mean'])} (n={found['n']})"
        return f"{text(found['mean'])} ± {text(found['half_width'])}"

    expected = {each["aggregator"]: shown(each["estimates"]["oracle"]["faa"]) for each in block["entries"]}
    rows = page.locator("#table tbody tr")
    found = {
        row.locator("th button").inner_text(): row.locator("td").first.inner_text()
        for row in (rows.nth(number) for number in range(rows.count()))
    }
    assert found == expected
    (told,) = forest(page)
    assert all(text in told for text in expected.values())


def test_choices_change_the_page_and_the_address_restores_it(visit, wait):
    page = visit(TUNED)
    first = page.locator("#finding").inner_text(), forest(page), column(page, 2)
    page.locator("#tasks label", has_text="yes").click()
    wait(page)
    second = page.locator("#finding").inner_text(), forest(page), column(page, 2)
    assert all(one != two for one, two in zip(first, second, strict=True))
    assert page.url.endswith("#task=oracle")
    page.locator("select[name=data]").select_option("eurosat")
    wait(page)
    assert len(forest(page)) == 1
    assert page.locator("#panels figcaption b").inner_text() == "eurosat"
    again = visit(TUNED, page.url.partition("index.html")[2])
    assert forest(again) == forest(page)
    assert column(again, 2) == column(page, 2)
    page.go_back()
    wait(page)
    assert (page.locator("#finding").inner_text(), forest(page), column(page, 2)) == second
    page.go_back()
    wait(page)
    assert (page.locator("#finding").inner_text(), forest(page), column(page, 2)) == first
    page.go_forward()
    wait(page)
    assert forest(page) == second[1]


def test_what_was_not_measured_is_never_shown_empty(visit, wait):
    """Label shift was measured on EuroSAT alone: to choose it leaves CIFAR-100, to choose that ends the stress."""
    page = visit(TUNED, "#data=cifar100")
    page.locator("select[name=stress]").select_option("label-shift")
    wait(page)
    assert page.locator("#panels figcaption b").inner_text() == "eurosat"
    page.locator("select[name=data]").select_option("cifar100")
    wait(page)
    assert page.locator("select[name=stress]").input_value() == "none"
    assert page.locator("#panels figcaption b").inner_text() == "cifar100"


def test_malformed_addresses_show_a_page(visit, wait):
    page = visit(TUNED)
    for address in MALFORMED:
        page.evaluate("address => { location.hash = address; }", address)
        page.wait_for_timeout(50)
        wait(page)
        assert page.locator("#panels svg").count() >= 1
        assert page.locator("#table tbody tr").count() >= 15


def test_named_views_and_the_skip_link(visit, wait):
    page = visit(TUNED)
    page.locator("#views a", has_text="Task told").click()
    page.wait_for_timeout(50)
    wait(page)
    assert "told the task" in page.locator("#finding").inner_text()
    assert texts(page, "#views a[aria-current]") == ["Task told (oracle)"]
    address = page.url
    page.keyboard.press("Control+Home")
    page.locator("#skip").focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "table"
    assert page.url == address


def test_the_first_click_sorts_the_best_first_and_what_is_undefined_comes_last(visit):
    page = visit(TUNED, "#data=eurosat")
    heads = page.locator("#table thead th")
    forgetting = page.locator("#table thead button", has_text="Forgetting")
    forgetting.click()
    own = heads.filter(has_text="Forgetting")
    assert own.get_attribute("aria-sort") == "ascending"
    values = column(page, 4)
    numbers = [float(value.split()[0]) for value in values if value != "–"]
    assert numbers == sorted(numbers)
    assert values[-1] == "–"  # centralised training has no forgetting
    page.locator("#table thead button", has_text="Forgetting").click()
    assert own.get_attribute("aria-sort") == "descending"
    values = column(page, 4)
    assert [float(value.split()[0]) for value in values if value != "–"] == sorted(numbers, reverse=True)
    assert values[-1] == "–"
    assert page.evaluate("document.activeElement.textContent").startswith("Forgetting")
    page.locator("#table thead button", has_text="FAA").click()
    assert heads.filter(has_text="FAA").get_attribute("aria-sort") == "descending"
    assert "sort=0.down" in page.url


def test_pinned_methods_are_compared_head_to_head(visit, tuned):
    page = visit(TUNED, "#data=eurosat&show=sum&show=fedavg&show=joint")
    assert texts(page, "#versus thead th") == ["joint", "sum", "fedavg"]  # best first
    block = next(
        each
        for each in tuned[2][0].blocks
        if each.scenario["dataset"] == "eurosat" and each.scenario["stress"] == "none"
    )
    values = {each.aggregator: each.estimates["none"]["faa"].values for each in block.entries}
    gaps = [values["sum"][seed] - values["fedavg"][seed] for seed in range(4)]
    mean = sum(gaps) / 4
    half = 3.182446 * (sum((gap - mean) ** 2 for gap in gaps) / 3) ** 0.5 / 2  # the quantile of t with three degrees
    p = next(pair.p for pair in block.tests["none"] if {pair.first, pair.second} == {"sum", "fedavg"})
    cells = page.locator("#versus tbody tr").nth(1).locator("td")
    assert cells.nth(2).inner_text().split("\n") == [f"{100 * mean:+.2f} ± {100 * half:.2f}", f"p {p:.3f}"]
    mirrored = page.locator("#versus tbody tr").nth(2).locator("td").nth(1).inner_text().split("\n")
    assert mirrored[0] == f"{-100 * mean:+.2f} ± {100 * half:.2f}"
    assert cells.first.inner_text().endswith("no test")  # centralised training has no rank
    assert "No test of joint" in page.locator("#under-versus").inner_text()


def test_every_way_to_tell_the_task_stands_side_by_side(visit, tuned, wait):
    page = visit(TUNED, "#data=eurosat&task=oracle")
    block = next(
        each
        for each in tuned[2][0].blocks
        if each.scenario["dataset"] == "eurosat" and each.scenario["stress"] == "none"
    )
    heads = page.locator("#identities thead th")
    assert [text.split()[0] for text in heads.all_inner_texts()[1:]] == [group.key for group in block.groups]
    assert heads.filter(has_text="oracle").get_attribute("aria-sort") == "descending"
    values = {each.aggregator: each.estimates["oracle"]["faa"].values for each in block.entries}
    gap = sum(values["sum"][seed] - values["fedavg"][seed] for seed in range(4)) / 4
    row = page.locator("#identities tbody tr").filter(has=page.get_by_role("button", name="sum", exact=True))
    assert row.locator("td").last.locator("small").inner_text().startswith(f"{100 * gap:+.2f} ± ")
    row.get_by_role("button").click()
    page.locator("#dialog[open]").wait_for()


def test_at_most_eight_methods_are_pinned_by_mouse_or_keyboard(visit):
    page = visit(TUNED, "#data=eurosat")
    chips = page.locator("#chips button[aria-pressed]")
    assert page.locator("#chips [aria-pressed=true]").count() == 5
    for _ in range(3):
        page.locator("#chips [aria-pressed=false]").first.click()
        page.wait_for_timeout(30)
    assert page.locator("#chips [aria-pressed=true]").count() == 8
    assert page.locator("#chips [aria-pressed=false]:not([disabled])").count() == 0
    assert page.url.count("show=") == 8
    chips.first.focus()
    page.keyboard.press("Space")
    page.wait_for_selector("#chips button:first-child:focus")
    page.locator("#chips .plain").click()
    page.wait_for_selector("#chips .plain[disabled]")
    assert page.locator("#chips [aria-pressed=true]").count() == 5
    assert "show=" not in page.url


def test_a_figure_opens_its_cells_and_escape_closes_them(visit, wait):
    page = visit(TUNED, "#data=eurosat&task=inferred")
    page.locator("#table tbody th button", has_text=re.compile("^sum$")).focus()
    page.keyboard.press("Enter")
    dialog = page.locator("dialog")
    dialog.locator("svg").first.wait_for()
    assert page.locator("#d-title").inner_text() == "sum on eurosat"
    assert "cell=sum&at=eurosat" in page.url
    line = dialog.locator(".again code").inner_text()
    assert re.fullmatch(r"fcilbench reproduce [0-9a-f]{12} --from leaderboards/small-tuned", line)
    told = dialog.inner_text()
    assert all(word in told for word in ("partition 8717228612418759273", "torch 2.", "faa/inferred"))
    dialog.locator("select").first.select_option(index=1)
    page.wait_for_timeout(100)
    assert dialog.locator(".again code").inner_text() != line
    page.keyboard.press("Escape")
    assert not dialog.is_visible()
    assert "cell=" not in page.url
    assert page.evaluate("document.activeElement.textContent") == "sum"
    page.locator("#panels svg path[aria-roledescription=point]").first.click(force=True)
    dialog.locator("svg").first.wait_for()
    assert page.locator("#d-title").inner_text() == "ridge on eurosat"
    again = visit(TUNED, f"#{page.url.partition('#')[2]}")
    assert again.locator("#d-title").inner_text() == "ridge on eurosat"


def test_a_cell_shows_what_was_forgotten_and_what_its_method_logged(visit, tuned):
    store, rows, _ = tuned
    page = visit(TUNED, "#data=eurosat&task=oracle&cell=sum&at=eurosat")
    (row,) = [
        each
        for each in rows
        if each.seed == 0
        and [each.coords[axis] for axis in ("dataset", "aggregator", "stress")] == ["eurosat", "sum", "none"]
    ]
    lost = [[max(line[s] for line in row.accuracy["oracle"][s : t + 1]) - row.accuracy["oracle"][t][s]
             for s in range(t + 1)] for t in range(5)]  # fmt: skip
    pictures = page.locator("dialog figure")
    pictures.nth(3).locator("svg").wait_for()
    drawn = (
        pictures.nth(1)
        .locator("svg .mark-rect path[aria-label]")
        .evaluate_all("all => all.map(each => each.ariaLabel)")
    )
    told = [re.search(r"([\d.]+) points lost on task (\d) after task (\d)", each).groups() for each in drawn]
    assert sorted(told) == sorted(
        (f"{100 * lost[t][s]:.2f}", f"{s + 1}", f"{t + 1}") for t in range(5) for s in range(t + 1)
    )
    which = pictures.nth(3).locator("select")
    logged = [each["logs"]["sum/cosine_before"] for each in store.rounds(row.cell_id) if each["event"] == "round"]
    which.focus()
    which.select_option("sum/cosine_before")
    document = pictures.nth(3).locator("[aria-label='sum/cosine_before in each round']")
    document.wait_for()
    marks = document.locator("path[aria-roledescription=circle], path[aria-roledescription=point]")
    told = [
        float(re.search(r"round \d+: ([-\d.e]+)", each).group(1))
        for each in marks.evaluate_all("all => all.map(each => each.ariaLabel)")
    ]
    assert told == [float(f"{value:.3g}") for value in logged]
    assert page.evaluate("document.activeElement.value") == "sum/cosine_before"  # the list keeps the keyboard


def test_labels_of_strangers_are_text_everywhere(visit, wait, labels):
    page = visit("hostile/index.html")
    assert page.locator("#panels img, #table img, #panels script, #table script").count() == 0
    assert sorted(texts(page, "#table tbody th button")) == sorted(labels)
    assert sorted(texts(page, "#chips button[aria-pressed]")) == sorted(labels)
    point = page.locator("#panels svg path[aria-roledescription=point]").first
    point.hover(force=True)
    tip = page.locator("#tip").inner_text()
    assert tip.split("\n")[0].partition(" (")[0] in labels
    for label in labels:
        page.locator("#table tbody th button").filter(has_text=label).first.click()
        page.locator("dialog[open]").wait_for()
        assert page.locator("#d-title").inner_text() == f"{label} on digits"
        assert page.locator("dialog img").count() == 0
        page.keyboard.press("Escape")
    assert page.evaluate("[document.images.length, document.scripts.length]") == [0, 2]  # charts.js and the data
    with page.expect_download() as download:
        page.locator("#csv").click()
    lines = download.value.path().read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.startswith('"\'=1+1, ""quoted"" & \'more\'')] != []
    assert all(line.startswith('"') for line in lines)


def test_the_index_filters_by_method_data_set_and_question(visit):
    page = visit("index.html", ready="")
    assert page.locator("article:visible h2 a").all_inner_texts() == ["small-tuned", "hostile"]
    shown = page.locator("article:visible p[data-question]:visible")
    assert shown.first.inner_text().startswith("No method is above the best control in any of 3 scenarios in FAA with")
    page.locator("select[name=question]").select_option("oracle")
    assert "told the task" in shown.first.inner_text()
    assert page.locator("article h2 a").first.get_attribute("href") == "small-tuned/index.html#task=oracle"
    page.locator("input[name=method]").fill("l2p")
    assert page.locator("#found").inner_text() == "1 of 2 boards"
    page.locator("input[name=method]").fill("")
    page.locator("select[name=data]").select_option("digits")
    assert texts(page, "article:visible h2 a") == ["hostile"]
    again = visit("index.html", f"#{page.url.partition('#')[2]}", ready="")
    assert texts(again, "article:visible h2 a") == ["hostile"]
    assert again.locator("img").count() == 0
