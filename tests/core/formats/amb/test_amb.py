"""AMB: files of the specification's writer, sections, tokenizers, writing, and what AMB cannot hold."""

import json
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from tests.builders import amb, noise, normal
from tests.support import DATA, listing, same

import weightmap as wm

TRUTH = sorted((DATA / "amb" / "spec_example_writer").glob("*.amb"))
WRITER = DATA / "amb" / "write_amb_file.txt"


@pytest.mark.parametrize("path", TRUTH, ids=lambda path: path.stem)
def test_files_of_the_specifications_writer_have_their_recorded_values(path):
    recorded = json.loads(path.with_name(path.name + ".json").read_text(encoding="utf-8"))
    with wm.open(path, verify="full") as f:
        assert (f.format, f.layout, f.nbytes) == ("amb", "amb", recorded["file_size"])
        assert f.metadata == recorded["metadata"]
        assert f.config == recorded["config"]
        assert f.tokenizer is None
        assert list(f) == [tensor["name"] for tensor in recorded["tensors"]]
        for tensor in recorded["tensors"]:
            info = f.info(tensor["name"])
            assert (info.dtype, list(info.shape)) == ("float32", tensor["shape"])
            assert (info.offset, info.nbytes) == (tensor["file_offset"], tensor["data_size"])
            assert f[tensor["name"]].tobytes().hex() == tensor["hex"]
            if tensor["data_size"]:  # numpy calls every empty array aligned
                assert f[tensor["name"]].flags.aligned == (tensor["data_aligned_to"] % 4 == 0)


@pytest.mark.parametrize("pad", range(8))
def test_the_specifications_writer_runs_as_printed(tmp_path, pad):
    """The specification's Python function, unchanged, makes files that load, wherever their weights begin."""
    scope = {}
    exec(compile(WRITER.read_text(encoding="utf-8"), WRITER.name, "exec"), scope)
    rng = np.random.default_rng(pad)
    weights = {
        "transformer.wte": rng.standard_normal((5, 3)).astype(np.float32),
        "ünï": rng.standard_normal((2, 1, 7)).astype(np.float32),
        "scalar": np.array(1.5, np.float32),
        "none": np.empty((0, 3), np.float32),
    }
    path = tmp_path / "theirs.amb"
    metadata = {"name": "x" * pad}
    scope["write_amb_file"](path, metadata, {"n_vocab": 5, "n_embd": 3}, {}, weights)
    with wm.open(path, verify="full") as f:
        assert f.metadata == metadata
        assert f.config == {"n_vocab": 5, "n_embd": 3}
        assert list(f) == list(weights)
        for name, array in weights.items():
            np.testing.assert_array_equal(f[name], array)
        assert f.verify().warnings == ()


def test_a_dtype_that_the_specifications_writer_gets_wrong_is_refused(tmp_path):
    """The example writes dtype 0 whatever the array is: half as many bytes as the shape needs are a LayoutError."""
    scope = {}
    exec(compile(WRITER.read_text(encoding="utf-8"), WRITER.name, "exec"), scope)
    path = tmp_path / "theirs.amb"
    scope["write_amb_file"](path, {}, {}, {}, {"h": np.zeros(4, np.float16)})
    with pytest.raises(wm.LayoutError, match=r"data_size is 8, expected 16") as caught:
        wm.open(path)
    assert caught.value.field == "data_size"


def test_a_tokenizer_is_its_numbers_and_its_bytes(put):
    section = amb.tokenizer(1, (1, 2, amb.NO_ID, 0, amb.NO_ID), bytes(range(256)))
    f = wm.open(put(amb.build(tokens=section)))
    assert f.tokenizer.type == 1
    assert f.tokenizer.special_ids == {"bos": 1, "eos": 2, "unk": 0}
    assert f.tokenizer.payload == bytes(range(256))
    assert "SentencePiece" in repr(f.tokenizer)
    with pytest.raises(wm.UnsupportedError, match="SentencePiece"):
        f.tokenizer.tokens()


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("start", range(8))
def test_padding_counts_from_the_file_or_from_the_section(put, start, *, relative):
    """Both readings of the alignment load, wherever the section begins, over files and over memory alike."""
    tensors = {f"t{i}": noise("int8", (i,), i) for i in range(12)}
    metadata = amb.text({"x": "y" * start})
    data = amb.build([amb.dense(*item) for item in tensors.items()], metadata, relative=relative)
    for source in (put(data), data):
        with wm.open(source) as f:
            assert list(f) == list(tensors)
            assert all(same(f[name], value) for name, value in tensors.items())
            f.verify()


def test_sixty_four_dimensions_are_the_most(put):
    fine = amb.build([amb.dense("w", noise("int8", (1,) * 64, 1))])
    with wm.open(put(fine)) as f:
        assert f["w"].shape == (1,) * 64
    with pytest.raises(wm.LimitError, match="65"):
        wm.open(amb.build([amb.Record("w", (1,) * 65, 3, b"x")]))


def test_opening_reads_no_data(tmp_path):
    """A sparse file of a TiB opens at once, and its data is never allocated on the disk nor read into memory."""
    path = tmp_path / "large.amb"
    size = 1 << 40
    head = amb.Record("big", (1 << 20, 1 << 20), amb.INT8, b"", data_size=size).head()
    last = amb.dense("last", normal((2,), 3))
    end = 28 + len(head) + size
    tail = b"\0" * (-end % 8) + amb.weights([last], end + -end % 8)
    with path.open("wb") as file:
        file.write(amb.build(b"", weights_size=len(head) + size + len(tail)) + head)
        file.seek(end)
        file.write(tail)
    with wm.open(path) as f:
        assert f.info("big").nbytes == size
        assert same(f["last"], normal((2,), 3))
        assert f["big"][0, 0] == 0
    assert path.stat().st_blocks * 512 < 1 << 20


def test_verify_compares_config_and_tensors(put):
    record = [amb.dense("model.embed_tokens.weight", normal((4, 3)))]
    for config, wanted in (
        ({"n_vocab": 4, "n_embd": 3}, 0),
        ({"n_vocab": 5, "n_embd": 3}, 1),
        ({"n_vocab": 5, "n_embd": 2}, 2),
        ({"n_vocab": "4"}, 0),
    ):
        warnings = wm.open(put(amb.build(record, config=amb.text(config)))).verify().warnings
        assert len(warnings) == wanted
        assert all("embed_tokens" in text for text in warnings)
    # A vector of this name is not the embeddings: the matrix behind it is compared.
    both = [amb.dense("wte", normal((7,))), *record]
    warnings = wm.open(put(amb.build(both, config=amb.text({"n_vocab": 5})))).verify().warnings
    assert len(warnings) == 1
    assert "embed_tokens" in warnings[0]


def test_verify_compares_tokenizer_and_config(put):
    section = amb.tokenizer(2, (0, 9, 1, amb.NO_ID, 2), b"a\nb\nc\n")
    for config, words in (
        ({}, ["not below 3, the lines of its vocabulary: eos 9"]),
        ({"n_vocab": 3}, ["not below 3, config n_vocab: eos 9", "not below 3, the lines"]),
        ({"n_vocab": 10}, ["not below 3, the lines", "3 tokens, and config n_vocab is 10"]),
    ):
        warnings = wm.open(put(amb.build(config=amb.text(config), tokens=section))).verify().warnings
        assert len(warnings) == len(words)
        assert all(word in text for word, text in zip(words, warnings, strict=True))


def test_verify_notices_changes(put):
    data = bytearray(amb.build([amb.dense("w", normal((2,)))], b'{"a": 1}'))
    for at, new in ((28 + 6, ord("2")), (data.index(b"w"), ord("v"))):
        changed = bytearray(data)
        f = wm.open(changed)
        changed[at] = new
        with pytest.raises(wm.LayoutError, match="changed after"):
            f.verify()


def test_odd_but_legal_things_are_warnings(put):
    data = amb.build([amb.dense("", normal((1,)))], config=b'{"quant": {"block_size": -1}}')
    warnings = wm.open(put(data)).verify().warnings
    assert len(warnings) == 2
    assert "quant" in warnings[0]
    assert "empty name" in warnings[1]


def arrays():
    rng = np.random.default_rng(0)
    return {
        "float32": rng.standard_normal((3, 5)).astype(np.float32),
        "float16": rng.standard_normal(7).astype(np.float16),
        "bfloat16": rng.standard_normal((1, 3)).astype(ml_dtypes.bfloat16),
        "int8": np.arange(-128, 128, dtype=np.int8),
        "scalar": np.array(2.5, np.float32),
        "empty": np.empty((0, 4), np.float16),
        "": np.ones(1, np.int8),
        "big-endian": np.arange(4, dtype=">f4"),
        "strided": np.arange(20, dtype=np.float32)[::3],
    }


def test_what_is_written_reads_back_by_the_specification(tmp_path):
    """A reader built from the specification finds every tensor, padded, weights beginning at a multiple of 8."""
    for extra in range(9):
        path = tmp_path / "ours.amb"
        wm.save(path, arrays(), metadata={"name": "é" * extra}, config={"n_vocab": 1})
        metadata, config, tokens, records = amb.parse(path.read_bytes())
        assert json.loads(metadata) == {"name": "é" * extra}
        assert json.loads(config) == {"n_vocab": 1}
        assert tokens == b""
        assert (28 + len(metadata) + len(config)) % 8 == 0
        for (name, array), (record, _) in zip(arrays().items(), records, strict=True):
            assert (record.name, record.shape) == (name, array.shape)
            assert record.code == amb.CODES[array.dtype.newbyteorder("=").name]
            little = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"))
            assert record.data == little.tobytes()


@pytest.mark.parametrize("given", ["mapping", "namespace", "ours"])
def test_a_tokenizer_of_any_kind_is_written(tmp_path, given):
    """A mapping, an object with these attributes, and a file's tokenizer are written alike."""
    parts = {"type": 2, "special_ids": {"bos": 5, "mask": 65534, "pad": None}, "payload": b"a\nb\n"}
    first, path = tmp_path / "first.amb", tmp_path / "second.amb"
    wm.save(first, {}, tokenizer=parts)
    tokenizer = parts if given == "mapping" else SimpleNamespace(**parts)
    if given == "ours":
        tokenizer = wm.open(first).tokenizer
    wm.save(path, {}, tokenizer=tokenizer)
    assert path.read_bytes() == first.read_bytes()
    tokens = amb.parse(path.read_bytes())[2]
    assert tokens == amb.tokenizer(2, (5, amb.NO_ID, amb.NO_ID, amb.NO_ID, 65534), b"a\nb\n")


def test_everything_that_cannot_be_written_is_named_at_once(tmp_path):
    tensors = {
        "f8": np.zeros(2, np.float64),
        "i4": np.zeros(2, np.int32),
        "b1": np.zeros(2, bool),
        "fine": np.zeros(2, np.float32),
        "\ud800": np.zeros(1, np.int8),
        "n" * 65536: np.zeros(1, np.int8),
    }
    tokenizer = {"type": 4, "special_ids": {"bos": 65535, "cls": 1}, "payload": "text", "more": 1}
    with pytest.raises(wm.EncodeError) as caught:
        wm.save(tmp_path / "x.amb", tensors, metadata={"n": float("nan")}, config={1: 2}, tokenizer=tokenizer)
    message = str(caught.value)
    for part in ("'f8': dtype float64", "'i4': dtype int32", "'b1': dtype bool", "Unicode text", "65536 bytes"):
        assert part in message
    for part in ("nan (a finite number)", "the key 1", "type: 4", "'bos': 65535", "'cls'", "payload: str", "'more'"):
        assert part in message
    assert "'fine'" not in message
    assert listing(tmp_path) == []


def test_what_has_no_place_is_refused(tmp_path):
    for value, words in (
        (..., "ellipsis"),
        ({"k": np.float32(1)}, "float32"),
        ("\ud800", "Unicode"),
        (float("inf"), "inf"),
        (10**4000, "digits"),
        ({1: 2}, "the key 1"),
        ({"\udfff": 1}, "Unicode"),
    ):
        for metadata in ({"key": value}, {"key": [{"inner": (value,)}]}):
            with pytest.raises(wm.EncodeError, match=words):
                wm.save(tmp_path / "x.amb", {}, metadata=metadata)
    deep = []
    deep.append(deep)
    for words, options in (
        ("deep", {"metadata": {"deep": deep}}),
        ("vocab", {"vocab": ["a"]}),
        ("special_ids: list", {"tokenizer": {"type": 0, "special_ids": [1]}}),
    ):
        with pytest.raises(wm.EncodeError, match=words):
            wm.save(tmp_path / "x.amb", {}, **options)
    assert listing(tmp_path) == []


@pytest.mark.parametrize("size", [*range(3960, 4100), 65535])
def test_names_and_data_across_the_window_of_the_walk(put, size):
    records = [amb.dense("n" * (size % 60000), noise("int8", (5,), size)), amb.dense("b", noise("int8", (size,), 1))]
    records += [amb.dense("c", normal((2,), size)), amb.dense("d", noise("int8", (9000 + size % 8,), size))]
    # Behind the last one lies padding of any length, which no earlier read has fetched.
    with wm.open(put(amb.build(records))) as f:
        assert [np.asarray(f[name]).tobytes() for name in f] == [record.data for record in records]
