"""How Sphinx builds the site: `make docs`, with warnings as errors and without a network."""

import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS / "_ext"), str(DOCS.parent)]

project = "dcfl"
author = "The dcfl developers"
copyright = author

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "api",
    "made_parts",
    "mathml",
    "notebooks",
    "repository_links",
    "torch_links",
]
exclude_patterns = ["_build", "_ext"]

myst_enable_extensions = ["attrs_block", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4  # links to a heading read as on a code host

default_role = "code"  # docstrings have names in single backticks
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
napoleon_use_rtype = False
add_module_names = False

highlight_language = "text"
pygments_style = "default"
pygments_dark_style = "monokai"

html_theme = "furo"
html_title = "dcfl"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"
html_copy_source = False
# Excerpts of what a search finds are fetched from the pages, which a browser does on a site but not
# from file://, where the results stand without them.
html_show_search_summary = True
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}
