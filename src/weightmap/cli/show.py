"""Prints for the command line: escaped text, tables, JSON and progress bars.

Commands print through `emit`, and everything that comes from a file passes `clean` first: a tensor name printed raw
could move the cursor, retitle the window, write to the clipboard or reverse the reading order of the line. rich, which
draws the progress bars, gets no markup, so that a file called ``[red]`` keeps its name.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TextIO

from weightmap._messages import escape
from weightmap.core.hooks import later

_SCHEMA = 1
# Importing json takes 2 ms, and most commands do not need it.
_dumps: Callable[..., str] = later("json", "dumps")

# Characters of the widest column; names in messages are cut at the same length (`weightmap._messages.quoted`).
_WIDEST = 200

# Lines of a table printed at once
_LINES = 256

# Characters of a bar
_FULL, _PARTS, _EMPTY = "█", " ▏▎▍▌▋▊▉", "·"


def clean(text: object) -> str:
    """Return ``str(text)`` with control and direction-changing characters escaped."""
    return escape(str(text))


def shorten(text: str, width: int = 96) -> str:
    """Return `text` cut to `width` characters, the last one an ellipsis if anything was cut."""
    return text if len(text) <= width else text[: width - 1] + "…"


def cell(item: object) -> str:
    """Return ``str(item)`` cleaned, and cut if long, because a column is as wide as its longest text.

    ``--json`` prints names of any length in full.
    """
    text = str(item)
    shown = clean(text[: _WIDEST + 1])
    if len(shown) <= _WIDEST:
        return shown
    return shorten(shown, _WIDEST) + (f" ({len(text):,} characters)" if len(text) > _WIDEST else "")


# The warning for each tensor of a lost file, which `folded` joins, and the number of names to show.
_LOST = r"(?s)(.*)tensor (.+) is not in shard (.+), where the index places it"
_MAX_LOST = 3


def folded(warnings: Iterable[str]) -> Iterator[str]:
    """Yield warnings cleaned, with a single one for all tensors that a shard lacks: ``--json`` names each."""
    lost: dict[tuple[str, str], list[str]] = {}
    matches = [(line, re.fullmatch(_LOST, line)) for line in warnings]
    for _, match in matches:
        if match:
            lost.setdefault((match[1], match[3]), []).append(match[2])
    for line, match in matches:
        names = lost.pop((match[1], match[3]), []) if match else []
        if match is None or len(names) == 1:
            yield clean(line)
        elif names:
            first = ", ".join(names[:_MAX_LOST]) + ", ..." * (len(names) > _MAX_LOST)
            yield clean(f"{match[1]}shard {match[3]} lacks {len(names):,} tensors of the index: {first}")


def value(item: object) -> str:
    """Return a metadata value on one cleaned line: strings as they are, anything else as JSON."""
    return clean(item if isinstance(item, str) else _dumps(_plain(item), ensure_ascii=False))


# Items of a long list on one line
_MAX_ITEMS = 6


def some(item: object) -> tuple[str, int | None]:
    """Return a value on one line; for a list its length and, if it is long, only the first items."""
    if isinstance(item, str) or not hasattr(item, "__len__") or isinstance(item, Mapping):
        return value(item), None
    first, count = item[:_MAX_ITEMS], len(item)  # type: ignore[index]
    text = value(first)
    return (text if count <= _MAX_ITEMS else f"{text[:-1]}, ...]"), count


def emit(text: str, *, stream: TextIO | None = None) -> None:
    """Print cleaned text and a newline, on standard output by default; escape what its encoding lacks."""
    out = sys.stdout if stream is None else stream
    encoding = getattr(out, "encoding", None) or "utf-8"
    with _naming(out):
        out.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")


def flush() -> None:
    """Flush standard output."""
    with _naming(sys.stdout):
        sys.stdout.flush()


@contextlib.contextmanager
def _naming(out: TextIO) -> Iterator[None]:
    """Make an error of the system name the output."""
    try:
        yield
    except OSError as error:
        error.filename = "standard error" if out is sys.stderr else "standard output"
        raise


def complain(text: str) -> None:
    """Print an error to standard error, under the name of the program."""
    # Results printed so far come first, also when both streams end in one file.
    flush()
    emit(f"weightmap: {text}", stream=sys.stderr)


def bar(part: int, whole: int, width: int = 24) -> str:
    """Return a bar for a part of a whole: full only for all, empty only for none."""
    steps = width * len(_PARTS)
    filled = steps if part >= whole else min(max(part * steps // whole, part > 0), steps - 1)
    cells, eighths = divmod(filled, len(_PARTS))
    text = _FULL * cells + (_PARTS[eighths] if eighths else "")
    return text + _EMPTY * (width - len(text))


def duration(seconds: float) -> str:
    """Return a number of seconds in a readable unit: ``"2.1 ms"``, ``"14.2 s"``."""
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"


def kind(format_name: str, layout: str | None) -> str:
    """Return the name of a format, with its layout if it has several. Neither name comes from a file."""
    return format_name if layout in {None, format_name} else f"{format_name}, {layout} layout"


def shape(dimensions: tuple[int, ...]) -> str:
    """Return a shape as text: ``"[30522, 384]"``."""
    return f"[{', '.join(map(str, dimensions))}]"


def emit_json(value: Mapping[str, object]) -> None:
    """Print one JSON document with the number of its schema, in printable ASCII that any strict parser takes."""
    text = _dumps(_plain({"schema": _SCHEMA, **value}), indent=2, allow_nan=False)
    # The json module escapes everything outside ASCII, and every control character but this one.
    emit(text.replace("\x7f", "\\u007f"))


def emit_pairs(pairs: Iterable[tuple[str, str]], *, indent: str = "") -> None:
    """Print aligned ``label  value`` lines; values must be cleaned, labels are cleaned here."""
    rows = [(indent + cell(label), value) for label, value in pairs]
    width = max((len(label) for label, _ in rows), default=0)
    for label, value in rows:
        emit(f"{label:<{width}}  {value}".rstrip())


def emit_table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, right: Iterable[str] = ()) -> None:
    """Print a table from headings and rows with an entry for each column: see `emit_columns`."""
    emit_columns({column: [row[i] for row in rows] for i, column in enumerate(columns)}, right=right)


def emit_columns(columns: Mapping[str, Sequence[object]], *, right: Iterable[str] = ()) -> None:
    """Print a table in aligned columns, a line for each row; long lines stay whole, so that names can be copied.

    Parameters
    ----------
    columns
        The entries for each heading; they become text, cleaned and shortened.
    right
        The headings of the columns to align to the right (numbers).
    """
    aligned = [_aligned([heading, *entries], right=heading in right) for heading, entries in columns.items()]
    rows = zip(*aligned, strict=True)
    while lines := ["  ".join(row).rstrip() for row in itertools.islice(rows, _LINES)]:
        emit("\n".join(lines))


def _aligned(entries: Sequence[object], *, right: bool) -> Iterable[str]:
    """Return the cells of a column with blanks, as wide as the widest."""
    texts = list(map(str, entries))
    plain = "".join(texts)  # check all at once: most columns are short texts of printable ASCII
    if not (plain.isascii() and plain.isprintable()) or max(map(len, texts)) > _WIDEST:
        texts = list(map(cell, texts))
    pad = str.rjust if right else str.ljust
    if plain.isascii():
        return map(pad, texts, itertools.repeat(max(map(len, texts))))
    widest = max(map(_width, texts))
    return [pad(text, widest - _width(text) + len(text)) for text in texts]


@contextlib.contextmanager
def progress_bar(label: str) -> Iterator[Callable[[int, int], None] | None]:
    """Yield a ``progress(done, total)`` callback (bytes) that draws a bar on standard error.

    It is None unless standard error is a terminal and rich is installed.
    """
    if not sys.stderr.isatty():
        yield None
        return
    try:
        from rich import progress as bars
        from rich.console import Console
    except ImportError:
        yield None
        return

    console = Console(file=sys.stderr, markup=False, highlight=False, emoji=False)
    text = shorten(clean(label), 40).encode(console.encoding, "backslashreplace").decode(console.encoding)
    with bars.Progress(
        bars.TextColumn("{task.description}", markup=False),
        bars.BarColumn(),
        bars.DownloadColumn(binary_units=True),
        bars.TransferSpeedColumn(),
        bars.TimeRemainingColumn(),
        console=console,
        transient=True,
    ) as bar:
        task = bar.add_task(text, total=None)

        def update(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield update


def _width(text: str) -> int:
    """Return the number of terminal cells of a string: two for a wide character, none for a combining one."""
    if text.isascii():
        return len(text)
    import unicodedata  # 0.2 ms, for few names

    return sum(0 if unicodedata.combining(char) else 1 + (unicodedata.east_asian_width(char) in "WF") for char in text)


def _plain(value: object) -> object:
    """Return a value in a form that JSON has; NaN, infinities, dates of TOML and the like become strings."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if hasattr(value, "tolist"):  # an array, or texts decoded on use
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return str(value)
