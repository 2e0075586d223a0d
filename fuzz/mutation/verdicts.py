"""Facts that last from one run of mutants to the next: verdicts, and the mutants that change nothing visible."""

from __future__ import annotations

import collections
import hashlib
import json
import tomllib
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from .sites import Key

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

ROOT = Path(__file__).parent.parent.parent
RESULTS = ROOT / "build" / "mutation" / "results.jsonl"
EQUIVALENT = Path(__file__).parent / "equivalent.toml"
WORDS = ("killed", "crashed", "endless", "equivalent", "survived", "unreached")
NOTICED = WORDS[:3]


@dataclass(frozen=True)
class Verdict:
    """The outcome of a mutant.

    Attributes
    ----------
    word : str
        One of NOTICED, "survived", or "unreached".
    by : str
        The test that noticed it, or how many did not.
    of : str
        A digest of what it depends on: the file that was changed and, where no test noticed, all tests.
    """

    word: str
    by: str
    of: str


def load() -> dict[Key, Verdict]:
    """Return the verdicts of earlier runs."""
    found = {}
    for line in RESULTS.read_text(encoding="utf-8").splitlines() if RESULTS.exists() else ():
        row = json.loads(line)
        found[Key(row["file"], row["line"], row["change"])] = Verdict(row["word"], row["by"], row["of"])
    return found


def save(verdicts: Mapping[Key, Verdict], order: Iterable[Key]) -> None:
    """Keep verdicts, in the order of the sources."""
    rows = [key._asdict() | asdict(verdicts[key]) for key in order if key in verdicts]
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    fresh = RESULTS.with_suffix(".new")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(RESULTS)


@cache
def _reasons() -> dict[str, dict[str, str]]:
    return tomllib.loads(EQUIVALENT.read_text(encoding="utf-8"))


def reason(key: Key) -> str | None:
    """Return why a mutant changes nothing that can be seen; None where it should."""
    return _reasons().get(key.file, {}).get(key.text)


def unused(keys: Iterable[Key]) -> list[tuple[str, str]]:
    """Return the reasons, by file and change, that belong to none of these mutants."""
    there = {(key.file, key.text) for key in keys}
    return [(file, text) for file, reasons in _reasons().items() for text in reasons if (file, text) not in there]


@cache
def digests() -> dict[str, tuple[str, str]]:
    """Return what verdicts depend on, in a few characters: of each source by itself, and with all tests."""
    tests = hashlib.sha256()
    for path in sorted((ROOT / "tests").rglob("*.py")):
        tests.update(path.read_bytes())
    found = {}
    for path in (*(ROOT / "csrc").glob("*.[ch]"), *(ROOT / "src").rglob("*.py")):
        own = path.read_bytes()
        both = hashlib.sha256(own + tests.digest())
        found[str(path.relative_to(ROOT))] = hashlib.sha256(own).hexdigest()[:8], both.hexdigest()[:8]
    return found


def digest(file: str, *, noticed: bool) -> str:
    """Return what a verdict depends on: where no test noticed, all tests as well."""
    return digests()[file][0 if noticed else 1]


def table(words: Mapping[Key, str]) -> Iterator[str]:
    """Yield the numbers of all verdicts in Markdown, line by line: a row for each C file and each Python package."""
    rows: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for key, word in words.items():
        folder, _, name = key.file.rpartition("/")
        rows[folder if folder.startswith("src/weightmap/formats/") else f"{folder}/{name}"][word] += 1
        rows["**all**"][word] += 1
    rows["**all**"] = rows.pop("**all**")
    yield f"| file | {' | '.join(WORDS)} | all |"
    yield f"|---|{'--:|' * len(WORDS)}--:|"
    for file, counts in rows.items():
        yield f"| {file} | {' | '.join(str(counts[word]) for word in WORDS)} | {counts.total()} |"
