from __future__ import annotations

import json

import pytest

from fcilbench.tables import clean, comma_separated, escape_markdown, markdown, text_table

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


@pytest.mark.parametrize("character", ["\x1b", "\x07", "\x9b", "\u202e", "\u2066", "\u200b", "\ufeff", "\ud800"])
def test_control_and_direction_characters_are_spelt_out(character):
    assert clean(f"a{character}b\nc") == f"a\\u{ord(character):04x}b\nc"
    assert text_table([], [[f"a{character}"]]) == [f"a\\u{ord(character):04x}"]
    text = json.dumps({"x": f"a{character}"}, ensure_ascii=False)
    assert json.loads(clean(text)) == json.loads(text)


def test_markdown_shows_text_as_it_is():
    assert escape_markdown("a|b\n`c` ![i](//x) <b> *d* _e_ \\") == (r"a\|b \`c\` \!\[i\](//x) &lt;b&gt; \*d\* \_e\_ \\")
    assert markdown(["x", "n"], [["a|b", 1]], right=(1,)) == ["| x | n |", "| --- | ---: |", r"| a\|b | 1 |"]


def test_csv_quotes_and_leaves_undefined_empty():
    assert comma_separated(["x", "n"], [['a,"b"', None]]) == 'x,n\n"a,""b""",\n'
