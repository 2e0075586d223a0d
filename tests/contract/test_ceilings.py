"""The ceilings of formats: a file at the ceiling is written and read; one above is an error before a file exists."""

import numpy as np
import pytest
from tests.support import listing

import weightmap as wm
from weightmap.formats.amb import writing as amb
from weightmap.formats.embd import writing as embd

MOST = 100_000_000
SMALL = np.zeros((1, 1), np.int8)
# The sections of EMBD and AMB begin below 4 GiB or are smaller. Content of that size takes more memory than a test may,
# so the bound itself is made small.
LOW = 1000


def refused(path, tensors, **options):
    with pytest.raises(wm.EncodeError) as caught:
        wm.save(path, tensors, **options)
    assert not path.exists()
    return str(caught.value)


@pytest.mark.parametrize("suffix", [".bt", ".safetensors"])
def test_a_header_of_100_000_000_bytes_and_no_more(tmp_path, suffix):
    probe, path, more = (tmp_path / f"{name}{suffix}" for name in ("probe", "most", "more"))
    length = 100_000
    wm.save(probe, {"n" * length: SMALL}, durable=False)
    length += MOST - int.from_bytes(probe.read_bytes()[:8], "little")
    wm.save(path, {"n" * length: SMALL}, durable=False)
    with path.open("rb") as file:
        assert int.from_bytes(file.read(8), "little") == MOST
    with wm.open(path) as f:
        [name] = f
        assert len(name) == length
        assert f[name].item() == 0
    assert "a header of 100000008 bytes" in refused(more, {"n" * (length + 8): SMALL})


@pytest.fixture
def low(monkeypatch):
    """Make the bounds of u32 that the writers of EMBD and AMB hold low."""
    modules = [embd, amb]
    for module in modules:
        monkeypatch.setattr(module, "U32_MAX", LOW)


@pytest.mark.usefixtures("low")
def test_sections_of_embd_begin_within_four_gibibytes(tmp_path):
    """Metadata, a vocabulary or names so long that a section would begin or end behind 4 GiB are refused, each by name.

    Each alone just fits before, so that it is the sum and the place that are looked at.
    """
    path = tmp_path / "t.weights"
    for tensors, options, words in (
        ({"a": SMALL}, {"metadata": {"k": "v" * (LOW - 4)}}, "metadata of 1001 bytes"),
        ({"a": SMALL}, {"vocab": ["t" * (LOW - 30)]}, "a vocabulary of 972 bytes"),
        ({"n" * (LOW - 100): SMALL}, {}, "tensor data would begin at byte 1024"),
        ({"n" * 450: SMALL}, {"metadata": {"k": "v" * 450}}, "tensor data would begin at byte"),
    ):
        assert words in refused(path, tensors, **options)
    wm.save(path, {"n" * (LOW - 200): SMALL}, durable=False)
    with wm.open(path, verify="full") as f:
        assert f.info("n" * (LOW - 200)).offset == 960


def test_blocks_of_amb_have_fewer_than_65_536_elements(tmp_path):
    path = tmp_path / "t.amb"
    values = np.linspace(-1, 1, 70_000, dtype=np.float32)
    wm.save(path, {"w": wm.quantize(values, "int4_block", block_size=65_534)}, durable=False)
    with wm.open(path) as f:
        assert f["w"].block_size == 65_534
        assert np.abs(f.read("w") - values).max() < 0.2
    path.unlink()
    with pytest.raises((wm.EncodeError, ValueError), match="block"):
        wm.save(path, {"w": wm.quantize(values, "int4_block", block_size=65_536)})
    assert listing(tmp_path) == []
