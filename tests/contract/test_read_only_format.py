"""Read-only formats: written nowhere, offered nowhere, and sources of conversions with their metadata."""

import datetime as dt
import math

import numpy as np
import pytest
from tests import builders
from tests.builders import finalfusion as ff
from tests.builders import normal

import weightmap as wm
from weightmap.conversion.metadata import fitted
from weightmap.core.formats import FORMATS
from weightmap.words.importers import NAMES as WORDS

METADATA = {"name": "wört", "layers": 12, "eps": 1e-12, "tied": True, "lengths": [1, 2, 3], "odd": math.inf}
TOML = 'name = "wört"\nlayers = 12\neps = 1e-12\ntied = true\nlengths = [1, 2, 3]\nodd = inf\n'
READ_ONLY = [name for name, format_ in FORMATS.items() if format_.plan is None]


@pytest.fixture
def path(put):
    return put(ff.build([ff.metadata(TOML), ff.simple(["a", "b"]), ff.matrix(normal((2, 3)))]), "model.fifu")


@pytest.mark.parametrize("name", READ_ONLY)
def test_it_is_not_written(path, name):
    said, target = f"{FORMATS[name].title} files can be read but not written", path.with_name("new")
    with pytest.raises(wm.EncodeError, match=said):
        wm.save(target, {"w": np.ones(2, np.float32)}, format=name)
    with pytest.raises(wm.EncodeError, match=said):
        wm.convert(path, target, format=name)
    with pytest.raises(wm.EncodeError, match=f"^{path.parent}/: {said}"):
        wm.convert(path, f"{path.parent}/", format=name)
    assert not target.exists()


def test_it_is_not_offered_where_a_format_is_written(path, tmp_path):
    target = tmp_path / "new"
    written = ", ".join(name for name in FORMATS if name not in READ_ONLY)
    with pytest.raises(ValueError, match=f"^format is 'nope', expected one of {written}$"):
        wm.save(target, {"w": np.ones(2)}, format="nope")
    for place in (target, tmp_path):  # a file and shards
        with pytest.raises(ValueError, match=f"^format is 'nope', expected one of {written}, {', '.join(WORDS)}$"):
            wm.convert(path, place, format="nope")
    with pytest.raises(ValueError, match=f"^format is 'nope', expected one of {', '.join(FORMATS)}$"):
        wm.open(path, format="nope")


def going_along(metadata, name):
    """The metadata that the format of this name takes over, and the keys that stay behind."""
    return fitted(metadata, FORMATS[name].metadata_keys, FORMATS[name].metadata_kinds)


# By the kind of a format's metadata (`Builder.metadata`): the converted typed metadata, and the keys left behind.
TYPES = '{"eps": "JSON", "layers": "JSON", "tied": "JSON"}'
AS_TEXT = {"name": "wört", "layers": "12", "eps": "1e-12", "tied": "true", "weightmap.types": TYPES}
CONVERTED = {
    "texts": (AS_TEXT, ["lengths", "odd"]),
    "JSON": ({key: value for key, value in METADATA.items() if key != "odd"}, ["odd"]),
    "TOML": (METADATA, []),
    "typed": (METADATA, []),
    "": ({}, list(METADATA)),
}
WRITTEN = [name for name, builder in builders.known().items() if builder.saved]


def test_every_format_that_is_written_has_files_that_are_saved():
    assert set(WRITTEN) == {name for name, format_ in FORMATS.items() if format_.plan is not None}


@pytest.mark.parametrize("name", WRITTEN)
def test_typed_metadata_are_converted_by_one_rule(path, name):
    """A format takes over the metadata that it can hold, numbers as texts if need be; the report lists the rest."""
    builder, target = builders.known()[name], path.parent / "target"
    expected, behind = CONVERTED[builder.metadata]
    kept, homeless = going_along(METADATA, name)
    assert homeless == behind
    assert kept == expected
    if not builder.names_tensors:
        return
    report = wm.convert(path, target, format=name)
    lines = [line for line in report.warnings if "metadata entr" in line]
    assert len(lines) == bool(behind)
    assert all(repr(key) in lines[0] for key in behind)
    with wm.open(target) as file:
        found = {key: value.tolist() if hasattr(value, "tolist") else value for key, value in file.metadata.items()}
        found.pop("tokenizer.ggml.tokens", None)  # the words
        assert found == expected


@pytest.mark.parametrize("value", [None, {"a": [1, None]}, b"bytes"], ids=str)
def test_what_no_text_can_hold_stays_behind(value):
    """Texts and TOML hold neither bytes nor None, however deep; JSON lacks bytes alone."""
    for name in WRITTEN:
        json = builders.known()[name].metadata == "JSON"
        assert going_along({"k": value}, name)[1] == ([] if json and not isinstance(value, bytes) else ["k"])


def test_times_go_along_to_toml_alone():
    times = {"when": dt.datetime(2026, 11, 21, 12, 30, tzinfo=dt.UTC), "days": [dt.date(2026, 11, 21)]}
    for name in WRITTEN:
        held = times if builders.known()[name].metadata == "TOML" else {}
        assert going_along(times, name) == (held, [key for key in times if key not in held])
