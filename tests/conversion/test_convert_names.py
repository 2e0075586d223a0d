"""`rename`, `overwrite` and the parameters of `convert` that are objects: `Quantize`, `Run`, `Pq`."""

import dataclasses
import errno
import json
import os
import pickle
from typing import Any

import numpy as np
import pytest
from tests.support import listing

import weightmap as wm
from weightmap.cli import main
from weightmap.conversion import converting
from weightmap.core.bytes import atomic
from weightmap.core.formats import _writing
from weightmap.trust import lists
from weightmap.words import Pq

TENSORS = {f"layer.{i}.{part}": np.full((4, 32), i, np.float32) for i in range(3) for part in ("up", "down")}
# Arguments for one file, and for a shard a tensor.
TARGETS = [("new.amb", {}), ("new/", {"format": "amb", "max_shard_size": 512})]


@pytest.fixture
def model(tmp_path):
    wm.save(tmp_path / "model.safetensors", TENSORS)
    return tmp_path / "model.safetensors"


def blocks(name):
    return name.replace("layer.", "blk.")


@pytest.mark.parametrize(("target", "options"), TARGETS)
@pytest.mark.parametrize("rename", [blocks, {name: blocks(name) for name in TENSORS}], ids=["function", "mapping"])
def test_tensors_get_new_names(model, tmp_path, target, options, rename):
    """Globs and reports have the source's names; the file has the new names, each with its value."""
    how = wm.Quantize("int8", include="layer.1.*")
    report = wm.convert(model, f"{tmp_path}/{target}", exclude="layer.0.down", rename=rename, quantize=how, **options)
    assert sorted(info.name for info in report.quantized) == ["layer.1.down", "layer.1.up"]
    with wm.open(tmp_path / target) as file:
        assert set(file) == {blocks(name) for name in TENSORS} - {"blk.0.down"}
        for name in file:
            assert np.array_equal(np.asarray(file[name]), TENSORS[name.replace("blk.", "layer.")])


@pytest.mark.parametrize(("target", "options"), TARGETS)
@pytest.mark.parametrize("rename", [{"layer.0.up": "layer.2.down"}, lambda name: name.partition(".")[2][:1]])
def test_two_tensors_of_one_name_are_refused(model, tmp_path, target, options, rename):
    with pytest.raises(wm.EncodeError, match=r"tensors .layer\.\d\.\w+. and .layer\.\d\.\w+. would both be called"):
        wm.convert(model, f"{tmp_path}/{target}", rename=rename, **options)
    assert listing(tmp_path) == ["model.safetensors"]


class _Twice(dict[str, Any]):
    """A mapping that lists a tensor twice."""

    def items(self):
        return [("a", np.zeros(2, np.float32)), ("b", np.zeros(2, np.float32)), ("a", np.zeros(2, np.float32))]


@pytest.mark.parametrize("format_", ["embd", "amb", "bintensors", "safetensors", "gguf"])
@pytest.mark.parametrize("most", [None, 8])
def test_save_refuses_two_tensors_of_one_name(tmp_path, format_, most):
    with pytest.raises(wm.EncodeError, match="tensors 'a' and 'a' would both be called 'a'"):
        wm.save(tmp_path / "x", _Twice(), format=format_, max_shard_size=most)
    assert listing(tmp_path) == []


def test_different_names_of_one_hash_are_written(tmp_path, monkeypatch):
    monkeypatch.setattr(_writing, "hash", lambda _: 0, raising=False)
    wm.save(tmp_path / "x.safetensors", TENSORS)
    with wm.open(tmp_path / "x.safetensors") as file:
        assert set(file) == set(TENSORS)


def test_a_mapping_of_other_names_is_an_error(model, tmp_path):
    """A mapping that names no tensor of the source belongs to another model."""
    with pytest.raises(wm.EncodeError, match=r"rename has 'blk\.0', the name of none of 6 tensors"):
        wm.convert(model, tmp_path / "new.amb", rename={"blk.0": "a"})


def test_names_that_begin_alike_are_renamed_by_a_star(tmp_path):
    """The name of a tensor, and one that ends in a star, come first."""
    source, target = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    wm.save(source, {name: np.ones(1, np.float32) for name in ("net.w", "net.b", "net.*", "x")})
    wm.convert(source, target, rename={"net.*": "*", "net.b": "bias", "n*": "one"})
    assert sorted(wm.open(target)) == ["*", "bias", "w", "x"]
    with pytest.raises(wm.EncodeError, match=r"rename has 'ten\.\*', the name of none of 4 tensors"):
        wm.convert(source, target, rename={"ten.*": "*"})


def test_a_file_that_exists_is_not_replaced(model, tmp_path):
    """Nor a link without its file, before anything is read; also for words."""
    (tmp_path / "words.txt").write_text("a 1 2\nb 3 4\n")
    (tmp_path / "there.safetensors").write_bytes(b"mine")
    (tmp_path / "link.safetensors").symlink_to("nowhere")
    for source, target in (
        (model, "there.safetensors"),
        ("missing.safetensors", "there.safetensors"),
        (model, "link.safetensors"),
        (tmp_path / "words.txt", "there.safetensors"),
    ):
        with pytest.raises(wm.TargetError, match="this file exists: remove it"):
            wm.convert(source, tmp_path / target, output=wm.Output(overwrite=False))
    assert (tmp_path / "there.safetensors").read_bytes() == b"mine"
    wm.convert(model, tmp_path / "new.safetensors", output=wm.Output(overwrite=False))
    assert (tmp_path / "new.safetensors").stat().st_nlink == 1
    wm.convert(model, tmp_path / "there.safetensors")
    assert wm.diff(model, tmp_path / "there.safetensors").equal


@pytest.fixture(params=["names", "no names"])
def _links(request, monkeypatch):
    def link(*_args, **_options):
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    if request.param == "no names":
        monkeypatch.setattr(atomic, "_UNNAMED", 0)
        monkeypatch.setattr(atomic.os, "link", link)


@pytest.mark.usefixtures("_links")
def test_a_file_that_appears_meanwhile_is_not_replaced(model, tmp_path):
    wm.convert(model, tmp_path / "first.amb", output=wm.Output(overwrite=False))
    assert wm.diff(model, tmp_path / "first.amb").equal

    def appear(_done, _total):
        (tmp_path / "new.amb").write_bytes(b"mine")

    with pytest.raises(wm.TargetError, match="this file exists") as caught:
        wm.convert(model, tmp_path / "new.amb", progress=appear, output=wm.Output(overwrite=False))
    assert caught.value.path == str(tmp_path / "new.amb")
    assert (tmp_path / "new.amb").read_bytes() == b"mine"
    assert listing(tmp_path) == ["first.amb", "model.safetensors", "new.amb"]


@pytest.mark.parametrize(
    "made",
    [
        wm.Quantize("Q4-K", include=["a", "b"], exclude="c"),
        wm.Quantize("adaptive", block_size=64, scale_type="float32", bits=6),
        wm.Quantize("Q4-K-M", exclude="c"),
        wm.Run(manifest=b"done.json", rank=1, world_size=2, keep_going=True),
        Pq(4, n_bits=5, projection=True, norms=False, seed=3, include=["embeddings"]),
    ],
)
def test_options_are_values(made):
    assert pickle.loads(pickle.dumps(made)) == made == dataclasses.replace(made)
    assert eval(repr(made), {"Quantize": wm.Quantize, "Run": wm.Run, "Pq": Pq}) == made
    assert not hasattr(made, "__dict__")
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(made, dataclasses.fields(made)[0].name, None)


WRONG = [
    (lambda: wm.Quantize("q4km"), wm.QuantError, "the nearest is q4_k"),
    (lambda: wm.Quantize("pq", include="a"), wm.QuantError, "pq is for word embeddings"),
    (lambda: wm.Quantize("int8", block_size=1.5), TypeError, "block_size must be an integer, not float"),
    (lambda: wm.Run(keep_going=1), TypeError, "keep_going must be True or False, not int"),
    (lambda: wm.Output(overwrite="no"), TypeError, "overwrite must be True or False, not str"),
    (lambda: wm.Output(durable=None), TypeError, "durable must be True or False, not NoneType"),
    (lambda: wm.Output(checksums=0), TypeError, "checksums must be True or False, not int"),
    (lambda: wm.Output(sha256sums="SHA256SUMS"), TypeError, "sha256sums must be True or False, not str"),
    (lambda: wm.Remote(redirects="0"), TypeError, "redirects must be True or False, not str"),
    (lambda: wm.Remote(unversioned="no"), TypeError, "unversioned must be True or False, not str"),
    (lambda: Pq(0), wm.QuantError, "n_subquantizers is 0, expected 1 or more"),
    (lambda: Pq(n_bits=9), wm.QuantError, "n_bits is 9, expected 1 to 8"),
    (lambda: Pq(seed=-1), wm.QuantError, "seed is -1, expected 0 or more"),
]


@pytest.mark.parametrize(("make", "error", "message"), WRONG)
def test_options_check_themselves(make, error, message):
    with pytest.raises(error, match=message):
        make()


ALONG = {
    "config.json": '{"hidden_size": 4, "model_type": "bert"}',
    "generation_config.json": "{}",
    "tokenizer.json": '{"model": {"type": "WordPiece", "vocab": {"a": 0}}}',
    "vocab.txt": "a\nb\n",
    "chat_template.jinja": "{{ messages }}",
    "additional_chat_templates/tools.jinja": "{{ tools }}",
    "LICENSE": "Apache",
    "modeling_own.py": "class Model: ...",
    "modules.json": '[{"path": ""}, {"path": "1_Pooling"}, {"path": "2_Routes/"}, {"path": "3_Normalize"}]',
    "1_Pooling/config.json": '{"pooling_mode_mean_tokens": true}',
    "2_Routes/one/model.safetensors": "tensors",
}


@pytest.fixture
def directory(tmp_path):
    folder = tmp_path / "source"
    folder.mkdir()
    wm.save(folder / "model.safetensors", TENSORS, max_shard_size=1 << 11)
    for name, text in (ALONG | {"README.md": "hello", "other/config.json": "{}"}).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize("format_", ["safetensors", "gguf", "embd", "amb", "bintensors"])
def test_a_directory_becomes_a_directory(directory, tmp_path, format_):
    report = wm.convert(directory, f"{tmp_path}/out/", format=format_)
    assert set(report.copied) == set(ALONG)
    assert not [warning for warning in report.warnings if "vocabulary" in warning or "configuration" in warning]
    for name, text in ALONG.items():
        assert (tmp_path / "out" / name).read_text() == text
    suffix = {"embd": ".weights", "bintensors": ".bt"}.get(format_, f".{format_}")
    names = [f"model-0000{i}-of-00002{suffix}" for i in (1, 2)]
    there = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert there == {*ALONG, *names, f"model{suffix}.index.json"}
    assert wm.diff(directory, tmp_path / "out", tensors_only=True).equal
    assert wm.convert(tmp_path / "out", f"{tmp_path}/back/", format="safetensors").copied == report.copied


def test_code_goes_along_with_its_configuration(directory, tmp_path):
    """Without ``config.json``, which names a model's code, code beside it is somebody's project, and is not copied."""
    (directory / "config.json").unlink()
    copied = wm.convert(directory, f"{tmp_path}/out/", format="safetensors").copied
    assert set(copied) == ALONG.keys() - {"config.json", "modeling_own.py"}


def test_links_out_of_a_strangers_directory(directory, tmp_path):
    """Their targets are not copied, since the copy may be published; links within the directory count as files."""
    (tmp_path / "home" / ".ssh").mkdir(parents=True)
    (tmp_path / "home" / ".ssh" / "config.json").write_text("secret")
    (directory / "terms").write_text("Apache")
    (directory / "NOTICE").symlink_to("terms")
    wm.convert(directory, f"{tmp_path}/out/", format="safetensors")
    assert (tmp_path / "out" / "NOTICE").read_text() == "Apache"
    for name, target in (("LICENSE.md", "../home/.ssh/config.json"), ("3_Normalize", "../home/.ssh")):
        (directory / name).symlink_to(target)
        with pytest.raises(wm.FormatError, match=rf"source/{name}.*: where the link leads, expected a file below"):
            wm.convert(directory, tmp_path / "refused", format="safetensors")
        assert not (tmp_path / "refused").exists()
        (directory / name).unlink()


def test_hidden_companions(directory, tmp_path):
    """Programs trust folders such as .git: they are refused as modules, and hidden files are not copied."""
    for name in (".own.py", "1_Pooling/.DS_Store", "additional_chat_templates/.x.jinja", "2_Routes/.git/config"):
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text("x")
    modules = '[{"path": "1_Pooling"}, {"path": "./1_Pooling/"}, {"path": "2_Routes"}, {"path": "2_Routes/one"}]'
    (directory / "modules.json").write_text(modules)
    assert sorted(wm.convert(directory, f"{tmp_path}/out/", format="safetensors").copied) == sorted(ALONG)
    for path in (".git", "1_Pooling/.git", "./.ssh", ".."):
        (directory / "modules.json").write_text(json.dumps([{"path": path}]))
        with pytest.raises(wm.FormatError, match="expected a folder in this directory that is not hidden"):
            wm.convert(directory, tmp_path / "refused", format="safetensors")
    for text, at in (("[" * 200 + "]" * 200, 0), ('[{"path": "a", "path": "b"}]', 0), ('[{"path": }]', 10)):
        (directory / "modules.json").write_text(text)
        with pytest.raises(wm.FormatError, match=r"modules\.json: .*(deep|twice|valid JSON)") as caught:
            wm.convert(directory, tmp_path / "refused", format="safetensors")
        assert caught.value.offset == at
    assert not (tmp_path / "refused").exists()


@pytest.mark.parametrize("there", [False, True])
def test_a_conversion_that_fails_leaves_no_companions(directory, tmp_path, monkeypatch, there):
    """The disk is full as each file gets its name: new files and folders are removed."""
    out, real = tmp_path / "out", atomic.Folder.replace
    before = {"notes.txt": "mine", "config.json": ALONG["config.json"]} if there else {}
    for name, text in before.items():
        (out / "1_Pooling").mkdir(parents=True, exist_ok=True)  # empty, and to be written to
        (out / name).write_text(text)
    number, failed = 0, True
    while failed:
        number, failed, calls = number + 1, False, 0

        def replace(*paths, at=number, **options):
            nonlocal calls
            calls += 1
            if calls == at:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            real(*paths, **options)

        monkeypatch.setattr(atomic.Folder, "replace", replace)
        try:
            wm.convert(directory, f"{out}/", format="safetensors")
        except OSError:
            failed = True
            assert out.exists() == there
            files = [path for path in (out.rglob("*") if there else ()) if path.name != "1_Pooling"]
            assert {path.name: path.read_text() for path in files} == before
            assert (out / "1_Pooling").exists() == there
    assert number > len(ALONG)


def test_a_file_that_cannot_be_looked_at_is_not_removed(directory, tmp_path, monkeypatch):
    """It may be somebody's: an error removes only files that were missing before."""
    there, real = tmp_path / "out" / "config.json", os.lstat
    there.parent.mkdir()
    there.write_text("mine")

    def lstat(path, **options):
        if os.fspath(path) == str(there):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "lstat", lstat)
        with pytest.raises(OSError):  # noqa: PT011 - of the target, or of the disk
            wm.convert(directory, f"{tmp_path}/out/", format="safetensors")
    assert listing(there.parent) == ["config.json"]
    assert there.read_text() == "mine"


def test_shards_do_not_write_through_links(directory, tmp_path):
    """`convert` makes up their names: a link of such a name would lead to a file that nobody named."""
    out, precious = tmp_path / "out", tmp_path / "precious"
    out.mkdir()
    for name, there in (("model-00002-of-00002.safetensors", True), ("model-00001-of-00002.safetensors", False)):
        if there:
            precious.write_text("mine")
        (out / name).symlink_to(precious)
        for write in (
            lambda: wm.convert(directory, out, format="safetensors"),
            lambda: wm.save(out / "model.safetensors", TENSORS, max_shard_size=1 << 11),
        ):
            with pytest.raises(wm.TargetError, match=rf"out/{name}: this is a link"):
                write()
        assert listing(out) == [name]
        assert [path.read_text() for path in [precious] if path.exists()] == ["mine"] * there
        (out / name).unlink()
        precious.unlink(missing_ok=True)
    (out / "SHA256SUMS").symlink_to(precious)
    with pytest.raises(wm.TrustError, match="SHA256SUMS: this is a link"):
        wm.save(out / "a.safetensors", TENSORS, output=wm.Output(sha256sums=True))
    assert not precious.exists()
    assert listing(out) == ["SHA256SUMS"]


def test_a_list_of_digests_that_cannot_be_kept_fails_before_anything_is_written(tmp_path):
    """And if only the list cannot be written, a note names the files in place."""
    path, output = tmp_path / "a.safetensors", wm.Output(sha256sums=True)
    wm.save(path, TENSORS, output=output)
    before, name = path.read_bytes(), next(iter(TENSORS))
    with (tmp_path / "SHA256SUMS").open("a") as file:
        file.write("not a line\n")
    for write in (
        lambda: wm.save(path, {name: TENSORS[name]}, output=output),
        lambda: wm.convert(path, tmp_path / "b.safetensors", output=output),
    ):
        with pytest.raises(wm.TrustError, match="line 2 is not a line of sha256sum"):
            write()
    assert path.read_bytes() == before
    assert listing(tmp_path) == ["SHA256SUMS", "a.safetensors"]
    (tmp_path / "SHA256SUMS").unlink()
    (tmp_path / "SHA256SUMS").mkdir()
    with pytest.raises(OSError, match="SHA256SUMS") as caught:
        lists.write_sums(str(path))
    assert caught.value.__notes__ == [f"{path} is in place, but SHA256SUMS does not describe it"]


@pytest.mark.parametrize("overwrite", [True, False])
def test_what_lies_there_already(directory, tmp_path, *, overwrite):
    """A file with other content is refused before a shard is written; the same content stays, or a link to it."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "generation_config.json").write_text(ALONG["generation_config.json"])
    (out / "LICENSE").symlink_to(directory / "LICENSE")
    for name, mine in (("config.json", "mine"), ("modeling_own.py", "class Model:    ")):
        (out / name).write_text(mine)
        with pytest.raises(wm.TargetError, match=r"this file exists, with other content"):
            wm.convert(directory, out, format="amb", output=wm.Output(overwrite=overwrite))
        assert listing(out) == sorted(["LICENSE", "generation_config.json", name])
        assert (out / name).read_text() == mine
        (out / name).unlink()
    inode = (out / "generation_config.json").stat().st_ino
    assert set(
        wm.convert(directory, out, format="amb", output=wm.Output(overwrite=overwrite)).copied
    ) == ALONG.keys() - {"LICENSE"}
    assert (out / "generation_config.json").stat().st_ino == inode
    assert (out / "LICENSE").is_symlink()
    with pytest.raises(wm.TargetError, match=r"this belongs to the source, and would be replaced"):
        wm.convert(directory, directory, format="gguf")


@pytest.mark.parametrize("target", ["out.safetensors", "out.safetensors.index.json"])
def test_nothing_is_copied_beside_a_file(directory, tmp_path, capsys, target):
    project = tmp_path / "project"
    project.mkdir()
    mine = {"config.json": "mine", "modeling_own.py": "mine too"}
    for name, text in mine.items():
        (project / name).write_text(text)
    assert main(["convert", str(directory), str(project / target), "--max-shard-size", "2KiB"]) == 0
    assert "\ncopied" not in "\n" + capsys.readouterr().out
    assert {name: (project / name).read_text() for name in mine} == mine
    shards = [f"out-0000{i}-of-00002.safetensors" for i in (1, 2)]
    assert listing(project) == sorted([*mine, *shards, "out.safetensors.index.json"])


@pytest.mark.parametrize("name", ["model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"])
@pytest.mark.parametrize("format_", ["safetensors", "gguf"])
def test_a_directory_with_another_model_is_no_target(directory, tmp_path, name, format_):
    """transformers would open the other model; nothing is written beside it."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_bytes(b"mine")
    with pytest.raises(wm.TargetError, match=rf"out/{name}: .*remove it, or choose another target"):
        wm.convert(directory, tmp_path / "out", format=format_)
    assert listing(tmp_path / "out") == [name]


def dtypes(folder):
    config = json.loads((folder / "config.json").read_text())
    return {key: value for key, value in config.items() if "dtype" in key}


@pytest.mark.parametrize(
    ("config", "options", "expected"),
    [
        ({"dtype": "bfloat16"}, {"dtype": "fp32"}, {"dtype": "float32"}),
        ({"torch_dtype": "float32"}, {"dtype": "bf16"}, {"torch_dtype": "bfloat16"}),
        ({"dtype": "float32", "torch_dtype": 1}, {"dtype": "fp16"}, {"dtype": "float16", "torch_dtype": 1}),
        ({}, {"dtype": "fp16"}, {}),
        ({"dtype": None}, {"dtype": "fp16"}, {"dtype": None}),
        ({"dtype": "bfloat16"}, {}, {"dtype": "bfloat16"}),
        ({"dtype": "bfloat16"}, {"dtype": "float8_e5m2"}, {"dtype": "bfloat16"}),
        ({"dtype": "bfloat16"}, {"dtype": "fp16", "quantize": "q8_0", "format": "gguf"}, {"dtype": "bfloat16"}),
    ],
)
def test_the_type_that_a_configuration_says(directory, tmp_path, config, options, expected):
    """It becomes the tensors' type if all got the same, and the rest of the configuration stays."""
    before = {"rms_norm_eps": 1e-06, "hidden_size": 4, "name": "h\u00e9"} | config
    (directory / "config.json").write_text(json.dumps(before))
    wm.convert(directory, f"{tmp_path}/out/", **({"format": "safetensors"} | options))
    assert dtypes(tmp_path / "out") == expected
    after = json.loads((tmp_path / "out" / "config.json").read_text())
    assert after | config == before
    assert dtypes(directory) == config


def test_shards_say_what_hugging_face_expects(directory, tmp_path):
    """Every file has "format": "pt"; older metadata stays, and a model without a configuration gets nothing."""
    wm.convert(directory, f"{tmp_path}/out/", format="safetensors")
    (tmp_path / "flax").mkdir()
    wm.save(tmp_path / "flax" / "model.safetensors", TENSORS, metadata={"format": "flax"}, max_shard_size=1 << 11)
    (tmp_path / "flax" / "config.json").write_text("{}")
    wm.convert(tmp_path / "flax", f"{tmp_path}/again/", format="safetensors")
    for folder, expected in (("out", "pt"), ("again", "flax")):
        for path in (tmp_path / folder).glob("*.safetensors"):
            with wm.open(path) as file:
                assert file.metadata["format"] == expected
    wm.save(tmp_path / "alone.amb", TENSORS)
    wm.convert(tmp_path / "alone.amb", tmp_path / "alone.safetensors")
    with wm.open(tmp_path / "alone.safetensors") as file:
        assert not file.metadata
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(array.nbytes for array in TENSORS.values())
    assert set(index["weight_map"].values()) == {f"model-0000{i}-of-00002.safetensors" for i in (1, 2)}


@pytest.mark.parametrize(("target", "options"), [("f16", {}), ("f16/", {}), ("f16", {"format": "safetensors"})])
def test_a_name_without_a_suffix_is_a_directory(directory, tmp_path, monkeypatch, target, options):
    monkeypatch.chdir(tmp_path)
    report = wm.convert(directory, target, dtype="float16", **options)
    assert (report.format, report.shards) == ("safetensors", 2)
    assert set(report.copied) == set(ALONG)
    argv = [f"--{name}={value}" for name, value in options.items()]
    assert main(["convert", str(directory), target.replace("f16", "again"), "--dtype=float16", *argv]) == 0
    assert [path.read_bytes() for path in sorted(tmp_path.glob("again/*.safetensors"))] == [
        path.read_bytes() for path in sorted(tmp_path.glob("f16/*.safetensors"))
    ]
    assert len(listing(tmp_path / "again")) == len(listing(tmp_path / "f16"))


@pytest.mark.parametrize("name", ["model.safetensors.index.json", "one.safetensors"])
def test_a_file_beside_a_configuration_takes_it_along(directory, tmp_path, monkeypatch, name):
    """To a directory, an index or file of a Hugging Face directory counts as it; not without a configuration."""
    wm.save(directory / "one.safetensors", TENSORS)
    wm.convert(directory, f"{tmp_path}/whole/")
    monkeypatch.chdir(directory)
    assert set(wm.convert(name, f"{tmp_path}/out/").copied) == set(ALONG)
    if name.endswith("json"):
        for path in (tmp_path / "whole").glob("*.*"):
            assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()
    (directory / "config.json").unlink()
    assert wm.convert(name, f"{tmp_path}/bare/").copied == ()


def test_a_source_is_opened_once(tmp_path, monkeypatch):
    """A directory gives its copy's format with the same opening; a shard's task opens its file by itself."""
    opened = []
    ours = converting.open_or_import
    monkeypatch.setattr(converting, "open_or_import", lambda *args, **more: opened.append(1) or ours(*args, **more))
    (tmp_path / "model").mkdir()
    wm.save(tmp_path / "model" / "model.safetensors", {"w": np.ones((2, 3), np.float32)})
    for target in ("copy/", "one.safetensors", "new"):
        opened.clear()
        wm.convert(tmp_path / "model", f"{tmp_path}/{target}")
        assert len(opened) == 1, target
