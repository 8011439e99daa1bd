"""Sphinx configuration; ``make docs`` builds with warnings as errors."""

from importlib.metadata import version as _version

project = "fxpasses"
author = "The fxpasses authors"
copyright = "2026, The fxpasses authors"
release = version = _version("fxpasses")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "fxpasses"
html_static_path = ["_static"]
html_css_files = ["wide.css"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_class_signature = "separated"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
nitpicky = False
