"""The page of a folder of leaderboards: figures by name, claims, and rows and templates of somebody hostile.

Half widths are t(0.975, 2) s / sqrt(3) = 4.302653 s / 1.732051; with two degrees of freedom p = 1 - t / sqrt(2 + t^2).
"""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from fcilbench.boards.build import AccuracyBoard, OverheadBoard, RobustnessBoard
from fcilbench.boards.prose import render_prose
from fcilbench.boards.quotes import FACTS, Leaderboard, Quotes
from fcilbench.boards.records import read_suite
from fcilbench.errors import UsageError
from fcilbench.pages.site import write_site
from fcilbench.results.foreign import RefusedError
from fcilbench.results.store import Store

EVIL = "{{ 7 * 7 }}{% raw %}|<b>*x*</b> [y](http://z)\n# `head`"
"""The label of a third party's method, which is best where it is told no task."""
ESCAPED = r"{{ 7 \* 7 }}{% raw %}\|&lt;b&gt;\*x\*&lt;/b&gt; \[y\](http://z) \# \`head\`"
NONE = {"ncm": (0.50, 0.51, 0.55), "ewc": (0.60, 0.65, 0.70), "sum": (0.70, 0.72, 0.74), EVIL: (0.90, 0.92, 0.94)}
STRESSED = {"ncm": (0.40, 0.41, 0.45), "sum": (0.60, 0.60, 0.60)}


@pytest.fixture
def rows_of(make_cell, make_row):
    """Returns `rows_of(values of the seeds by method, stress)`: all are scored under `none` and `oracle`."""

    def row(method, seed, value, stress):
        cell = make_cell(
            "sum" if method == EVIL else method, seed, lambda_s=0.4 if method == "sum" else None, stress=stress
        )
        made = make_row(cell, {"faa/none": value, "faa/oracle": 0.99 - value / 10, "aia/none": None})
        if method != EVIL:
            return made
        record = made.plugins["aggregator"].model_copy(update={"name": "acme/evil"})
        change = {"coords": {**made.coords, "aggregator": EVIL}, "plugins": {**made.plugins, "aggregator": record}}
        return made.model_copy(update={**change, "cell_id": made.cell_id[::-1]})

    return lambda methods, stress="none": [
        row(method, seed, value, stress) for method, values in methods.items() for seed, value in enumerate(values)
    ]


def leaderboard(name, rows, suites=None):
    boards = {board.name: board().build(rows) for board in (AccuracyBoard, OverheadBoard, RobustnessBoard)}
    return Leaderboard(name, {row.cell_id: row for row in rows}, boards, suites or {})


@pytest.fixture
def shown(rows_of):
    """Returns `shown(template)`, of the leaderboards `main` and `again`; in the second one SUM is at 0.60."""
    again = rows_of({"sum": (0.60, 0.60, 0.60), "ewc": (0.60, 0.65, 0.70)})
    boards = [leaderboard("main", rows_of(NONE) + rows_of(STRESSED, "flip")), leaderboard("again", again)]
    return lambda template: render_prose(template, boards, "| a |", Path("shelf/README.md.jinja"))


@pytest.mark.parametrize(
    ("quote", "text"),
    [
        ('faa("main", "digits", "none", "sum")', "72.0 ± 5.0"),  # s = 0.02, half 0.049683
        ('faa("main", "digits / flip", "none", "ncm")', "42.0 ± 6.6"),  # s = 0.0264575, half 0.065724
        ('faa("main", "digits / vit / none", "none", "sum")', "72.0 ± 5.0"),
        ('faa("again", "digits", "none", "sum")', "60.0"),  # the same in all seeds: no interval
        ('minus("main", "digits", "none", "sum", "ncm")', "+20.0 ± 2.5"),  # 0.20 0.21 0.19: half 0.024841
        ('minus("main", "digits", "none", "ncm", "sum")', "-20.0 ± 2.5"),
        ('minus("main", "digits", "none", "sum", "sum")', "0.0"),
        ('change("main", "again", "digits", "none", "sum")', "-12.0 ± 5.0"),  # -0.10 -0.12 -0.14
        ('change("again", "main", "digits", "none", "sum")', "+12.0 ± 5.0"),
        ('gain("main", "digits", "digits / flip", "none", "sum")', "-12.0 ± 5.0"),
        ('gain("main", "digits / flip", "digits", "none", "ncm")', "+10.0"),
        ('p("main", "digits", "none", "sum", "ewc")', "p = 0.056"),  # 0.10 0.07 0.04: t = 4.0415
        ('p("main", "digits", "none", "ewc", "ncm")', "p = 0.014"),  # 0.10 0.14 0.15: t = 8.5105, p = 0.01353
        ('p("main", "digits", "none", "sum", "ncm")', "p &lt; 0.001"),  # t = 34.64, p = 0.000832
        ('p("main", "digits", "none", "sum", "ncm", family=f)', "p = 0.002"),  # 3 p
        ('p("main", "digits", "none", "ewc", "ncm", family=f)', "p = 0.027"),  # 2 p
        ('p("main", "digits", "none", "sum", "ewc", family=f)', "p = 0.056"),
        ("f.apart|length", "2"),
        ("f.adjusted|length", "3"),
        ('claim(apart("main", "digits", "none", "ewc", "ncm", family=f), "apart")', "apart"),
        ('claim(not apart("main", "digits", "none", "sum", "ewc"), "not apart")', "not apart"),
        ('loss_under("main", "digits", "none", "sum")', "12.0 ± 5.0"),  # 0.10 0.12 0.14
        ('loss_under("main", "digits", "none", "ncm")', "10.0"),
        ('bytes_up("main", "digits", "sum")', "80 B"),
        ('cost("main", "digits", "sum", "module")', "40 B"),
        ('best("main", "digits", "none", "control")', "ncm"),
        ('best("main", "digits", "none")', ESCAPED),
        ('worst("main", "digits", "none")', "ewc"),
        ('listed(ranked("main", "digits", "none", "all")[1:])', "sum, ewc and ncm"),
        ('best("main", "digits", "oracle")', "ewc"),  # oracle turns the order round: ncm, a control, is above
        ('listed(above("main", "digits", "none", "ewc"))', f"sum and {ESCAPED}"),
        ('listed(above("again", "digits", "none", "ewc"))', "none"),
        ('param("main", "digits", "sum", "aggregator.lambda_s")', "0.4"),
        ('param("main", "digits", "sum", "protocol.clip_norm")', "none"),
        ('fact("main", "digits", "protocol.rounds")', "2"),
        *((f'fact("main", "digits", "{k}")', v) for k, v in {"seeds": "3", "tasks": "2", "classes": "4"}.items()),
        *((f'fact("main", "digits", "{k}")', v) for k, v in {"test_samples": "20", "methods": "4"}.items()),
        ('fact("main", "digits", "classes_per_task")', "2"),
        ('fact("main", "digits", "date")', "2026-01-02"),
        ("listed(stale())", "none"),  # of boards that were held against no checkout
        (
            'finding("again")',
            "FAA without task identity: no control has a result; the best method is ewc (65.00 ± 12.42 %).",
        ),
        ("boards", "| a |"),
        ('link("main")', "[main](main/README.md)"),
        ("confidence", "95 %"),
        ("listed(names)", "main and again"),
        ("listed([])", "none"),
    ],
)
def test_figures_by_name(shown, quote, text):
    pairs = '[("sum", "ncm"), ("ewc", "ncm"), ("sum", "ewc")]'
    family = f'{{% set f = family("main", ["digits"], ["none"], {pairs}) %}}'
    assert shown(f"{family}{{{{ {quote} }}}}") == text


def test_a_half_is_rounded_alike_whatever_the_order_of_the_sum(rows_of):
    """0.1235 and its neighbours in binary all print as 12.4, and -0.0004 is no -0.0."""
    for value in (0.1235, 0.12349999999999998, 0.12350000000000001):
        board = leaderboard("b", rows_of({"sum": (value,), "ewc": (value + 0.0004,)}))
        quotes = '{{ faa("b", "digits", "none", "sum") }} {{ minus("b", "digits", "none", "sum", "ewc") }}'
        assert render_prose(quotes, [board], "", Path("t")) == "12.4 (n=1) 0.0 (n=1)"


@pytest.mark.parametrize(
    ("quote", "message"),
    [
        (
            'faa("mian", "digits", "none", "sum")',
            "there is no leaderboard 'mian' in this folder (did you mean 'main'?)",
        ),
        ('faa("main", "digit", "none", "sum")', "there is no scenario 'digit' in main (did you mean 'digits'?)"),
        ('faa("main", "digits", "orcale", "sum")', "no task identity 'orcale' in main (did you mean 'oracle'?)"),
        ('faa("main", "digits", "none", "smu")', "no method 'smu' in main / digits (did you mean 'sum'?)"),
        (
            'faa("main", "digits", "none", "sum", "fa")',
            "no figure 'fa' in the accuracy board of main (did you mean 'faa'?)",
        ),
        ('faa("main", "digits", "none", "sum", "aia")', "sum in main / digits has no aia under none"),
        ('best("main", "digits", "none", "contrl")', "no role 'contrl' in main (did you mean 'control'?)"),
        ('best("again", "digits", "none", "control")', "again / digits has no control with a result under none"),
        ('cost("main", "digits", "sum", "byte_up")', "no figure 'byte_up' in the overhead board of main (did you mean"),
        ('fact("main", "digits", "protocol.round")', "no parameter 'protocol.round' in main / digits (did you mean"),
        (
            'fact("main", "digits", "aggregator.lambda_s")',
            "aggregator.lambda_s is not one value in main / digits: 0.4, absent",
        ),
        ('loss_under("again", "digits", "none", "sum")', "there is no scenario 'digits' in again"),
        ('loss_under("main", "digits", "none", "ewc")', "ewc in main / digits has no loss under none"),
        (
            'p("again", "digits", "none", "sum", "sum")',
            "no test of sum and sum in again / digits: their difference is the",
        ),
        (
            'p("main", "digits", "oracle", "sum", "ewc", family=f)',
            "main / digits / oracle / sum / ewc is none of the 1",
        ),
        ('trials("main", "digits", "sum")', "sum in main / digits has no number of trials: not tuned"),
        ('link("mian")', "there is no leaderboard 'mian' in this folder (did you mean 'main'?)"),
        ('fa("main")', "'fa' is undefined (did you mean 'faa'?)"),
        ('faa("main")', "faa() missing 3 required positional arguments"),
        ('mean("main", "digits", "none", "sum")', " is a float and no text, so it cannot be printed"),
        ("faa", "is a method and no text"),
        ("1 / 0", "division by zero"),
        ("faa(", "unexpected '}'"),
        (
            'claim(mean("main", "digits", "none", "sum") > 0.73, "SUM wins")',
            "the rows do not bear this out: 'SUM wins'",
        ),
        ('claim(above("main", "digits", "none", "sum"), "x")', "the condition of a claim is true or false, not ["),
    ],
)
def test_what_does_not_exist_is_one_line_with_the_nearest_word_and_the_line_of_the_template(shown, quote, message):
    family = '{% set f = family("main", ["digits"], ["none"], [("sum", "ncm")]) %}'
    with pytest.raises(UsageError) as error:
        shown(f"# Title\n{family}\ntext {{{{ {quote} }}}}\nmore\n")
    assert str(error.value).startswith("shelf/README.md.jinja:3: ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_scenarios_that_a_word_does_not_tell_apart(make_cell, make_row):
    rows = [make_row(make_cell("sum", 0, data=f"sha256:{n}"), {"faa/none": 0.5}, fingerprint=f"{n}") for n in range(2)]
    named = [
        row.model_copy(update={"coords": {**row.coords, "backbone": name}})
        for row, name in zip(rows, "ab", strict=True)
    ]
    board = leaderboard("b", named)
    with pytest.raises(UsageError, match="digits names 2 scenarios of b") as error:
        render_prose('{{ faa("b", "digits", "none", "sum") }}', [board], "", Path("t"))
    assert "digits / a / dirichlet-0.5 / stress none; digits / b /" in error.value.hint
    assert render_prose('{{ faa("b", "digits / b", "none", "sum") }}', [board], "", Path("t")) == "50.0 (n=1)"
    with pytest.raises(UsageError, match="no scenario of b has all of: a / b"):
        render_prose('{{ faa("b", "a / b", "none", "sum") }}', [board], "", Path("t"))
    other = leaderboard("c", [named[0].model_copy(update={"coords": named[1].coords})])
    with pytest.raises(UsageError, match="b and c have different scenarios of digits / b"):
        render_prose('{{ change("b", "c", "digits / b", "none", "sum") }}', [board, other], "", Path("t"))


def test_costs_that_differ_between_machines_have_no_figure(rows_of):
    one, two = rows_of({"sum": (0.5, 0.5)})
    moved = two.model_copy(update={"hardware_digest": "sha256:" + "f" * 64})
    quote = '{{ bytes_up("b", "digits", "sum") }}'
    assert render_prose(quote, [leaderboard("b", [one, moved])], "", Path("t")) == "80 B (n=1)"
    more = moved.model_copy(update={"cost": moved.cost.model_copy(update={"bytes_up": 90})})
    with pytest.raises(UsageError, match=r"bytes_up of sum in b / digits differs between machines: 80 B \(n=1\), 90 B"):
        render_prose(quote, [leaderboard("b", [one, more])], "", Path("t"))


def test_trials_are_those_of_the_studies_behind_the_rows(rows_of):
    study = {"digest": "s", "trials": 6, "budget": 60, "scored": "faa/inferred"}
    suite = read_suite({"name": "demo", "tuned": [{"where": {"aggregator": "sum"}, "study": study}]})
    rows = [r.model_copy(update={"tuned_from": "lock", "suite_digest": "d"}) for r in rows_of({"sum": (0.5, 0.6)})]
    board = leaderboard("b", rows, {"d": suite})
    assert render_prose('{{ trials("b", "digits", "sum") }}', [board], "", Path("t")) == "6"


@pytest.mark.parametrize(
    "template",
    [
        "{{ faa.__self__ }}",
        "{{ faa.__func__.__globals__ }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ names.append('x') }}",
        "{{ '{0.__class__}'.format(faa) }}",
        "{% include '/etc/passwd' %}",
        "{% import 'x' as y %}",
        "{% for n in range(10 ** 9) %}{% endfor %}",
    ],
)
def test_a_strangers_template_reaches_nothing_but_its_functions(shown, template):
    with pytest.raises(UsageError, match=r"^shelf/README\.md\.jinja:1: "):
        shown(template)


def test_markdown_of_rows_and_of_texts_is_escaped_but_not_that_of_the_template(shown):
    text = shown('**bold** {{ "**not**" }} {{ best("main", "digits", "none") ~ "!" }}\u202e{{ "a\u202eb" }}\n')
    assert text == f"**bold** \\*\\*not\\*\\* {ESCAPED}\\!\\u202ea\\\\u202eb\n"


@pytest.fixture
def shelf(tmp_path, rows_of):
    """A folder of leaderboards on the disk."""
    for row in rows_of(NONE):
        Store(tmp_path / "shelf" / "main").append(row)
    return tmp_path / "shelf"


def test_the_site_writes_the_page_from_the_template(shelf):
    (shelf / "README.md").write_text("typed by hand\n")
    template = shelf / "README.md.jinja"
    template.write_text('# Boards\n\n{{ boards }}\n\n{{ best("main", "digits", "none") }}: {{ listed(stale()) }}\n')
    assert write_site(shelf) == 1
    text = (shelf / "README.md").read_text(encoding="utf-8")
    assert text.startswith("# Boards\n\n| leaderboard | what |")
    assert "| [main](main/README.md) | digits / vit / dirichlet-0.5 / stress none | 4 | 3 | 12/12 |" in text
    assert text.endswith(f"{ESCAPED}: main\n")  # whose plugins have other code than these rows
    template.write_text(
        '{{ claim(not above("main", "digits", "none", "ncm"), "No method is above the class means.") }}'
    )
    with pytest.raises(UsageError, match=r"README\.md\.jinja:1: the rows do not bear this out: 'No method is above"):
        write_site(shelf)
    assert (shelf / "README.md").read_text(encoding="utf-8") == text


def test_a_picture_is_drawn_from_the_rows_into_a_file_that_the_template_does_not_name(shelf):
    template = shelf / "README.md.jinja"
    template.write_text('{{ forest("main", "digits", "none") }}\n\n{{ forest("main", "digits", "oracle") }}\n')
    write_site(shelf)
    image = "![main: digits, task identity {}: scores with intervals, best first]({})"
    assert (shelf / "README.md").read_text() == "\n\n".join(
        [image.format("none", "picture-1.svg"), image.format("oracle", "picture-2.svg") + "\n"]
    )
    drawn = ElementTree.parse(shelf / "picture-1.svg")
    texts = [each.text for each in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert {"72.00 ± 4.97", "52.00 ± 6.57"} <= {*texts}
    assert texts.index("sum") < texts.index("ncm (control)")  # best first
    assert sorted(path.name for path in shelf.glob("*.svg")) == ["picture-1.svg", "picture-2.svg"]
    template.write_text('{{ forest("main", "digits", "orcle") }}')
    with pytest.raises(UsageError, match=r"jinja:1: main has no task identity 'orcle' \(did you mean 'oracle'\?\)"):
        write_site(shelf)


def test_the_command_names_what_is_wrong_in_one_line(shelf, new_cli, tmp_path):
    (shelf / "README.md.jinja").write_text('\n{{ faa("main", "digits", "none", "sun") }}\n')
    cli = new_cli(tmp_path, tmp_path / "shared")
    process = cli.start("site", "shelf")
    _, err = process.communicate(timeout=120)
    assert process.returncode == 2
    found = [line for line in err.splitlines() if "jinja" in line]
    assert found == ["error: shelf/README.md.jinja:2: there is no method 'sun' in main / digits (did you mean 'sum'?)"]


def test_a_template_that_is_a_link_or_no_text_is_refused(shelf, tmp_path):
    (tmp_path / "secret").write_text("key")
    template = shelf / "README.md.jinja"
    template.symlink_to(tmp_path / "secret")
    with pytest.raises(RefusedError):
        write_site(shelf)
    template.unlink()
    template.write_bytes(b"\xff")
    with pytest.raises(UsageError, match=re.escape("README.md.jinja: not UTF-8")):
        write_site(shelf)
    assert not (shelf / "README.md").exists()


def test_the_documentation_names_every_function():
    text = (Path(__file__).parents[2] / "docs" / "boards.md").read_text(encoding="utf-8")
    functions = [name for name in vars(Quotes) if not name.startswith("_")]
    assert len(functions) > 15
    assert [name for name in (*functions, "forest", "claim", "listed", "link") if f"`{name}(" not in text] == []
    assert [name for name in FACTS if f"`{name}`" not in text] == []
