"""How Sphinx makes the site of what `docs/generate.py` wrote. Nothing of it needs a network, built or read."""

import os
from pathlib import Path

import fcilbench
import fcilbench.api
import fcilbench.testing

project = "fcilbench"
author = "the fcilbench authors"
version = release = fcilbench.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 4
html_theme = "furo"
html_title = f"fcilbench {version}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_extra_path = [os.environ.get("FCILBENCH_DOCS_EXTRA", str(Path(__file__).parent / "build" / "extra"))]
html_copy_source = False
html_show_sphinx = False
default_role = "code"
add_module_names = False
autodoc_typehints = "none"
autodoc_member_order = "bysource"
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
# Types of other packages have no page here, and the pages that they have are not read: that needs a network.
_INNER = r"errors\.FcilbenchError|spec\.protocol\.Closed|testing\.conformance\._Conformance|testing\.check\.S|data\.folders\.Layout"
nitpick_ignore_regex = [("py:.*", rf"(?!fcilbench).*|fcilbench\.({_INNER})")]

for _name in fcilbench.api.__all__:
    getattr(fcilbench.api, _name)  # autodoc would import them as a type checker does, which has no part of the code
