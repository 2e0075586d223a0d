"""One registry of facts: builders hold everything that tests know of a format; no other list names formats."""

import ast
import re
from pathlib import PurePath

from tests import builders
from tests.places import FORMAT_TESTS, ROOT

NAMES = builders.known()
SUFFIXES = {builder.suffix: name for name, builder in NAMES.items()}
# The places of single formats: builders, attacks, tests.
OWN = [ROOT / "tests" / "builders", ROOT / FORMAT_TESTS]
OWN += [ROOT / f"{name.replace('.', '/')}.py" for builder in NAMES.values() for name in builder.damage]
MODULES = [
    path
    for folder in ("tests", "fuzz")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if not any(path.is_relative_to(own) for own in OWN)
]
SCRIPTS = [*ROOT.glob("Makefile"), *ROOT.glob("*.mk"), *(ROOT / "tests").rglob("*.sh")]
# A literal with half of the formats is a list of them.
MOST = len(NAMES) // 2


def format_of(text):
    """The format that a text names: by its name, a kind of it, its suffix, or a file name with that suffix."""
    name = text.partition("-")[0]
    return name if name in NAMES else SUFFIXES.get(text) or SUFFIXES.get(PurePath(text).suffix)


def literals(path):
    """Literals of Python, or lines of another script, that name formats: the line, and the formats."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        for number, line in enumerate(text.splitlines(), 1):
            yield number, {name for name in NAMES if re.search(rf"\b{name}\b", line)}
        return
    for node in ast.walk(ast.parse(text)):
        items = node.keys if isinstance(node, ast.Dict) else getattr(node, "elts", ())
        texts = [item.value for item in items if isinstance(item, ast.Constant) and isinstance(item.value, str)]
        yield getattr(node, "lineno", 0), {name for text in texts if (name := format_of(text))}


def test_no_other_place_lists_the_formats():
    """No literal names more than half of the formats: code that goes through all of them asks the builders."""
    paths = [*MODULES, *SCRIPTS]
    assert [(path, line) for path in paths for line, names in literals(path) if len(names) > MOST] == []


def test_a_list_of_formats_is_found(tmp_path):
    forms = (str, lambda name: f"{name}-part", lambda name: NAMES[name].suffix, lambda name: f"a{NAMES[name].suffix}")
    for form in forms:
        (tmp_path / "a.py").write_text(f"FORMATS = {[form(name) for name in NAMES]}", encoding="utf-8")
        assert max(len(names) for _, names in literals(tmp_path / "a.py")) == len(NAMES)
    (tmp_path / "a.mk").write_text(f"FORMATS := {' '.join(NAMES)}", encoding="utf-8")
    assert list(literals(tmp_path / "a.mk")) == [(1, set(NAMES))]
