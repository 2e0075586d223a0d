"""Configuration of Sphinx: `make docs` writes the pages to build/docs/."""

import importlib
import re
from pathlib import Path

import weightmap
from weightmap.core.formats import FORMATS

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent

project = "weightmap"
author = "weightmap developers"
project_copyright = author
release = version = weightmap.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode", "numpydoc"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
# The first page includes it.
exclude_patterns = ["start.md"]
html_theme = "furo"
# The default underlines the modules of an import, as if they were links.
pygments_dark_style = "github-dark"
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_title = f"weightmap {release}"

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

# The types stand in the docstrings, as users of numpy expect.
autodoc_typehints = "none"
autodoc_mock_imports = ["torch", "jax", "vllm", "sglang", "altair", "obstore"]
autodoc_member_order = "bysource"
numpydoc_show_class_members = False
# Single backquotes name objects of Python; those that have a page become links.
default_role = "py:obj"

# The names of `weightmap`, in the order in which a program meets them.
USES = {
    "Open and read": ("open", "load", "Remote", "TensorFile", "TensorInfo", "QuantizedTensor", "Limits", "formats"),
    "Write": ("save", "Output", "convert", "Quantize", "Run", "quantize", "ConvertReport"),
    "Check and compare": ("verify", "VerifyReport", "diff", "DiffReport", "TensorDiff"),
    "Words": ("Vocabulary", "Embeddings"),
    "Read by plan": ("plan", "shard", "ReadPlan"),
    "Errors and warnings": (
        "TensorFileError",
        "FormatError",
        *("UnknownFormatError", "UnsupportedError", "TruncatedError", "LayoutError", "ChecksumError", "DeltaError"),
        *("LimitError", "EncodeError", "TargetError", "QuantError", "PlanError", "ClosedError"),
        *(
            "TensorNotFoundError",
            "UnknownWordError",
            "FileChangedError",
            "TrustError",
            "NotRegularFileError",
            "AddressError",
            "RemoteError",
            "MissingDependencyError",
            "ShardsError",
            "ModelWarning",
        ),
    ),
}
# The other public modules, a page each, and what they are for.
MODULES = {
    "weightmap.torch": "PyTorch: tensors of a file, parameters of a module",
    "weightmap.jax": "jax arrays and shardings",
    "weightmap.compat": "the interface of safetensors, on every format",
    "weightmap.compat.torch": "the interface of safetensors.torch",
    "weightmap.compat.numpy": "the interface of safetensors.numpy",
    "weightmap.compat.gguf": "gguf-py's reader",
    "weightmap.dlpack": "arrays for any library that takes DLPack",
    "weightmap.device": "loading to GPUs",
    "weightmap.vllm": "the load format of vLLM, the loader of SGLang",
    "weightmap.dcp": "torch.distributed.checkpoint",
    "weightmap.deltas": "versions of a model: publish, pull, apply, open",
    "weightmap.hub": "downloads to the cache of the Hub",
    "weightmap.report": "pages about models",
    "weightmap.trust": "verify downloads: SHA-256 and signatures",
    "weightmap.words": "word vectors of other programs",
    "weightmap.kernels": "checksums, hashes, widening and decoding in C",
    "weightmap.errors": "every error, with its fields",
    "weightmap.typing": "types of arguments and results",
}


def formats_page() -> str:
    """Return the page of formats: the docstring of each format's module."""
    parts = ["# File formats", "", "weightmap recognises a file by its content. Each section is the docstring of the"]
    parts += ["format's module, which its reader and writer follow.", ""]
    for name, format_ in FORMATS.items():
        text = importlib.import_module(f"weightmap.core.formats.{name}").__doc__ or ""
        text = re.sub(r"^(\S.*)\n-{3,}$", r"### \1", text, flags=re.MULTILINE)
        # A code block of reStructuredText is one of Markdown as well, without its second colon.
        parts += [f"## {format_.title} (`{name}`)", "", re.sub(r"::$", ":", text, flags=re.MULTILINE), ""]
    return "\n".join(parts)


def directive(kind: str, name: str, *options: str) -> list[str]:
    """Return the lines that have Sphinx describe an object."""
    return ["```{eval-rst}", f".. auto{kind}:: {name}", *(f"   :{option}:" for option in options), "```", ""]


def api_pages() -> dict[str, str]:
    """Return the pages of the interface: an index by use, and a page for each module."""
    listed = {name for names in USES.values() for name in names} | {"kernels"}
    if listed != set(weightmap.__all__):
        raise ValueError(f"USES and weightmap.__all__ differ: {listed ^ set(weightmap.__all__)}")
    index = ["# API", "", "`import weightmap as wm` has what most programs need.", "", "| use | names |", "|---|---|"]
    page = ["# weightmap", ""]
    for use, names in USES.items():
        index += [f"| {use} | " + " · ".join(f"{{py:obj}}`~weightmap.{name}`" for name in names) + " |"]
        page += [f"## {use}", ""]
        for name in names:
            is_class = isinstance(getattr(weightmap, name), type)
            options = ("members", "show-inheritance") if is_class else ()
            page += directive("class" if is_class else "function", f"weightmap.{name}", *options)
    index += ["", "| module | what it is for |", "|---|---|"]
    index += [f"| [{name}](api/{name}.md) | {use} |" for name, use in MODULES.items()]
    index += ["", "```{toctree}", ":hidden:", "api/weightmap", *(f"api/{name}" for name in MODULES), "```", ""]
    pages = {"api.md": index, "api/weightmap.md": page}
    for name in MODULES:
        pages[f"api/{name}.md"] = [
            f"# {name}",
            "",
            *directive("module", name, "members", "imported-members", "show-inheritance"),
        ]
    return {name: "\n".join(lines) for name, lines in pages.items()}


def skip_fields(app, what, name, obj, skip, options):  # noqa: ANN001, ANN201, ARG001 - as Sphinx calls it
    """Leave out the fields of named tuples that say nothing but their number."""
    return True if (obj.__doc__ or "").startswith("Alias for field number") else None


def rewrite_links(app, docname, source):  # noqa: ANN001, ANN201, ARG001 - as Sphinx calls it
    """Name files of the checkout that are not pages, instead of linking to them."""
    source[0] = re.sub(
        r"\[([^\]]+)\]\(\.\./([^)#]+)(?:#[^)]*)?\)",
        lambda link: f"`{link[2]}`" if link[2].endswith(link[1]) else f"{link[1]} (`{link[2]}`)",
        source[0],
    )


def write_pages(app):  # noqa: ANN001, ANN201, ARG001 - as Sphinx calls it
    """Write the pages that come from docstrings, where their text has changed."""
    for name, text in {"file-formats.md": formats_page(), **api_pages()}.items():
        path = DOCS / name
        path.parent.mkdir(exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def setup(app):  # noqa: ANN001, ANN201 - as Sphinx calls it
    """Connect the two."""
    app.connect("builder-inited", write_pages)
    app.connect("autodoc-skip-member", skip_fields)
    app.connect("source-read", rewrite_links)
