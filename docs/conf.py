"""Settings of the documentation site; `make docs` builds it without a network."""

from __future__ import annotations

import re
import sys
import zlib
from pathlib import Path

from sphinx.application import Sphinx

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path[:0] = [str(DOCS), str(ROOT / "client"), str(ROOT / "server")]

import docstrings  # noqa: E402
import reference_tables  # noqa: E402

from gradwire import __version__  # noqa: E402

project = "gradwire"
author = "The gradwire authors"
copyright = author  # noqa: A001 - Sphinx dictates the name
release = __version__
extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["_build", "_inventories"]
nitpicky = True
default_role = "code"
suppress_warnings = ["myst.header"]  # conformance.md has headings that skip a level

# Headings have the anchors that GitHub gives them.
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence", "dollarmath"]

# The bridges are documented without their frameworks.
autodoc_mock_imports = ["jax", "torch"]
autodoc_typehints = "none"
autodoc_member_order = "bysource"
numpydoc_show_class_members = False

html_theme = "pydata_sphinx_theme"
html_title = f"gradwire {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_theme_options = {
    "navbar_align": "left",
    "header_links_before_dropdown": 6,
    "navigation_depth": 2,
    "show_toc_level": 2,
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
    "use_edit_page_button": False,
}
# A list of nothing else needs no sidebar.
html_sidebars = {"index": []}


def _inventory(name: str) -> str:
    """Compress a vendored list of names to the format of Sphinx, and return its path."""
    packed = DOCS / "_build" / f"{name}.inv"
    packed.parent.mkdir(exist_ok=True)
    head = f"# Sphinx inventory version 2\n# Project: {name}\n# Version: 0\n"
    head += "# The remainder of this file is compressed using zlib.\n"
    names = (DOCS / "_inventories" / f"{name}.txt").read_bytes()
    packed.write_bytes(head.encode() + zlib.compress(names))
    return str(packed)


intersphinx_mapping = {
    "python": ("https://docs.python.org/3/", _inventory("python")),
    "numpy": ("https://numpy.org/doc/stable/", _inventory("numpy")),
}


def _prepare(_: Sphinx, __: str, source: list[str]) -> None:
    """Fill in generated tables; links to folders, which no site has, become their text."""
    text = re.sub(
        r"^<!-- generated: (\w+) -->$",
        lambda found: reference_tables.TABLES[found[1]](),
        source[0],
        flags=re.MULTILINE,
    )
    source[0] = re.sub(r"\[([^\]]+)\]\((?:\.\./)+[^).#]*\)", r"\1", text)


def setup(app: Sphinx) -> None:
    """Connect what prepares pages and docstrings."""
    app.connect("source-read", _prepare)
    # Before numpydoc, whose sections it writes.
    app.connect("autodoc-process-docstring", docstrings.to_numpydoc, priority=100)
