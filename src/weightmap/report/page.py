"""The page of a report: one HTML file with its tables, its charts and the library that draws them.

Everything from a file becomes text: control characters are spelt out, and the rest escaped for HTML, or for the JSON
of the charts. The page's security policy lets it run its own scripts only, and fetch nothing.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import html
import json
import math
import os
import stat
from importlib import import_module, metadata, resources
from typing import TYPE_CHECKING, Any, NamedTuple

from weightmap._messages import escape
from weightmap.errors import MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# Most bytes of the bundled script, which has 0.9 million today.
_MAX_LIBRARY_NBYTES = 1 << 26


def library() -> str:
    """Return Vega-Lite, Vega and Vega-Embed as one script.

    Bundling takes seconds of processor time, so the user's cache keeps the script. Without a trusted, writable cache,
    each run bundles it.

    Raises
    ------
    MissingDependencyError
        When vl-convert-python is not installed.
    """
    try:
        name = f"vega-{metadata.version('vl-convert-python')}.js"
        folder = _cache()
        script = None if folder is None else _stored(os.path.join(folder, name))
        if script is None:
            script = import_module("vl_convert").javascript_bundle()
            if folder is not None:
                _store(os.path.join(folder, name), script)
    except ImportError:  # or no such distribution
        raise MissingDependencyError("reports need Vega-Lite: pip install '.[report]' in a checkout") from None
    # In the bundle, the end tag of a script can only occur in string literals.
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _cache() -> str | None:
    """Create our folder in the user's cache, and return it; None unless it is ours alone."""
    # The XDG specification ignores variables without an absolute path.
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):
        base = os.path.expanduser(os.path.join("~", ".cache"))
    if hasattr(os, "geteuid") and os.path.isabs(base):
        folder = os.path.join(base, "weightmap")
        with contextlib.suppress(OSError):
            os.makedirs(folder, 0o700, exist_ok=True)
            status = os.lstat(folder)
            if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077:
                return folder
    return None


def _stored(path: str) -> str | None:
    """Return the script that an earlier run stored; None if it is not whole, or others may have written it."""
    with contextlib.suppress(OSError, UnicodeDecodeError), open(path, "rb", opener=_opened) as file:
        status = os.fstat(file.fileno())
        if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022:
            digest, _, octets = file.read(_MAX_LIBRARY_NBYTES).partition(b"\n")
            if digest == _cache_digest(octets):
                return octets.decode()
    return None


def _store(path: str, script: str) -> None:
    """Keep a script for later runs, if the cache can be used."""
    octets = script.encode()
    with contextlib.suppress(OSError), open(path, "wb", opener=_opened) as file:
        file.write(_cache_digest(octets) + b"\n" + octets)


def _opened(path: str, flags: int) -> int:
    """Open a file of the cache; refuse links, and do not wait for the other end of a pipe."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)


def _cache_digest(octets: bytes) -> bytes:
    """Return the first line of a stored script: its digest shows whether all of the script is there."""
    return b"//" + hashlib.sha256(octets).hexdigest().encode()


# A section of the page: id, heading and HTML.
Section = tuple[str, str, str]

# Most characters of a name on the page.
_LONGEST = 200
_LEVELS = "▁▂▃▄▅▆▇█"
# Characters per histogram.
_SPARK = 16


class Cell(NamedTuple):
    """A cell of a table: its HTML, and the number to sort it by if its text is not a number."""

    html: str
    value: float | None = None


def short(item: object) -> str:
    """Return text from a file with control characters spelt out, shortened if it is long."""
    shown = escape(str(item)[: _LONGEST + 1])
    return shown if len(shown) <= _LONGEST else shown[: _LONGEST - 1] + "…"


def text(item: object) -> str:
    """Return text from a file as HTML."""
    return html.escape(short(item))


def titles(names: Sequence[str]) -> list[str]:
    """Return names of models for a heading: the ends of their paths, long enough to tell them apart."""
    parts = [os.path.abspath(name).split(os.sep) for name in names]
    for depth in range(1, max(map(len, parts)) + 1):
        ends = [os.sep.join(part[-depth:]) for part in parts]
        if len({*ends}) == len(ends):
            return ends
    return [part[-1] for part in parts]


def message(said: object) -> str:
    """Return a message as HTML, unshortened: its texts from files are already spelt out and cut."""
    whole = str(said)[:2000]
    return " ".join(text(whole[at : at + _LONGEST]) for at in range(0, len(whole), _LONGEST))


def named(name: str) -> str:
    """Return the name of a tensor as HTML that breaks lines behind dots and underscores if possible."""
    shown = html.escape(short(name)).replace(".", ".<wbr>").replace("_", "_<wbr>")
    return shown or '<span class="faint">(no name)</span>'


def number(value: float | None, form: str = ".4g") -> Cell:
    """Return a number as a cell, with infinity and NaN in words; an empty cell for None."""
    if value is None:
        return Cell("")
    if math.isnan(value):
        return Cell("NaN")
    return Cell(format(value, form) if math.isfinite(value) else "infinite" if value > 0 else "-infinite")


def spark(bins: Sequence[int]) -> str:
    """Return a histogram as a line of text, which needs no script."""
    if len(bins) < 2:  # the tensor is constant
        return _LEVELS[-1].center(_SPARK) if bins else ""
    halves = [a + b for a, b in zip(bins[::2], bins[1::2], strict=True)]
    highest = max(halves)
    return "".join(_LEVELS[min(n * len(_LEVELS) // (highest + 1), 7)] if n else " " for n in halves)


def pairs(rows: Iterable[tuple[str, str]]) -> str:
    """Return a list of terms and HTML as HTML."""
    return "<dl>" + "".join(f"<dt>{html.escape(term)}</dt><dd>{value}</dd>" for term, value in rows) + "</dl>"


def table(
    name: str,
    caption: str,
    columns: Sequence[tuple[str, bool]],
    rows: Iterable[Sequence[Cell]],
    *,
    kinds: Iterable[str] = (),
) -> str:
    """Return a table with tools: a script sorts and filters it; without scripts the table is complete.

    With scripts, the browser gets the table as text, a line per row, and the script makes elements only for visible
    rows: a browser takes a minute for the rows of 40,000 tensors.

    Parameters
    ----------
    name : str
        The table's id.
    caption : str
    columns : sequence of (str, bool)
        Headings, and whether the column holds numbers.
    rows : iterable of sequence of Cell
        The first cell of each row is its heading.
    kinds : iterable of str
        Texts of the second column that the reader can choose from.
    """
    choices = "".join(f"<option>{html.escape(kind)}</option>" for kind in kinds)
    select = f'<label>type <select><option value="">all</option>{choices}</select></label>' if choices else ""
    head = "".join(
        f'<th scope="col"{" class=number" if numeric else ""}><button type="button" disabled>'
        f"{html.escape(column)}</button></th>"
        for column, numeric in columns
    )
    lines = []
    for row in rows:
        cells = [f'<th scope="row">{row[0].html}</th>']
        for cell, (_, numeric) in zip(row[1:], columns[1:], strict=True):
            value = "" if cell.value is None else f' data-v="{cell.value:.9g}"'
            cells.append(f"<td{' class=number' if numeric else ''}{value}>{cell.html}</td>")
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return (
        f'<div class="tools script" id="{name}-tools"><label>filter by name <input type="search"></label>{select}'
        f'<button type="button">previous</button><button type="button">next</button>'
        f'<output aria-live="polite"></output></div>'
        f'<div class="scroll" tabindex="0" role="region" aria-label="{html.escape(caption)}"><noscript>'
        f'<table id="{name}" data-tools="{name}-tools"><caption>{html.escape(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>\n" + "\n".join(lines) + "\n</tbody></table></noscript></div>"
    )


class Figures:
    """The charts of a page.

    Attributes
    ----------
    specs : dict
        The specifications, by the id of their element.
    sets : dict
        The rows that they draw, by the name of the data set.
    """

    def __init__(self) -> None:
        self.specs: dict[str, Any] = {}
        self.sets: dict[str, Sequence[Any]] = {}

    def add(self, name: str, spec: dict[str, Any], table_name: str, rows: Sequence[Any] | None = None) -> str:
        """Add a chart and its rows, unless the script makes them; return its element, with text for screen readers."""
        self.specs[name] = spec
        if rows is not None:
            self.sets[spec["data"]["name"]] = rows
        said = html.escape(f"{spec['description']} The table has the same numbers.")
        return (
            f'<div class="chart wide script" id="{name}" role="figure" aria-label="{said}"></div>'
            '<p class="noscript faint">A chart stands here where scripts run; '
            f'<a href="#{table_name}">the table</a> has its numbers.</p>'
        )


def document(
    title: str, sections: Sequence[Section], figures: Figures, tensors: Sequence[Any] = (), first: int = 0
) -> bytes:
    """Return the page.

    Parameters
    ----------
    title : str
        A text, not HTML.
    sections : sequence of (id, heading, HTML)
    figures : Figures
    tensors : sequence of dict
        The tensors from which the reader chooses one for the histogram.
    first : int
        The tensor to show first.

    Raises
    ------
    MissingDependencyError
        When vl-convert-python, which contains the charting library, is not installed.
    """
    drawing, script_source, style = library(), _asset("page.js"), _asset("page.css")
    marker = 'document.documentElement.classList.add("js");'
    hashes = " ".join(f"'sha256-{_digest(script)}'" for script in (marker, drawing, script_source))
    # Vega needs unsafe-eval to compile the expressions of specifications, which are all ours.
    policy = f"default-src 'none'; script-src {hashes} 'unsafe-eval'; style-src 'unsafe-inline'; img-src data:"
    links = "".join(f'<li><a href="#{name}">{html.escape(heading)}</a></li>' for name, heading, _ in sections)
    body = "\n".join(
        f'<section aria-labelledby="{name}"><h2 id="{name}">{html.escape(heading)}</h2>{content}</section>'
        for name, heading, content in sections
    )
    data = {"charts": figures.specs, "sets": figures.sets, "tensors": tensors, "first": first}
    values = json.dumps(data, allow_nan=False, ensure_ascii=True, separators=(",", ":"))
    for char in "<>&":
        values = values.replace(char, f"\\u{ord(char):04x}")
    page = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{text(title)}</title>
<link rel="icon" href="data:,">
<style>{style}</style>
<script>{marker}</script>
</head>
<body>
<a class="skip" href="#main">to the content</a>
<header><h1>{text(title)}</h1><nav aria-label="sections"><ul>{links}</ul></nav></header>
<main id="main">
{body}
</main>
<script type="application/json" id="data">{values}</script>
<script>{drawing}</script>
<script>{script_source}</script>
</body>
</html>
"""
    return page.encode("utf-8", "backslashreplace")


def _asset(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
