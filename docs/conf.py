"""How Sphinx makes the site of what `docs/generate.py` wrote. Nothing of it needs a network, built or read."""

from pathlib import Path

import fcilbench
import fcilbench.api
import fcilbench.testing

project = "fcilbench"
version = release = fcilbench.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 4
html_theme = "furo"
html_title = f"fcilbench {version}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_copyright = False
html_copy_source = False
html_show_sphinx = False
default_role = "code"
smartquotes = False  # `--only` has two hyphens
add_module_names = False
autodoc_typehints = "none"
autodoc_member_order = "bysource"
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
# Types of other packages have no page here, and the pages that they have are not read: that needs a network.
nitpick_ignore_regex = [("py:.*", r"(?!fcilbench).*")]
# Bases that no author of a plugin imports, and a public name under that of its module.
_INNER = "errors.FcilbenchError", "spec.protocol.Closed", "testing.conformance._Conformance", "data.folders.Layout"
nitpick_ignore = [("py:class", f"fcilbench.{each}") for each in _INNER]
nitpick_ignore += [(kind, "fcilbench.testing.check.S") for kind in ("py:class", "py:obj")]

for _name in fcilbench.api.__all__:
    getattr(fcilbench.api, _name)  # autodoc would import them as a type checker does, which has no part of the code


def setup(app):
    """Copies the boards, which `docs/generate.py` wrote beside the sources."""
    app.config.html_extra_path = [str(Path(app.srcdir).parent / "extra")]
