"""Text of somebody else, escaped for where it goes: terminal, Markdown, LaTeX, CSV, a link.

Labels, descriptions, warnings, messages and names of files come from suites, plugins and strangers' rows. No renderer
writes such a text without the function of its destination. HTML pages are templates of jinja2, which escapes text and
attributes by itself; only links need more than that.
"""

from __future__ import annotations

import re
from urllib.parse import quote

_CONTROL = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
"""Characters that steer a terminal, turn the direction of text, or are not seen; line ends are not among them."""
_MARKDOWN = re.compile(r"([\\`*_\[\]!|#~$])")
_FORMULA = re.compile(r"\s*[=+\-@\uff1d\uff0b\uff0d\uff20]")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)
_TEX = {
    **{each: f"\\{each}" for each in "&%$#_{}"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    **{"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"},
    **{"±": r"$\pm$", "–": "--", "↑": r"$\uparrow$", "↓": r"$\downarrow$", "‡": r"$^\ddagger$", "§": r"\S{}"},
}


def clean(text: object) -> str:
    """Returns text in which control, direction and invisible characters, except line ends, are JSON escapes."""
    return _CONTROL.sub(_spelt, str(text))


def _spelt(found: re.Match[str]) -> str:
    units = found.group().encode("utf-16-be", "surrogatepass")  # beyond U+FFFF JSON has two escapes
    return "".join(f"\\u{units[place : place + 2].hex()}" for place in range(0, len(units), 2))


def line(text: object) -> str:
    """Returns clean text on one line."""
    return clean(" ".join(str(text).split()))


def escape_markdown(text: object) -> str:
    """Returns one line of text that Markdown (of GitHub, too) shows as it is, inside a line or in a cell of a table.

    Nothing in it is markup, HTML, mathematics or a link, but for a bare http address, which GitHub makes a link.
    """
    return _MARKDOWN.sub(r"\\\1", line(text)).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def markdown_paragraph(text: object) -> str:
    """Returns one line of text that Markdown shows as it is at the start of a line: it makes no list and no heading."""
    shown = re.sub(r"^(\d+)([.)])", r"\1\\\2", escape_markdown(text))
    return f"\\{shown}" if shown.startswith(("-", "+", "=")) else shown


def escape_tex(text: object) -> str:
    """Returns one line of text that LaTeX prints as it is."""
    return re.sub("|".join(map(re.escape, _TEX)), lambda found: _TEX[found.group()], line(text))


def tex_row(cells: list[str]) -> str:
    r"""Returns a row of a LaTeX table from escaped cells.

    A row that begins with `[` or `*` would be read as an option of the `\\` before it.
    """
    row = " & ".join(cells) + r" \\"
    return f"{{}}{row}" if row.startswith(("[", "*")) else row


def tex_comment(text: object) -> str:
    """Returns text as a comment of LaTeX, which ends with its line."""
    return f"% {line(text)}"


def escape_csv(value: object) -> str:
    """Returns a field of a CSV file; `None` is empty.

    Spreadsheets compute a text that begins with `=`, `+`, `-` or `@`; it gets an apostrophe in front, which makes it a
    text there. Numbers, and texts that are numbers, stay as they are.

    Example:
        >>> escape_csv("=1+1"), escape_csv("-0.5"), escape_csv(-0.5), escape_csv("a=b")
        ("'=1+1", '-0.5', '-0.5', 'a=b')
    """
    text = "" if value is None else clean(value)
    formula = isinstance(value, str) and _FORMULA.match(text) and not _NUMBER.fullmatch(text)
    return f"'{text}" if formula else text


def page_link(folder: str, page: str) -> str:
    """Returns the relative address of a page in a folder beside the page that links to it.

    The name of the folder is quoted: with a colon in it, it would be an address of its own (`javascript:...`).
    """
    return f"{quote(folder, safe='', errors='surrogateescape')}/{page}"
