"""The page of `weightmap report`: its content, and that nothing of a file becomes markup."""

import hashlib
import html.parser
import json
import os
import re
import sys
import tracemalloc
from importlib import metadata

import numpy as np
import pytest
from tests import builders
from tests.support import sparse

import weightmap as wm
from weightmap import cli
from weightmap.report import write_report
from weightmap.report.charts import OUTSIDE
from weightmap.report.comparing import comparison
from weightmap.report.page import library
from weightmap.report.survey import SCHEMES, alignment, numbers_of, survey

pytest.importorskip("vl_convert")
NAME = f"vega-{metadata.version('vl-convert-python')}.js"
HOSTILE = [
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(2)>",
    '"><b>',
    "a&amp;b",
    "\u202egnp",
    "\x1b[31m",
]

# The elements of a page.
_STRUCTURE = (
    "html head meta title link style script body a header h1 h2 h3 nav ul li main section p dl dt dd div span wbr"
)
_TABLES = "table caption thead tbody tr th td button label input select option output details summary noscript code"
ELEMENTS = frozenset(f"{_STRUCTURE} {_TABLES}".split())


class Page(html.parser.HTMLParser):
    """A page as a browser that runs no scripts sees it: its elements, its texts, its tables."""

    def __init__(self, path):
        super().__init__(convert_charrefs=True)
        self.elements = []
        self.open = []
        self.tables = {}
        self.text = ""
        self.scripts = []
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)
        self.data = json.loads(self.scripts[1])

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag == "table":
            self.tables[dict(attrs)["id"] or ""] = []
        if tag == "tr":
            list(self.tables.values())[-1].append([])
        if tag in {"td", "th"}:
            list(self.tables.values())[-1][-1].append("")
        if tag == "script":
            self.scripts.append("")
        if tag not in {"meta", "link", "input", "br", "wbr"}:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "script" in self.open:
            self.scripts[-1] += data
        elif "style" not in self.open:
            self.text += data
            if "td" in self.open or "th" in self.open:
                list(self.tables.values())[-1][-1][-1] += data


def model(path, *, shift=0.0, **more):
    rng = np.random.default_rng(1)
    tensors = {"embed.weight": rng.standard_normal((8, 256), np.float32)}
    for i in range(2):
        tensors[f"layer.{i}.w"] = rng.standard_normal((4, 256), np.float32) + np.float32(shift * i)
        tensors[f"layer.{i}.b"] = np.arange(4, dtype=np.int32)
    wm.save(path, tensors | more, metadata={"k": "v"})
    return path


def test_the_page_of_a_model(tmp_path):
    """Without scripts, tables have each tensor with place, range and cost; nothing is fetched from anywhere."""
    path = model(tmp_path / "m.safetensors")
    assert write_report(tmp_path / "r.html", path) is True
    page = Page(tmp_path / "r.html")
    assert not page.open
    assert [row[0] for row in page.tables["values"][1:]] == list(wm.open(path))
    with wm.open(path) as f:
        rows = {row[0]: row for row in page.tables["places"][1:]}
        for info in f.infos():
            told = [info.dtype, f"{info.offset:,}", f"{info.nbytes:,}", str(alignment(info.offset))]
            assert rows[info.name][1:5] == told
        [row] = [row for row in page.tables["values"] if row[0] == "layer.1.w"]
        values = f["layer.1.w"].astype(np.float64)
        found = [float(cell) for cell in row[3:7]]
        assert found == pytest.approx([values.min(), values.max(), values.mean(), values.std()], rel=1e-3, abs=1e-6)
        assert row[10] == "100.0%"
    assert [row[0] for row in page.tables["schemes"][1:]] == list(SCHEMES)
    assert [row[0] for row in page.tables["each"][1:]] == ["layer.0.w", "layer.1.w"]
    assert "safetensors has no checksums" in page.text
    assert "1 metadata entry" in page.text
    assert {row["layer"] for row in page.data["sets"]["cost-heat"]} == {"layer.0", "layer.1"}
    for _, attributes in page.elements:
        assert not {"src", "srcset", "action"} & attributes.keys()
        assert (attributes.get("href") or "#").startswith(("#", "data:"))
        assert not [name for name in attributes if name.startswith("on")]


def test_the_costs_are_those_of_quantising(tmp_path):
    path = model(tmp_path / "m.safetensors")
    with wm.open(path) as f:
        found = survey(f, verify=False, progress=None)
    for scheme in SCHEMES:
        suffix = "gguf" if scheme[0] == "q" else "amb"
        report = wm.convert(path, tmp_path / f"q.{suffix}", exclude="*.b", quantize=scheme)
        for info in report.quantized:
            [cost] = [tensor.costs[scheme] for tensor in found.tensors if tensor.info.name == info.name]
            assert cost.relative == pytest.approx(info.relative_error, rel=1e-3)
            assert cost.nbytes == pytest.approx(info.nbytes, abs=16)


@pytest.mark.parametrize("example", builders.examples(), ids=lambda example: f"{example.format}-{example.name}")
def test_every_format_has_a_page(example, tmp_path):
    path = tmp_path / f"m{example.suffix}"
    path.write_bytes(example.data)
    write_report(tmp_path / "r.html", path)
    page = Page(tmp_path / "r.html")
    with wm.open(path) as f:
        assert len(page.tables["places"]) == len(f) + 1
        for info in f.infos():
            if not info.dtype.startswith(("q", "iq", "tq", "pq", "adaptive", "float4", "float6")) and len(info.shape):
                rows = page.tables.get("values", page.tables["places"])
                assert (cli.show.clean(info.name) or "(no name)") in [row[0] for row in rows]


@pytest.mark.parametrize("largest", [1e200, 1.7976931348623157e308, 5e-324])
def test_moments_of_extreme_values(largest):
    found = numbers_of(np.array([-largest, largest, largest, -largest]))
    assert (found.low, found.high, found.mean, found.deviation) == (-largest, largest, 0, largest)
    assert (found.bins[0], sum(found.bins), found.bins[-1]) == (2, 4, 2)
    found = numbers_of(np.array([largest, np.nan, largest, np.inf, largest]))
    assert (found.mean, found.deviation, found.nans, found.infinities, found.bins) == (largest, 0, 1, 1, (3,))


def test_names_are_text(tmp_path):
    tensors = {f"{name}.{i}": np.ones((2, 4), np.float32) for i, name in enumerate(HOSTILE)}
    wm.save(tmp_path / "m.safetensors", tensors, metadata={name: name for name in HOSTILE})
    wm.save(tmp_path / "n.safetensors", {name: array * 2 for name, array in tensors.items()} | {"<i>": np.ones(1)})
    for other in (None, tmp_path / "n.safetensors"):
        write_report(tmp_path / "r.html", tmp_path / "m.safetensors", other)
        page = Page(tmp_path / "r.html")
        assert not page.open
        assert {tag for tag, _ in page.elements} <= ELEMENTS
        assert len(page.scripts) == 4
        assert "\u202e" not in page.source
        assert "\x1b" not in page.source
        for name in HOSTILE[:4]:
            assert name in page.text
        policy = next(a["content"] for tag, a in page.elements if tag == "meta" and a.get("http-equiv"))
        assert "default-src 'none'" in str(policy)
        assert "unsafe-inline" not in re.findall(r"script-src [^;]*", str(policy))[0]


def test_a_page_that_compares(tmp_path):
    a = model(tmp_path / "a.safetensors", only=np.ones(2, np.float32), shape=np.ones((2, 3), np.float32))
    b = model(tmp_path / "b.safetensors", shift=0.5, other=np.ones(2), shape=np.ones((3, 2), np.float32))
    write_report(tmp_path / "r.html", a, b)
    page = Page(tmp_path / "r.html")
    rows = {row[0]: row for row in page.tables["differences-of"][1:]}
    assert rows["layer.0.w"][3:7] == ["0", "0", "0", "1.000000"]
    with wm.open(a) as one, wm.open(b) as two:
        left, right = (f["layer.1.w"].astype(np.float64).ravel() for f in (one, two))
        [pair] = [pair for pair in comparison(one, two, None).pairs if pair.name == "layer.1.w"]
    apart = right - left
    expected = [np.abs(apart).max(), np.sqrt(np.mean(apart**2)), np.linalg.norm(apart) / np.linalg.norm(left)]
    expected.append(left @ right / np.linalg.norm(left) / np.linalg.norm(right))
    assert [pair.largest, pair.rms, pair.relative, pair.cosine] == pytest.approx(expected, rel=1e-9)
    assert rows["shape"][-1] == "the shapes differ"
    assert page.tables["alone"][1:] == [["only", "A"], ["other", "B"]]
    wm.save(tmp_path / "c.safetensors", {"c": np.ones(2)})
    write_report(tmp_path / "none.html", a, tmp_path / "c.safetensors")
    none = Page(tmp_path / "none.html")
    assert "No tensor has the same name in both: first convert" in none.text
    assert none.tables.keys() == {"alone"}
    heat = {(row["layer"], row["slot"]): row["largest"] for row in page.data["sets"]["heat"]}
    assert heat.keys() == {
        *((f"layer.{i}", slot) for i in range(2) for slot in "bw"),
        *((OUTSIDE, name) for name in ("embed.weight", "shape")),
    }
    assert heat["layer.1", "w"] == pair.largest
    assert heat[OUTSIDE, "shape"] == "cannot be measured"


@pytest.mark.parametrize(
    ("name", "before", "after", "shown"),
    [
        ("embed", 1, 2, 1),
        ("embed", 0, 2, "infinite"),
        ("layer.0.w", 2, 1, 0.5),
        ("layer.0.w", 1, np.nan, "cannot be measured"),
        ("layer.0.w", np.nan, 1, "cannot be measured"),
        ("embed", 1, np.inf, "cannot be measured"),
        ("embed", -np.inf, np.inf, "cannot be measured"),
        ("embed", np.inf, np.inf, None),
        ("embed", np.nan, np.nan, None),
        ("embed", 1, 1, None),
    ],
)
def test_a_change_shows_wherever_it_is(tmp_path, name, before, after, shown):
    """One tensor that differs is one cell that is not 0, outside of layers too; models that are equal have no map."""
    for file, value in (("a", before), ("b", after)):
        tensors = {"embed": np.ones(2), "layer.0.w": np.ones(2), "layer.1.w": np.ones(2)} | {name: np.full(2, value)}
        wm.save(tmp_path / f"{file}.safetensors", tensors)
    write_report(tmp_path / "r.html", tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    page = Page(tmp_path / "r.html")
    heat = page.data["sets"].get("heat", [])
    changed = [row for row in heat if row["relative"] or row["odd"]]
    assert [bool(heat), "All values are equal." in page.text] == [shown is not None, shown is None]
    assert [row["relative"] for row in changed] == [shown][: len(changed)]
    assert len(changed) == (shown is not None)


def test_damage_is_on_the_page(tmp_path, capsys):
    path = model(tmp_path / "m.weights", odd=np.array([np.nan, 1, 2, 3], np.float32))
    data = bytearray(path.read_bytes())
    with wm.open(path) as f:
        data[f.info("layer.0.w").offset] ^= 1
    path.write_bytes(data)
    assert write_report(tmp_path / "r.html", path) is False
    page = Page(tmp_path / "r.html")
    assert "Verification failed" in page.text
    assert "NaN or infinite among the sampled elements of 1 tensor" in page.text
    assert write_report(tmp_path / "r.html", path, verify=False) is True
    assert cli.main(["report", str(path), str(tmp_path / "r.html")]) == 1
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{path}: failed: stored CRC-32 of the tensor data is ")
    assert second.startswith(f"{tmp_path / 'r.html'}: ")
    assert cli.main(["report", str(path), str(tmp_path / "r.html"), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["verified"], document["damage"].startswith(f"{path}: stored CRC-32")) == (False, True)


def test_memory_stays_flat(tmp_path):
    """A sparse tensor of 4 GiB is sampled, from its first to its last element, in a few megabytes."""
    path = sparse(tmp_path / "m.safetensors", {"w": (1 << 30,)})
    with path.open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(np.float32(7).tobytes())
    tracemalloc.start()
    try:
        with wm.open(path) as f:
            found = survey(f, verify=False, progress=None)
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()
    numbers = found.tensors[0].numbers
    assert numbers is not None
    assert (numbers.sampled, numbers.low, numbers.high) == (1 << 16, 0, 7)


@pytest.mark.parametrize("missing", ["the package", "the distribution"])
def test_without_the_package_the_error_names_the_extra(tmp_path, monkeypatch, missing):
    path = model(tmp_path / "m.safetensors")
    if missing == "the package":
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.setitem(sys.modules, "vl_convert", None)
    else:
        monkeypatch.setattr(metadata, "version", unpackaged)
    with pytest.raises(wm.MissingDependencyError, match=r"Vega-Lite: pip install '\.\[report\]' in a checkout"):
        write_report(tmp_path / "r.html", path)
    assert not (tmp_path / "r.html").exists()


def unpackaged(name):
    raise metadata.PackageNotFoundError(name)


@pytest.fixture
def bundler(tmp_path, monkeypatch):
    made = Bundler(tmp_path / "cache" / "weightmap")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "vl_convert", made)
    before = os.umask(0o002)  # of systems where each user has a group
    yield made
    os.umask(before)


class Bundler:
    def __init__(self, folder):
        self.folder, self.times = folder, 0

    def javascript_bundle(self):
        self.times += 1
        return "'é </script'"

    @property
    def stored(self):
        [path] = self.folder.iterdir()
        return path


def test_the_library_is_bundled_once_a_version(bundler, monkeypatch):
    assert {library() for _ in range(3)} == {"'é <\\/script'"}
    assert bundler.times == 1
    assert bundler.folder.stat().st_mode & 0o777 == 0o700
    assert metadata.version("vl-convert-python") in bundler.stored.name
    monkeypatch.setattr(metadata, "version", lambda _: "99")
    library()
    assert bundler.times == 2


POISONS = {
    "damaged": lambda b, _: b.stored.write_bytes(b.stored.read_bytes()[:-1]),
    "no digest": lambda b, _: b.stored.write_bytes(b"alert(1)"),
    "empty": lambda b, _: b.stored.write_bytes(b""),
    "not UTF-8": lambda b, _: b.stored.write_bytes(b"//%s\n\xff" % hashlib.sha256(b"\xff").hexdigest().encode()),
    "a link": lambda b, _: (b.folder / NAME).symlink_to(b.stored.rename(b.folder.parent / "x.js")),
    "a FIFO": lambda b, _: os.mkfifo(b.stored.rename(b.folder.parent / "x.js") and b.folder / NAME),
    "a directory": lambda b, _: (b.stored.rename(b.folder.parent / "x.js") and b.folder / NAME).mkdir(),
    "a file that a group may write to": lambda b, _: b.stored.chmod(0o620),
    "open to others": lambda b, _: b.folder.chmod(0o770),
    "a linked directory": lambda b, _: b.folder.symlink_to(b.folder.rename(b.folder.parent / "x")),
    "another user's": lambda _, patch: patch.setattr(os, "geteuid", lambda: 12345),
    "no directory": lambda _, patch: patch.setenv("XDG_CACHE_HOME", os.devnull),
    "no home": lambda _, patch: (patch.setenv("XDG_CACHE_HOME", "relative"), patch.setenv("HOME", "relative")),
    "no owners": lambda _, patch: patch.delattr(os, "geteuid"),
}


@pytest.mark.parametrize("poison", POISONS)
def test_a_cache_that_others_can_have_written_is_not_trusted(bundler, monkeypatch, poison):
    """With damage, others' files, links or unwritable places the script is bundled again, without an error."""
    library()
    POISONS[poison](bundler, monkeypatch)
    assert library() == "'é <\\/script'"
    assert bundler.times == 2
    library()
    assert bundler.times == (2 if poison in {"damaged", "no digest", "empty", "not UTF-8"} else 3)
