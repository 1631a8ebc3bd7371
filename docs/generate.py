"""Writes the sources of the documentation site into docs/build/source: `python docs/generate.py`.

Sphinx then makes the site of them, without network:

    sphinx-build -W -n -c docs docs/build/source docs/build/html
"""

import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from maker.api import write_api
from maker.pages import write_pages
from maker.plugins import write_kinds, write_methods
from maker.reference import write_commands, write_shipped, write_suite

from fcilbench.registry.catalog import session


def main(build: Path) -> None:
    """Writes all sources of the site below `build`, anew."""
    source, extra = build / "source", build / "extra"
    for folder in (source, extra):
        shutil.rmtree(folder, ignore_errors=True)
    (source / "reference").mkdir(parents=True)
    write_pages(source, extra)
    with session():  # one process describes all plugins
        write_methods(source)
        write_kinds(source)
    write_suite(source)
    write_shipped(source)
    write_commands(source)
    write_api(source)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "build")
