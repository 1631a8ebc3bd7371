from __future__ import annotations

from fcilbench.escape import page_link
from fcilbench.tables import Link, comma_separated, markdown, text_table

HEADS = [["cell", "what", "n"]]
ROWS = [["a1", "first", 10], ["b2", "a long text that must be wrapped", 7]]


def test_columns_are_aligned_and_text_is_wrapped_to_fit():
    assert text_table(HEADS, ROWS, right=(2,)) == [
        "cell  what                               n",
        "────  ────────────────────────────────  ──",
        "a1    first                             10",
        "b2    a long text that must be wrapped   7",
    ]
    narrow = text_table(HEADS, ROWS, width=26, right=(2,))
    assert max(map(len, narrow)) <= 26
    assert narrow[3:] == ["b2    a long text that   7", "      must be wrapped"]


def test_no_header_no_rows_and_wide_characters():
    assert text_table([], [["a", 1]]) == ["a  1"]
    assert text_table([], []) == []
    assert text_table([], [["日本", "x"], ["ab", "y"]]) == ["日本  x", "ab    y"]


def test_csv_quotes_and_leaves_undefined_empty():
    assert comma_separated(["x", "n"], [['a,"b"', None]]) == 'x,n\n"a,""b""",\n'


def test_markdown_cells_are_escaped_and_may_link_to_a_page_beside():
    assert markdown(["x", "n"], [["a|b", 1]], right=(1,)) == ["| x | n |", "| --- | ---: |", r"| a\|b | 1 |"]
    (*_, row) = markdown(["x"], [[Link("a [b]", page_link("a [b]", "README.md"))]])
    assert row == r"| [a \[b\]](a%20%5Bb%5D/README.md) |"
