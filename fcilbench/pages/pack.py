"""How a page travels: data and code packed into text, the library of charts, and the policy that lets nothing else run.

A page makes no request but for `charts.js` beside it, if it has one. Its content security policy names what may run by
digest, evaluates no text as code, and lets it load nothing.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from fcilbench.escape import clean

_ROOM = "fcilbench.pages"
MODULES = ("unpack", "base", "state", "draw", "panels", "table", "pins", "further", "dialog", "page")
"""The files of the page's code, each after those that it imports from."""
_LETTERS = str.maketrans("<>&", ",./")
"""Letters of base 85 that HTML gives a meaning, and those that stand for them."""
MARK = "// The pages of fcilbench.\n"
"""The line of `charts.js` before the page's own code: what is above it is the library."""


def columns(records: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Returns records as a list for each column, which packs better; what a record lacks is `None`."""
    names = dict.fromkeys(name for record in records for name in record)
    return {name: [record.get(name) for record in records] for name in names}


def packed(text: str) -> str:
    """Returns text, packed by gzip and written in base 85; `unpack.js` reads it."""
    return base64.b85encode(gzip.compress(text.encode(), 9, mtime=0)).decode().translate(_LETTERS)


def unpacked(text: str) -> str:
    """Returns what `packed` was given."""
    back = {new: chr(old) for old, new in _LETTERS.items()}
    return gzip.decompress(base64.b85decode("".join(back.get(ord(each), each) for each in text))).decode()


def packed_data(value: Any) -> str:
    """Returns plain data as packed JSON; in a text of a row nothing steers a terminal or turns the text around."""
    return packed(json.dumps(_cleaned(value), separators=(",", ":"), ensure_ascii=False))


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Mapping):
        return {clean(key): _cleaned(each) for key, each in value.items()}
    return [_cleaned(each) for each in value] if isinstance(value, list | tuple) else value


@cache
def library() -> str:
    """Returns Vega, Vega-Lite and vega-embed as one script, which defines `vegaEmbed`; it takes seconds to make."""
    import vl_convert

    code = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    named = f"Vega {vl_convert.get_vega_version()}, Vega-Lite {vl_convert.get_vegalite_versions()[-1]}, "
    about = f"{named}vega-embed {vl_convert.get_vega_embed_version()} and what they need"
    return f"/* {about}\n{read('NOTICE')}*/\n{code}\n".replace("</script", "<\\/script")


def page_code() -> str:
    """Returns the page's own code as one script, which begins with `MARK`."""
    return f"{MARK}{bundled(MODULES)}"


@cache
def bundled(modules: tuple[str, ...]) -> str:
    """Returns some of the files of JavaScript as one script, in one scope, in the given order."""
    lines = [line for name in modules for line in read(f"{name}.js").splitlines() if not line.startswith("import ")]
    return "\n".join(["(() => {", '"use strict";', *(line.removeprefix("export ") for line in lines), "})();\n"])


@cache
def read(name: str) -> str:
    """Returns a text file of this room."""
    return files(_ROOM).joinpath(name).read_text(encoding="utf-8")


def policy(scripts: Iterable[str] = (), *, beside: bool = False) -> str:
    """Returns the content security policy of a page that runs some scripts, and maybe the file beside it.

    Styles are free: charts set the attribute `style`, of which a policy knows no digest.
    """
    allowed = [f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in scripts]
    source = " ".join([*(["'self'"] if beside else []), *allowed]) or "'none'"
    return f"default-src 'none'; script-src {source}; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def render(template: str, **values: Any) -> str:
    """Returns a page of a template of this room; what it is given is escaped, and control characters are spelt out.

    Its `script` is code of ours and stands as it is.
    """
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    values |= {"style": Markup(read("page.css")), "script": Markup(values.get("script", ""))}
    return clean(environment.from_string(read(template)).render(**values))
