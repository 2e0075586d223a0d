"""Arguments of a wrong type: a TypeError that names the argument and says what it takes, before anything is done."""

import operator
import pickle

import numpy as np
import pytest
from tests.support import in_one_item

import weightmap as wm
from weightmap import words
from weightmap.cli import main
from weightmap.compat import safe_open, serialize
from weightmap.compat.gguf import GGUFReader
from weightmap.dlpack import export
from weightmap.words import train_pq

DTYPE = r"dtype is {}, expected one that numpy has, such as 'float32', or bfloat16, float8_e4m3fn, "


class Files:
    """A model, its quantised copy, word vectors, and a folder for results."""

    def __init__(self, folder):
        self.model, self.target = folder / "model.safetensors", folder / "target.safetensors"
        self.shards, self.words, self.blocks = folder / "shards", folder / "words.fifu", folder / "model.amb"
        self.array = np.arange(128, dtype=np.float32).reshape(4, 32)
        wm.save(self.model, {"w": self.array})
        wm.save(self.blocks, {"w": wm.quantize(self.array, "int4_block")})
        wm.save(self.words, {"embeddings": self.array}, vocab=["a", "b", "c", "d"])
        self.shards.mkdir()

    def convert(self, **options):
        return wm.convert(self.model, self.target, **options)

    def spread(self, **options):
        return wm.convert(self.model, self.shards, format="safetensors", **options)

    def quantize(self, scheme="int4_block", **options):
        return wm.quantize(self.array, scheme, **options)

    def save(self, **options):
        wm.save(self.target, {"w": self.array}, **options)

    def plan(self, **options):
        return wm.plan(self.model, **options)

    @property
    def file(self):
        return wm.open(self.model)

    @property
    def quantized(self):
        return wm.open(self.blocks)["w"]


# A wrong argument, and the message.
WRONG = [
    (lambda f: f.file.read("w", "foo"), DTYPE.format("'foo'")),
    (lambda f: f.file.read("w", 5), DTYPE.format("5")),
    (lambda f: f.file.read("w", ","), DTYPE.format("','")),  # a SyntaxError of numpy
    (lambda f: f.file.read("w", "4{"), DTYPE.format("'4{'")),  # a ValueError of numpy
    (lambda f: f.file.read("w", "\ud800"), DTYPE.format(r"'\\ud800'")),
    (lambda f: f.file.read("w", "(2,)f4"), DTYPE.format(r"'\(2,\)f4'")),
    (
        lambda f: wm.open(f.model, remote=wm.Remote(3)),
        "store must be an object store with the methods of obstore's, not int",
    ),
    (lambda _: wm.open("s3://a/b", remote=wm.Remote("s3://a")), "store must be an object store .*, not str"),
    (lambda f: wm.open(f.model, remote=wm.Remote(deadline="1")), "deadline must be a number, not str"),
    (lambda f: f.quantized.dequantize("foo"), DTYPE.format("'foo'")),
    (lambda f: f.quantized.dequantize(("f4", (2,))), DTYPE.format(r"\('f4', \(2,\)\)")),
    (lambda f: f.file.read("w", "<f16"), "dtype is '<f16', numpy's name of float128, expected one that numpy has"),
    (lambda f: f.quantized.dequantize("c32"), "dtype is 'c32', numpy's name of complex256, expected one that"),
    (lambda f: f.file.read("w", threads="2"), "threads must be an integer, not str"),
    (lambda f: f.quantized.dequantize(threads=1.5), "threads must be an integer, not float"),
    (lambda f: f.file.verify(threads="2"), "threads must be an integer, not str"),
    (lambda f: f.file.verify(progress=5), "progress must be a function of two numbers"),
    (lambda f: f.file.prefetch(5), "names must be a name or a sequence of them, not int"),
    (lambda f: f.file.residency(5), "names must be a name or a sequence of them, not int"),
    (lambda f: f.file.release(5), "names must be a name or a sequence of them, not int"),
    (lambda f: wm.open(f.words).embeddings.batch(5), "words must be a sequence of words, not int"),
    (lambda f: wm.open(f.words).vocab["a"], "a token id must be an integer, not str"),
    (lambda f: wm.verify(f.model, run=5), "run must be a weightmap.Run, not int"),
    (lambda f: f.spread(run={"manifest": "m"}), "run must be a weightmap.Run, not dict"),
    (lambda f: f.convert(rename=5), "rename must be a mapping of names or a function of a name, not int"),
    (lambda f: f.convert(rename=len), "the new name of tensor 'w' must be a str, not int"),
    (lambda f: words.convert(f.words, f.target, pq="8"), "pq must be a weightmap.words.Pq, not str"),
    (lambda f: words.convert(f.words, f.target, threads="2"), "threads must be an integer, not str"),
    (lambda f: words.Pq(n_bits="8"), "n_bits must be an integer, not str"),
    (lambda f: wm.verify(f.model, progress=5), "progress must be a function of two numbers"),
    (lambda f: wm.save(None, {}), r"path must be a path \(str, bytes or os.PathLike\), not NoneType"),
    (lambda f: wm.save(f.target, None), "tensors must be a mapping, not NoneType"),
    (lambda f: f.save(metadata=[1]), "metadata must be a mapping, not list"),
    (lambda f: f.save(special_ids=[1]), "special_ids must be a mapping, not list"),
    (lambda f: f.save(vocab=5), "vocab must be a sequence of tokens, not int"),
    (lambda f: f.save(vocab="token"), "vocab must be a sequence of tokens, not str"),
    (lambda f: f.save(vocab={"token": 1}), "vocab must be a sequence of tokens, not dict"),
    (lambda f: f.save(vocab=frozenset({"token"})), "vocab must be a sequence of tokens, not frozenset"),
    (lambda f: pickle.dumps(f.plan()), "a plan cannot be pickled: pickle the path of its model, and plan again there"),
    (
        lambda f: pickle.dumps(f.file.pool(4096)),
        "a pool cannot be pickled: pickle the path of its model, and open a pool there",
    ),
    (lambda _: wm.Output(align="64"), "align must be an integer, not str"),
    (lambda _: wm.Output(align=64.0), "align must be an integer, not float"),
    (lambda f: wm.Output(5), "layout must be a str, not int"),
    (lambda f: f.save(output="spec"), "output must be a weightmap.Output, not str"),
    (lambda f: f.save(progress=5), "progress must be a function of two numbers, done and total, not int"),
    (lambda f: wm.convert(f.model, None), r"dst must be a path \(str, bytes or os.PathLike\), not NoneType"),
    (lambda f: f.convert(include=5), "include must be a glob or a sequence of globs, not int"),
    (lambda f: f.convert(exclude=b"w"), "exclude must be a glob or a sequence of globs, not bytes"),
    (lambda f: wm.Quantize("int8", include=[1]), "a glob of include must be a str, not int"),
    (lambda f: wm.Quantize("int8", exclude=["w", None]), "a glob of exclude must be a str, not NoneType"),
    (lambda f: f.convert(progress="bar"), "progress must be a function of two numbers, done and total, not str"),
    (lambda f: wm.Run("threads"), "executor must be a concurrent.futures.Executor, not str"),
    (lambda f: wm.Run(manifest=5), r"manifest must be a path \(str, bytes or os.PathLike\), not int"),
    (lambda f: wm.Run(rank="1", world_size=2), "rank must be an integer, not str"),
    (lambda f: wm.Run(world_size=2.0), "world_size must be an integer, not float"),
    (lambda f: f.quantize(block_size="32"), "block_size must be an integer, not str"),
    (lambda f: f.quantize(block_size={}), "block_size must be an integer, not dict"),
    (lambda f: f.quantize("adaptive", block_size="32"), "block_size must be an integer, not str"),
    (lambda f: f.quantize("adaptive", bits="5"), "bits must be a number, not str"),
    (lambda f: f.quantize("adaptive", bits=None), "bits must be a number, not NoneType"),
    (lambda f: f.quantize(threads="2"), "threads must be an integer, not str"),
    (lambda f: wm.diff(f.model, f.model, rtol="0.1"), "rtol must be a number, not str"),
    (lambda f: wm.diff(f.model, f.model, atol=[1]), "atol must be a number, not list"),
    (lambda f: f.plan(rank="1"), "rank must be an integer, not str"),
    (lambda f: f.plan(local_world_size=None), "local_world_size must be an integer, not NoneType"),
    (lambda f: f.plan(gap=1.5), "gap must be an integer, not float"),
    (lambda f: f.plan(max_over_read="1.1"), "max_over_read must be a number, not str"),
    (lambda f: f.plan().warm("2"), "threads must be an integer, not str"),
    (lambda f: f.plan().warm(progress=5), "progress must be a function of two numbers"),
    (lambda _: wm.shard(None, 0, 0, 1), "name_or_info must be a name, or something with a shape, not NoneType"),
    (lambda _: wm.shard("w", "0", 0, 1), "dim must be an integer, not str"),
    (
        lambda _: wm.open("https://x.invalid/m", remote=wm.Remote(concurrency="2")),
        "concurrency must be an integer, not str",
    ),
    (lambda _: wm.open("https://x.invalid/m", remote=wm.Remote(deadline="2")), "deadline must be a number, not str"),
    (lambda _: wm.kernels.dequantize_int4(bytes(18), "32", 32), "n must be an integer, not str"),
    (lambda _: wm.kernels.f16_to_f32("ab"), "a bytes-like object is required, not 'str'"),
    (lambda _: serialize(None), "tensors must be a mapping, not NoneType"),
    (lambda _: GGUFReader(None), r"path must be a path \(str, bytes or os.PathLike\), not NoneType"),
    (lambda _: export(None), "array must be a numpy array or a QuantizedTensor, not NoneType"),
    (lambda _: train_pq(np.eye(4), n_subquantizers="2"), "n_subquantizers must be an integer, not str"),
    (lambda _: train_pq(np.eye(4), n_bits="2"), "n_bits must be an integer, not str"),
    (lambda _: train_pq(np.eye(4), sample="2"), "sample must be an integer, not str"),
]
# A wrong argument for a fixed set of values: the same class of error as for another wrong value.
VALUES = [
    (lambda f: wm.open(f.model, format=[1]), ValueError, r"format is \[1\], expected one of amb, "),
    (lambda f: f.convert(dtype=","), ValueError, "dtype is ',', expected one of float16, "),
    (lambda f: f.quantize(scale_type=[1]), wm.QuantError, r"scale_type is \[1\], expected 'fp16' or 'fp32'"),
    (lambda f: f.quantize(scale_type="4{"), wm.QuantError, "scale_type is '4{', expected 'fp16' or 'fp32'"),
    (lambda f: f.quantize([1]), wm.QuantError, r"scheme is \[1\], expected one of int8, "),
    (lambda f: f.convert(quantize={}), wm.QuantError, r"scheme is \{\}, expected one of int8, "),
    (lambda f: safe_open(f.model, [1]), wm.UnsupportedError, r"framework is \[1\], expected np, "),
    (lambda f: f.convert(include=[]), wm.EncodeError, "include is empty, which leaves none of 1 tensor"),
    (lambda f: f.convert(include="w", exclude=["x", "w"]), wm.EncodeError, "exclude is 'x', which matches none of 1"),
    (lambda _: train_pq("words"), wm.QuantError, "dtype is <U5, expected real numbers"),
]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return Files(tmp_path_factory.mktemp("arguments"))


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        ("fp16", "float16"),
        ("f16", "float16"),
        ("f32", "float32"),
        ("f64", "float64"),
        ("bf16", "bfloat16"),
        ("fp32", "float32"),
        ("fp64", "float64"),
        ("fp8_e4m3", "float8_e4m3fn"),
        ("fp8_e5m2", "float8_e5m2"),
        ("float8_e4m3fn", "float8_e4m3fn"),
        ("<f2", "float16"),
        (np.float64, "float64"),
    ],
)
def test_data_types_have_the_same_names_everywhere(files, tmp_path, dtype, name):
    target = tmp_path / "o.safetensors"
    wm.convert(files.model, target, dtype=dtype)
    with wm.open(target) as f:
        assert f.info("w").dtype == name
    assert (files.file.read("w", dtype).dtype, files.quantized.dequantize(dtype).dtype) == (name, name)
    if isinstance(dtype, str):
        assert main(["convert", str(files.model), str(target), "--dtype", dtype]) == 0
        assert wm.load(target)["w"].dtype == name


@in_one_item("call, message", WRONG)
def test_an_argument_of_a_wrong_type_is_named(call, message, files):
    """The error is a TypeError that names the argument and its types; nothing is written."""
    with pytest.raises(TypeError, match=f"^{message}"):
        call(files)
    assert not files.target.exists()
    assert not list(files.shards.iterdir())


@in_one_item("call, kind, message", VALUES)
def test_an_argument_of_a_wrong_value_is_named(call, kind, message, files):
    with pytest.raises(kind, match=message):
        call(files)
    assert not files.target.exists()


OPENING = ("strict", "limits", "trust", "config", "mode", "remote", "store", "redirects", "direct", "weights")
OUTPUT = ("layout", "align", "checksums", "sha256sums", "durable", "overwrite")
READERS = {"convert": "src", "verify": "source", "diff": "a", "plan": "source", "torch.load_file": "path"}
READERS |= {"torch.load_into": "path", "device.load": "model", "deltas.publish": "base", "report.write_report": "a"}
OLD = [
    *((name, keyword, f"(wm.open({model}") for name, model in READERS.items() for keyword in OPENING),
    *((name, keyword, f"output=Output({keyword}=") for name in ("save", "convert") for keyword in OUTPUT),
    *(("quantize", keyword, "convert(src, dst, quantize=") for keyword in ("dst", "include", "exclude", "run")),
    *((name, "manifest", "run=Run(manifest=...)") for name in ("convert", "verify")),
    *((name, "direct", 'mode="direct"') for name in ("open", "load", "deltas.open")),
    *((name, "redirects", "remote=Remote(redirects=...)") for name in ("open", "load", "deltas.open")),
    ("open", "advise", "f.advise(...)"),
    ("open", "deltas", "weightmap.deltas.open(base, [...])"),
    ("convert", "verify", "wm.verify(dst)"),
    ("convert", "bits", "quantize=Quantize(scheme, bits=...)"),
    ("plan", "world", "world_size="),
    ("torch.load_file", "map_location", "device="),
    ("torch.load_into", "map_location", "load_into(module.to(device), path)"),
]


@in_one_item("function, keyword, place", OLD)
def test_an_old_keyword_names_its_place(function, keyword, place):
    if (function, keyword) == ("torch.load_into", "strict"):  # of the module
        return
    call = operator.attrgetter(function)(wm)
    with pytest.raises(TypeError) as caught:
        call("a", *["b"] * (function != "load"), **{keyword: None})
    said = f"{call.__name__}() got an unexpected keyword argument {keyword!r}: use "
    assert str(caught.value).startswith(said)
    assert place.replace("overwrite=...", "overwrite=False").lstrip("(") in str(caught.value)


def test_an_unknown_keyword_meets_the_others():
    with pytest.raises(TypeError, match=r"^load\(\) got .* 'names': its arguments are format, mode, verify, strict,"):
        wm.load("a", names=["w"])
    with pytest.raises(TypeError, match=r"^convert\(\) got .* 'formt': did you mean format\?"):
        wm.convert("a", "b", formt="gguf")
