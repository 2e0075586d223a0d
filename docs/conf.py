"""Configuration of Sphinx: `make docs` writes the pages to build/docs/."""

import importlib
import re
from pathlib import Path

import weightmap
from weightmap.formats import FORMATS

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent

project = "weightmap"
author = "weightmap developers"
project_copyright = author
release = version = weightmap.__version__
REPOSITORY = "https://github.com/weightmap/weightmap"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode", "numpydoc"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"weightmap {release}"
html_theme_options = {"source_repository": REPOSITORY, "source_branch": "main", "source_directory": "docs/"}

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

# The types stand in the docstrings, as users of numpy expect.
autodoc_typehints = "none"
autodoc_mock_imports = ["torch", "jax", "vllm", "sglang", "altair", "obstore"]
autodoc_member_order = "bysource"
numpydoc_show_class_members = False
# Single backquotes name objects of Python; those that have a page become links.
default_role = "py:obj"

# The modules whose names are public; weightmap.__init__ exports those that most programs need.
MODULES = (
    "weightmap",
    "weightmap.compat",
    "weightmap.compat.torch",
    "weightmap.compat.numpy",
    "weightmap.compat.gguf",
    "weightmap.torch",
    "weightmap.device",
    "weightmap.jax",
    "weightmap.dlpack",
    "weightmap.dcp",
    "weightmap.vllm",
    "weightmap.remote",
    "weightmap.kernels",
    "weightmap.errors",
    "weightmap.typing",
)


def present() -> list[str]:
    """Return the public modules that this tree has."""
    package = ROOT / "src"
    paths = [(name, package / Path(*name.split("."))) for name in MODULES]
    return [name for name, path in paths if path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()]


def formats_page() -> str:
    """Return the page of formats: the docstring of each format's module."""
    parts = ["# File formats", "", "weightmap recognises a file by its content. Each section is the docstring of the"]
    parts += ["format's module, which its reader and writer follow.", ""]
    for name, format_ in FORMATS.items():
        text = importlib.import_module(f"weightmap.formats.{name}").__doc__ or ""
        text = re.sub(r"^(\S.*)\n-{3,}$", r"### \1", text, flags=re.MULTILINE)
        # A code block of reStructuredText is one of Markdown as well, without its second colon.
        parts += [f"## {format_.title} (`{name}`)", "", re.sub(r"::$", ":", text, flags=re.MULTILINE), ""]
    return "\n".join(parts)


def api_page() -> str:
    """Return the page of the interface: every public name of every public module."""
    parts = ["# API", "", "Every public name. `import weightmap as wm` has those that most programs need.", ""]
    for name in present():
        options = [f".. automodule:: {name}", "   :members:", "   :imported-members:", "   :show-inheritance:"]
        parts += [f"## {name}", "", "```{eval-rst}", *options, "```", ""]
    return "\n".join(parts)


def rewrite_links(app, docname, source):  # noqa: ANN001, ANN201, ARG001 - as Sphinx calls it
    """Lead links to files that are no pages to the repository."""
    source[0] = re.sub(r"\]\(\.\./([^)]+)\)", rf"]({REPOSITORY}/blob/main/\1)", source[0])


def write_pages(app):  # noqa: ANN001, ANN201, ARG001 - as Sphinx calls it
    """Write the pages that come from docstrings, where their text has changed."""
    for name, text in (("file-formats.md", formats_page()), ("api.md", api_page())):
        path = DOCS / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def setup(app):  # noqa: ANN001, ANN201 - as Sphinx calls it
    """Connect the two."""
    app.connect("builder-inited", write_pages)
    app.connect("source-read", rewrite_links)
