"""Formats are found in a folder, and a file's format by its content."""

import importlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from tests import builders
from tests.attacks import sound

import weightmap as wm
from weightmap.core.formats import SIGNS, never
from weightmap.core.formats._base import module_names

# The module; `weightmap.core.formats` is the function of this name.
formats = importlib.import_module("weightmap.core.formats")
# A format in one file, with nothing named instead of imported. It recognises whatever it is shown.
TOY = """
from weightmap.core.formats import Format

def parse(source, head, options):
    raise AssertionError("nobody opens this")

FORMAT = Format("toy", "Toy", (".toy",), ("toy",), parse, None, {"toy": frozenset()}, {}, sniff=lambda head, size: True)
"""


@pytest.fixture
def toy(tmp_path, monkeypatch):
    (tmp_path / "toy.py").write_text(TOY, encoding="utf-8")
    monkeypatch.setattr(formats, "__path__", [*formats.__path__, str(tmp_path)])
    yield importlib.import_module("weightmap.core.formats.toy").FORMAT
    del sys.modules["weightmap.core.formats.toy"], formats.toy


def test_a_format_is_added_by_adding_a_file(toy):
    assert module_names(formats.__path__) == sorted([*wm.formats(), "toy"])
    assert toy.title == "Toy"


def test_formats_are_found_within_an_archive(tmp_path, monkeypatch):
    """Where the modules lie in a zip archive, whose folders cannot be listed, the same formats are found."""
    folder = Path(next(iter(formats.__path__)))
    archive = tmp_path / "package.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in folder.rglob("*.py"):
            file.write(path, f"formats/{path.relative_to(folder).as_posix()}")
    monkeypatch.setattr(formats, "__path__", [f"{archive}/formats"])
    assert module_names(formats.__path__) == sorted(wm.formats())


@pytest.mark.parametrize("name", SIGNS)
def test_what_recognises_a_format_is_what_its_record_says(name):
    """And an unlisted format is recognised by its record."""
    record, signs = formats.FORMATS[name], SIGNS[name]
    assert record.name == name
    assert (record.suffixes, record.magic, record.leads) == (signs.suffixes, signs.magic, signs.leads)
    assert (record.sniff or never, record.plan is not None) == (signs.sniff, signs.written)


def test_a_format_that_is_not_listed_is_known(tmp_path):
    """A file in the folder of formats is enough: a new process imports it with the package."""
    (tmp_path / "toy.py").write_text(TOY, encoding="utf-8")
    code = f"""
import sys, types
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "weightmap.core.formats":
            from importlib.machinery import PathFinder
            spec = PathFinder.find_spec(name, path)
            spec.submodule_search_locations.append({str(tmp_path)!r})
            return spec
sys.meta_path.insert(0, Finder())
import weightmap as wm
assert "toy" in wm.formats()
try:
    wm.open(b"anything", format=None)
except AssertionError as error:
    assert str(error) == "nobody opens this"
else:
    1 / 0
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_file_that_two_formats_claim_is_opened_by_neither(toy, monkeypatch):
    monkeypatch.setitem(formats.FORMATS._records, "toy", toy)
    monkeypatch.setitem(formats._SIGNS, "toy", formats._signs_of("toy"))
    monkeypatch.setattr(formats, "_GUESSED", (*formats._GUESSED, "toy"))
    monkeypatch.setattr(formats, "_BY_LEAD", {})  # whatever files of other formats may begin with
    data = sound()["bintensors-spec"]
    with pytest.raises(wm.UnknownFormatError, match="more than one format recognises this file: bintensors, toy"):
        wm.open(data)
    wm.open(data, format="bintensors").close()


@pytest.mark.parametrize("format", wm.formats())
def test_a_few_bytes_are_no_header(format):
    data = next(data for kind, data in sound().items() if kind.partition("-")[0] == format)
    for size in range(1, 8):
        with pytest.raises(wm.FormatError if size < 4 else wm.TruncatedError):
            wm.open(data[:size], format=format)


@pytest.mark.parametrize("format", [name for name, found in formats.FORMATS.items() if found.magic])
def test_another_beginning_is_refused_by_the_format_that_is_named(format):
    data = next(data for kind, data in sound().items() if kind.partition("-")[0] == format)
    with pytest.raises(wm.FormatError, match="magic is b'x") as caught:
        wm.open(b"x" + data[1:], format=format)
    assert (caught.value.field, caught.value.offset) == ("magic", 0)


def test_each_format_claims_its_own_files_and_no_others():
    """The format of a file claims it, and no other does with equal certainty."""
    known = formats.FORMATS
    for example in builders.examples():
        claims = [format.name for format in known.values() if format.claims(example.data[:4096], len(example.data))]
        certain = [name for name in claims if known[name].leads]
        assert (certain or claims) == [example.format], example.name
        leads = known[example.format].leads
        assert not leads or example.data[:1] in [leads[i : i + 1] for i in range(len(leads))], example.name
