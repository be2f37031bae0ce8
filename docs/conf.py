"""The documentation site: `python -m sphinx -W --keep-going -b html docs outputs/site`.

Pages are Markdown (MyST). The examples are scripts with percent cells, which jupytext reads as notebooks and myst-nb
runs once per build. The reference comes from the docstrings. Nothing is downloaded.
"""

import re
from typing import Any

from softrank_ext import __version__

project = "softrank_ext"
author = "the authors of softrank_ext"
copyright = "the authors of softrank_ext"
version = release = __version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.viewcode", "sphinx_copybutton"]
exclude_patterns = ["conf.py"]

# Pages.
myst_heading_anchors = 3
myst_enable_extensions = ["dollarmath"]

# Examples.
nb_custom_formats = {".py": ["jupytext.reads", {"fmt": "py:percent"}]}
nb_execution_mode = "force"
nb_execution_in_temp = True
nb_execution_timeout = 120
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_merge_streams = True

# Reference. Docstrings write names as `name`: a link where there is such a name.
default_role = "py:obj"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
maximum_signature_line_length = 100
add_module_names = False

# Look.
html_theme = "furo"
html_title = f"softrank_ext {version}"
html_copy_source = False
html_show_sphinx = False
copybutton_prompt_text = "$ "


def _as_plain_text(app: Any, what: str, name: str, found: Any, options: Any, lines: list[str]) -> None:
    """Stars and bars of a docstring are themselves, (*batch, N). Python's own text of a tuple's field is left out."""
    if lines and lines[0].startswith("Alias for field number"):
        lines.clear()
    for number, line in enumerate(lines):
        parts = line.split("`")
        parts[::2] = [re.sub(r"([*|])", r"\\\1", part) for part in parts[::2]]
        lines[number] = "`".join(parts)


def _with_links_of_the_site(app: Any, page: str, source: list[str]) -> None:
    """Links to files of the repository, as they work in a clone: to their pages here, or to the files themselves."""
    for name in ("CONTRIBUTING", "CHANGELOG"):
        source[0] = re.sub(rf"\]\((\.\./)*{name}\.md\)", f"](/{name.lower()}.md)", source[0])
    example = r"\[([^\]]+)\]\((?:\.\./)*examples/(\w+)\.(?:py|md)\)"
    source[0] = re.sub(example, r"{doc}`\1 </examples/\2>`", source[0])
    source[0] = re.sub(r"\]\(((?:\.\./)+bench/results/[\w-]+\.(?:md|json|txt))\)", r"](path:\1)", source[0])


def setup(app: Any) -> None:
    """Connect the two."""
    app.connect("autodoc-process-docstring", _as_plain_text)
    app.connect("source-read", _with_links_of_the_site)
