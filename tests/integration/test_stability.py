"""The stable interface of README keeps its names and arguments, as tests/data/stable.txt records them.

``python -m tests.integration.test_stability`` records them again, for a change that docs/stability.md allows.
"""

import importlib
import inspect
import re

from tests.places import ROOT

import weightmap
from weightmap.errors import TensorFileError

RECORD = ROOT / "tests" / "data" / "stable.txt"
NAMES = ("open", "load", "save", "convert", "quantize", "diff", "verify", "plan", "formats")
CLASSES = ("TensorFile", "QuantizedTensor", "Vocabulary")
MODULES = ("kernels", "compat", "torch")
RECORDS = ("Limits", "Output", "Quantize", "Remote", "Run")  # arguments of these functions
# No promise holds for these: they are experimental.
EXCEPTED = {"TensorFile.pool"}


def signature(name, thing):
    """Name and arguments, without types: naming a type more exactly breaks no caller."""
    if isinstance(thing, property) or not callable(thing):
        return name
    found = inspect.signature(thing)
    arguments = [each.replace(annotation=inspect.Parameter.empty) for each in found.parameters.values()]
    return f"{name}{found.replace(parameters=arguments, return_annotation=inspect.Signature.empty)}"


def signatures():
    for name in NAMES:
        yield signature(name, getattr(weightmap, name))
    for name in CLASSES:
        members = [each for each in inspect.getmembers(getattr(weightmap, name)) if each[0][0] != "_"]
        named = [(f"{name}.{member}", value) for member, value in members]
        yield from (signature(member, value) for member, value in named if member not in EXCEPTED)
    yield from (signature(name, getattr(weightmap, name)) for name in RECORDS)
    for name in MODULES:
        module = importlib.import_module(f"weightmap.{name}")
        for member in sorted(name for name in module.__all__ if name[0] != "_"):
            value = getattr(module, member)
            yield f"{name}.{member}" if isinstance(value, type) else signature(f"{name}.{member}", value)
    errors = {name: value for name, value in vars(weightmap.errors).items() if isinstance(value, type)}
    yield from sorted(f"errors.{name}" for name, value in errors.items() if issubclass(value, TensorFileError))


def test_stable_names_keep_their_signatures():
    assert list(signatures()) == RECORD.read_text("utf-8").splitlines()


def test_both_tables_name_the_same():
    rows = []
    for page in ("README.md", "docs/stability.md"):
        row = re.search(r"^\| \*\*Stable\*\* \| (.*?) \|", (ROOT / page).read_text("utf-8"), re.MULTILINE)[1]
        rows.append([name.removeprefix("weightmap.") for name in re.findall(r"`([\w.]+)`", row)])
    assert rows[0] == rows[1] == [*NAMES, *CLASSES, *MODULES]


if __name__ == "__main__":
    RECORD.write_text("\n".join(signatures()) + "\n", encoding="utf-8")
