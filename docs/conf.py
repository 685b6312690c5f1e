"""The documentation site: ``make docs`` builds it into build/docs, from files alone."""

import logging
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from site_pages import layers_svg, link_outside, set_apart, visit_formula, write_board, write_pages

import goen

logging.getLogger("goen").setLevel(logging.WARNING)  # of the examples

project = "goen"
author = "the goen developers"
copyright = "the goen developers"
version = release = goen.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["examples", "**/README.rst", "gallery/*.ipynb"]
myst_heading_anchors = 4
# Console examples and the output of commands are not code.
highlight_language = "none"
# Files outside of docs/ become downloads; a folder cannot.
suppress_warnings = ["config.cache"]

html_theme = "furo"
html_title = "goen"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}

autodoc_default_options = {"members": True}
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the text has the shapes and forms; full types are in the source
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_attr_annotations = False
add_module_names = False
python_maximum_signature_line_length = 80
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

sphinx_gallery_conf = {
    "examples_dirs": "examples",
    "gallery_dirs": "gallery",
    "filename_pattern": r"/\w+\.py$",
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "abort_on_example_error": True,
    "remove_config_comments": True,
    "write_computation_times": False,
}

html_math_renderer = "mathml"
write_pages(Path(__file__).parent)
# Not a page of the documentation: a link of docs/methods/board.md leads to it.
html_extra_path = [str(write_board(Path(__file__).parents[1] / "build" / "board"))]
myst_enable_extensions = ["substitution"]
myst_substitutions = {"layers": layers_svg()}


def setup(app: object) -> None:
    """Formulas are MathML; links to files outside of docs/ lead somewhere."""
    app.connect("source-read", link_outside)  # type: ignore[attr-defined]
    app.connect("autodoc-process-docstring", set_apart)  # type: ignore[attr-defined]
    renderers = ((visit_formula, None), (visit_formula, None))
    app.add_html_math_renderer("mathml", *renderers)  # type: ignore[attr-defined]
