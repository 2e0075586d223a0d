"""Valid EMBD files: both layouts, the ground truth, the vocabulary, verification."""

import hashlib
import json
from collections.abc import Sequence

import numpy as np
import pytest
from tests.builders import Tensor, embd, noise, normal
from tests.support import DATA, same

import weightmap as wm

TRUTH = DATA / "embd"


def draft(**options):
    options.setdefault("vocab", embd.TOKENS)
    return embd.Draft([("a", normal((2, 3))), ("b", noise("int8", (5,)))], **options)


@pytest.mark.parametrize("name", ["minimal", "all_dtypes_aligned"])
def test_ground_truth_of_the_specification_layout(name):
    path = TRUTH / "spec_ourreading" / f"{name}.weights"
    truth = json.loads((path.parent / f"{name}.weights.json").read_text(encoding="utf-8"))
    with wm.open(path) as f:
        assert (f.format, f.layout) == ("embd", "spec")
        assert list(f) == [item["name"] for item in truth["tensors"]]
        for item in truth["tensors"]:
            info = f.info(item["name"])
            stated = item["dtype"], item["shape"], item["file_offset"], item["nbytes"]
            assert (info.dtype, list(info.shape), info.offset, info.nbytes) == stated
            assert f[item["name"]].tobytes().hex() == item["hex"]
            assert hashlib.sha256(f[item["name"]].tobytes()).hexdigest() == item["sha256"]
        assert dict(f.metadata) == truth["metadata"]
        assert (None if f.vocab is None else list(f.vocab)) == truth["vocab"]
        if truth["special_tokens"]:
            ids = {key.removesuffix("_id"): value for key, value in truth["special_tokens"].items()}
            assert dict(f.vocab.special_ids) == ids
        f.verify()


@pytest.mark.parametrize("name", ["n1", "minilm_shaped_101"])
def test_ground_truth_of_the_simple_layout(name):
    """The files that the upstream converter writes read as their recorded values say."""
    path = TRUTH / "upstream_simple" / f"{name}.weights"
    truth = json.loads((path.parent / f"{name}.weights.json").read_text(encoding="utf-8"))
    arrays = np.load(path.parent / f"{name}.weights.npz")
    with wm.open(path) as f:
        assert (f.format, f.layout) == ("embd", "simple")
        assert list(f) == truth["names"]
        assert [list(info.shape) for info in f.infos()] == truth["shapes"]
        for number, key in enumerate(truth["names"]):
            expected = arrays[key] if key in arrays else arrays[arrays.files[number]]
            np.testing.assert_array_equal(f[key], expected)
            assert f[key].dtype == np.float32
        assert list(f.vocab) == truth["vocab"]
        f.verify()


def test_a_wrong_total_size_of_the_metadata_is_a_warning():
    draft_ = draft(metadata=embd.metadata_section(embd.REQUIRED.items(), total=5))
    with wm.open(memoryview(draft_.seal())) as f:
        assert dict(f.metadata) == embd.REQUIRED
        assert any("total_size" in line for line in f.verify().warnings)


def test_more_words_than_upstream_allows():
    """A vocabulary of the simple layout may exceed 100,000 tokens."""
    with wm.open(embd.simple([("a", normal((1,)))], [f"{i}" for i in range(100_001)])) as f:
        assert len(f.vocab) == 100_001


def test_a_minor_version_is_accepted_with_a_warning():
    with wm.open(memoryview(draft().header(version_minor=7).seal())) as f:
        assert list(f) == ["a", "b"]
        assert any("minor" in line for line in f.verify().warnings)


@pytest.mark.parametrize("key", [*embd.REQUIRED, None])
def test_a_missing_required_key_is_a_warning(key):
    metadata = {name: value for name, value in embd.REQUIRED.items() if name != key}
    with wm.open(memoryview(draft(metadata=metadata).seal())) as f:
        warnings = f.verify().warnings
    assert [key in line for line in warnings] == [True] * (key is not None)


def test_checksums_may_be_absent():
    data = draft(checksums=False).footer(data_checksum=1, file_checksum=2).seal()
    with wm.open(memoryview(data), verify="full") as f:
        f.verify()
        assert same(f["a"], normal((2, 3)))


def test_padding_that_is_not_zero_is_found_however_long_it_is():
    hole = Tensor("uint8", (2**19,), bytes(2**19 - 1) + b"\1")
    d = embd.Draft([("a", noise("uint8", (64,))), ("b", hole), ("c", normal((2,)))]).descriptor(1, shape0=1)
    with wm.open(memoryview(d.seal()), strict=False) as f:
        warnings = f.verify().warnings
    assert sum("leaves a hole" in warning for warning in warnings) == 1
    assert sum("padding between tensors is not zero" in warning for warning in warnings) == 1


def test_verify_notices_a_header_that_changed():
    data = bytearray(draft().seal())
    with wm.open(data) as f:
        data[6] ^= 1
        with pytest.raises(wm.LayoutError, match="the header changed"):
            f.verify()


@pytest.mark.parametrize(("checksums", "value"), [(True, 1), (True, 0), (False, 1), (False, 2**32 - 1)])
@pytest.mark.parametrize("strict", [True, False])
def test_the_header_checksum_is_always_checked(checksums, value, strict):
    data = draft(checksums=checksums).header(header_checksum=value).seal()
    for level in ("header", "full", "none"):
        with pytest.raises(wm.ChecksumError) as caught:
            wm.open(memoryview(data), verify=level, strict=strict)
        assert (caught.value.field, caught.value.offset) == ("header_checksum", 56)


def test_a_header_without_a_checksum():
    data = draft(checksums=False).header(header_checksum=0).seal()
    with wm.open(draft(checksums=False).seal()) as sound:
        wanted = {name: array.tobytes() for name, array in sound.items()}
        assert "header checksum" in sound.verify().checks
    for level in ("header", "full", "none"):
        with wm.open(memoryview(data), verify=level) as f:
            assert {name: array.tobytes() for name, array in f.items()} == wanted
            report = f.verify()
            assert [w for w in report.warnings if "header_checksum is 0" in w and "(at byte 56)" in w]
            assert "header checksum" not in report.checks
            assert "no header checksum: the file has none" in report.checks


def vocabulary(tokens, **options):
    return wm.open(memoryview(embd.Draft([("a", normal((2,)))], vocab=tokens, **options).seal()))


def test_the_vocabulary_is_a_sequence_of_str():
    tokens = embd.TOKENS
    with vocabulary(tokens) as f:
        v = f.vocab
        assert isinstance(v, Sequence)
        assert repr(v) == f"<Vocabulary of {len(tokens)} tokens>"
        assert len(v) == len(tokens)
        assert [v[i] for i in range(len(v))] == list(tokens)
        assert [v[i] for i in range(-len(v), 0)] == list(tokens)
        assert v[np.int64(2)] == tokens[2]
        assert list(v[2:5]) == list(tokens[2:5])
        assert list(v) == list(tokens)
        assert list(reversed(v)) == list(reversed(tokens))
        for number, token in enumerate(tokens):
            assert token in v
            assert v.index(token) == number
            assert v.get(token) == number
            assert v.count(token) == 1
            assert type(v[number]) is str
            assert type(v.index(token)) is int
        for place in (len(tokens), -len(tokens) - 1, 2**40):
            with pytest.raises(IndexError):
                v[place]


def test_a_repeated_token_is_found_from_a_start_as_in_a_list():
    tokens = ["a", "b", "a", "c", "a"]
    with vocabulary(tokens) as f:
        for start in range(-6, 6):
            for stop in (None, *range(-6, 7)):
                bounds = (start,) if stop is None else (start, stop)
                if "a" in tokens[slice(start, stop)]:
                    assert f.vocab.index("a", *bounds) == tokens.index("a", *bounds)
                else:
                    with pytest.raises(ValueError, match="'a' is not in the vocabulary"):
                        f.vocab.index("a", *bounds)


def test_an_absent_token_is_not_found():
    with vocabulary(embd.TOKENS) as f:
        v = f.vocab
        with pytest.raises(ValueError, match="absent"):
            v.index("absent")
        assert v.get("absent") is None
        assert v.get("absent", -1) == -1
        assert "absent" not in v
        assert 5 not in v
        assert None not in v
        assert "\ud800" not in v
        with pytest.raises(ValueError, match=r".*"):
            v.index("\ud800")


def test_an_error_is_reported_as_of_the_layout_that_was_meant():
    """One sign of the specification layout suffices for an error in its terms, such as a missing footer."""
    with pytest.raises(wm.TruncatedError, match=r"footer|DBME"):
        wm.open(memoryview(draft().footer(magic_end=b"\0\0\0\0").seal()))
    data = draft().header(total_file_size=12345).seal()
    with pytest.raises((wm.LayoutError, wm.TruncatedError)) as caught:
        wm.open(memoryview(data))
    assert caught.value.field == "total_file_size"


@pytest.mark.parametrize("names", ["a", "ba", "aba"])
def test_a_hash_of_another_name_is_an_error_of_the_look_up(put, names):
    """At each look-up, the first too, if opening did not check the index."""
    tensors = {"a": np.ones(3, np.float32), "b": np.zeros(2, np.float32)}
    path = put(b"", "t.weights")
    wm.save(path, tensors, output=wm.Output(checksums=False))
    data = bytearray(path.read_bytes())
    data[int.from_bytes(data[28:32], "little")] ^= 1
    path.write_bytes(data)
    with wm.open(path, verify="none") as f:
        assert list(f) == ["a", "b"]
        for name in names:
            if name == "b":
                assert not f[name].any()
                continue
            with pytest.raises(wm.ChecksumError, match="stored FNV-1a hash of its name") as caught:
                f[name]
            assert (caught.value.field, caught.value.path) == ("name_hash", str(path))
        with pytest.raises(wm.TensorNotFoundError):
            f["c"]
