"""The page of a folder of leaderboards, written around figures that are looked up: a template and what it may call.

`README.md.jinja` in the folder is a template of jinja2; `Quotes` has the functions that it can call. A stranger may
have written it, so it runs in jinja2's sandbox. What comes out of `{{ ... }}` is a text of rows: it is escaped for
Markdown and never read as a template. A `claim` is a sentence without a figure that the rows have to bear out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fcilbench.boards.quotes import Leaderboard, Quotes
from fcilbench.boards.stats import CONFIDENCE
from fcilbench.errors import UsageError, nearest
from fcilbench.escape import clean, escape_markdown, page_link
from fcilbench.results.foreign import RECORD, open_regular
from fcilbench.tables import listed

TEMPLATE = "README.md.jinja"
"""Name of the template in a folder of leaderboards."""
_FRAME = "<template>"
"""What jinja2 calls the file of a template in a traceback."""
_UNKNOWN = re.compile(r"^'(\w+)' is undefined$")


class Markdown(str):
    """Text that is Markdown already: it is not escaped."""

    __slots__ = ()


def read_template(folder: Path) -> str | None:
    """Returns the template of a folder of leaderboards; `None` if it has none.

    Raises:
        RefusedError: If it is a link, no regular file, or far too large.
        UsageError: If it is not UTF-8.
    """
    try:
        with open_regular(folder, TEMPLATE, RECORD.size) as file:
            return file.read().decode()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise UsageError(f"not UTF-8: {error.reason}", where=str(folder / TEMPLATE)) from error


def render_prose(
    source: str,
    leaderboards: Sequence[Leaderboard],
    table: str,
    where: Path,
    more: Mapping[str, Callable[..., object]] | None = None,
) -> str:
    """Returns the page that a template makes of leaderboards.

    Args:
        source: The template. Beside the functions of `Quotes` it has `claim`, `link` (a leaderboard's page), `listed`
            (names with commas and "and"), `boards` (the table of all leaderboards), `names` (their folders) and
            `confidence` (of all intervals, e.g. "95 %").
        leaderboards: What it can quote.
        table: The table of all leaderboards, as Markdown.
        where: The template's file, for errors.
        more: Further functions by name.

    Raises:
        UsageError: If the template is wrong, asks for something that does not exist, or claims what is not so; it
            names the line of the template.
    """
    from jinja2 import StrictUndefined, TemplateSyntaxError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    quotes = Quotes(leaderboards)
    known: dict[str, Any] = {name: getattr(quotes, name) for name in vars(Quotes) if not name.startswith("_")}
    known |= {**(more or {}), "claim": claim, "listed": listed, "link": _linker(each.name for each in leaderboards)}
    known |= {"boards": Markdown(table), "names": [each.name for each in leaderboards]}
    known |= {"confidence": f"{CONFIDENCE:.0%}".replace("%", " %")}
    environment = ImmutableSandboxedEnvironment(
        undefined=StrictUndefined, finalize=_shown, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    try:
        return clean(environment.from_string(source).render(known))
    except TemplateSyntaxError as error:
        raise UsageError(error.message or "not a template", where=f"{where}:{error.lineno}") from error
    except UsageError as error:
        raise UsageError(error.message, where=_place(where, error), hint=error.hint) from error
    except Exception as error:  # whatever a template does wrong: a word that is not known, an argument too many
        unknown = _UNKNOWN.match(str(error))
        meant = nearest(unknown.group(1), known) if unknown else ""
        what = str(error).removeprefix("Quotes.") or type(error).__name__
        raise UsageError(f"{what}{meant}", where=_place(where, error)) from error


def claim(condition: object, text: str) -> str:
    """Returns a sentence that a condition on the rows bears out.

    Raises:
        UsageError: If it is not so, or the condition is neither true nor false.
    """
    if not isinstance(condition, bool):
        raise UsageError(f"the condition of a claim is true or false, not {condition!r}: {text!r}")
    if not condition:
        raise UsageError(f"the rows do not bear this out: {text!r}", hint="change the sentence, or what it asks for")
    return text


def _linker(names: Iterable[str]) -> Callable[[str], Markdown]:
    known = set(names)

    def link(name: str) -> Markdown:
        """Returns a link to the page of a leaderboard."""
        if name not in known:
            raise UsageError(f"there is no leaderboard {name!r} in this folder{nearest(name, known)}")
        return Markdown(f"[{escape_markdown(name)}]({page_link(name, 'README.md')})")

    return link


def _shown(value: object) -> str:
    """Returns what a template prints, escaped; a number without a form is none of the figures that a text quotes."""
    from jinja2 import Undefined

    if isinstance(value, Markdown):
        return value
    if isinstance(value, Undefined) or (isinstance(value, int) and not isinstance(value, bool)):
        return str(value)  # of what is undefined there is none, but an error
    if not isinstance(value, str):
        raise UsageError(f"{value!r} is a {type(value).__name__} and no text, so it cannot be printed")
    return escape_markdown(value)


def _place(where: Path, error: BaseException) -> str:
    """Returns file and line of the template in which an error came up."""
    found, frame = "", error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == _FRAME:
            found = f":{frame.tb_lineno}"
        frame = frame.tb_next
    return f"{where}{found}"
