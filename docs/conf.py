"""Settings of the documentation site; `make docs` builds it without a network."""

from __future__ import annotations

import os
import re
import sys
import zlib
from pathlib import Path
from typing import Any

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
exclude_patterns = ["_inventories"]
nitpicky = True
# Types of arguments that have no page: private, or of the server's inside.
nitpick_ignore_regex = [
    ("py:class", r"NDArray|Array|Sizes|gradwire\.(_|v1\.).*"),
    ("py:class", r"gradwire_server\.(engine|local_client)\..*"),
]
default_role = "code"
suppress_warnings = ["myst.header"]  # conformance.md has headings that skip a level

# Headings have the anchors that GitHub gives them.
myst_heading_anchors = 4

# The bridges are documented without their frameworks.
autodoc_mock_imports = ["jax", "torch"]
autodoc_typehints = "signature"
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True
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
html_sidebars: dict[str, list[str]] = {"index": []}


def _inventory(name: str) -> str:
    """Compress a vendored list of names to the format of Sphinx, and return its path."""
    packed = ROOT / "build" / "inventories" / f"{name}.inv"
    packed.parent.mkdir(parents=True, exist_ok=True)
    head = f"# Sphinx inventory version 2\n# Project: {name}\n# Version: 0\n"
    head += "# The remainder of this file is compressed using zlib.\n"
    names = (DOCS / "_inventories" / f"{name}.txt").read_bytes()
    packed.write_bytes(head.encode() + zlib.compress(names))
    return str(packed)


intersphinx_mapping = {
    "grpc": ("https://grpc.github.io/grpc/python/", _inventory("grpc")),
    "python": ("https://docs.python.org/3/", _inventory("python")),
    "numpy": ("https://numpy.org/doc/stable/", _inventory("numpy")),
}


_INCLUDED = {
    ROOT / "CHANGELOG.md": DOCS / "changelog.md",
    ROOT / "CONTRIBUTING.md": DOCS / "contributing.md",
    ROOT / "README.md": DOCS / "index.md",
    ROOT / "SECURITY.md": DOCS / "security.md",
}


def _prepare(app: Any, docname: str, source: list[str]) -> None:
    """Fill in generated tables and included pages, and lead all links to pages of the site."""
    page = Path(app.env.doc2path(docname))
    text = re.sub(
        r"^<!-- generated: (\w+) -->$",
        lambda found: reference_tables.TABLES[found[1]](),
        source[0],
        flags=re.MULTILINE,
    )
    included = next((each for each, own in _INCLUDED.items() if own == page), page)
    if "<!-- included -->" in text:
        _, _, body = included.read_text(encoding="utf-8").partition("\n")
        text = text.replace("<!-- included -->", body)
    else:
        included = page
    source[0] = _LINK.sub(lambda link: _led(link, included.parent, page.parent), text)


_LINK = re.compile(r"\[([^\]]+)\]\((?!\w+:)([^)#\s]+)(#[^)\s]*)?\)")


def _led(link: re.Match[str], source: Path, page: Path) -> str:
    """Return a link of a file in `source` as it stands on a page in the folder `page`."""
    target = (source / link[2]).resolve()
    if not target.exists():
        return link[0]
    target = _INCLUDED.get(target, target)
    if target.is_dir() or (target.suffix == ".md" and not target.is_relative_to(DOCS)):
        return link[1]  # a folder, or a page that the site does not have
    return f"[{link[1]}]({os.path.relpath(target, page)}{link[3] or ''})"


def setup(app: Any) -> None:
    """Connect what prepares pages and docstrings."""
    app.connect("source-read", _prepare)
    # Before numpydoc, whose sections it writes.
    app.connect("autodoc-process-docstring", docstrings.to_numpydoc, priority=100)
