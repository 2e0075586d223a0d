"""GGUF with gguf-py: its dump of our reader, its reader on our files, and our reader on its files."""

import argparse
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from tests.builders import Tensor, gguf, noise, normal
from tests.support import DATA

import weightmap as wm
from weightmap.compat.gguf import GGUFReader, patched

theirs = pytest.importorskip("gguf")
dump = pytest.importorskip("gguf.scripts.gguf_dump")


TRUTH = sorted((DATA / "gguf").glob("*.gguf"))
every_file = pytest.mark.parametrize("path", TRUTH, ids=lambda path: path.stem)


@every_file
@pytest.mark.parametrize("how", ["text", "json", "json with arrays", "markdown"])
def test_the_dump_script_prints_the_same(path, how, capsys):
    args = argparse.Namespace(model=str(path), no_tensors=False, json_array=how == "json with arrays", verbose=False)
    shown = []
    for reader in (theirs.GGUFReader(path), GGUFReader(path)):
        if how == "text":
            dump.dump_metadata(reader, args)
        elif how == "markdown":
            dump.dump_markdown_metadata(reader, args)
        else:
            dump.dump_metadata_json(reader, args)
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]
    assert shown[0]


def assert_same_fields(ours, other):
    assert list(ours.fields) == list(other.fields)
    for name, field in other.fields.items():
        mine = ours.get_field(name)
        assert (mine.offset, mine.name) == (field.offset, field.name)
        assert list(mine.data) == list(field.data)
        assert mine.types == field.types
        assert [t.name for t in mine.types] == [t.name for t in field.types]
        assert len(mine.parts) == len(field.parts)
        for a, b in zip(mine.parts, field.parts, strict=True):
            assert a.dtype.newbyteorder("=") == b.dtype.newbyteorder("=")
            np.testing.assert_array_equal(a, b)
        assert mine.contents() == field.contents() or mine.contents() != mine.contents()
        if field.types[:1] == [theirs.GGUFValueType.ARRAY] and len(field.data) > 1:
            assert mine.contents(1) == field.contents(1)
            assert mine.contents(slice(1)) == field.contents(slice(1))


@every_file
def test_fields_and_tensors_are_the_same(path):
    ours, other = GGUFReader(path), theirs.GGUFReader(path)
    assert_same_fields(ours, other)
    assert (ours.byte_order, ours.alignment, ours.data_offset) == (other.byte_order, other.alignment, other.data_offset)
    assert ours.endianess == other.endianess
    np.testing.assert_array_equal(ours.data, other.data)
    assert len(ours.tensors) == len(other.tensors)
    for i, tensor in enumerate(other.tensors):
        mine = ours.get_tensor(i)
        assert mine.tensor_type == tensor.tensor_type
        assert mine.tensor_type.name == tensor.tensor_type.name
        for name in ("name", "n_elements", "n_bytes", "data_offset"):
            assert getattr(mine, name) == getattr(tensor, name)
        np.testing.assert_array_equal(mine.shape, tensor.shape)
        np.testing.assert_array_equal(mine.data, tensor.data)
        assert (mine.data.dtype, mine.data.shape) == (tensor.data.dtype, tensor.data.shape)
        assert not mine.data.flags.writeable
        assert mine.field.offset == tensor.field.offset
        assert all(np.array_equal(a, b) for a, b in zip(mine.field.parts, tensor.field.parts, strict=True))


def test_gguf_py_reads_what_we_write(tmp_path):
    path = tmp_path / "t.gguf"
    tensors = gguf.EVERY | {"four": noise("int8", (1, 2, 1, 3)), "vector": normal((7,))}
    blocks = {
        name: Tensor(name, (2, 2 * elements), bytes(4 * octets)) for name, (_, elements, octets) in gguf.BLOCKS.items()
    }
    source = tmp_path / "s.gguf"
    source.write_bytes(gguf.build(tensors | blocks, [*gguf.EVERY_VALUE, *gguf.VOCAB]))
    with wm.open(source) as f:
        # gguf-py 0.19 lacks q2_0.
        names = [name for name in f if f.info(name).dtype not in {"q8_1", "q8_k", "q2_0"}]
        wm.save(path, {name: f[name] for name in names}, metadata=f.metadata, vocab=f.vocab)
    reader = theirs.GGUFReader(path)
    assert [tensor.name for tensor in reader.tensors] == names
    for tensor in reader.tensors:
        value = (tensors | blocks)[tensor.name]
        assert tensor.data.tobytes() == value.data
        assert tuple(tensor.shape.tolist()[::-1]) == value.shape
    for key, kind, value in (*gguf.EVERY_VALUE, *gguf.VOCAB):
        if not isinstance(kind, list):
            assert reader.get_field(key).contents() == value
        elif not isinstance(kind[0], list):
            assert reader.get_field(key).contents() == list(value)


def test_we_read_what_gguf_py_writes(tmp_path):
    path = tmp_path / "t.gguf"
    writer = theirs.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_token_list([b"a", b"b", b"a"])
    writer.add_token_types([1, 2, 3])
    writer.add_bos_token_id(1)
    writer.add_sep_token_id(2)
    values = np.random.default_rng(3).standard_normal((4, 64)).astype(np.float32)
    writer.add_tensor("w", values)
    kind = theirs.GGMLQuantizationType.Q8_0
    writer.add_tensor("q", theirs.quants.quantize(values, kind), raw_dtype=kind)
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    with wm.open(path, verify="full") as f:
        np.testing.assert_array_equal(f["w"], values)
        expected = theirs.quants.dequantize(theirs.quants.quantize(values, kind), kind)
        np.testing.assert_array_equal(np.asarray(f["q"]), expected)
        assert f.metadata["llama.block_count"] == 2
        assert f.metadata["tokenizer.ggml.token_type"].tolist() == [1, 2, 3]
        assert list(f.vocab) == ["a", "b", "a"]
        assert f.vocab.index("a") == 0
        assert f.vocab.special_ids == {"bos": 1, "sep": 2}


# llama.cpp's use of gguf-py in its converter, without torch; `make llama-test` runs the script itself.
CONVERTER = """
import sys
from pathlib import Path
import numpy as np
from gguf import GGUFWriter, GGMLQuantizationType as Type, LazyNumpyTensor, quants
from gguf.utility import SafetensorsLocal

writer = GGUFWriter(sys.argv[2], "llama")
with SafetensorsLocal(Path(sys.argv[1])) as tensors:
    for name, local in tensors.items():
        for kind in (Type.F16, Type.BF16, Type.Q8_0, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.TQ2_0):
            meta = LazyNumpyTensor.meta_with_dtype_and_shape(np.float32, local.shape)
            read = lambda part: part.mmap_bytes().view("f4").reshape(part.shape)
            lazy = LazyNumpyTensor(meta=meta, args=(local,), func=read)
            if local.shape[-1] % 256 == 0 or kind is Type.F16:
                lazy = lazy.astype(np.float32) + np.float32(1) if name == "sum" else lazy
                data = lazy.astype(np.float16) if kind is Type.F16 else quants.quantize(lazy, kind)
                writer.add_tensor(f"{name}.{kind.name}", data, raw_dtype=kind)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
"""
ODD = {
    "huge": 8.4e6,
    "largest": 65504.0,
    "subnormal": 2.98e-8,
    "infinite": np.inf,
    "negative": -np.inf,
    "nan": np.uint32(0xFFA12345).view(np.float32),
    "zero": 0.0,
}


def test_a_script_within_patched_writes_the_same_bytes(tmp_path):
    script, source = tmp_path / "convert.py", tmp_path / "model.safetensors"
    script.write_text(CONVERTER)
    values = np.random.default_rng(5).standard_normal((1400, 1024)).astype(np.float32)
    tensors = {
        "large": values,
        "sum": values[:9],
        "vector": values[0],
        "cube": values.reshape(14, 100, 1024),
        "odd": values[:3, :7],
    }
    for name, value in ODD.items():
        tensors[name] = values[:16].copy()
        tensors[name][3, 5] = value
    wm.save(source, tensors)
    written = []
    for how in ([], ["-m", "weightmap.compat.gguf"]):
        target = tmp_path / f"{len(how)}.gguf"
        subprocess.run([sys.executable, "-W", "ignore", *how, script, source, target], check=True)
        written.append(target.read_bytes())
    assert written[0] == written[1]


def test_a_script_by_its_link_finds_the_modules_beside_it(tmp_path):
    folder = tmp_path / "llama.cpp"
    folder.mkdir()
    (folder / "conversion.py").write_text("answer = 42")
    (folder / "convert.py").write_text("import conversion; print(conversion.answer)")
    (tmp_path / "link.py").symlink_to(folder / "convert.py")
    for how in ([], ["-m", "weightmap.compat.gguf"]):
        command = [sys.executable, "-W", "ignore", *how, tmp_path / "link.py"]
        assert subprocess.run(command, check=True, capture_output=True).stdout == b"42\n"


def test_patched_decodes_the_same_and_ends_with_its_block():
    before = (theirs.quants._apply_over_grouped_rows, theirs.LazyNumpyTensor.tofile)
    for path in TRUTH:
        for tensor in theirs.GGUFReader(path).tensors:
            try:
                expected = theirs.quants.dequantize(tensor.data, tensor.tensor_type)
            except (NotImplementedError, ValueError):
                continue
            with patched(), patched():
                found = theirs.quants.dequantize(tensor.data, tensor.tensor_type)
            assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
            assert found.tobytes() == expected.tobytes(), tensor.name
    assert (theirs.quants._apply_over_grouped_rows, theirs.LazyNumpyTensor.tofile) == before


Q4_0 = np.array([[0x00, 0xFE, *range(16)], [0x00, 0x3C, *range(16)]], np.uint8)  # scales: NaN, and 1
UNUSUAL = {
    "tiny": ("quantize", "Q4_0", np.full(32, 1e-40, np.float32)),
    "tiny with five bits": ("quantize", "Q5_0", np.full(32, -1e-40, np.float32)),
    "zeros of both signs": ("quantize", "Q4_1", np.float32([0.0, -0.0] * 16)),
    "zeros of both signs with five bits": ("quantize", "Q5_1", np.float32([0.0, -0.0] * 16)),
    "NaN of its own bits": ("dequantize", "Q4_0", Q4_0),
    "every second byte": ("dequantize", "Q4_0", np.repeat(Q4_0[1], 2)[::2]),
    "bytes as pairs": ("dequantize", "Q4_0", np.zeros((1, 36), np.uint16)),
    "no blocks": ("dequantize", "Q4_0", Q4_0[:0]),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("case", UNUSUAL)
def test_patched_quantises_and_decodes_unusual_blocks_the_same(case):
    way, kind, data = UNUSUAL[case]

    def outcome():
        try:
            return getattr(theirs.quants, way)(data, theirs.GGMLQuantizationType[kind]).tobytes()
        except ValueError as error:
            return str(error)

    expected = outcome()
    with patched():
        assert outcome() == expected


def test_tensors_are_written_some_rows_at_a_time(tmp_path):
    values = np.zeros((8192, 1024), np.float32)
    lazy = theirs.LazyNumpyTensor.from_eager(values).astype(np.float16)
    with patched(), (tmp_path / "x").open("wb") as file:
        tracemalloc.start()
        try:
            lazy.tofile(file)
            assert tracemalloc.get_traced_memory()[1] < values.nbytes // 8
        finally:
            tracemalloc.stop()
    assert (tmp_path / "x").stat().st_size == values.nbytes // 2


@pytest.mark.parametrize("arguments", [[], ["none.py"]])
def test_a_missing_script_is_one_line(tmp_path, arguments):
    command = [sys.executable, "-m", "weightmap.compat.gguf", *arguments]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[0].startswith(
        f"{''.join(arguments)!r} is no file; usage: python -m weightmap.compat.gguf"
    )
    assert len(ended.stderr.splitlines()) == 1
